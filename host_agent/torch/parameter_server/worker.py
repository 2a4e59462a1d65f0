# SPDX-License-Identifier: Apache-2.0
"""The worker's door: a model whose parameters are kept, and stepped, by parameter servers."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from weir.host_agent.collectives.packing import LANE_ERROR, LaneBits
from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.parameter_server.routing import Integers, ParameterInfo, Table
from weir.host_agent.parameter_server.terms import (
    BUCKET_BYTES,
    SILENCE_S,
    SPARSE_BUCKET_BYTES,
    Method,
    Terms,
)
from weir.host_agent.parameter_server.value_filter import Floats, parse_filter
from weir.host_agent.parameter_server.worker_machine import EVERYTHING, NO_UNITS, UnitSet
from weir.host_agent.torch.advice import warn_of_filter
from weir.host_agent.torch.connection import Connection
from weir.host_agent.torch.parameter_server.flow_rendezvous import FlowRendezvous
from weir.host_agent.torch.parameter_server.flow_server import TABLE, table_in_text
from weir.host_agent.torch.parameter_server.flow_worker import FlowSession
from weir.host_agent.torch.parameter_server.job_group import TIMEOUT, open_store, publish
from weir.host_agent.torch.parameter_server.overlap import Overlap
from weir.host_agent.torch.parameter_server.shard_optimizer import spec_of, words_of_move
from weir.host_agent.torch.parameter_server.slot_worker import SlotSession, all_finite
from weir.host_agent.torch.step_stats import StepStats
from weir.host_agent.torch.store_holder import ends_with
from weir.host_agent.torch.unwrapping import unwrapped


class ParameterServer:
    """Parameter servers that keep a model: ``step`` pushes gradients and pulls the new parameters.

    The servers are processes of their own (``weir server``), each with a part of the model, of which it makes
    the steps of the optimizer that is given here. Worker 0's parameters are those that everybody begins with.

    Where workers make all steps together and each server has a contiguous share of the model, the switches
    sum the pushes on their way. Otherwise pushes travel to each server by flows: with another consistency,
    with a placement, where units move, and with embeddings whose gradients are sparse.

    Args:
        model: the same on every worker. Of a DistributedDataParallel, the module inside is trained, and its
            own summing of gradients ends (as under ``no_sync``).
        optimizer: torch's SGD, Adam, AdamW or Adagrad over parameters of the model (with sparse gradients SGD
            or Adagrad, plain). It describes what the servers do
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
            for another. The last two are Parameter Flow (docs/guides/parameter-server.md).
        push_filter, pull_filter: what waits of what workers and servers send, such as "1e-3:sqrt"; the first
            together with the sparsifier "dense".
        owner: the server of each unit of the model, in its order: of a row of an ``nn.Embedding`` or
            ``nn.EmbeddingBag`` with ``sparse=True``, of 256 elements of another parameter. None: equal
            contiguous shares.
        migrate_every: steps after which units may move, by what they have cost; 0: they stay.
        together: server m is on the machine of worker m; what they say to each other costs nothing then.
            None: so it is where there are as many servers as workers.
        overlap: where the switches sum, push gradients while backward makes others. They must not be changed
            before ``step``, and hyper-parameters are taken when the first of a step is there.
        silence_s: of flows: seconds after which a silent worker is taken out, and the others go on without
            it. None: 60; where workers make all steps together they wait for it, until ``timeout``.
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
        owner: Sequence[int] | npt.NDArray[Any] | None = None,
        migrate_every: int = 0,
        together: bool | None = None,
        overlap: bool = False,
        silence_s: float | None = None,
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
        rows = _sparse_rows(model)
        sends_all = sparsifier == "dense" and not parse_filter(push_filter).threshold
        if not sends_all and self.rank == 0:
            held_by = "push_filter" if sparsifier == "dense" else f"sparsifier {sparsifier!r}"
            warn_of_filter(optimizer, held_by)
        self.terms = Terms(
            self.workers,
            servers,
            tuple(
                ParameterInfo(name, tuple(parameter.shape), group, rows.get(name, 0))
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
            SILENCE_S if silence_s is None and consistency != "sync" else silence_s,
            loss_budget,
            owner is not None,
            migrate_every,
            self.workers == servers if together is None else together,
        )
        units = self.terms.units()
        placed = None if owner is None else Table.placed(units, servers, owner)
        if not self.terms.placed:
            self.terms.table()
        if overlap and not self.terms.in_switches:
            raise ValueError("overlap: of pushes that the switches sum")
        store = open_store(rendezvous, leads=self.rank == 0, timeout=timeout)
        if self.rank == 0:
            if not self.terms.in_switches:
                FlowRendezvous(store).forget_words(servers)
            if placed is not None:
                store.set(TABLE, table_in_text(placed))
            publish(store, self.terms)
        self.master = self._copied()
        """The model as the servers have sent it, flat and in float32: what the parameters are copies of, or
        where there are sparse gradients views of.
        """
        if self.terms.rows:
            self._make_views()
        self._sets: dict[int, UnitSet] = {}
        self._now: UnitSet | None = None
        self._due: tuple[UnitSet, Floats] = NO_UNITS, np.zeros(0, np.float32)
        self._closed = False
        self._overlap: Overlap | None = None
        self._session: SlotSession | FlowSession
        if not self.terms.in_switches:
            holds_store = ends_with(store, leads=self.rank == 0)
            self._session = FlowSession(
                store, self.terms, self.rank, self.master, timeout, holds_store=holds_store
            )
        else:
            self._session = SlotSession(store, self.terms, self.rank, self.master, timeout)
            if overlap:
                named = {name: parameter for name, (parameter, _) in self._parameters.items()}
                self._overlap = Overlap(self._session, named, lambda: spec_of(self.optimizer), _gradient)
        self._write()

    def step(self) -> None:
        """Push the gradients, and take the parameters that come of them. All workers call it.

        A parameter without a gradient counts as one of zeros. With Parameter Flow each worker calls it when
        it likes, takes what has come, and waits no longer than its consistency asks for. After a ``pull`` the
        gradients are pushed with the next one, or with ``finish``.

        Raises:
            NonFiniteError: some worker's gradient has NaN or infinity; on every worker. Nothing was changed;
                with ``overlap`` layers behind that one may have been.
            GroupBrokenError: a worker or a server was lost; says which.
            RuntimeError: with ``overlap``, a gradient was changed after it had been pushed.
        """
        if isinstance(self._session, FlowSession):
            self._step_by_flows(self._session)
        else:
            self._step_together(self._session)
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # or torch's schedules complain

    def pull(self, number: int, rows: Mapping[str, torch.Tensor | npt.NDArray[Any]]) -> None:
        """Push what ``step`` left, and take the values that a batch uses.

        Of models with sparse gradients, whose workers need not take all that others have changed.

        Args:
            number: of the batch, from 1: under that number the servers remember what it uses.
            rows: that it uses, of each sparse embedding, by the name of its parameter; needed when the number
                is new.

        Raises:
            RefusedError, GroupBrokenError: a server does not take part any more; says why.
        """
        session = self.session
        if number not in self._sets:
            units = self.terms.units()
            firsts = dict(zip(self._parameters, units.firsts.tolist(), strict=True))
            sparse = np.array([info.row > 0 for info in self.terms.parameters])
            chosen = [np.flatnonzero(~sparse[units.of_parameter])] + [
                firsts[name] + np.unique(array_of(torch.as_tensor(some, dtype=torch.int64).cpu()))
                for name, some in rows.items()
            ]
            self._sets[number] = UnitSet(EVERYTHING + number, np.sort(np.concatenate(chosen)))
        self._now = self._sets[number]
        self._push_due(session, self._now)

    def _push_due(self, session: FlowSession, wanted: UnitSet | None) -> None:
        """Push what ``step`` left, and take what is wanted."""
        (units, gradient), self._due = self._due, (NO_UNITS, np.zeros(0, np.float32))
        now = spec_of(self.optimizer)
        session.step(gradient, now.rate, json.dumps(now.groups), units, wanted)
        self._write()

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
        What a ``pull_filter`` holds back is sent first. Only of servers whose pushes the switches sum;
        others keep their state themselves (``weir server --state``).
        """
        found = self._together().state_dict()
        self._write()
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of this worker. All workers call it.

        Worker 0's model and optimizer go to the servers. Their number may have changed, unless a sparsifier
        holds gradients back. Hyper-parameters are those of the optimizer that was passed to this object.

        Args:
            state: of ``state_dict`` on this worker.

        Raises:
            ValueError: the state belongs to another model, or to another partition of it.
        """
        self._together().load_state_dict(state)
        self._write()

    def _together(self) -> SlotSession:
        if isinstance(self._session, FlowSession):
            raise RuntimeError(
                "with asynchronous consistency, servers keep their own state: weir server --state DIR"
            )
        return self._session

    @property
    def last_step(self) -> StepStats | None:
        """Counts of the last step, what came of it included; of sums in the switches alone."""
        session = self._session
        return session.last_step if isinstance(session, SlotSession) else None

    @property
    def early(self) -> int:
        """Return how many buckets of the last step were on their way when ``step`` was called."""
        return self._together().early

    @property
    def fills_union(self) -> bool:
        """Return whether a worker pushes what any worker has chosen."""
        return self._together().fills_union

    @property
    def session(self) -> FlowSession:
        """Flows to the servers. RuntimeError: the switches sum, so there are none."""
        if not isinstance(self._session, FlowSession):
            raise RuntimeError("pushes that the switches sum do not travel by flows")
        return self._session

    @property
    def moved(self) -> int:
        """Return how many units have moved from server to server."""
        return self.session.worker.moved

    @property
    def migrated_bytes(self) -> int:
        """Bytes that servers have handed to each other: values and state of units that moved."""
        words = words_of_move(self.terms.optimizer)
        return self.session.worker.moved_elements * words * self.master.element_size()

    @property
    def connection(self) -> Connection:
        """Communicator of all workers and servers, if they are synchronous."""
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
        if isinstance(self._session, FlowSession):
            if self._now is not None:
                self._push_due(self._session, None)
            self._session.finish()
        else:
            self._session.flush()
        self._write()

    def _step_together(self, session: SlotSession) -> None:
        gradients = {name: _gradient(parameter) for name, (parameter, _) in self._parameters.items()}
        if self._overlap is None or not self._overlap.end():
            session.begin_step(spec_of(self.optimizer), careful=not all_finite(gradients))
        try:
            session.end_step(gradients)
        finally:
            self._write()

    def _step_by_flows(self, session: FlowSession) -> None:
        parameters = [parameter for parameter, _ in self._parameters.values()]
        if (limit := self.terms.max_norm) is not None:
            torch.nn.utils.clip_grad_norm_(parameters, limit)
        if self._now is not None:
            gradient = self._gradient_of(self._now)
            if not np.isfinite(gradient).all():
                raise ValueError(f"worker {self.rank}: the gradient of this step has infinities or NaN")
            self._due = self._now, gradient
            return
        dense = [_gradient(parameter).reshape(-1).float() for parameter in parameters]
        now = spec_of(self.optimizer)
        session.step(torch.cat(dense), now.rate, json.dumps(now.groups))
        self._write()

    def _gradient_of(self, used: UnitSet) -> Floats:
        """Return the gradients of some units, one after another."""
        found, heads = [], self.terms.units().firsts.tolist()
        for info, first, (parameter, _) in zip(
            self.terms.parameters, heads, self._parameters.values(), strict=True
        ):
            if not info.row:
                found.append(array_of(_gradient(parameter).reshape(-1).float()))
                continue
            rows: Integers = used.units[(used.units >= first) & (used.units < first + info.shape[0])] - first
            values = np.zeros((rows.size, info.row), np.float32)
            if parameter.grad is not None:
                gradient = parameter.grad.coalesce()
                there = array_of(gradient.indices()[0])
                at = np.minimum(np.searchsorted(rows, there), max(rows.size - 1, 0))
                if there.size and not (rows.size and np.array_equal(rows[at], there)):
                    raise ValueError(f"{info.name}: the batch used rows that were not pulled")
                values[at] = array_of(gradient.values().float())
            found.append(values.reshape(-1))
        return np.concatenate(found)

    def _make_views(self) -> None:
        """Make the parameters views of the flat model, so that a step costs what it uses."""
        start = 0
        for name, (parameter, _) in self._parameters.items():
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise TypeError(
                    f"{name} is {parameter.dtype} on {parameter.device}: a model with sparse gradients is "
                    "float32 in host memory"
                )
            parameter.data = self.master[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()

    @torch.no_grad()
    def _copied(self) -> torch.Tensor:
        """Return the parameters, flat."""
        flat = [parameter.reshape(-1).float().cpu() for parameter, _ in self._parameters.values()]
        return torch.cat(flat)

    @torch.no_grad()
    def _write(self) -> None:
        """Overwrite the parameters by the model that the servers have, unless they are views of it."""
        if self.terms.rows:
            return
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
                f"servers keep real numbers, but {name} is {parameter.dtype}: train its view_as_real"
            )
    if len(found) != len(groups):
        raise ValueError(f"the optimizer has {len(groups) - len(found)} parameters that the model lacks")
    return found


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return a parameter's gradient in host memory, zeros where it has none."""
    if parameter.grad is None:
        return torch.zeros(parameter.shape)
    gradient = parameter.grad.detach().cpu()
    return gradient.to_dense() if gradient.is_sparse else gradient


def _sparse_rows(model: torch.nn.Module) -> dict[str, int]:
    """Return the widths of sparse embeddings by the names of their parameters."""
    return {
        f"{name}.weight" if name else "weight": module.embedding_dim
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse
    }
