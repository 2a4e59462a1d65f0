# SPDX-License-Identifier: Apache-2.0
"""Sums of floats: a maximum over shared block exponents, then a sum of fixed-point lanes.

The workers first agree on one exponent per block of lanes (MAX), then each turns its values into integers
of that scale, with headroom for as many workers as there are, and the network adds those (ADD). Integer
addition commutes, so every worker gets the same bits whatever the order of arrival. The error bounds are
derived in ``host_agent.quantize`` and ``host_agent.limbs``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from host_agent import limbs, quantize
from host_agent.dtypes import Lanes
from host_agent.primitive import Peers, fitting_block
from host_agent.report import ReduceReport
from wire.definition import GROUP_LANES, Op

_LAST = np.uint32(0xFFFFFFFF)
_WORTH_SELECTING = 1 / 8  # of the blocks: with more, copying them out and in costs more than it saves

Namer = Callable[[int], str]


class NonFiniteError(ArithmeticError):
    """Some worker's input to a sum held NaN or infinity. Raised on every worker; nothing was summed.

    ranks: the workers whose input it was. index: flat index of the first such element over all of them.
    """

    def __init__(self, what: str, ranks: tuple[int, ...], index: int, rank: int) -> None:
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        super().__init__(
            f"NaN or infinity on {who}: {what} (reported on rank {rank}). Nothing was summed; "
            "the group stays usable. Look for a loss that diverged or a division by zero there."
        )
        self.ranks = ranks
        self.index = index


@dataclass(frozen=True)
class Contribution:
    """One worker's part of a float32 sum: fixed-point lanes, and the scale that all workers agreed on.

    rows: which blocks of the vector the lanes are of, the same on every worker; None: all of them. The
    others are zero on every worker. count: values of the vector.
    """

    lanes: npt.NDArray[np.int32]
    exponents: Lanes
    rows: npt.NDArray[np.intp] | None
    count: int
    block: int
    workers: int

    def add(self, peers: Peers, *, keep: bool) -> tuple["Contribution", ReduceReport]:
        """The sum of all workers' contributions, itself in this form, and how it was made.

        keep: leave this contribution as it is, but for blocks that no result included: those become zero.
        Otherwise its memory becomes the sum's.
        """
        lanes = self.lanes.copy() if keep else self.lanes
        report = peers.primitive.reduce(lanes.view(np.uint32), Op.ADD, self.block)
        if keep:
            for block in report.given_back.blocks:
                self.lanes[block * self.block : (block + 1) * self.block] = 0
        return replace(self, lanes=lanes), report

    def values(self) -> npt.NDArray[np.float32]:
        """The vector that the lanes stand for.

        Of a worker's own contribution this is exact: a lane has no more significant bits than the number it
        came from. A sum is rounded once.
        """
        vector = np.zeros(self.count, np.float32)
        self.write(vector)
        return vector

    def write(self, vector: npt.NDArray[np.float32]) -> None:
        """Overwrites the blocks of ``vector`` that the lanes are of."""
        if self.rows is None:
            quantize.from_fixed(self.lanes, self.exponents, self.block, self.workers, out=vector)
            return
        decoded = quantize.from_fixed(self.lanes, self.exponents, self.block, self.workers)
        whole = self.count // self.block
        blocks = decoded.reshape(-1, self.block)
        inside = int(np.searchsorted(self.rows, whole))
        vector[: whole * self.block].reshape(-1, self.block)[self.rows[:inside]] = blocks[:inside]
        if inside < len(self.rows):
            vector[whole * self.block :] = blocks[inside, : self.count - whole * self.block]


def encode(peers: Peers, values: npt.NDArray[np.float32], name: Namer, block: int) -> Contribution:
    """Agrees with all workers on the scale of every block and puts ``values`` to it.

    Where nearly all blocks are zero on all workers, the lanes are of the others alone. They are in memory
    that the next call takes again. NonFiniteError on every worker when any value is NaN or infinite; ``name``
    describes it by flat index.
    """
    exponents = _agree(peers, quantize.exponents(values, block), quantize.NOT_FINITE, values, name)
    rows = np.flatnonzero(exponents)
    if rows.size > exponents.size * _WORTH_SELECTING:
        lanes = peers.scratch.take(values.size)
        quantize.to_fixed(values, exponents, block, peers.size, out=lanes)
        return Contribution(lanes, exponents, None, values.size, block, peers.size)
    exponents = exponents[rows]
    lanes = quantize.to_fixed(_select(values, rows, block), exponents, block, peers.size)
    return Contribution(lanes, exponents, rows, values.size, block, peers.size)


def _select(
    values: npt.NDArray[np.float32], rows: npt.NDArray[np.intp], block: int
) -> npt.NDArray[np.float32]:
    """Blocks ``rows`` (ascending) of a vector, one after another, the last one padded with zeros."""
    whole = values.size // block
    inside = int(np.searchsorted(rows, whole))
    selected = np.zeros((len(rows), block), np.float32)
    np.take(values[: whole * block].reshape(-1, block), rows[:inside], axis=0, out=selected[:inside])
    if inside < len(rows):
        selected[inside, : values.size - whole * block] = values[whole * block :]
    return selected.reshape(-1)


def sum_float32(peers: Peers, values: npt.NDArray[np.float32], name: Namer) -> None:
    """Replaces a vector by its sum over all workers. On errors, those of ``encode``, it keeps its values."""
    total, _ = encode(peers, values, name, fitting_block(values.size)).add(peers, keep=False)
    total.write(values)


def sum_float64(peers: Peers, values: npt.NDArray[np.float64], name: Namer) -> None:
    """``sum_float32`` for float64: three limb lanes a value."""
    block = fitting_block(values.size)
    exponents = _agree(peers, limbs.exponents64(values, block), limbs.NOT_FINITE64, values, name)
    lanes = limbs.split_float64(values, exponents, block)
    values[:] = limbs.join_float64(peers.reduce(lanes, Op.ADD), exponents, block)


def _agree(
    peers: Peers, exponents: Lanes, not_finite: int, values: npt.NDArray[np.floating[Any]], name: Namer
) -> Lanes:
    """A worker's block exponents, replaced by the group's maxima; NonFiniteError at a ``not_finite``."""
    peers.reduce(exponents, Op.MAX, GROUP_LANES)  # sparse where the values are: fine blocks skip more
    if exponents.size and int(exponents.max()) >= not_finite:
        raise _blame(peers, values, name)
    return exponents


def _blame(peers: Peers, values: npt.NDArray[np.floating[Any]], name: Namer) -> NonFiniteError:
    """Finds out together whose input was not finite and where it starts."""
    mine = np.flatnonzero(~np.isfinite(values))
    first = np.array([_LAST - np.uint32(mine[0]) if mine.size else 0], dtype=np.uint32)
    index = int(_LAST - peers.reduce(first, Op.MAX)[0])
    culprits = np.array([1 << peers.rank if mine.size else 0], dtype=np.uint32)
    mask = int(peers.reduce(culprits, Op.OR)[0])
    ranks = tuple(rank for rank in range(peers.size) if mask >> rank & 1)
    return NonFiniteError(name(index), ranks, index, peers.rank)
