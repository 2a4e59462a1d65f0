# SPDX-License-Identifier: Apache-2.0
"""Parser value sets in the control plane: members as matches, and as the bit patterns the parser compares."""

from collections.abc import Sequence
from itertools import product
from typing import Final

from softp4.codegen.value_sets import member_words
from softp4.errors import Code, ControlError
from softp4.program.types import ValueSet
from softp4.runtime.bindings import NativeSwitch, exclusive
from softp4.state.entry import Exact, Lpm, Match, Optional, Range, Ternary

Member = tuple[Match, ...]
"""One match per element of the select key; a key is in the set when all of one member's hold."""
_Pattern = tuple[int, int]  # value and mask

_MOST_PATTERNS: Final = 1 << 16


class ValueSetStore:
    """A parser value set. Thread-safe."""

    def __init__(self, native: NativeSwitch, number: int, kind: ValueSet) -> None:
        self._native = native
        self._number = number
        self._kind = kind
        self._members: tuple[Member, ...] = ()

    @exclusive
    def set(self, members: Sequence[Member]) -> None:
        """Replace all members.

        INVALID_ARGUMENT for a wrong match, ALREADY_EXISTS for the same member twice, RESOURCE_EXHAUSTED for
        more than the set holds.
        """
        wanted = checked_members(self._kind, members)
        patterns = member_patterns(self._kind, wanted)
        self._native.set_value_set(self._number, member_words(self._kind.bits), patterns)
        self._members = wanted

    @exclusive
    def members(self) -> tuple[Member, ...]:
        """Return the members in the order in which they were given."""
        return self._members


def checked_members(kind: ValueSet, members: Sequence[Member]) -> tuple[Member, ...]:
    """Return the members in canonical form (bits outside masks and prefixes zero).

    Raises ControlError INVALID_ARGUMENT, RESOURCE_EXHAUSTED (more than the set's size), ALREADY_EXISTS (one
    is there twice).
    """
    if len(members) > kind.size:
        raise ControlError(
            Code.RESOURCE_EXHAUSTED,
            f"value set {kind.name} has room for {kind.size} members, not {len(members)}",
        )
    found = tuple(_checked(kind, member) for member in members)
    if len(set(found)) != len(found):
        raise ControlError(Code.ALREADY_EXISTS, f"value set {kind.name}: a member is given twice")
    return found


def _checked(kind: ValueSet, member: Member) -> Member:
    if not kind.fields:
        return member
    if len(member) != len(kind.fields):
        raise ControlError(
            Code.INVALID_ARGUMENT, f"value set {kind.name} has {len(kind.fields)} fields, not {len(member)}"
        )
    return tuple(_canonical(kind, bits, match) for bits, match in zip(kind.fields, member, strict=True))


def _canonical(kind: ValueSet, bits: int, match: Match) -> Match:
    full = (1 << bits) - 1
    match match:
        case Exact(value) if 0 <= value <= full:
            return match
        case Optional(None):
            return match
        case Optional(int() as value) if 0 <= value <= full:
            return match
        case Ternary(value, mask) if 0 <= value <= full and 0 <= mask <= full:
            return Ternary(value & mask, mask)
        case Lpm(value, length) if 0 <= value <= full and 0 <= length <= bits:
            return Lpm(value & ~(full >> length), length)
        case Range(low, high) if 0 <= low <= high <= full:
            return match
    raise ControlError(Code.INVALID_ARGUMENT, f"value set {kind.name}: {match} is no match on {bits} bits")


def member_patterns(kind: ValueSet, members: Sequence[Member]) -> list[int]:
    """Return words for the native switch: for each pattern its value, then its mask, lowest word first.

    A range becomes as many patterns as it has aligned blocks. Raises ControlError RESOURCE_EXHAUSTED.
    """
    if not kind.fields:
        return []
    words = member_words(kind.bits)
    flat: list[int] = []
    for member in members:
        choices = [_patterns(bits, match) for bits, match in zip(kind.fields, member, strict=True)]
        for pattern in product(*choices):
            joined = _joined(kind.fields, pattern)
            flat += [part >> 64 * word & (1 << 64) - 1 for part in joined for word in range(words)]
            if len(flat) > 2 * words * _MOST_PATTERNS:
                raise ControlError(
                    Code.RESOURCE_EXHAUSTED,
                    f"value set {kind.name}: its ranges are more than {_MOST_PATTERNS} patterns",
                )
    return flat


def _joined(fields: Sequence[int], patterns: Sequence[_Pattern]) -> _Pattern:
    value = mask = 0
    for bits, (part, part_mask) in zip(fields, patterns, strict=True):
        value, mask = value << bits | part, mask << bits | part_mask
    return value, mask


def _patterns(bits: int, match: Match) -> list[_Pattern]:
    full = (1 << bits) - 1
    match match:
        case Exact(value):
            return [(value, full)]
        case Ternary(value, mask):
            return [(value, mask)]
        case Lpm(value, length):
            return [(value, full & ~(full >> length))]
        case Optional(value):
            return [(0, 0)] if value is None else [(value, full)]
        case Range(low, high):
            return list(_blocks(low, high, full))


def _blocks(low: int, high: int, full: int) -> list[_Pattern]:
    """Return a range as aligned blocks of powers of two."""
    found = []
    while low <= high:
        size = low & -low if low else full + 1
        while low + size - 1 > high:
            size >>= 1
        found.append((low, full & ~(size - 1)))
        low += size
    return found
