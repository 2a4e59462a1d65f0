# SPDX-License-Identifier: Apache-2.0
"""A group's reductions over its base slots and, while it has much to send, over an extension's.

The decisions are those of ``weir.host_agent.transport.growth``; here are its locks, jobs and threads.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from weir.agent_service.client import AgentClient, AgentError, ClientClosed, Membership
from weir.host_agent.transport.growth import Growth, LeftTooSoonError, Step, slots_for
from weir.host_agent.transport.links import Aborted, Link
from weir.host_agent.transport.pieces import Pieces
from weir.host_agent.transport.reducer import Reducer, ReducerStats
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.host_agent.transport.slot_transport import Audiences, FloatScales, Lanes, SlotTransport
from weir.wire.definition import GROUP_LANES, Op

log = logging.getLogger(__name__)

JOIN_S: Final = 20.0
"""Seconds for all workers to join an extension, for which they have met just before."""


@dataclass(frozen=True)
class Extension:
    """A membership in a job beside the group's own, and what reduces there."""

    client: AgentClient
    membership: Membership
    reducer: Reducer

    def leave(self, reductions: int) -> None:
        """Leave the job after this many reductions, and let go of it."""
        self.reducer.close()
        with contextlib.suppress(AgentError):  # then the controller finds out by itself
            self.client.leave(reductions)
        self.client.close()

    def close(self) -> None:
        """Let go of the job without leaving it: this member is lost to the others."""
        self.reducer.close()
        self.client.close()


class BorrowedLink:
    """A link that its owner closes: an extension's is the group's."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def drive(self, transport: SlotTransport, timeout_s: float, abort: threading.Event) -> None:
        """See Link.drive."""
        self._link.drive(transport, timeout_s, abort)

    def rest(self, transport: SlotTransport) -> float | None:
        """See Link.rest."""
        return self._link.rest(transport)

    def close(self) -> None:
        """Do nothing."""


class ElasticSlots:
    """Reduces for a group, as ``Reducer.reduce_blocks`` does. For one thread at a time; the rest from any.

    Args:
        name: the group's, and this rank's, for the log.
        base: reduces over the group's own slots; owned from now on.
        slots: of ``base``; None: it never has others.
        connect: returns a client of the controller.
        join: joins the n-th extension with a client, within JOIN_S, of up to this many slots where they are
            more than usual; AgentError when it cannot be had.
        lost: called with the reason when the controller has stopped the extension's job.
    """

    def __init__(
        self,
        name: str,
        base: Reducer,
        slots: int | None,
        connect: Callable[[], AgentClient],
        join: Callable[[AgentClient, int, int], Extension],
        lost: Callable[[str], None],
    ) -> None:
        self.timeout_s = base.timeout_s
        self.stats = ReducerStats()
        self._name, self._base = name, base
        self._growth = Growth(slots) if slots is not None else None
        self._connect, self._join, self._lost = connect, join, lost
        self._lock = threading.Lock()  # of all that follows, and of the growth
        self._extension: Extension | None = None
        self._joining: AgentClient | None = None
        self._reason: str | None = None

    def reduce_in_slots(
        self,
        operation: int,
        lanes: Lanes | Pieces,
        op: Op,
        block: int,
        service: ServiceClass = LOSSLESS,
        audiences: Audiences | None = None,
        floats: FloatScales | None = None,
    ) -> ReduceReport:
        """See Reducer.reduce; operation: its fingerprint."""

        def over(reducer: Reducer) -> ReduceReport:
            reduction = partial(reducer.reduce_blocks, lanes, op, block, service, audiences, floats)
            return self._counted(reducer, operation, reduction)

        if self._growth is None:
            return over(self._base)
        while True:
            extends, extension = self._begin(lanes.size)
            if extends:
                self._extend(operation)
                _, extension = self._begin()
            if extension is None:
                return over(self._base)
            if (report := self._over_extension(extension, over)) is not None:
                return report

    def _begin(self, lanes: int = 0) -> tuple[bool, Extension | None]:
        """Return whether to extend before a reduction of this many more lanes; if not, begin it and return
        the extension that it is on.

        All with the lock held: a reduction is made where it was counted.
        """
        assert self._growth is not None
        with self._lock:
            if self._growth.wants_more(lanes):
                return True, None
            return False, self._extension if self._growth.place_next() else None

    def _counted(
        self, reducer: Reducer, operation: int, reduction: Callable[[], ReduceReport]
    ) -> ReduceReport:
        """Make a reduction of ``reducer``'s, and count it among all of the group's."""
        reducer.operation, reducer.timeout_s = operation, self.timeout_s
        report = reduction()
        self.stats = self.stats.plus(report, reducer.stats.rto)
        return report

    def _over_extension(
        self, extension: Extension, over: Callable[[Reducer], ReduceReport]
    ) -> ReduceReport | None:
        """Reduce over an extension; None when another worker had left it before."""
        assert self._growth is not None
        try:
            report: ReduceReport | None = over(extension.reducer)
        except (TypeError, ValueError):  # nothing was sent
            self._ended(completed=False)
            raise
        except Aborted:
            if self._reason is not None or not self._growth.overtaken:
                raise
            report = None
        self._ended(completed=report is not None)
        return report

    def _ended(self, *, completed: bool) -> None:
        """Note the end of a reduction over the extension; leave that where another worker has."""
        assert self._growth is not None
        with self._lock:
            leaves = self._growth.end(time.monotonic(), completed=completed)
            leave = self._detached() if leaves else None
        if leave is not None:
            leave()

    # ---- having an extension

    def _extend(self, operation: int) -> None:
        """Join an extension, if all workers can; one for which this is not so keeps all from using it.

        They meet first, so that nobody waits in a join for one that has failed before, and ask for the
        slots of the longest path among theirs.
        """
        assert self._growth is not None
        wanted = np.full(1, slots_for(self._base.round_trip), np.uint32)
        self._counted(self._base, operation, partial(self._base.reduce_blocks, wanted, Op.MAX, GROUP_LANES))
        extension: Extension | None = None
        why = "another rank has none"
        try:
            extension = self._joined(self._growth.attempts, int(wanted[0]))
        except ClientClosed:
            raise Aborted(self._reason or "the group is closed") from None
        except AgentError as error:
            why = str(error)
        missing = np.full(1, extension is None, np.uint32)
        try:
            self._counted(
                self._base, operation, partial(self._base.reduce_blocks, missing, Op.MAX, GROUP_LANES)
            )
        except BaseException:
            if extension is not None:
                extension.close()
            raise
        if extension is None or missing[0]:
            log.info("%s: gets no more slots, and continues with its own: %s", self._name, why)
            self._growth.refuse()
            if extension is not None:
                extension.leave(0)
            return
        with self._lock:
            reason = self._reason
            if reason is None:
                self._extension = extension
                self._growth.extend(time.monotonic())
        if reason is not None:  # given up since then, when there was no extension to abort
            extension.close()
            raise Aborted(reason)
        self._listen(extension)

    def _joined(self, number: int, slots: int) -> Extension:
        client = self._connect()
        with self._lock:
            if self._reason is not None:
                client.close()
                raise Aborted(self._reason)
            self._joining = client
        try:
            extension = self._join(client, number, slots)
        except BaseException:
            client.close()
            raise
        finally:
            with self._lock:
                self._joining = None
        client.leaves_at_exit()
        return extension

    # ---- news of it, in its client's thread

    def _listen(self, extension: Extension) -> None:
        """Take in the news of an extension in use, those that have come already here and now.

        Another worker may be ahead of this one, and have left it before its first reduction.
        """
        extension.client.on_stop(lambda reason: self._stopped(extension, reason))
        extension.client.on_withdrawal(lambda reductions: self._withdrawn(extension, reductions))
        extension.client.on_reclaim(lambda: self._reclaimed(extension))

    def _withdrawn(self, extension: Extension, reductions: int) -> None:
        """Go back to the base slots, as another worker has."""
        assert self._growth is not None
        with self._lock:
            if self._extension is not extension:
                return
            try:
                step = self._growth.withdrawn(reductions)
            except LeftTooSoonError as error:
                self._lost(str(error))
                return
            leave = self._detached() if step is Step.LEAVE else None
        if leave is not None:
            leave()
        elif step is Step.ABORT:
            extension.reducer.abort("another worker has left the extension")

    def _reclaimed(self, extension: Extension) -> None:
        """Give the extension back if it is idle, as others need its slots."""
        assert self._growth is not None
        with self._lock:
            leaves = self._extension is extension and self._growth.reclaim(time.monotonic())
            leave = self._detached() if leaves else None
        if leave is not None:
            leave()
        else:
            extension.client.busy()

    def _stopped(self, extension: Extension, reason: str) -> None:
        if self._extension is extension:
            self._lost(reason)

    def _detached(self) -> Callable[[], None] | None:
        """Go back to the base slots, with the lock held; return what leaves the extension, without the lock.

        None: there is no extension, or a reduction is under way there. Anyone who decides to leave calls this
        before letting go of the lock: a reduction could begin in between, which nobody would abort.
        """
        assert self._growth is not None
        extension = self._extension
        if extension is None or self._growth.busy:
            return None
        self._extension = None
        return partial(extension.leave, self._growth.shrink())

    # ---- the whole

    @property
    def waiting_since(self) -> float | None:
        """Return since when a reduction has made no progress, as ``Reducer.waiting_since``."""
        extension = self._extension
        found = extension.reducer.waiting_since if extension is not None else None
        return self._base.waiting_since if found is None else found

    @property
    def round_trip(self) -> float:
        """Shortest round trip to the switch, as ``Reducer.round_trip``."""
        return self._base.round_trip

    @property
    def client(self) -> AgentClient | None:
        """Extension's member, if there is one: it alone is told all of the extension's job."""
        extension = self._extension
        return extension.client if extension is not None else None

    @property
    def job_id(self) -> int:
        """Job, on the wire, in which the next reduction is, as far as is known now."""
        extension = self._extension
        return extension.membership.job_id if extension is not None else self._base.config.job

    def rest(self) -> float | None:
        """See Reducer.rest."""
        extension = self._extension
        pauses = [self._base.rest(), extension.reducer.rest() if extension is not None else None]
        return min((pause for pause in pauses if pause is not None), default=None)

    def retire(self) -> None:
        """Leave the extension, if nothing is under way there: this worker takes part in nothing any more."""
        if self._growth is None:
            return
        with self._lock:
            leave = self._detached()
        if leave is not None:
            leave()

    def abort(self, reason: str) -> None:
        """Make the reduction in progress, and every later one, raise Aborted(reason). From any thread."""
        with self._lock:
            self._reason = self._reason or reason
            extension, joining = self._extension, self._joining
        self._base.abort(reason)
        if extension is not None:
            extension.reducer.abort(reason)
        if joining is not None:
            joining.close()

    def close(self) -> None:
        """Abort what is in progress, and let go of everything. Closing twice is harmless.

        A worker in the middle of a reduction does not leave the extension: it is lost to the others there.
        """
        self.abort(f"the reducer of job {self._base.config.job} is closed")
        self.retire()
        with self._lock:
            extension, self._extension = self._extension, None
        if extension is not None:
            extension.close()
        self._base.close()
