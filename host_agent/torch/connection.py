# SPDX-License-Identifier: Apache-2.0
"""A process group's membership in a job of the switch: reducing, failing, leaving; whatever is below."""

import contextlib
import logging
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import Store

from weir.host_agent.collectives.communicator import Audience, Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.torch.call_board import CallBoard
from weir.host_agent.transport.links import Aborted, DisagreementError, TransportTimeout
from weir.host_agent.transport.operations import OperationQueue, refuse_fork
from weir.host_agent.transport.reducer import ReducerStats
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.wire.definition import SLOT_LANES, Op

log = logging.getLogger(__name__)

GRACE_S = 2.0  # several retransmission timeouts
_LAST_ROUND_S = 60.0  # for the others to come and hear that this rank failed


class GroupBrokenError(RuntimeError):
    """The group cannot reduce any more: a worker was lost or left, or nothing came in time. Says which."""


@dataclass(frozen=True)
class FreeSlots:
    """Slots of a switch that no job holds. spine: it is one of those that jobs in several racks need, too."""

    switch: str
    count: int
    spine: bool = False


@dataclass(frozen=True)
class Facts:
    """The facts of a group's job, which never change.

    slot_count: how many slots of the switch it has, or is likely to have while it sends much; the same on all
    ranks. max_lanes: how many lanes of ADD the switch takes in a packet, 32 or 64, and of one column; 0: any
    number; the same on all ranks. switch_name: the switch that this rank's host is on. controller: its
    address. Both are empty where the group needs no network.
    """

    slot_count: int
    max_lanes: int
    switch_name: str
    controller: str


class Connection(Communicator):
    """The communicator of a process group, tied to the life of its job.

    Args:
        rank, size: this process's place in the group.
        job: the group's name, which no other has, nor had.
        facts: of the job.
        operations: the queue that everything on this group must go through.
        store: torch's, which all ranks share.

    Attributes:
        job, facts, operations: so.
        broken: why the group is over, or None while it is not.
        disagreement: what the ranks disagreed about; empty while they have not.
    """

    def __init__(
        self, rank: int, size: int, job: str, facts: Facts, operations: OperationQueue, store: Store
    ) -> None:
        super().__init__(rank, size)
        self.job, self.facts, self.operations = job, facts, operations
        self.broken: str | None = None
        self.disagreement = ""
        self._process = os.getpid()
        self._calls = CallBoard(store, job, rank, size)
        self._closing = threading.Lock()
        self._closed = False
        self._grace: list[threading.Timer] = []
        self._companions: list[Callable[[], None]] = []

    def _opened(self) -> None:
        """Have the connection closed at the program's end; for the end of a constructor."""
        _open.append(self)
        _watch_the_main_thread()

    # ---- what a group is on

    @property
    @abstractmethod
    def departed(self) -> dict[int, str]:
        """Ranks that left cleanly, with a sentence that says so."""

    @property
    @abstractmethod
    def stats(self) -> ReducerStats:
        """Return packets, bytes, blocks and time of all reductions of this group so far."""

    @abstractmethod
    def free_slots(self) -> list[FreeSlots]:
        """Return the slots that no job holds now. AgentError when the controller cannot be asked."""

    @property
    @abstractmethod
    def limit_s(self) -> float:
        """Return how many seconds a reduction may go without progress, as ``deadline`` has it now."""

    @abstractmethod
    def deadline(self, timeout: timedelta) -> contextlib.AbstractContextManager[None]:
        """Bound how long each reduction inside may go without progress."""

    # ---- reducing

    @abstractmethod
    def reduce_operation(
        self,
        lanes: Lanes,
        op: Op,
        block: int,
        service: ServiceClass,
        audience: Audience | None,
        operation: int,
    ) -> ReduceReport:
        """Reduce as ``reduce_lanes``, with errors as ``Reducer.reduce_blocks`` has them.

        operation: its fingerprint.
        """

    def reduce_lanes(
        self,
        lanes: Lanes,
        op: Op,
        block: int = SLOT_LANES,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
    ) -> ReduceReport:
        """See Communicator.reduce_lanes; GroupBrokenError when the group is, or when this breaks it."""
        return self._watched(
            lambda: self.reduce_operation(lanes, op, block, service, audience, self.fingerprint),
        )

    @contextlib.contextmanager
    def last_round(self, error: Exception) -> Iterator[None]:
        """Tell the log of this rank's error before the others are told, and bound the wait for them.

        A group that is broken has no others to tell, and nothing to wait for.
        """
        if not isinstance(error, GroupBrokenError) and self.call is not None:
            log.warning("%s %s; telling the other ranks", self._name(), self.call.said)
        with self.deadline(timedelta(seconds=min(self.limit_s, _LAST_ROUND_S))):
            yield

    def _watched(self, reduction: Callable[[], ReduceReport]) -> ReduceReport:
        """Return the report of a reduction; GroupBrokenError when the group is broken, or when this breaks
        it.
        """
        for reason in self.departed.values():
            raise GroupBrokenError(f"{self._name()}: {reason}; no collective can complete without it")
        self.exchanged = True
        try:
            return reduction()
        except DisagreementError:
            self.disagreement = self._calls.compare(self.number, self.call)
            self._break(self.disagreement)
            raise GroupBrokenError(f"{self._name()}: {self.disagreement}") from None
        except Aborted as error:
            why = f"the group is broken: {self.disagreement}" if self.disagreement else error
            raise GroupBrokenError(f"{self._name()}: {why}") from None
        except (TransportTimeout, OSError) as error:
            known = f"{error} After some seconds: {words}." if (words := self.known()) else str(error)
            if self.call is not None and self.call.failure:
                known = f"this rank {self.call.said}; the other ranks could not be told: {known}"
            self._give_up(known)
            raise GroupBrokenError(f"{self._name()}: {known}") from error

    # ---- the end

    def at_close(self, close: Callable[[], None]) -> None:
        """Call ``close`` when the group is left, for what exists beside it."""
        self._companions.append(close)

    def abort(self, reason: str) -> None:
        """End what is running and the group with it; the other ranks are told that this one gave up."""
        if os.getpid() == self._process:
            self._give_up(reason)

    def close(self) -> None:
        """Leave the job, after aborting what still runs. Can be called twice, from any thread.

        Stops the local cluster that this process started for the group, when no job is left on it. Does
        nothing in a fork of the process, which is no member.
        """
        if os.getpid() != self._process:
            return
        with self._closing:
            if self._closed:
                return
            self._closed = True
        if self in _open:
            _open.remove(self)
        for close in self._companions:
            close()
        for timer in self._grace:
            timer.cancel()
        self._leave()

    @abstractmethod
    def _leave(self) -> None:
        """Abort what still runs, tell the other ranks, and let go of everything; called once."""

    def refuse_fork(self) -> None:
        """Raise ForkedError in a fork of the process."""
        refuse_fork(self._process)

    @abstractmethod
    def interrupt(self, reason: str) -> None:
        """Make the reduction in progress, and every later one, raise Aborted(reason). From any thread."""

    @abstractmethod
    def _give_up(self, reason: str) -> None:
        """Break the group, on the other ranks, too: they are told that this one is lost."""

    def _break(self, reason: str) -> None:
        self.broken = self.broken or reason
        self.interrupt(reason)

    def _interrupt_later(self, reason: str) -> None:
        """Abort after a while, because another rank left cleanly.

        It had the results of all it took part in, so everybody's contributions to those were in. A
        reduction that is not done after a while is one that it never began.
        """
        timer = threading.Timer(GRACE_S, self.interrupt, [f"{reason}; no collective can complete without it"])
        timer.daemon = True
        self._grace.append(timer)
        timer.start()

    def known(self) -> str:
        """Return what is known of a reduction that stands still; empty when nothing is."""
        return ""

    def _name(self) -> str:
        return f"rank {self.rank} of {self.size} in job {self.job!r}"


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
    ending = _open[::-1]
    for connection in ending:  # all, before one waits for callbacks of its own that wait for another's
        connection.interrupt("the program has ended")
    for connection in ending:
        try:
            connection.close()
        except Exception:
            log.exception("%s could not be left", connection._name())
