# SPDX-License-Identifier: Apache-2.0
"""Sums of floats: a maximum over shared block exponents, then a sum of fixed-point lanes.

The workers first agree on one exponent per block of lanes (MAX), then each turns its values into integers
of that scale, with headroom for as many workers as there are, and the network adds those (ADD). Integer
addition commutes, so every worker gets the same bits whatever the order of arrival. The error bounds are
derived in ``host_agent.quantize`` and ``host_agent.limbs``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from host_agent import limbs, quantize
from host_agent.dtypes import Lanes
from host_agent.primitive import Peers, fitting_block
from host_agent.report import ReduceReport
from wire.definition import Op

_LAST = np.uint32(0xFFFFFFFF)

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
    """One worker's part of a float32 sum: its lanes, and the scale that all workers agreed on."""

    lanes: npt.NDArray[np.int32]
    exponents: Lanes
    block: int
    workers: int

    def values(self) -> npt.NDArray[np.float32]:
        """The lanes as numbers: what the sum includes of this worker's input.

        No rounding here: a lane has at most as many significant bits as the number it came from.
        """
        return quantize.from_fixed(self.lanes, self.exponents, self.block, self.workers)

    def add(self, peers: Peers) -> tuple[npt.NDArray[np.float32], ReduceReport]:
        """The sum of all workers' contributions, and how it was made.

        Blocks of this worker's that no result included are zero in ``lanes`` afterwards.
        """
        lanes = self.lanes.copy()
        report = peers.primitive.reduce(lanes.view(np.uint32), Op.ADD, self.block)
        for block in report.given_back.blocks:
            self.lanes[block * self.block : (block + 1) * self.block] = 0
        return quantize.from_fixed(lanes, self.exponents, self.block, self.workers), report


def encode(peers: Peers, values: npt.NDArray[np.float32], name: Namer, block: int) -> Contribution:
    """Agrees with all workers on the scale of every block and puts ``values`` to it.

    NonFiniteError on every worker when any value is NaN or infinite; ``name`` describes it by flat index.
    """
    exponents = _agree(peers, quantize.exponents(values, block), quantize.NOT_FINITE, values, name)
    lanes = quantize.to_fixed(values, exponents, block, peers.size)
    return Contribution(lanes, exponents, block, peers.size)


def sum_float32(peers: Peers, values: npt.NDArray[np.float32], name: Namer) -> npt.NDArray[np.float32]:
    """The sum over all workers of a vector of float32; errors as in ``encode``."""
    mine = encode(peers, values, name, fitting_block(values.size))
    peers.reduce(mine.lanes.view(np.uint32), Op.ADD, mine.block)
    return mine.values()  # the lanes hold the sum now: reduced in place, which saves a copy


def sum_float64(peers: Peers, values: npt.NDArray[np.float64], name: Namer) -> npt.NDArray[np.float64]:
    """``sum_float32`` for float64: three limb lanes a value."""
    block = fitting_block(values.size)
    exponents = _agree(peers, limbs.exponents64(values, block), limbs.NOT_FINITE64, values, name)
    lanes = limbs.split_float64(values, exponents, block)
    return limbs.join_float64(peers.reduce(lanes, Op.ADD), exponents, block)


def _agree(
    peers: Peers, exponents: Lanes, not_finite: int, values: npt.NDArray[np.floating[Any]], name: Namer
) -> Lanes:
    """A worker's block exponents, replaced by the group's maxima; NonFiniteError at a ``not_finite``."""
    peers.reduce(exponents, Op.MAX)
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
