# SPDX-License-Identifier: Apache-2.0
"""The time that a worker's own part of a gradient step takes, by phase."""

import time
from collections.abc import Callable


class PhaseClock:
    """Seconds of one worker's step in which it does not wait for others.

    choice: the sparsifier's. mask: of what was chosen. planning: of the encoding. observing: of the sum.

    Args:
        now: returns seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.choice = self.mask = self.planning = self.observing = 0.0

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return self.choice + self.mask + self.planning + self.observing

    def time(self, phase: str) -> "_Phase":
        """Add the time that the block takes to one of the phases."""
        return _Phase(self, phase, self._now)


class _Phase:
    """A block that is timed; contextlib's way takes several times as long, many times in a step."""

    __slots__ = ("_began", "_clock", "_name", "_now")

    def __init__(self, clock: PhaseClock, name: str, now: Callable[[], float]) -> None:
        self._clock, self._name, self._now = clock, name, now

    def __enter__(self) -> None:
        self._began = self._now()

    def __exit__(self, *_: object) -> None:
        so_far = getattr(self._clock, self._name)
        setattr(self._clock, self._name, so_far + self._now() - self._began)
