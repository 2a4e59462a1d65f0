# SPDX-License-Identifier: Apache-2.0
"""The allocation of switches' slots to jobs: disjoint ranges, first fit.

A job that spans racks has the same slots on all its switches, because packets name them by one number. So its
range is free on each of them; a job within one rack is no other rack's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SLOTS = 16  # fewer are slow; up to MOST_SLOTS, a job that does not say gets a share of what is free


@dataclass(frozen=True, order=True)
class SlotRange:
    """Slots ``base`` to ``base + count - 1``."""

    base: int
    count: int

    @property
    def end(self) -> int:
        """Return one past the last slot."""
        return self.base + self.count

    def __str__(self) -> str:
        return f"{self.base}-{self.end - 1}" if self.count > 1 else str(self.base)


class SlotExhaustedError(Exception):
    """No free range is long enough. The message is for anybody; ``free`` says where there is what."""

    def __init__(self, wanted: int, total: int, free: tuple[SlotRange, ...]) -> None:
        largest = max((piece.count for piece in free), default=0)
        sum_free = sum(piece.count for piece in free)
        have = f"{sum_free} are free (longest run: {largest})" if free else "none is free"
        super().__init__(f"{wanted} consecutive slots are wanted of {total}; {have}")
        self.free = free


class SlotPool:
    """The slots of one switch."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._taken: list[SlotRange] = []  # sorted, disjoint

    @property
    def used(self) -> int:
        """Number of slots that jobs hold."""
        return sum(piece.count for piece in self._taken)

    def free(self) -> tuple[SlotRange, ...]:
        """Return all free ranges, lowest first."""
        edges = [0, *(edge for piece in self._taken for edge in (piece.base, piece.end)), self.total]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return tuple(SlotRange(start, end - start) for start, end in pairs if end > start)

    def can_claim(self, piece: SlotRange) -> bool:
        """Return whether all of this range is free."""
        return any(free.base <= piece.base and piece.end <= free.end for free in self.free())

    def claim(self, piece: SlotRange) -> bool:
        """Take exactly this range; False, and nothing is taken, if some of it is not free."""
        if not self.can_claim(piece):
            return False
        self._taken = sorted([*self._taken, piece])
        return True

    def give_back(self, piece: SlotRange) -> None:
        """Free a range that was taken."""
        self._taken.remove(piece)


def take(pools: Sequence[SlotPool], count: int, *, aligned: bool = False) -> SlotRange:
    """Take the lowest range of ``count`` slots that is free in all ``pools``, and return it.

    ``aligned``: of the next power of two, at a multiple of it.

    Raises:
        SlotExhaustedError: there is none; nothing was taken.
    """
    common = _common(pools)
    step = 1
    if aligned:
        count = step = 1 << (count - 1).bit_length()
    for piece in common:
        base = -(-piece.base // step) * step
        if piece.end - base >= count:
            taken = SlotRange(base, count)
            for pool in pools:
                pool.claim(taken)
            return taken
    raise SlotExhaustedError(count, min(pool.total for pool in pools), common)


def take_share(pools: Sequence[SlotPool], most: int, least: int, *, aligned: bool = False) -> SlotRange:
    """Take a range for a job that does not say how many slots it wants, and leave some for the next one.

    A quarter of what is free, as a power of two times ``least``, but at most ``most`` and at least
    ``least``. ``aligned``: as ``take`` has it. Raises SlotExhaustedError when not even that many in a row are
    free.
    """
    common = _common(pools)
    count = least
    while 2 * count <= min(most, sum(piece.count for piece in common) // 4):
        count *= 2
    while count > least and not any(piece.count >= count for piece in common):
        count //= 2
    return take(pools, count, aligned=aligned)


def _common(pools: Sequence[SlotPool]) -> tuple[SlotRange, ...]:
    """Return the ranges that are free in all of them, lowest first."""
    common = pools[0].free()
    for pool in pools[1:]:
        both = ((max(a.base, b.base), min(a.end, b.end)) for a in common for b in pool.free())
        common = tuple(SlotRange(base, end - base) for base, end in both if base < end)
    return common
