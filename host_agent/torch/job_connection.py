# SPDX-License-Identifier: Apache-2.0
"""A connection on a job of the controller, whose packets are this process's own."""

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from torch._C._distributed_c10d import Store

from weir.agent_service import MOST_SLOTS
from weir.agent_service.client import AgentClient, AgentError, Membership
from weir.host_agent.collectives.communicator import Audience, audience_codes
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.collectives.parts import FEW_BLOCKS
from weir.host_agent.torch import rendezvous
from weir.host_agent.torch.cluster_watch import ClusterWatch
from weir.host_agent.torch.connection import Connection, Facts, FreeSlots
from weir.host_agent.torch.elastic_slots import JOIN_S, BorrowedLink, ElasticSlots, Extension
from weir.host_agent.torch.link_choice import bind_udp, choose_port, wanted_link
from weir.host_agent.torch.stall_watch import StallWatch
from weir.host_agent.transport.growth import BASE_SLOTS, rate_of
from weir.host_agent.transport.pieces import Pieces
from weir.host_agent.transport.ports import Port
from weir.host_agent.transport.reducer import Reducer, ReducerStats
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.host_agent.transport.slot_transport import Congestion, FloatScales, TransportConfig
from weir.wire.definition import Op

log = logging.getLogger(__name__)

LIKELY_SLOTS: Final = 64
"""The number of an elastic group's slots that costs are reckoned with; the same on all ranks."""

_POLL_S: Final = 0.05
_NEWS_S: Final = 1.0
_MOST_NAME: Final = 100  # characters of a group's name in an extension's


@dataclass(frozen=True)
class Participant:
    """A process's place in a job. It is one worker there; its group may know it as several ranks.

    rank, size: among the job's workers. ranks: of the group, by worker. host: its name in the topology.
    """

    rank: int
    size: int
    ranks: tuple[tuple[int, ...], ...]
    host: str

    @property
    def own(self) -> tuple[int, ...]:
        """Ranks that this worker is."""
        return self.ranks[self.rank]


class JobConnection(Connection):
    """A member of a job of the controller, with a port of its own.

    News of the job come to ``on_break`` and ``on_departure`` as well, if they are set.
    """

    def __init__(
        self,
        client: AgentClient,
        membership: Membership,
        participant: Participant,
        port: Port,
        met: rendezvous.Rendezvous,
        cluster: rendezvous.LocalCluster | None,
        timeout: timedelta,
        store: Store,
        *,
        elastic: bool = False,
    ) -> None:
        slots = LIKELY_SLOTS if elastic else membership.slot_count
        facts = Facts(slots, membership.max_lanes, membership.switch_name, met.controller)
        super().__init__(membership.rank, membership.size, membership.job, facts, port.operations, store)
        self.membership = membership
        self.on_break: Callable[[str], None] | None = None
        self.on_departure: Callable[[Sequence[int], str], None] | None = None
        self._client, self._participant, self._met, self._cluster = client, participant, met, cluster
        self._port = port
        self.wide = membership.wide
        self.in_pieces = not membership.fill and not membership.max_lanes
        self._paths = np.array(membership.paths, np.uint16)
        self._known_codes = functools.lru_cache(maxsize=64)(
            lambda audience: audience_codes(np.frombuffer(audience, np.int16), self._paths)
        )
        self._slots = ElasticSlots(
            self._name(),
            Reducer(
                port.link,
                transport_config(membership, keep=port.outlives_switch, congestion=port.congestion),
                timeout_s=timeout.total_seconds(),
            ),
            membership.slot_count if elastic else None,
            lambda: AgentClient(met.controller),
            self._extend,
            self._extension_lost,
        )
        if port.outlives_switch:
            port.operations.at_rest = self._slots.rest
        self._watch = ClusterWatch(Path(met.notice), cluster, self._cluster_died) if met.notice else None
        self._stalls = StallWatch(
            self._name(),
            lambda: self._slots.job_id,
            lambda: self._slots.waiting_since,
            self._status,
            participant.ranks,
            self._break,
        )
        client.on_stop(self._stopped)
        client.on_leave(self._member_left)
        self._opened()
        client.leaves_at_exit()

    @classmethod
    def join(
        cls,
        met: rendezvous.Rendezvous,
        participant: Participant,
        cluster: rendezvous.LocalCluster | None,
        store: Store,
        timeout: timedelta,
        slots: int = 0,
        *,
        elastic: bool = False,
    ) -> "JobConnection":
        """Join the job that a group's ranks agreed on; return when all its workers have.

        For the arguments see ``open_connection``.
        """
        wanted = wanted_link()
        with contextlib.ExitStack() as undo:
            udp = bind_udp(wanted)
            if udp is not None:
                undo.callback(udp.close)
            client = AgentClient(met.controller)
            undo.callback(client.close)
            membership = client.join(
                job=met.job,
                size=participant.size,
                rank=participant.rank,
                token=met.token,
                host=participant.host,
                udp_port=udp.port if udp is not None else 0,
                slots=BASE_SLOTS if elastic else slots,
                timeout_s=timeout.total_seconds(),
                ranks=participant.own,
            )
            try:
                port = choose_port(membership, wanted, udp)
            except Exception as error:
                client.give_up(str(error))  # the others learn why
                raise
            undo.callback(port.release)
            connection = cls(
                client, membership, participant, port, met, cluster, timeout, store, elastic=elastic
            )
            undo.pop_all()
            return connection

    @property
    def departed(self) -> dict[int, str]:
        """Ranks that left cleanly, with a sentence that says so."""
        return {
            rank: reason
            for worker, reason in self._client.departed.items()
            for rank in self._participant.ranks[worker]
        }

    def free_slots(self) -> list[FreeSlots]:
        """Return the slots that no job holds now. AgentError when the controller cannot be asked."""
        return [
            FreeSlots(switch.name, switch.slots - switch.slots_used, switch.role != "leaf")
            for switch in self._client.status().switches
        ]

    @property
    def stats(self) -> ReducerStats:
        """Return packets, bytes, blocks and time of all reductions of this group so far."""
        return self._slots.stats

    @property
    def limit_s(self) -> float:
        """Return how many seconds a reduction may go without progress."""
        return self._slots.timeout_s

    @contextlib.contextmanager
    def deadline(self, timeout: timedelta) -> Iterator[None]:
        """Bound how long each reduction inside may go without progress."""
        before, self._slots.timeout_s = self._slots.timeout_s, timeout.total_seconds()
        try:
            yield
        finally:
            self._slots.timeout_s = before

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
        codes = None if audience is None else self._codes(audience)
        return self._slots.reduce_in_slots(operation, lanes, op, block, service, codes)

    def _codes(self, audience: Audience) -> npt.NDArray[np.uint16]:
        """Return audiences as packets have them."""
        if audience.size > FEW_BLOCKS:
            return audience_codes(audience, self._paths)
        return self._known_codes(audience.tobytes())

    def sum_floats(
        self,
        values: npt.NDArray[np.float32],
        scales: FloatScales,
        block: int,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
    ) -> ReduceReport | None:
        """See Communicator.sum_floats; errors as of ``reduce_lanes``."""
        if audience is not None:
            return None

        def reduction() -> ReduceReport:
            return self._slots.reduce_in_slots(
                self.fingerprint, values.view(np.uint32), Op.ADD, block, service, floats=scales
            )

        return self._watched(reduction)

    def reduce_pieces(
        self, pieces: Pieces, block: int, audience: Audience, service: ServiceClass = LOSSLESS
    ) -> ReduceReport:
        """See Communicator.reduce_pieces; errors as of ``reduce_lanes``."""
        if not self.in_pieces:
            return super().reduce_pieces(pieces, block, audience, service)
        codes = self._codes(audience)
        return self._watched(
            lambda: self._slots.reduce_in_slots(self.fingerprint, pieces, Op.ADD, block, service, codes)
        )

    def retire(self) -> None:
        """Tell the other workers that this one takes part in nothing any more: a rank of its host left."""
        self._slots.retire()
        with contextlib.suppress(AgentError):
            self._client.leave()

    def _extend(self, client: AgentClient, number: int, slots: int) -> Extension:
        """Join the group's n-th extension: a job of the same workers, with slots while nobody else needs
        them, up to this many where they are more than usual.
        """
        own = self.membership
        membership = client.join(
            job=f"{self._met.job[-_MOST_NAME:]}+{number}",
            size=own.size,
            rank=own.rank,
            token=self._met.token,
            host=own.host_name,
            udp_port=own.host.udp_port,
            slots=slots if slots > MOST_SLOTS else 0,
            timeout_s=JOIN_S,
            ranks=self._participant.own,
            revocable=True,
        )
        if 2 * membership.slot_count < slots and slots > MOST_SLOTS:
            self._say_narrow(membership)
        config = transport_config(
            membership, keep=self._port.outlives_switch, congestion=self._port.congestion
        )
        return Extension(client, membership, Reducer(BorrowedLink(self._port.link), config))

    def _say_narrow(self, membership: Membership) -> None:
        """Say how fast a path can be for which there are few slots."""
        path_s = self._slots.round_trip
        log.warning(
            "%s: %d slots carry at most %.0f Mbit/s, as packets are under way for %.0f ms: switch %s has no "
            "more for this job",
            self._name(),
            membership.slot_count,
            rate_of(membership.slot_count, path_s) / 1e6,
            path_s * 1e3,
            membership.switch_name,
        )

    def _status(self) -> Any:
        """Return the controller's ``StatusReply``, with the id of the job in which the next reduction is."""
        return (self._slots.client or self._client).status()

    def _extension_lost(self, reason: str) -> None:
        """Give up after a moment, in which the end of the group's own job, which says more, may come."""
        timer = threading.Timer(_NEWS_S, self._give_up, [reason])
        timer.daemon = True
        self._grace.append(timer)
        timer.start()

    def _leave(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._stalls.close()
        self._slots.close()  # from here on every operation that is still queued fails at once
        self._port.release()
        died = self._watch is not None and self._watch.reason is not None
        if not died:
            with contextlib.suppress(AgentError):  # it may be gone; then there is nothing to leave
                self._client.leave()
        self._client.close()
        rendezvous.leave(self._met)
        if self._cluster is not None and died:
            self._cluster.stop()
        elif self._cluster is not None:
            _stop_when_unused(self._cluster)

    def _stopped(self, reason: str) -> None:
        """Abort, from the client's thread: the controller ended the job."""
        if self._watch is not None and self._cluster is None:
            reason = self._watch.look() or reason  # a cluster that dies stops its jobs, not saying why
        self._break(f"the job was stopped: {reason}")

    def _cluster_died(self, reason: str) -> None:
        """Abort, from the watch's thread: the switch or the controller of this machine died."""
        if self._client.stopped is None and not self._client.departed:
            log.warning("%s: %s", self._name(), reason)
        self._break(reason)

    def _member_left(self, worker: int, reason: str) -> None:
        """Abort after a while, from the client's thread: another worker left cleanly."""
        if self.on_departure is not None:
            self.on_departure(self._participant.ranks[worker], reason)
        self._interrupt_later(reason)

    def interrupt(self, reason: str) -> None:
        """See Connection.interrupt."""
        self._slots.abort(reason)

    def _break(self, reason: str) -> None:
        super()._break(reason)
        rendezvous.leave(self._met)  # its cluster may be about to end
        if self.on_break is not None:
            self.on_break(reason)

    def _give_up(self, reason: str) -> None:
        self._break(reason)
        self._client.give_up(reason)

    def known(self) -> str:
        """Return what is known of a reduction that stands still; empty when nothing is."""
        return self._stalls.words

    def _name(self) -> str:
        first, *others = self._participant.own
        if not others:
            return f"rank {first} of {sum(map(len, self._participant.ranks))} in job {self.job!r}"
        ranks = ", ".join(map(str, self._participant.own))
        return f"the host of ranks {ranks} in job {self.job!r}"


def transport_config(
    membership: Membership, *, keep: bool, congestion: Congestion = Congestion.MARKS
) -> TransportConfig:
    """Return the place in a job that a membership gives a worker."""
    return TransportConfig(
        membership.job_id,
        membership.number,
        membership.size,
        slots=membership.slot_count,
        path=membership.paths[membership.rank],
        fill=membership.fill,
        max_lanes=membership.max_lanes,
        wide=membership.wide,
        keep=keep,
        congestion=congestion,
        key=membership.key,
    )


def _stop_when_unused(cluster: rendezvous.LocalCluster) -> None:
    """Stop a cluster when it has no jobs left.

    They are other processes' now: one that dies or goes silent costs its job, so this comes to an end.
    """
    try:
        while cluster.status().jobs:
            time.sleep(_POLL_S)
    except AgentError:
        pass  # the controller died: nobody can use it
    finally:
        cluster.stop()
