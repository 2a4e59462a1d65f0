# SPDX-License-Identifier: Apache-2.0
"""Keys of table entries and counts, as text that fits every switch that tests drive."""

from collections.abc import Sequence
from dataclasses import dataclass

from softp4.state import entry


@dataclass(frozen=True)
class Lpm:
    """A longest-prefix key; plain integers are exact keys."""

    value: int
    prefix_len: int


@dataclass(frozen=True)
class Ternary:
    """A ternary key: the bits of `mask` must be those of `value`. With mask 0 it matches everything."""

    value: int
    mask: int


@dataclass(frozen=True)
class Range:
    """A range key: ``low`` <= field <= ``high``."""

    low: int
    high: int


@dataclass(frozen=True)
class Optional:
    """A key that is exact, or matches everything when its value is None."""

    value: int | None


Key = int | Lpm | Ternary | Range | Optional


@dataclass(frozen=True)
class Count:
    """Packets and bytes that a counter has seen."""

    packets: int
    bytes: int

    def __add__(self, other: "Count") -> "Count":
        return Count(self.packets + other.packets, self.bytes + other.bytes)

    def __sub__(self, other: "Count") -> "Count":
        return Count(self.packets - other.packets, self.bytes - other.bytes)


def entry_key(key: Sequence[Key]) -> tuple[entry.Match, ...]:
    """Return a key in the switch's own words."""
    return tuple(_match(part) for part in key)


def _match(part: Key) -> entry.Match:
    if isinstance(part, Lpm):
        return entry.Lpm(part.value, part.prefix_len)
    if isinstance(part, Ternary):
        return entry.Ternary(part.value, part.mask)
    if isinstance(part, Range):
        return entry.Range(part.low, part.high)
    if isinstance(part, Optional):
        return entry.Optional(part.value)
    return entry.Exact(part)
