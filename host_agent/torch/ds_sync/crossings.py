# SPDX-License-Identifier: Apache-2.0
"""Groups that take members of every block, arranged again until all members of different blocks have met.

A *crossing* of blocks is a partition of all their members in which each part has members of every block: the
columns of a grid whose rows are the blocks. Blocks that have averaged inside and then meet in a crossing know
the mean of all.

One crossing lets a member of a block meet one member of each other block. As many members as a block has,
that many crossings are needed at least for everybody to meet. Where the blocks are of one size n, and n is a
prime, a power of two, or has no prime factor below the number of blocks, that many do: crossing m joins the
members c + m*j of blocks j, in the field or ring of n elements (the lines of an affine plane). Otherwise,
more are looked for, each the best of some random ones.
"""

import random
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")
Crossing: TypeAlias = tuple[tuple[int, ...], ...]
Blocks: TypeAlias = Sequence[Sequence[int]]
_Missing: TypeAlias = dict[int, set[int]]  # member -> those of other blocks that it has not met

_TRIES: Final = 12
# Irreducible polynomials over GF(2), by the number of elements of the field they make.
_POLYNOMIALS: Final = {2: 0b11, 4: 0b111, 8: 0b1011, 16: 0b10011}


def crossings(blocks: Blocks, generator: random.Random) -> list[Crossing]:
    """Return few crossings in which every two members of different blocks meet at least once.

    Parts are as many as the smallest block has members. Of larger blocks a part may have two members and
    more, evenly spread. Only ``generator.random`` is used: its numbers are the same in every version of
    Python.
    """
    return min(
        _completed(list(_lines(blocks)), blocks, generator), _completed([], blocks, generator), key=len
    )


def shuffled(members: Iterable[T], generator: random.Random) -> list[T]:
    """Return a permutation of ``members`` by numbers from ``generator.random`` alone (Fisher and Yates)."""
    result = list(members)
    for last in range(len(result) - 1, 0, -1):
        other = int(generator.random() * (last + 1))
        result[last], result[other] = result[other], result[last]
    return result


def _completed(first: Iterable[Crossing], blocks: Blocks, generator: random.Random) -> list[Crossing]:
    """Return those of ``first`` in which some pair meets for the first time, and as many more as it takes."""
    missing: _Missing = {
        member: {other for block in blocks if block is not members for other in block}
        for members in blocks
        for member in members
    }
    found = [crossing for crossing in first if _meet(crossing, missing)]
    while any(missing.values()):
        candidates = [_arrange(blocks, missing, generator) for _ in range(_TRIES)]
        best = max(candidates, key=lambda crossing: _news(crossing, missing))
        _meet(best, missing)
        found.append(best)
    return found


def _lines(blocks: Blocks) -> Iterable[Crossing]:
    """Yield the algebraic crossings of blocks of one size; where the module says so, none repeats a pair."""
    size = len(blocks[0])
    if any(len(block) != size for block in blocks):
        return
    for slope in range(size):
        yield tuple(
            tuple(sorted(block[_line(size, slope, row, column)] for row, block in enumerate(blocks)))
            for column in range(size)
        )


def _line(size: int, slope: int, row: int, column: int) -> int:
    """Return column + slope * row among ``size`` elements: of a field where that is easy, else modulo."""
    if size not in _POLYNOMIALS:
        return (column + slope * row) % size
    product, row = 0, row % size
    while row:
        if row & 1:
            product ^= slope
        row >>= 1
        slope <<= 1
        if slope & size:
            slope ^= _POLYNOMIALS[size]
    return column ^ product


def _arrange(blocks: Blocks, missing: _Missing, generator: random.Random) -> Crossing:
    """Return a crossing with many pairs that have not met, and one at least: the first part takes its
    pick.
    """
    left = [shuffled(block, generator) for block in blocks]
    parts: list[list[int]] = []
    for _ in range(min(map(len, blocks))):
        part: list[int] = []
        for members in shuffled(left, generator):
            part.append(_taken(members, part or missing, missing))
        parts.append(part)
    without: list[list[int]] = []  # parts that are not given one of the rest in this turn yet
    for members in left:
        while members:
            without = without or parts.copy()
            part = max(without, key=lambda part: _strangers(members[-1], part, missing))
            without.remove(part)
            part.append(members.pop())
    return tuple(tuple(sorted(part)) for part in parts)


def _taken(members: list[int], others: Iterable[int], missing: _Missing) -> int:
    """Return the one of ``members`` that has not met most of ``others``, taken from the list."""
    others = list(others)
    chosen = max(members, key=lambda member: _strangers(member, others, missing))
    members.remove(chosen)
    return chosen


def _strangers(member: int, others: Iterable[int], missing: _Missing) -> int:
    return sum(other in missing[member] for other in others)


def _news(crossing: Crossing, missing: _Missing) -> int:
    """Return how many pairs meet in it for the first time."""
    return sum(b in missing[a] for part in crossing for a, b in combinations(part, 2))


def _meet(crossing: Crossing, missing: _Missing) -> int:
    """Strike the pairs of a crossing off; return how many there were."""
    news = _news(crossing, missing)
    for part in crossing:
        for a, b in combinations(part, 2):
            missing[a].discard(b)
            missing[b].discard(a)
    return news
