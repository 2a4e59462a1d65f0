# SPDX-License-Identifier: Apache-2.0
"""The worker's door: a model whose parameters are kept, and stepped, by parameter servers."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist

from weir.host_agent.collectives.packing import LANE_ERROR, LaneBits
from weir.host_agent.parameter_server.shards import ParameterInfo
from weir.host_agent.parameter_server.terms import (
    BUCKET_BYTES,
    SILENCE_S,
    SPARSE_BUCKET_BYTES,
    Method,
    Terms,
)
from weir.host_agent.parameter_server.value_filter import parse_filter
from weir.host_agent.torch.advice import warn_of_filter
from weir.host_agent.torch.connection import Connection
from weir.host_agent.torch.parameter_server.asynchronous_worker import AsynchronousSession
from weir.host_agent.torch.parameter_server.meeting import Meeting
from weir.host_agent.torch.parameter_server.overlap import Overlap
from weir.host_agent.torch.parameter_server.shard_optimizer import spec_of
from weir.host_agent.torch.parameter_server.synchronous_worker import SynchronousSession, all_finite
from weir.host_agent.torch.parameter_server.team import TIMEOUT, open_store, publish
from weir.host_agent.torch.step_stats import StepStats
from weir.host_agent.torch.store_holder import ends_with
from weir.host_agent.torch.unwrapping import unwrapped


class ParameterServer:
    """Parameter servers that keep a model: ``step`` pushes gradients and takes the parameters that come of
    them.

    The servers are processes of their own (``weir server``). They sum what the workers push, in fact the
    switches on the way do, divide it by the number of workers, and make the step of the optimizer that is
    given here, each for its shard of the model. Worker 0's parameters are those that everybody begins with.

    Args:
        model: the same on every worker. Of a DistributedDataParallel, the module inside is trained, and its
            own summing of gradients ends (as under ``no_sync``).
        optimizer: torch's SGD, Adam or AdamW over parameters of the model. It describes what the servers do
            and never steps itself. Its hyper-parameters may change at any time, by a schedule for example;
            worker 0's travel with the next step.
        servers: how many there are.
        sparsifier, density, threshold, block, encoding, warmup_steps, exclude, lane_bits, lane_error, seed:
            what is pushed of each gradient and how it is written down, see HookState. What is not pushed
            waits for the next step.
        max_norm: clip the averaged gradient of the whole model to this norm, as ``clip_grad_norm_`` does;
            with Parameter Flow each worker's own.
        bucket_bytes: of gradients that are pushed together; None: as suits the sparsifier.
        consistency: "sync"; "ssp:S": a worker may be S steps ahead of the slowest; "async": no worker waits
            for another. The last two are Parameter Flow (docs/parameter-server.md); the options from
            ``sparsifier`` to ``seed``, and ``overlap``, are of "sync".
        push_filter, pull_filter: what waits of what workers and servers send, such as "1e-3:sqrt"; the first
            together with the sparsifier "dense".
        overlap: push gradients while backward makes others. They must not be changed before ``step``, and
            hyper-parameters are taken when the first of a step is there.
        silence_s: of Parameter Flow: seconds after which a silent worker is taken out.
        loss_budget: of Parameter Flow: the share of a push's values that may be lost on their way, the
            smallest first; they are held again, and pushed later.
        rendezvous: where workers and servers meet: ``tcp://host:port`` or ``file:///path``. None:
            WEIR_RENDEZVOUS, else MASTER_ADDR and MASTER_PORT, which torchrun sets.
        rank, workers: this worker's place, and how many there are. None: as torch.distributed has it, else
            RANK and WORLD_SIZE.
        timeout: how long to wait for the others, and each exchange for progress.

    Raises:
        TypeError: an optimizer that servers do not have.
        ValueError: a parameter of the optimizer that is none of the model's, and options that do not fit.
        RendezvousError, AgentError: the job cannot be formed; the message says why.

    Example::

        server = weir.torch.ParameterServer(model, optimizer, servers=2)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            server.step()                      # instead of optimizer.step()
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        servers: int = 1,
        sparsifier: str = "dense",
        density: float = 0.05,
        threshold: float = 1e-3,
        block: int = 256,
        encoding: str | None = None,
        warmup_steps: int = 0,
        exclude: Sequence[str] = (),
        lane_bits: LaneBits | None = None,
        lane_error: float = LANE_ERROR,
        seed: int = 0,
        max_norm: float | None = None,
        bucket_bytes: int | None = None,
        consistency: str = "sync",
        push_filter: str = "0",
        pull_filter: str = "0",
        overlap: bool = False,
        silence_s: float = SILENCE_S,
        loss_budget: float = 0.0,
        rendezvous: str | None = None,
        rank: int | None = None,
        workers: int | None = None,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        model = unwrapped(model)
        self.optimizer = optimizer
        self.rank, self.workers = place_of(rank, workers)
        self._parameters = trained(model, optimizer)
        sends_all = sparsifier == "dense" and not parse_filter(push_filter).threshold
        if not sends_all and self.rank == 0:
            held_by = "push_filter" if sparsifier == "dense" else f"sparsifier {sparsifier!r}"
            warn_of_filter(optimizer, held_by)
        self.terms = Terms(
            self.workers,
            servers,
            tuple(
                ParameterInfo(name, tuple(parameter.shape), group)
                for name, (parameter, group) in self._parameters.items()
            ),
            spec_of(optimizer),
            Method(
                sparsifier,
                density,
                threshold,
                block,
                encoding,
                warmup_steps,
                tuple(exclude),
                lane_bits,
                lane_error,
                seed,
            ),
            max_norm,
            bucket_bytes or (BUCKET_BYTES if sends_all else SPARSE_BUCKET_BYTES),
            consistency,
            push_filter,
            pull_filter,
            silence_s,
            loss_budget,
        )
        self._shards = self.terms.shards()
        store = open_store(rendezvous, leads=self.rank == 0, timeout=timeout)
        if self.rank == 0:
            if consistency != "sync":
                Meeting(store).begin(servers)
            publish(store, self.terms)
        self.master = self._copied()
        """The model as the servers have sent it, flat and in float32: what the parameters are copies of."""
        self._closed = False
        self._overlap: Overlap | None = None
        self._session: SynchronousSession | AsynchronousSession
        if consistency != "sync":
            self._session = AsynchronousSession(
                store,
                self.terms,
                self.rank,
                self.master,
                timeout,
                holds_store=ends_with(store, leads=self.rank == 0),
            )
        else:
            self._session = SynchronousSession(store, self.terms, self.rank, self.master, timeout)
            if overlap:
                named = {name: parameter for name, (parameter, _) in self._parameters.items()}
                self._overlap = Overlap(self._session, named, lambda: spec_of(self.optimizer), _gradient)
        self._write()

    def step(self) -> None:
        """Push the gradients, and take the parameters that come of them. All workers call it.

        A parameter without a gradient counts as one of zeros. With Parameter Flow each worker calls it when
        it likes, takes what has come, and waits no longer than its consistency asks for.

        Raises:
            NonFiniteError: some worker's gradient has NaN or infinity; on every worker. Nothing was changed;
                with ``overlap`` layers behind that one may have been.
            GroupBrokenError: a worker or a server was lost; says which.
            RuntimeError: with ``overlap``, a gradient was changed after it had been pushed.
        """
        if isinstance(self._session, AsynchronousSession):
            self._step_alone(self._session)
        else:
            self._step_together(self._session)
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # or torch's schedules complain

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients of backward passes within accumulate; with ``overlap`` all but a step's last."""
        if self._overlap is None:
            yield
            return
        self._overlap.paused = True
        try:
            yield
        finally:
            self._overlap.paused = False

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on bit for bit: all workers call it and save what they get.

        "model": the servers', flat. "optimizer": the servers' state by name of parameter, in its shape, as
        torch's own optimizer has it. "exchange": what this worker's gradients still owe, and what all share.
        What a ``pull_filter`` holds back is sent first. Of synchronous servers alone.
        """
        found = self._together().state_dict()
        self._write()
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` gave on this worker; all workers call it.

        Worker 0's model and optimizer go to the servers, of which there may be others than then, unless a
        sparsifier holds gradients back. Hyper-parameters are those of the optimizer that was given here.

        Raises:
            ValueError: it is of another model or of another cut of it.
        """
        self._together().load_state_dict(state)
        self._write()

    def _together(self) -> SynchronousSession:
        if isinstance(self._session, AsynchronousSession):
            raise RuntimeError(
                "servers that do not wait for workers keep their state themselves: weir server --state DIR"
            )
        return self._session

    @property
    def last_step(self) -> StepStats | None:
        """Return the counts of the last step, what came of it included; synchronous ones alone."""
        session = self._session
        return session.last_step if isinstance(session, SynchronousSession) else None

    @property
    def early(self) -> int:
        """Return how many buckets of the last step were on their way when ``step`` was called."""
        return self._together().early

    @property
    def fills_union(self) -> bool:
        """Return whether a worker pushes what any worker has chosen."""
        return self._together().fills_union

    @property
    def session(self) -> AsynchronousSession:
        """Return the flows of Parameter Flow; a synchronous worker has none."""
        assert isinstance(self._session, AsynchronousSession), "of consistency ssp:S and async"
        return self._session

    @property
    def connection(self) -> Connection:
        """Return the communicator of all workers and servers, who have one when they are synchronous."""
        return self._together().connection

    def close(self) -> None:
        """End the job: the servers end, too. To be called by all workers; can be called twice."""
        self._close(farewell=True)

    def _close(self, *, farewell: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if self._overlap is not None:
            self._overlap.close()
        self._session.close(farewell=farewell)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_exception: object) -> None:
        self._close(farewell=kind is None)

    def finish(self) -> None:
        """Bring the model to the servers', after the last push of every worker. All workers call it.

        After a synchronous step it is there already, but for what a ``pull_filter`` holds back.
        """
        if isinstance(self._session, AsynchronousSession):
            self._session.finish()
        else:
            self._session.flush()
        self._write()

    def _step_together(self, session: SynchronousSession) -> None:
        gradients = {name: _gradient(parameter) for name, (parameter, _) in self._parameters.items()}
        if self._overlap is None or not self._overlap.end():
            session.begin_step(spec_of(self.optimizer), careful=not all_finite(gradients))
        try:
            session.end_step(gradients)
        finally:
            self._write()

    def _step_alone(self, session: AsynchronousSession) -> None:
        parameters = [parameter for parameter, _ in self._parameters.values()]
        if (limit := self.terms.max_norm) is not None:
            torch.nn.utils.clip_grad_norm_(parameters, limit)
        gradient = torch.cat([_gradient(parameter).reshape(-1).float() for parameter in parameters])
        now = spec_of(self.optimizer)
        session.step(gradient, now.rate, json.dumps(now.groups))
        self._write()

    @torch.no_grad()
    def _copied(self) -> torch.Tensor:
        """Return the parameters, flat."""
        flat = [parameter.reshape(-1).float().cpu() for parameter, _ in self._parameters.values()]
        return torch.cat(flat)

    @torch.no_grad()
    def _write(self) -> None:
        """Overwrite the parameters by the model that the servers have."""
        start = 0
        for parameter, _ in self._parameters.values():
            values = self.master[start : start + parameter.numel()]
            parameter.copy_(values.view(parameter.shape))
            start += parameter.numel()


def place_of(rank: int | None, workers: int | None) -> tuple[int, int]:
    """Return this worker's rank and how many workers there are."""
    if rank is not None and workers is not None:
        return rank, workers
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    raise ValueError("which worker is this? Give rank and workers, or start it with torchrun")


def trained(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, tuple[torch.nn.Parameter, int]]:
    """Return the parameters that the optimizer is of, in the model's order, with their groups, by name.

    Raises:
        TypeError: a parameter of complex numbers.
        ValueError: a parameter that is none of the model's.
    """
    groups = {
        parameter: index
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if parameter.requires_grad
    }
    found = {
        name: (parameter, groups[parameter])
        for name, parameter in model.named_parameters()
        if parameter in groups
    }
    for name, (parameter, _) in found.items():
        if parameter.is_complex():
            raise TypeError(
                f"servers have real numbers, {name} is {parameter.dtype}: train view_as_real of it"
            )
    if len(found) != len(groups):
        raise ValueError(
            f"the optimizer has {len(groups) - len(found)} parameters that are none of the model's"
        )
    return found


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return a parameter's gradient in host memory, zeros where it has none."""
    return torch.zeros(parameter.shape) if parameter.grad is None else parameter.grad.detach().cpu()
