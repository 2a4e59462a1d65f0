# SPDX-License-Identifier: Apache-2.0
"""Virtual time: things happen in order of their times, and time costs nothing."""

import heapq
from collections.abc import Callable

Action = Callable[[], None]

SECOND = 1_000_000_000


class Clock:
    """A queue of actions in virtual time, in nanoseconds. Actions of one time run in order of scheduling."""

    def __init__(self) -> None:
        self.now = 0
        self._queue: list[tuple[int, int, Action]] = []
        self._scheduled = 0

    def at(self, time: int, action: Action) -> None:
        """Run ``action`` at ``time``, or now when that is past."""
        self._scheduled += 1
        heapq.heappush(self._queue, (max(time, self.now), self._scheduled, action))

    def after(self, delay: int, action: Action) -> None:
        """Run ``action`` ``delay`` nanoseconds from now."""
        self.at(self.now + delay, action)

    def step(self) -> bool:
        """Go to the next action and run it. False when there is none."""
        if not self._queue:
            return False
        self.now, _, action = heapq.heappop(self._queue)
        action()
        return True
