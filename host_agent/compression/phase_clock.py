# SPDX-License-Identifier: Apache-2.0
"""The time that a worker's own part of a gradient step takes, by phase."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
        """Return the seconds of all phases."""
        return self.choice + self.mask + self.planning + self.observing

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Add the time that the block takes to one of the phases."""
        began = self._now()
        yield
        setattr(self, phase, getattr(self, phase) + self._now() - began)
