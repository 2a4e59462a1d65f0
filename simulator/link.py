# SPDX-License-Identifier: Apache-2.0
"""A one-way link that delays, loses, repeats and overtakes, as its seed says."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from simulator.clock import Clock


@dataclass(frozen=True)
class Faults:
    """What a link does to each frame. Probabilities are of one frame, times in nanoseconds.

    delay: always; jitter: up to so much more, drawn for each frame (so frames overtake each other).
    loss: dropped. duplicate: delivered twice. late: held back by up to ``lateness``, which may be longer than
    retransmission timers and whole reduces.
    """

    delay: int = 10_000
    jitter: int = 0
    loss: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    lateness: int = 0


class Link:
    """Carries frames one way. ``down`` links lose everything."""

    def __init__(
        self, clock: Clock, random: Random, faults: Faults, deliver: Callable[[bytes], None]
    ) -> None:
        self._clock, self._random, self._deliver = clock, random, deliver
        self.faults = faults
        self.down = False

    def send(self, frame: bytes) -> None:
        """Deliver the frame some time later: once, twice or never."""
        copies = 2 if self._random.random() < self.faults.duplicate else 1
        for _ in range(copies):
            if not self.down and self._random.random() >= self.faults.loss:
                self._clock.after(self._delay(), lambda: self._deliver(frame))

    def _delay(self) -> int:
        delay = self.faults.delay
        if self.faults.jitter:
            delay += self._random.randrange(self.faults.jitter)
        if self.faults.late and self._random.random() < self.faults.late:
            delay += self._random.randrange(self.faults.lateness)
        return delay
