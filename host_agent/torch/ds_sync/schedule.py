# SPDX-License-Identifier: Apache-2.0
"""The schedule of DS-Sync, divide-and-shuffle synchronisation (arXiv 2007.03298): who averages with whom.

The workers are blocks within blocks. In the simplest case they are the rows of a grid, and rounds alternate:
the groups of one are the rows, those of the next a *crossing* of the rows, groups with members of every row
(:mod:`weir.host_agent.torch.ds_sync.crossings`). Having averaged inside, every member of a row stands for all
of it, so after the crossing each worker has the mean of all. With smaller groups there are more levels:
crossings of rows make larger blocks, and so on. A round belongs to one level, a *cycle* has every level, from
the inside out. The crossings change from cycle to cycle, that is the shuffling, until every two workers have
been in one group; then the schedule repeats: that is its *period*.

Everything follows from the arguments, the seed among them, on every worker alike, without a message.

What holds:

- The groups of a round are a partition of the workers.
- Averaging through a whole cycle, with no steps between, leaves the mean of all workers on every worker,
  exactly but for rounding. Where blocks of a level are of different sizes, their groups need weights for
  that: a member of a block of n, one of q of that block in its group, counts n/q. (Without them it could not
  be: averages of groups whose sizes lack a prime factor of N never give the N-th of a sum.)
- In any ``period`` rounds one after another every two workers are in one group at least once.
"""

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from weir.host_agent.torch.ds_sync.crossings import crossings, shuffled

EXCUSED = 3
"""Periods out of ``EXCUSED + 1`` in which contended workers stay alone."""


@dataclass(frozen=True)
class Group:
    """Workers that average with each other in one round.

    ranks: in ascending order. weights: of each in the average; they sum to 1.
    """

    ranks: tuple[int, ...]
    weights: tuple[Fraction, ...]

    @property
    def equal(self) -> bool:
        """Return whether it is the plain mean."""
        return len(set(self.weights)) == 1

    def weight(self, rank: int) -> Fraction:
        """Return the weight of one of its ranks."""
        return self.weights[self.ranks.index(rank)]

    def without(self, ranks: Collection[int]) -> "Group":
        """Return the rest of it, by the same proportions."""
        rest = [(r, w) for r, w in zip(self.ranks, self.weights, strict=True) if r not in ranks]
        whole = sum((weight for _, weight in rest), Fraction(0))
        return Group(tuple(r for r, _ in rest), tuple(w / whole for _, w in rest))


Partition = tuple[Group, ...]


@dataclass(frozen=True)
class _Block:
    """Workers that all have their mean when the rounds of ``levels`` have been.

    levels: for every level from the inside out, the partitions that its rounds take in turn.
    """

    ranks: tuple[int, ...]
    levels: tuple[tuple[Partition, ...], ...]


class Schedule:
    """The groups of every round.

    Args:
        workers: how many there are.
        group_size: how large groups may be, where it can be: workers = group_size^k gives k levels of such
            groups. None: two levels, as near to a square as there are divisors for it; three workers or fewer
            are one group.
        seed: which worker is where.
        racks: for each worker, the rack it is in. Each rack is then a block by itself, so that only rounds
            of the last level leave racks. Makes no difference if there is one rack, or one worker in each.
        local_rounds: how often the levels before the last are gone through in a cycle: with racks, how much
            rarer the rounds are that cross the network between them.
        shuffles: how many crossings of a level there may be; None: as many as it takes until all have met.
            With fewer there are fewer groups to set up, and some pairs meet through others only.

    Raises:
        ValueError: an argument that makes no sense, or not together with the others.
    """

    def __init__(
        self,
        workers: int,
        *,
        group_size: int | None = None,
        seed: int = 0,
        racks: Sequence[object] | None = None,
        local_rounds: int = 1,
        shuffles: int | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}: there must be one at least")
        if group_size is not None and group_size < 2:
            raise ValueError(f"group_size is {group_size}: a group has two members at least")
        if racks is not None and len(racks) != workers:
            raise ValueError(f"racks names {len(racks)} workers' racks, of {workers}")
        if local_rounds < 1 or (shuffles is not None and shuffles < 1):
            raise ValueError(f"local_rounds ({local_rounds}) and shuffles ({shuffles}) are 1 at least")
        self.workers = workers
        generator = random.Random(seed)
        top = _whole(workers, group_size, racks, generator)
        self._levels = [partitions[:shuffles] for partitions in top.levels]
        inner = list(range(len(self._levels) - 1))
        self._order = [*inner * local_rounds, len(self._levels) - 1]

    @property
    def cycle(self) -> int:
        """Return rounds in a cycle: after these, begun at a multiple of it, everybody has the mean of all.

        With local_rounds 1 it is the number of levels: k for group_size^k workers, 2 by default.
        """
        return len(self._order)

    @cached_property
    def period(self) -> int:
        """Return rounds after which all repeats; in any series of this many, every two workers meet, if
        ``shuffles`` is None.
        """
        return self.cycle * max(map(len, self._levels))

    @property
    def longest_wait(self) -> int:
        """Period of contended workers: in any series of this many rounds they, too, meet "
        "everybody."""
        return self.period * (EXCUSED + 1)

    def partition(self, number: int, contended: Collection[int] = ()) -> Partition:
        """Return the groups of round ``number``, from 0.

        contended: workers whose links are busy. Each is a group by itself, except in one period of
        ``EXCUSED + 1``.
        """
        groups = self._partition(number)
        if not contended or number // self.period % (EXCUSED + 1) == EXCUSED:
            return groups
        alone = tuple(Group((rank,), (Fraction(1),)) for rank in sorted(set(contended)))
        rest = (group.without(contended) for group in groups if not set(group.ranks) <= set(contended))
        return (*rest, *alone)

    def group(self, rank: int, number: int, contended: Collection[int] = ()) -> Group:
        """Return the group of worker ``rank`` in round ``number``; see ``partition``."""
        return next(group for group in self.partition(number, contended) if rank in group.ranks)

    def memberships(self, candidates: Collection[int] = ()) -> list[tuple[int, ...]]:
        """Return all groups of two and more that there will ever be, each once, those of the last level
        first.

        candidates: the workers that may be contended; with these, also the groups without them.
        """
        found: dict[tuple[int, ...], None] = {}
        for partitions in reversed(self._levels):
            for partition in partitions:
                for group in partition:
                    for ranks in _without_some(group.ranks, set(candidates)):
                        found[ranks] = None
        return list(found)

    def _partition(self, number: int) -> Partition:
        turn, place = divmod(number, self.cycle)
        partitions = self._levels[self._order[place]]
        return partitions[turn % (self.period // self.cycle) % len(partitions)]


def _without_some(ranks: tuple[int, ...], candidates: set[int]) -> list[tuple[int, ...]]:
    """Return a group, and what is left of it when any of the candidates in it are taken out; two ranks at
    least.
    """
    found = [ranks]
    for candidate in sorted(candidates & set(ranks)):
        found += [tuple(rank for rank in group if rank != candidate) for group in found]
    return [group for group in found if len(group) > 1]


def _whole(
    workers: int, group_size: int | None, racks: Sequence[object] | None, generator: random.Random
) -> _Block:
    everybody = shuffled(range(workers), generator)
    if racks is not None and 1 < len(set(racks)) < workers:
        members = [[rank for rank in everybody if racks[rank] == rack] for rack in dict.fromkeys(racks)]
        largest = max(map(len, members))
        size = group_size or largest
        levels = _levels(largest, size)
        return _joined([_block(rack, size, levels, generator) for rack in members], generator)
    if group_size is None:
        rows = _rows(workers)
        return (
            _joined([_leaf(row) for row in _cut(everybody, rows)], generator)
            if rows > 1
            else _leaf(everybody)
        )
    return _block(everybody, group_size, _levels(workers, group_size), generator)


def _rows(workers: int) -> int:
    """Return how many rows the workers' grid has: no more than columns; a divisor, if one is near the
    root.
    """
    if workers <= 3:
        return 1
    root = math.isqrt(workers)
    divisor = next(rows for rows in range(root, 0, -1) if workers % rows == 0)
    return divisor if 4 * divisor * divisor >= workers else root


def _levels(workers: int, size: int) -> int:
    """Return the smallest k with size^k >= workers."""
    levels = 1
    while size**levels < workers:
        levels += 1
    return levels


def _block(ranks: Sequence[int], size: int, levels: int, generator: random.Random) -> _Block:
    if levels == 1:
        return _leaf(ranks)
    count = -(-len(ranks) // size ** (levels - 1))
    parts = [_block(part, size, levels - 1, generator) for part in _cut(ranks, count)]
    return _joined(parts, generator)


def _leaf(ranks: Sequence[int]) -> _Block:
    weight = Fraction(1, len(ranks))
    group = Group(tuple(sorted(ranks)), (weight,) * len(ranks))
    return _Block(group.ranks, (((group,),),))


def _joined(blocks: Sequence[_Block], generator: random.Random) -> _Block:
    """Return the block of blocks of as many levels: their rounds side by side, then crossings of them."""
    levels = [_side_by_side(level) for level in zip(*(block.levels for block in blocks), strict=True)]
    members = [block.ranks for block in blocks]
    ranks = tuple(sorted(rank for block in members for rank in block))
    if len(blocks) == 1:
        alone: Partition = tuple(Group((rank,), (Fraction(1),)) for rank in ranks)
        return _Block(ranks, (*levels, (alone,)))
    crossed = tuple(
        tuple(_crossing_group(part, members, len(ranks)) for part in crossing)
        for crossing in crossings(members, generator)
    )
    return _Block(ranks, (*levels, crossed))


def _side_by_side(level: Sequence[tuple[Partition, ...]]) -> tuple[Partition, ...]:
    """Return the rounds of several blocks as one; who has fewer crossings begins again."""
    turns = max(map(len, level))
    return tuple(
        tuple(group for partitions in level for group in partitions[turn % len(partitions)])
        for turn in range(turns)
    )


def _crossing_group(part: Sequence[int], blocks: Sequence[Sequence[int]], whole: int) -> Group:
    """Return a part of a crossing: each block counts by its size, shared by its members here."""
    weights = {}
    for block in blocks:
        here = [rank for rank in part if rank in block]
        weights.update(dict.fromkeys(here, Fraction(len(block), whole * len(here))))
    return Group(tuple(part), tuple(weights[rank] for rank in part))


def _cut(ranks: Sequence[int], count: int) -> list[Sequence[int]]:
    """Cut into ``count`` parts one after another, of sizes that differ by one at most, the larger first."""
    small, extra = divmod(len(ranks), count)
    edges = [small * number + min(number, extra) for number in range(count + 1)]
    return [ranks[start:end] for start, end in pairwise(edges)]
