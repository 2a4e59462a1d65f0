# SPDX-License-Identifier: Apache-2.0
"""Rate at which a publisher sends: fixed, or what the paths to its subscribers take.

Nobody acknowledges packets that are sent to many. Subscribers ask for those that they lack, so the rate grows
while few are asked for, and falls when one subscriber lacks more than LOSS of what was sent. Loss below that
is repaired: it is a fault of the path rather than a full queue, as BBRv2 has it.
"""

from dataclasses import dataclass
from typing import Final

LOSS: Final = 0.02
_INTERVAL_NS: Final = 50_000_000
_DOWN: Final = 0.75
_UP: Final = 1.15
_AT_FIRST: Final = (20_000_000, 0.5, 1.5)
"""The interval, and the factors down and up, until packets are lost for the first time."""
_BURST_NS: Final = 4_000_000
_LEAST_BURST: Final = 16 * 1200  # bytes
_MOST_BURST: Final = 256 * 1024
_USED: Final = 0.75
_AT_ONCE_NS: Final = 2_000_000
_MOST_AT_ONCE: Final = 128 * 1024
"""Bytes that are worth waking for: what may go within _AT_ONCE_NS, this much at most."""


@dataclass(frozen=True)
class Rates:
    """Bytes a second: at first, at least, at most."""

    first: float = 12.5e6
    least: float = 0.25e6
    most: float = 1.25e9

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.first <= self.most:
            raise ValueError(f"rates must satisfy 0 < least <= first <= most, not {self}")


class Pace:
    """A token bucket whose rate follows losses. Times are nanoseconds."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self.rate = rates.first
        self._tokens, self._at = float(_LEAST_BURST), 0
        self._began = 0
        self._now, self._last = _Interval(), _Interval()
        self._lost: dict[object, int] = {}
        self._used = 0.0  # the most that was sent in an interval since the rate fell last, in bytes a second
        self._lossless = True  # so far: the rate grows faster

    def room(self, now: int) -> float:
        """Return how many bytes may go now; a packet that begins within them goes whole."""
        burst = min(_MOST_BURST, max(_LEAST_BURST, self.rate * _BURST_NS / 1e9))
        self._tokens = min(burst, self._tokens + self.rate * max(0, now - self._at) / 1e9)
        self._at = max(self._at, now)
        return self._tokens

    def sent(self, size: int, packets: int) -> None:
        """Note bytes that went out, in this many packets."""
        self._tokens -= size
        self._now.size += size
        self._now.packets += packets

    def lost(self, whose: object, packets: int) -> None:
        """Note packets that a subscriber asks for although they were sent since the rate fell last."""
        self._lost[whose] = self._lost.get(whose, 0) + packets

    def turn(self, now: int) -> bool:
        """Settle the rate when an interval is over; return whether it fell.

        It grows only where it is used: a carrier may take less. It falls from the most that was sent in an
        interval: packets that were lost at a message's end are asked for when only repairs are sent.
        """
        interval, down, up = _AT_FIRST if self._lossless else (_INTERVAL_NS, _DOWN, _UP)
        if now - self._began < interval:
            return False
        self._used = max(self._used, self._now.size * 1e9 / interval)
        worst = max(self._lost.values(), default=0)
        fell = worst > max(2.0, LOSS * (self._now.packets + self._last.packets))
        if fell:
            self.rate = max(self._rates.least, min(self.rate, self._used or self.rate) * down)
            self._used, self._lossless = 0.0, False
        elif self._now.size * 1e9 / (now - self._began) > _USED * self.rate:
            self.rate = min(self._rates.most, self.rate * up)
        self._began, self._last, self._now = now, self._now, _Interval()
        self._lost.clear()
        return fell

    def next_ns(self, now: int) -> int:
        """Return when it is worth sending again."""
        wanted = min(_MOST_AT_ONCE, self.rate * _AT_ONCE_NS / 1e9)
        return now + max(0, int((wanted - self._tokens) * 1e9 / self.rate) + 1)


@dataclass
class _Interval:
    """Bytes and packets that were sent in an interval."""

    size: int = 0
    packets: int = 0
