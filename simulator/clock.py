# SPDX-License-Identifier: Apache-2.0
"""Virtual time: things happen in order of their times, and time costs nothing."""

import heapq
from collections.abc import Callable
from typing import Any

SECOND = 1_000_000_000


class Clock:
    """A queue of actions in virtual time, in nanoseconds. Actions of one time run in order of scheduling."""

    __slots__ = ("_queue", "_scheduled", "now")

    def __init__(self) -> None:
        self.now = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0

    def at(self, time: int, action: Callable[..., None], *args: Any) -> None:
        """Run ``action(*args)`` at ``time``, or now when that is past."""
        self._scheduled += 1
        heapq.heappush(self._queue, (max(time, self.now), self._scheduled, action, args))

    def after(self, delay: int, action: Callable[..., None], *args: Any) -> None:
        """Run ``action(*args)`` ``delay`` nanoseconds from now."""
        self.at(self.now + delay, action, *args)

    def step(self) -> bool:
        """Go to the next action and run it. False when there is none."""
        if not self._queue:
            return False
        self.now, _, action, args = heapq.heappop(self._queue)
        action(*args)
        return True

    def run(self, until: int, stop: Callable[[], bool]) -> bool:
        """Run actions until ``stop()`` holds (asked after each one); whether it did by the time ``until``."""
        queue, pop = self._queue, heapq.heappop
        while not stop():
            if not queue or queue[0][0] > until:
                return False
            self.now, _, action, args = pop(queue)
            action(*args)
        return True
