# SPDX-License-Identifier: Apache-2.0
"""The choice between a group's few base slots and an extension: a state machine without I/O, clock or lock.

A group that says nothing about slots joins with ``BASE_SLOTS``. Before a reduction that would take many
rounds, its workers ask for an *extension*, a second job with as many slots as there are, and reduce there.
They leave it one by one when others need the slots and they are idle::

             wants_more ─▶ extend          begin ─▶ end
    base ──────────────────────▶ extension ────────────────▶ extension
      ▲                 └▶ refuse                 │
      └───────────────────────────────────────────┘ shrink, after ``reclaim`` or ``withdrawn``

Nobody has to agree on the reduction with which they go back. One that leaves after n reductions on the
extension contributes to no later one, so no round of a later one completes, and its lanes stay what they
were: a worker inside one makes it on the base slots instead. And the leaver has completed the n-th, so all
have contributed to it, and can complete it, as the switch repeats its results until all have left. So all
workers go back after the same n.
"""

import math
from enum import Enum, auto
from typing import Final

from weir.host_agent.transport.report import FRAME_OVERHEAD
from weir.wire.definition import COLUMN, SLOT_LANES, WEIR

BASE_SLOTS: Final = 2
IDLE_S: Final = 5.0
"""Seconds without a reduction on the extension after which a worker gives it back when it is asked to."""

_FIRST_ROUNDS: Final = 32  # more than one for each reduction; about as long as it takes to join a job
_MOST_ROUNDS: Final = 1 << 16


_LIKELY_BPS: Final = 1_000_000_000
PACKET: Final = FRAME_OVERHEAD + WEIR.size + COLUMN.size + 4 * SLOT_LANES


def slots_for(round_trip_s: float) -> int:
    """Return the slots that fill a path of 1 Gbit/s with this round trip, a power of two.

    Twice as many packets as such a path holds: a slot whose packet was lost is out of use for two more round
    trips, and the others' go on in the meantime.
    """
    packets = math.ceil(2 * round_trip_s * _LIKELY_BPS / (8 * PACKET))
    return 1 << max(packets - 1, 0).bit_length()


def rate_of(slots: int, round_trip_s: float) -> float:
    """Return the bits per second that this many slots carry at most."""
    return slots * 8 * PACKET / round_trip_s


class LeftTooSoonError(RuntimeError):
    """Another worker has left the extension after a reduction in which this one takes no part."""


class Step(Enum):
    """The consequence for a worker of another having left the extension."""

    NOTHING = auto()
    LEAVE = auto()
    ABORT = auto()  # the reduction under way, which begins again on the base slots


class Growth:
    """One worker's view of where its group's reductions go. Times are seconds of any monotonic clock.

    Args:
        slots: of the base.

    Attributes:
        attempts: how often more slots were wanted; the same on all workers at the same reduction.
        extended: whether reductions go to the extension.
        busy: one is under way there.
        done: how many have completed there.
        overtaken: another worker has left it: so will this one, after the reduction under way.
    """

    def __init__(self, slots: int) -> None:
        self._lanes = slots * SLOT_LANES
        self.attempts = self.done = 0
        self.extended = self.busy = False
        self._rounds, self._limit = 0, _FIRST_ROUNDS
        self.overtaken = False
        self._used_at = 0.0

    def wants_more(self, lanes: int) -> bool:
        """Return whether the next reduction, of this many lanes, must be preceded by an attempt to extend.

        It depends on the reductions so far alone, so that all workers say the same.
        """
        if self.extended:
            return False
        self._rounds += max(0, -(-lanes // self._lanes) - 1)
        if self._rounds < self._limit:
            return False
        self.attempts += 1
        return True

    def extend(self, now: float) -> None:
        """Note that all workers have joined an extension, for the reduction that begins now: none leaves it
        before that.
        """
        self.extended = self.busy = True
        self.done, self.overtaken, self._used_at = 0, False, now

    def refuse(self) -> None:
        """Note that there is no extension: it is asked for again after many more rounds."""
        self._rounds, self._limit = 0, min(8 * self._limit, _MOST_ROUNDS)

    def place_next(self) -> bool:
        """Return whether the reduction that begins now goes to the extension."""
        self.busy = self.extended
        return self.extended

    def end(self, now: float, *, completed: bool) -> bool:
        """Note the end of a reduction on the extension; return whether the worker is to leave that now."""
        self.busy, self._used_at = False, now
        self.done += completed
        return self.overtaken

    def withdrawn(self, reductions: int) -> Step:
        """Return what to do as another worker has left the extension after this many reductions there.

        Raises:
            LeftTooSoonError: that cannot be.
        """
        if not self.extended:
            return Step.NOTHING
        if not self.done <= reductions <= self.done + self.busy:
            raise LeftTooSoonError(
                f"another worker left the extension after {reductions} reductions, of which this one has "
                f"done {self.done}"
            )
        if not self.busy:
            return Step.LEAVE
        self.overtaken = True
        return Step.ABORT if reductions == self.done else Step.NOTHING

    def reclaim(self, now: float) -> bool:
        """Return whether to leave the extension, as others need its slots."""
        return self.extended and not self.busy and now - self._used_at >= IDLE_S

    def shrink(self) -> int:
        """Note that this worker leaves the extension; return the reductions to say that it has done there."""
        self.extended = self.busy = False
        self._rounds, self._limit = 0, _FIRST_ROUNDS
        return self.done
