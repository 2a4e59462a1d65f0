# SPDX-License-Identifier: Apache-2.0
"""A connection of a rank that shares its host: they reduce in memory, and their leader sends for all."""

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

from torch._C._distributed_c10d import Store

from weir.agent_service.waiting import FIRST_S, next_line
from weir.host_agent.collectives.communicator import Audience
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.collectives.host_sum import Hosts, HostSum
from weir.host_agent.torch.connection import Connection, Facts, FreeSlots
from weir.host_agent.torch.host_channel import HostChannel
from weir.host_agent.torch.job_connection import JobConnection
from weir.host_agent.transport.links import Aborted, TransportTimeout
from weir.host_agent.transport.operations import OperationQueue
from weir.host_agent.transport.reducer import ReducerStats
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import ServiceClass
from weir.wire.definition import Op

log = logging.getLogger(__name__)


class HostConnection(Connection):
    """One rank of a group of which some share hosts.

    Args:
        hosts: of the group's ranks.
        rank: this one.
        job: the group's name.
        facts: of its job.
        channel: to the other ranks of this host; None: it is alone here.
        network: this host's membership in the job, on its leader; None: on others, and where there is but
            one host.
        timeout: how long a reduction may go without progress.
        store: torch's.
    """

    def __init__(
        self,
        hosts: Hosts,
        rank: int,
        job: str,
        facts: Facts,
        channel: HostChannel | None,
        network: JobConnection | None,
        timeout: timedelta,
        store: Store,
    ) -> None:
        operations = OperationQueue(f"weir-host-{rank}") if network is None else network.operations
        super().__init__(rank, hosts.of_rank.size, job, facts, operations, store)
        self._channel, self._network = channel, network
        self._timeout_s = timeout.total_seconds()
        self._reason: str | None = None
        self._left: dict[int, str] = {}
        self._due = FIRST_S
        self._stats = ReducerStats()
        self._sum = HostSum(
            hosts,
            rank,
            channel.memory if channel is not None else None,
            network.reduce_operation if network is not None else None,
            self._wait,
        )
        if network is not None:
            network.on_break, network.on_departure = self._job_broke, self._hosts_left
            if network.broken is not None:
                self._job_broke(network.broken)
        if channel is not None:
            channel.listen(self)
        self._opened()

    # ---- what it is on

    @property
    def departed(self) -> dict[int, str]:
        """Ranks that left cleanly, with a sentence that says so."""
        return dict(self._left)

    def free_slots(self) -> list[FreeSlots]:
        """Return the slots that no job holds now; none where this rank knows no controller."""
        return self._network.free_slots() if self._network is not None else []

    @property
    def stats(self) -> ReducerStats:
        """Sums of all reductions; packets are counted on the rank that sends them."""
        return self._stats

    @property
    def limit_s(self) -> float:
        """Return how many seconds a reduction may go without progress."""
        return self._timeout_s

    @contextlib.contextmanager
    def deadline(self, timeout: timedelta) -> Iterator[None]:
        """Bound how long each reduction inside may go without progress."""
        before, self._timeout_s = self._timeout_s, timeout.total_seconds()
        with self._network.deadline(timeout) if self._network is not None else contextlib.nullcontext():
            try:
                yield
            finally:
                self._timeout_s = before

    # ---- reducing

    def reduce_operation(
        self,
        lanes: Lanes,
        op: Op,
        block: int,
        service: ServiceClass,
        audience: Audience | None,
        operation: int,
    ) -> ReduceReport:
        """See Connection.reduce_operation."""
        self._check()
        self._sum.check(lanes, op, block, service, audience)
        start = time.perf_counter()
        try:
            report = self._sum.reduce_host_lanes(
                lanes, op, block, service, audience, operation, self._timeout_s
            )
        except Aborted:
            self._check()
            raise
        except BaseException as error:
            self._reason = self._reason or f"an earlier reduction failed: {error!r}"
            raise
        report = replace(report, seconds=time.perf_counter() - start)
        self._stats = self._stats.plus(report, self._network.stats.rto if self._network is not None else 0.0)
        return report

    def _check(self) -> None:
        if self._reason is not None:
            raise Aborted(self._reason)

    def _wait(self, missing: Sequence[int], waited_s: float) -> None:
        """Look whether to wait any longer for ranks of this host, and say now and then for which."""
        self._check()
        if self.call is not None and self.call.failure and waited_s >= self._timeout_s:
            names = ", ".join(f"rank {rank}" for rank in missing)  # a leader may have more time for others
            raise TransportTimeout(f"nothing came of {names}, on this host, within {self._timeout_s:g} s.")
        if waited_s < self._due:
            self._due = FIRST_S if waited_s < FIRST_S else self._due
            return
        names = ", ".join(map(str, missing))
        log.warning(
            "%s: after %.0f s still waiting for rank%s %s, on this host",
            *(self._name(), self._due, "s" if len(missing) > 1 else "", names),
        )
        self._due = next_line(self._due)

    # ---- the end: news from this host, in the channel's thread, and of the job, in the client's

    def lost(self, reason: str) -> None:
        """Break the group, because another rank of this host was lost or gave up; on other hosts, too."""
        self._break(reason)
        if self._network is not None:
            self._network.abort(reason)

    def left(self, ranks: Sequence[int], reason: str) -> None:
        """Note that ranks left cleanly: what is under way may still complete, nothing else can."""
        self._left |= {rank: reason for rank in ranks if rank != self.rank}
        if self._network is not None:
            self._network.retire()
        self._interrupt_later(reason)

    def _job_broke(self, reason: str) -> None:
        if self.broken is None:
            self._break(reason)
            self._tell("lost", [self.rank], reason)

    def _hosts_left(self, ranks: Sequence[int], reason: str) -> None:
        self._left |= dict.fromkeys(ranks, reason)
        self._tell("left", ranks, reason)
        self._interrupt_later(reason)

    def _tell(self, what: str, ranks: Sequence[int], reason: str) -> None:
        if self._channel is not None:
            self._channel.tell(what, ranks, reason)

    def interrupt(self, reason: str) -> None:
        """See Connection.interrupt."""
        self._reason = self._reason or reason
        if self._network is not None:
            self._network.interrupt(reason)

    def _give_up(self, reason: str) -> None:
        self._break(reason)
        self._tell("lost", [self.rank], reason)
        if self._network is not None:
            self._network.abort(reason)

    def known(self) -> str:
        """Return what is known of a reduction that stands still; empty when nothing is."""
        return self._network.known() if self._network is not None else ""

    def _leave(self) -> None:
        self.interrupt(f"the group {self.job!r} is closed")
        if self._channel is not None:
            self._channel.close()
        if self._network is not None:
            self._network.close()
        else:
            self.operations.close()
