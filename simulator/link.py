# SPDX-License-Identifier: Apache-2.0
"""A one-way link that takes time, delays, loses, repeats and overtakes, as its seed says."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from weir.simulator import treatment
from weir.simulator.clock import SECOND, Clock


@dataclass(frozen=True)
class Bottleneck:
    """A router on the way that sends more slowly than the link: frames wait there in one queue, in order.

    buffer: bytes that may wait; a frame that finds no room is dropped, and none is marked.
    """

    rate_bps: int
    buffer: int


@dataclass(frozen=True)
class Faults:
    """Faults of a link. Probabilities are of one frame, times in nanoseconds.

    delay: always; jitter: up to so much more, drawn for each frame (so frames overtake each other).
    loss: dropped. duplicate: delivered twice. late: held back by up to ``lateness``, which may be longer than
    retransmission timers and whole reduces. trim: arrives without its lanes, whether it is protected or not.
    mark: arrives with "congestion experienced", if it can. bottleneck: what frames pass before all this.
    """

    delay: int = 10_000
    jitter: int = 0
    loss: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    lateness: int = 0
    trim: float = 0.0
    mark: float = 0.0
    bottleneck: Bottleneck | None = None

    @property
    def random(self) -> bool:
        """Return whether anything is drawn for a frame."""
        return bool(self.jitter or self.loss or self.duplicate or self.late or self.trim or self.mark)

    @property
    def clean(self) -> bool:
        """Return whether frames take a delay, and nothing else becomes of them."""
        return not self.random and self.bottleneck is None


class Link:
    """Carries frames one way. ``down`` links lose everything.

    rate_bps: who sends begins a frame when the one before is through; it has arrived when its last bit has.
    None: frames take no time. ``tap`` sees each frame as its sending begins, whatever becomes of it.
    """

    __slots__ = (
        "_carry",
        "_down",
        "_faults",
        "_free_at",
        "_random",
        "_tap",
        "clock",
        "dropped",
        "on_change",
        "rate_bps",
    )

    def __init__(
        self,
        clock: Clock,
        random: Random,
        faults: Faults,
        deliver: Callable[[bytes], None] | None = None,
        rate_bps: int | None = None,
        *,
        carry: Callable[[int, bytes], None] | None = None,
    ) -> None:
        """Make a link.

        deliver: takes a frame when it arrives. carry: instead, takes it at once, and when it arrives.
        """
        if carry is None:
            if deliver is None:
                raise ValueError("a link needs to know who takes its frames: deliver or carry")
            carry = partial(_deliver_at, clock, deliver)
        self.clock, self._random, self._carry = clock, random, carry
        self._faults, self._down = faults, False
        self._tap: Callable[[int, bytes], None] | None = None
        self.rate_bps = rate_bps
        self._free_at = 0  # of the bottleneck
        self.dropped = 0  # frames, by its full queue
        self.on_change: Callable[[], None] = lambda: None  # what happens to frames has changed

    @property
    def faults(self) -> Faults:
        """Faults of the link."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        self.on_change()

    @property
    def down(self) -> bool:
        """Return whether it loses everything."""
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        self._down = down
        self.on_change()

    @property
    def tap(self) -> Callable[[int, bytes], None] | None:
        """Function that sees the frames and their times."""
        return self._tap

    @tap.setter
    def tap(self, tap: Callable[[int, bytes], None] | None) -> None:
        self._tap = tap
        self.on_change()

    @property
    def clean(self) -> bool:
        """Return whether all it does is to take time."""
        return not self._down and self._tap is None and self._faults.clean

    def duration(self, frame: bytes) -> int:
        """Return the nanoseconds from a frame's first bit to its last (no preamble, no gap)."""
        return 0 if self.rate_bps is None else len(frame) * 8 * SECOND // self.rate_bps

    def send(self, frame: bytes) -> None:
        """Deliver the frame some time later: once, twice or never."""
        now, faults = self.clock.now, self._faults
        if self._tap is not None:
            self._tap(now, frame)
        if self._down:
            return
        arrival = now + self.duration(frame)
        if faults.bottleneck is not None:
            through = self._queue(faults.bottleneck, arrival, len(frame))
            if through is None:
                self.dropped += 1
                return
            arrival = through
        arrival += faults.delay
        if not faults.random:
            self._carry(arrival, frame)
            return
        copies = 2 if self._random.random() < faults.duplicate else 1
        for _ in range(copies):
            if self._random.random() >= faults.loss:
                self._carry(arrival + self._hold(), self._treat(frame))

    def _queue(self, bottleneck: Bottleneck, now: int, length: int) -> int | None:
        """Return when a frame that comes now has left the bottleneck; None: it is dropped."""
        begins = max(now, self._free_at)
        waiting = (begins - now) * bottleneck.rate_bps // (8 * SECOND)
        if waiting + length > bottleneck.buffer:
            return None
        self._free_at = begins + length * 8 * SECOND // bottleneck.rate_bps
        return self._free_at

    def _treat(self, frame: bytes) -> bytes:
        """Return the frame as it arrives."""
        faults = self._faults
        if faults.trim and self._random.random() < faults.trim:
            frame = treatment.trim(frame)
        if faults.mark and self._random.random() < faults.mark:
            frame = treatment.mark(frame)
        return frame

    def _hold(self) -> int:
        """Return by how much this frame comes later than others."""
        faults, hold = self._faults, 0
        if faults.jitter:
            hold += self._random.randrange(faults.jitter)
        if faults.late and self._random.random() < faults.late:
            hold += self._random.randrange(faults.lateness)
        return hold


def _deliver_at(clock: Clock, deliver: Callable[[bytes], None], arrival: int, frame: bytes) -> None:
    clock.at(arrival, deliver, frame)
