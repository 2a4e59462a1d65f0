# SPDX-License-Identifier: Apache-2.0
"""A worker's side of servers for whom switches sum: gradients go up by slots, bucket by bucket, and what
servers have changed comes down.

Buckets are queued as soon as their gradients are there, on the thread of the group's operations, and the
gradients of a step may be given while backward still makes others.
"""

import math
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Store

from weir.host_agent.collectives.data_movement import broadcast
from weir.host_agent.compression.exchange import ExchangeResult
from weir.host_agent.parameter_server.commands import Command, Kind
from weir.host_agent.parameter_server.terms import OptimizerSpec, Terms
from weir.host_agent.parameter_server.value_filter import parse_filter
from weir.host_agent.torch.connection import Connection
from weir.host_agent.torch.parameter_server.job_group import Announcement, JobGroup
from weir.host_agent.torch.parameter_server.pull import Pull
from weir.host_agent.torch.parameter_server.push import Push
from weir.host_agent.torch.parameter_server.rounds import PiggybackSteps
from weir.host_agent.torch.parameter_server.states import by_parameter, spread
from weir.host_agent.torch.parameter_server.value_sparsifier import ValueSparsifier
from weir.host_agent.torch.step_stats import StepStats
from weir.host_agent.torch.work import QueuedWork
from weir.host_agent.transport.reducer import ReducerStats


class SlotSession:
    """One worker's place among workers and servers that make all steps together.

    Args:
        store: of ``open_store``.
        terms: of the job.
        rank: of this worker.
        model: flat float32 on the CPU, in the order of the parameters: worker 0's is what everybody begins
            with, and from then on it is what the servers have sent.
        timeout: how long to wait for the others, and each exchange for progress.

    Attributes:
        last_step: counts of the last step, what came of it included.
        early: buckets of the last step that were queued before all of its gradients were there.
    """

    def __init__(
        self, store: Store, terms: Terms, rank: int, model: torch.Tensor, timeout: timedelta
    ) -> None:
        self._terms, self._rank, self._model = terms, rank, model
        self._job_group = JobGroup(store, rank, terms, timeout)
        self._push = Push(self._job_group)
        self._pulls = [Pull(terms, *of) for of in zip(self._push.buckets, self._push.layouts, strict=True)]
        self._names = [{piece.name for piece in bucket} for bucket in self._push.buckets]
        self._said = terms.optimizer
        self._gradients: dict[str, torch.Tensor] = {}
        self._announced: QueuedWork | None = None
        self._news = Announcement(Command(Kind.STEP))
        self._next = self.early = 0
        self.last_step: StepStats | None = None
        broadcast_model(self._job_group, model)

    @property
    def connection(self) -> Connection:
        """Communicator of all workers and servers."""
        return self._job_group.connection

    @property
    def fills_union(self) -> bool:
        """Return whether a worker pushes what any worker has chosen."""
        return self._push.exchange.gradients.sparsifier.fills_union

    # ------------------------------------------------------------------------------------------- steps

    def begin_step(self, now: OptimizerSpec, *, careful: bool = False) -> None:
        """Begin a step, whose gradients are then given by ``put``; returns at once.

        now: the optimizer as it is. careful: some gradient is not finite.
        """
        self._began, self._before = time.perf_counter(), self.connection.stats
        sparsifier = self._push.exchange.gradients.sparsifier
        if isinstance(sparsifier, ValueSparsifier):
            sparsifier.lr = now.rate
        command = self._command(now) if self._rank == 0 else None
        self._announced = self._job_group.submit(lambda: self._hear(command, careful))
        self._gradients.clear()
        self._next = 0
        self._push.begin_step(self, lambda: self._news.careful or self._terms.max_norm is not None)

    def put(self, name: str, gradient: torch.Tensor) -> None:
        """Give a parameter's gradient, in host memory, and queue the buckets that are whole."""
        self._gradients[name] = gradient
        while self._next < len(self._names) and self._names[self._next] <= self._gradients.keys():
            self._push.queue(self._next)
            self._next += 1

    def end_step(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Give the gradients that were not given yet, and wait until the model is up to date.

        Raises:
            NonFiniteError: some worker's gradient has NaN or infinity; on every worker.
            GroupBrokenError: a worker or a server was lost; says which.
        """
        assert self._announced is not None, "begun"
        self.early = self._next
        for name, gradient in gradients.items():
            if name not in self._gradients:
                self.put(name, gradient)
        try:
            self._job_group.wait(self._announced)
            parts = self._push.end()
        finally:
            self._announced = None
            self._gradients.clear()
        self.last_step = self._counted(parts)

    def _hear(self, command: Command | None, careful: bool) -> None:
        self._news = self._job_group.announced(command, careful)

    def _command(self, now: OptimizerSpec) -> Command:
        if now == self._said:
            return Command(Kind.STEP)
        self._said = now
        return Command(Kind.STEP, {"groups": list(now.groups)})

    def gradient(self, index: int) -> torch.Tensor:
        """Return a bucket's gradients, for the step, which does not change them."""
        found = [
            self._gradients[piece.name].reshape(-1)[piece.in_parameter] for piece in self._push.buckets[index]
        ]
        return found[0].contiguous() if len(found) == 1 else torch.cat(found)

    def settle(self, buckets: Mapping[int, torch.Tensor]) -> None:
        """Help the servers to find the norm of what was pushed, where they are to."""
        if self._terms.max_norm is not None and buckets:
            self._push.norm({})

    def pull(self, index: int) -> PiggybackSteps:
        """Take what was changed of a bucket."""
        return self._pulls[index].take(self._model, self._news.mask_block)

    def _counted(self, parts: Sequence[ExchangeResult]) -> StepStats:
        """Return the counts of a step from those of its buckets; the network's are of the whole step."""
        nothing = ReducerStats()
        total = StepStats()
        for number, (done, bucket) in enumerate(zip(parts, self._push.buckets, strict=True)):
            last = number == len(parts) - 1
            total = total.plus(
                StepStats.of(
                    done,
                    self._before if last else nothing,
                    self.connection.stats if last else nothing,
                    step=self._push.exchange.step,
                    elements=sum(piece.length for piece in bucket),
                    seconds=time.perf_counter() - self._began if last else 0.0,
                )
            )
        return total

    # ------------------------------------------------------------------------------------------- states

    def flush(self) -> None:
        """Bring the model to the servers', where their filter holds something back. All workers call it."""
        if parse_filter(self._terms.pull_filter).threshold:
            self._news = self._announce(Kind.FLUSH)
            self._push.flush(self)

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on bit for bit: all workers call it and save what they get."""
        self.flush()
        self._announce(Kind.STATE)
        states: dict[str, Any] = {}
        for server in range(self._terms.servers):
            states |= spread(self._job_group, self._terms.rank_of(server), None)
        return {
            "model": self._model.clone(),
            "optimizer": by_parameter(self._terms.table().pieces, states),
            "exchange": self._push.exchange.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` gave on this worker; ValueError when it is of another model."""
        if state["model"].numel() != self._model.numel():
            raise ValueError(
                f"the saved model has {state['model'].numel():,} elements, this one {self._model.numel():,}"
            )
        self._push.exchange.load_state_dict(state["exchange"])
        self._announce(Kind.LOAD)
        mine = None
        if self._rank == 0:
            shared = self._push.exchange.shared_state()
            mine = {"model": state["model"], "optimizer": state["optimizer"], "exchange": shared}
        self._model.copy_(spread(self._job_group, 0, mine)["model"])

    def _announce(self, kind: Kind) -> Announcement:
        """Say what comes next, where that is no step."""
        return self._job_group.announce(Command(kind) if self._rank == 0 else None)

    def close(self, *, farewell: bool = True) -> None:
        """Leave the job, and end it. farewell: all workers do so, between two steps."""
        if farewell and self._announced is None and self._job_group.connection.broken is None:
            self._announce(Kind.END)
        self._job_group.close()


def all_finite(gradients: Mapping[str, torch.Tensor]) -> bool:
    """Return whether no gradient has NaN or infinity, as their sums tell."""
    return all(math.isfinite(float(gradient.sum())) for gradient in gradients.values())


def broadcast_model(job_group: JobGroup, model: torch.Tensor) -> None:
    """Overwrite the flat model by worker 0's, on every member."""
    job_group.run(
        "weir.parameter_server.begin",
        (model.numel(),),
        lambda: broadcast(job_group.connection, model, root=0),
    )
