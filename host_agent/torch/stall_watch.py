# SPDX-License-Identifier: Apache-2.0
"""The watch over a group's reductions: when one makes no progress, the log says which ranks are missing.

A rank that waits repeats its packets at least every second. So a rank from which the switch counts nothing
for two seconds has not begun this reduction; the controller reads the switch's counters.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from weir.agent_service.client import AgentError
from weir.agent_service.waiting import FIRST_S, next_line, switch_problems
from weir.host_agent.torch.poller import Poller
from weir.wire.definition import Event

log = logging.getLogger(__name__)

_POLL_S: Final = 0.5
_GONE: Final = (
    "the controller no longer knows this job: the job was stopped, or the controller was restarted without "
    "its state"
)
_COUNTED_S: Final = 2.5  # longer than the longest pause between repeated packets
_watches: Final = Poller("weir-stall-watch", lambda: _POLL_S)
_REFUSALS: Final = (Event.DROP_NOT_ADMITTED, Event.DROP_WRONG_SENDER, Event.DROP_FAR_ROUND)
"""The reasons for which switches refuse contributions that are not their sender's to send."""


class StallWatch:
    """Looks every half second, until ``close``, whether a reduction stands still.

    Args:
        name: the group's, and this rank's, for the log.
        job_id: returns the group's job.
        since: returns when the reduction that is under way made progress last, by ``time.monotonic``;
            None when it moves, or when there is none.
        status: returns the controller's ``StatusReply``.
        ranks: of the group, by the job's workers.
        gone: called once, in a thread of its own, with a sentence, when the controller knows the job no more.
    """

    def __init__(
        self,
        name: str,
        job_id: Callable[[], int],
        since: Callable[[], float | None],
        status: Callable[[], Any],
        ranks: Sequence[Sequence[int]],
        gone: Callable[[str], None],
    ) -> None:
        self.words = ""
        """What is known of the reduction that stands still: a sentence, or "" while none does."""
        self._name, self._job_id, self._since, self._status = name, job_id, since, status
        self._ranks, self._gone = ranks, gone
        self._stalled: float | None = None
        self._due = FIRST_S
        self._asking = False
        self._ended = threading.Event()
        _watches.add(self._look)

    def close(self) -> None:
        """Look no more; does not wait for the thread that may be asking the controller."""
        self._ended.set()
        _watches.remove(self._look)

    def _look(self) -> None:
        if self._asking or self._ended.is_set():
            return
        if (since := self._since()) is None or since != self._stalled:
            self._stalled, self._due, self.words = since, FIRST_S, ""
        elif time.monotonic() - since >= self._due - _COUNTED_S:
            self._asking = True  # which takes seconds, in which other groups are looked after
            threading.Thread(target=self._tell, args=(since,), name="weir-stall", daemon=True).start()

    def _tell(self, since: float) -> None:
        """Find out, and log, what a reduction waits for that has stood still since then."""
        try:
            words = self._ask()
            if self._since() == since and not self._ended.is_set():
                self.words = words
                log.warning("%s: after %.0f s without a result %s", self._name, self._due, words)
                if words == _GONE:
                    self._gone(words)
                    self.close()
            self._due = next_line(self._due)
        finally:
            self._asking = False

    def _ask(self) -> str:
        """Return which ranks have sent nothing in a few seconds, or what else is known."""
        try:
            first = self._status()
            self._ended.wait(_COUNTED_S)
            status = self._status()
        except AgentError as error:
            return f"cannot ask the controller which workers are missing: {error}"
        if problems := switch_problems(status):
            return f"the switch is the reason: {problems}"
        if not (after := self._packets(status)):
            return _GONE
        return self._who(self._packets(first), after, status) + _refused(first, status)

    def _who(self, before: dict[int, int], after: dict[int, int], status: Any) -> str:
        """Return who is missing, by the packets that the switch had counted of each before and has after."""
        silent = [worker for worker in after if after[worker] == before.get(worker)]
        if len(silent) == len(after):
            leaves = ", ".join(name for job in self._jobs(status) for name in job.leaves)
            return (
                f"switch {leaves} gets no packets, not even this rank's: it hangs, or the path to it is cut"
            )
        quiet = [str(rank) for worker in silent for rank in self._ranks[worker]]
        if not quiet:
            return "the switch gets packets from all ranks: do they call the same collectives?"
        ranks = f"rank{'s' if len(quiet) > 1 else ''} {', '.join(quiet)}"
        total = sum(map(len, self._ranks))
        return f"still waiting for {ranks} of {total}, from which the switch gets no packets"

    def _packets(self, status: Any) -> dict[int, int]:
        """Return how many packets the switch has counted from each of the job's workers."""
        return {member.rank: member.up.packets for job in self._jobs(status) for member in job.members}

    def _jobs(self, status: Any) -> list[Any]:
        """Return the group's job, if the controller knows it."""
        return [job for job in status.jobs if job.job_id == self._job_id()]


def _refused(before: Any, after: Any) -> str:
    """Return the end of a sentence, or "": how many packets switches have refused in between, and why."""
    counted = {
        (one.name, event.event): event.count.packets for one in before.switches for event in one.events
    }
    words = ""
    for switch in after.switches:
        for event in switch.events:
            more = event.count.packets - counted.get((switch.name, event.event), 0)
            if event.event in _REFUSALS and more > 0:
                words += (
                    f"; switch {switch.name} refused {more} packets meanwhile, {event.name}: {event.help}"
                )
    return words
