# SPDX-License-Identifier: Apache-2.0
"""Virtual time: things happen in order of their times, and time costs nothing."""

import heapq
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

SECOND = 1_000_000_000


class StuckError(AssertionError):
    """Something that was waited for did not happen within the virtual time, or the events, it was given."""


class Engine(Protocol):
    """Something with a queue of its own, such as a network's switches."""

    @property
    def next(self) -> int:
        """Time of what happens next in there; beyond all times when nothing will."""

    @property
    def now(self) -> int:
        """Time of what happened last in there."""

    @property
    def events(self) -> int:
        """Return how much has happened in there."""

    def run(self, until: int) -> list[tuple[Callable[[bytes], None], bytes]]:
        """Let things happen up to ``until``, until some come out, or for a while.

        Returns whom to call with what.
        """


class Clock:
    """A queue of actions in virtual time, in nanoseconds. Actions of one time run in order of scheduling, and
    after what happens in the ``engine`` at that time.

    most_events: what may happen in one run; beyond it, packets go in a circle. None: any number.
    """

    __slots__ = ("_queue", "_scheduled", "engine", "now")

    most_events: ClassVar[int | None] = None

    def __init__(self) -> None:
        self.now = 0
        self.engine: Engine | None = None
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0

    def at(self, time: int, action: Callable[..., None], *args: Any) -> None:
        """Run ``action(*args)`` at ``time``, or now when that is past."""
        self._scheduled += 1
        heapq.heappush(self._queue, (max(time, self.now), self._scheduled, action, args))

    def after(self, delay: int, action: Callable[..., None], *args: Any) -> None:
        """Run ``action(*args)`` ``delay`` nanoseconds from now."""
        self.at(self.now + delay, action, *args)

    def run(self, until: int, stop: Callable[[], bool]) -> bool:
        """Run actions until ``stop()`` holds, asked after each one; return whether it did by ``until``.

        Raises:
            StuckError: more than ``most_events`` happened.
        """
        queue, pop, engine = self._queue, heapq.heappop, self.engine
        most, actions, began = self.most_events, 0, self.now
        before = 0 if engine is None else engine.events
        while not stop():
            if most is not None:
                actions += 1
                events = actions + (0 if engine is None else engine.events - before)
                if events > most:
                    seconds = (self.now - began) / SECOND
                    raise StuckError(f"{events:,} events in {seconds:.6f} virtual seconds, and no end")
            first = queue[0][0] if queue else until + 1
            if engine is not None and engine.next <= first:
                if engine.next > until:
                    return False
                for receive, frame in engine.run(min(first, until)):
                    self.now = engine.now
                    receive(frame)
            elif first > until:
                return False
            else:
                self.now, _, action, args = pop(queue)
                action(*args)
        return True
