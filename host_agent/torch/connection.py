# SPDX-License-Identifier: Apache-2.0
"""A process group's membership in a job of the switch: joining, reducing, failing, leaving."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch._C._distributed_c10d import Store

from weir.agent_service.client import AgentClient, AgentError, Membership
from weir.host_agent.collectives.communicator import Audience, Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.torch import rendezvous
from weir.host_agent.torch.call_board import CallBoard
from weir.host_agent.torch.cluster_watch import ClusterWatch
from weir.host_agent.torch.link_choice import bind_udp, choose_port, wanted_link
from weir.host_agent.torch.stall_watch import StallWatch
from weir.host_agent.transport.links import Aborted, DisagreementError, TransportTimeout
from weir.host_agent.transport.operations import OperationQueue
from weir.host_agent.transport.ports import PortShare
from weir.host_agent.transport.reducer import Reducer, ReducerStats
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.host_agent.transport.slot_transport import TransportConfig
from weir.wire.definition import AUDIENCE_EXCEPT, SLOT_LANES, Op

log = logging.getLogger(__name__)

_POLL_S = 0.05
_GRACE_S = 2.0  # several retransmission timeouts


class GroupBrokenError(RuntimeError):
    """The group cannot reduce any more: a worker was lost or left, or nothing came in time. Says which."""


@dataclass(frozen=True)
class FreeSlots:
    """Slots of a switch that no job holds. spine: it is one of those that jobs in several racks need, too."""

    switch: str
    count: int
    spine: bool = False


class Connection(Communicator):
    """The communicator of a process group, tied to the life of its job.

    ``operations`` is the queue that everything on this group must go through.
    """

    def __init__(
        self,
        client: AgentClient,
        membership: Membership,
        share: PortShare,
        met: rendezvous.Rendezvous,
        cluster: rendezvous.LocalCluster | None,
        timeout: timedelta,
        store: Store,
    ) -> None:
        super().__init__(membership.rank, membership.size)
        self.membership = membership
        self._client, self._met, self._cluster = client, met, cluster
        self._share = share
        config = TransportConfig(
            membership.job_id,
            membership.number,
            membership.size,
            slots=membership.slot_count,
            path=membership.paths[membership.rank],
            fill=membership.fill,
        )
        self._paths = np.array(membership.paths, np.uint16)
        self._reducer = Reducer(share, config, timeout_s=timeout.total_seconds())
        self._closing = threading.Lock()
        self._closed = False
        self._grace: list[threading.Timer] = []
        self._companions: list[Callable[[], None]] = []
        self.broken: str | None = None
        """Why the group is over, or None while it is not."""
        self.disagreement = ""
        """What the ranks disagreed about; empty while they have not."""
        self._calls = CallBoard(store, membership.job, membership.rank, membership.size)
        self._watch = ClusterWatch(Path(met.notice), cluster, self._cluster_died) if met.notice else None
        self._stalls = StallWatch(
            self._name(), membership.job_id, lambda: self._reducer.waiting_since, client.status
        )
        client.on_stop(self._stopped)
        client.on_leave(self._member_left)
        _open.append(self)
        _watch_the_main_thread()

    @classmethod
    def open(
        cls,
        store: Store,
        rank: int,
        ranks: list[int],
        group: str,
        timeout: timedelta,
        start: rendezvous.StartCluster,
        slots: int = 0,
        options: str = "",
    ) -> "Connection":
        """Join the job of a group; return when all its ranks have.

        Args:
            store: torch's, which all ranks share.
            rank: this process's place in ``ranks``.
            ranks: the members' global ranks.
            group: torch's name for the group.
            timeout: how long to wait for the others, and each reduction for progress.
            start: starts a local cluster where there is no controller.
            slots: how many of the switch's the job is to have; 0: a share of what is free.
            options: of the group, in words; all ranks must have the same.

        Raises:
            RendezvousError, AgentError, OSError: each says what is missing.
        """
        wanted = wanted_link()
        with contextlib.ExitStack() as undo:
            met, cluster = rendezvous.agree(store, ranks, rank, group, timeout, start, options)
            undo.callback(rendezvous.leave, met)
            if cluster is not None:
                undo.callback(cluster.stop)
            udp = bind_udp(wanted)
            if udp is not None:
                undo.callback(udp.close)
            client = AgentClient(met.controller)
            undo.callback(client.close)
            membership = client.join(
                job=met.job,
                size=len(ranks),
                rank=rank,
                token=met.token,
                host=met.host(ranks[rank]),
                udp_port=udp.port if udp is not None else 0,
                slots=slots,
                timeout_s=timeout.total_seconds(),
            )
            share = choose_port(membership, wanted, udp)
            undo.callback(share.release)
            connection = cls(client, membership, share, met, cluster, timeout, store)
            undo.pop_all()
            return connection

    @property
    def operations(self) -> OperationQueue:
        """Return the queue of this process's operations on the port."""
        return self._share.operations

    @property
    def controller(self) -> str:
        """Return the controller's address."""
        return self._met.controller

    @property
    def departed(self) -> dict[int, str]:
        """Return the ranks that left cleanly, with a sentence that says so."""
        return self._client.departed

    def at_close(self, close: Callable[[], None]) -> None:
        """Call ``close`` when the group is left, for what exists beside it."""
        self._companions.append(close)

    def free_slots(self) -> list[FreeSlots]:
        """Return the slots that no job holds now. AgentError when the controller cannot be asked."""
        return [
            FreeSlots(switch.name, switch.slots - switch.slots_used, switch.role != "leaf")
            for switch in self._client.status().switches
        ]

    @property
    def stats(self) -> ReducerStats:
        """Return packets, bytes, blocks and time of all reductions of this group so far."""
        return self._reducer.stats

    @contextlib.contextmanager
    def deadline(self, timeout: timedelta) -> Iterator[None]:
        """Bound how long each reduction inside may go without progress."""
        before, self._reducer.timeout_s = self._reducer.timeout_s, timeout.total_seconds()
        try:
            yield
        finally:
            self._reducer.timeout_s = before

    def reduce_lanes(
        self,
        lanes: Lanes,
        op: Op,
        block: int = SLOT_LANES,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
    ) -> ReduceReport:
        """See Reducer.reduce; GroupBrokenError when the group is, or when this breaks it."""
        for reason in self._client.departed.values():
            raise GroupBrokenError(f"{self._name()}: {reason}; no collective can complete without it")
        self.exchanged, self._reducer.operation = True, self.fingerprint
        try:
            return self._reducer.reduce(lanes, op, block, service, self._audiences(audience))
        except DisagreementError:
            self.disagreement = self._calls.compare(self.number, self.call)
            self._break(self.disagreement)
            raise GroupBrokenError(f"{self._name()}: {self.disagreement}") from None
        except Aborted as error:
            why = f"the group is broken: {self.disagreement}" if self.disagreement else error
            raise GroupBrokenError(f"{self._name()}: {why}") from None
        except (TransportTimeout, OSError) as error:
            known = f"{error} After some seconds: {words}." if (words := self._stalls.words) else str(error)
            self._give_up(known)
            raise GroupBrokenError(f"{self._name()}: {known}") from error

    def _audiences(self, audience: Audience | None) -> npt.NDArray[np.uint16] | None:
        """Return the codes of audiences for the packets."""
        if audience is None:
            return None
        only = self._paths[np.where(audience < 0, ~audience, audience)]
        return np.where(audience < 0, only | AUDIENCE_EXCEPT, only).astype(np.uint16)

    def abort(self, reason: str) -> None:
        """End what is running and the group with it; the other ranks are told that this one is lost."""
        self._give_up(reason)

    def close(self) -> None:
        """Leave the job, after aborting what still runs. Can be called twice, from any thread.

        Stops the local cluster that this process started for the group, when no job is left on it.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
        _open.remove(self)
        for close in self._companions:
            close()
        for timer in self._grace:
            timer.cancel()
        if self._watch is not None:
            self._watch.close()
        self._stalls.close()
        self._reducer.close()  # from here on every operation that is still queued fails at once
        self._share.release()
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

    def _member_left(self, _rank: int, reason: str) -> None:
        """Abort after a while, from the client's thread: another rank left cleanly.

        It had the results of all it took part in, so everybody's contributions to those were in. A
        reduction that is not done after a while is one that it never began.
        """
        timer = threading.Timer(
            _GRACE_S, self._reducer.abort, [f"{reason}; no collective can complete without it"]
        )
        timer.daemon = True
        self._grace.append(timer)
        timer.start()

    def _give_up(self, reason: str) -> None:
        self._break(reason)
        self._client.close()

    def _break(self, reason: str) -> None:
        self.broken = self.broken or reason
        self._reducer.abort(reason)

    def _name(self) -> str:
        member = self.membership
        return f"rank {member.rank} of {member.size} in job {member.job!r}"


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


_open: list[Connection] = []
_watcher: threading.Thread | None = None


def _watch_the_main_thread() -> None:
    """Close every connection when the main thread ends, should the program not do so.

    The interpreter waits for threads such as the queues' before any exit handler runs; this one ends
    them first.
    """
    global _watcher  # noqa: PLW0603
    if _watcher is None or not _watcher.is_alive():
        _watcher = threading.Thread(target=_close_after_main, name="weir-exit")
        _watcher.start()


def _close_after_main() -> None:
    threading.main_thread().join()
    for connection in reversed(_open.copy()):
        connection.close()
