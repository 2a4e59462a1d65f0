# SPDX-License-Identifier: Apache-2.0
"""Fields of a header type as members of C structs and as machine words: `members`, `words`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from softp4.program.types import HeaderType

MIN_RUN: Final = 4
WORD: Final = 64


@dataclass(frozen=True)
class Member:
    """A member of a header type's struct: field `first`, or `count` equal fields from it as an array."""

    name: str
    first: int
    count: int
    bits: int
    varbit: bool = False

    @property
    def is_run(self) -> bool:
        """Return whether the member is an array of fields."""
        return self.count > 1


@dataclass(frozen=True)
class Word:
    """Members that lie in one machine word, highest first; or one that lies in none."""

    members: tuple[Member, ...]

    @property
    def shared(self) -> bool:
        """Return whether it is a machine word, of several members."""
        return len(self.members) > 1

    @property
    def name(self) -> str:
        """Return the C name of the whole word."""
        return f"w{self.members[0].first}"

    @property
    def bits(self) -> int:
        """Return all its bits, but for what a varbit member may have."""
        return sum(0 if each.varbit else each.bits * each.count for each in self.members)

    def has(self, name: str) -> bool:
        """Return whether a member, by its C name, lies in it."""
        return any(each.name == name for each in self.members)

    def below(self, name: str) -> int:
        """Return how many bits lie below a member."""
        position = next(at for at, each in enumerate(self.members) if each.name == name)
        return sum(each.bits for each in self.members[position + 1 :])


def members(kind: HeaderType) -> list[Member]:
    """Split a header type into single fields and runs, which are arrays.

    A run has at least MIN_RUN equal fields, and more of them than a machine word holds.
    """
    result: list[Member] = []
    position = 0
    while position < len(kind.fields):
        bits = kind.fields[position].bits
        if kind.fields[position].varbit:
            result.append(Member(f"f{position}", position, 1, bits, True))
            position += 1
            continue
        end = position
        while end < len(kind.fields) and kind.fields[end].bits == bits and not kind.fields[end].varbit:
            end += 1
        count = end - position
        if bits in (8, 16, 32, 64) and count >= MIN_RUN and count * bits > WORD:
            result.append(Member(f"r{position}", position, count, bits))
            position = end
        else:
            result.append(Member(f"f{position}", position, 1, bits))
            position += 1
    return result


def words(split: Sequence[Member]) -> list[Word]:
    """Put members together that make up a machine word, as many as possible, from the first on."""
    result: list[Word] = []
    offset = 0
    while split:
        count = _in_one_word(split) if offset % 8 == 0 else 1
        result.append(Word(tuple(split[:count])))
        offset += result[-1].bits
        split = split[count:]
    return result


def _in_one_word(split: Sequence[Member]) -> int:
    """Return how many of the first members make up a machine word; 1 when no two of them do."""
    best, bits = 1, 0
    for count, member in enumerate(split, 1):
        bits += member.bits
        if member.is_run or member.varbit or bits > WORD:
            break
        if bits in (8, 16, 32, 64):
            best = count
    return best
