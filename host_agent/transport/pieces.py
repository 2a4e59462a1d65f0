# SPDX-License-Identifier: Apache-2.0
"""Vectors whose blocks lie in several pieces of memory: they are reduced where they are, in any order."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.transport.arrays import contiguous

TABLE: Final = np.dtype(
    [("lanes", np.uint64), ("exponents", np.uint64), ("count", np.uint32), ("how", np.uint32)]
)
"""``weir_place`` in transport.h."""


class Use(IntEnum):
    """Uses of a piece's memory: C ``WEIR_PLACE_...``."""

    SUM = 0
    """The worker contributes it, and the result overwrites it."""

    SILENT = 1
    """The worker contributes zeros. The result overwrites it, but for blocks that are zero on all workers."""

    CHANGE = 2
    """The worker contributes zeros. The result changes it by exclusive or."""


@dataclass(frozen=True)
class Piece:
    """A run of lanes, cut into blocks from its start; the last one may be shorter.

    Attributes:
        lanes: C-contiguous, of four bytes each.
        use: of them.
        exponents: of float32 values that the memory holds, see ``FloatScales``; None: it holds lanes.
    """

    lanes: npt.NDArray[Any]
    use: Use = Use.SUM
    exponents: npt.NDArray[np.uint32] | None = None

    def blocks(self, block: int) -> int:
        """Return how many blocks it has."""
        return -(-self.lanes.size // block)


@dataclass(frozen=True)
class Pieces:
    """A vector of blocks in several pieces, for ADD without loss budgets.

    Attributes:
        pieces: of it; none is empty.
        order: place in the vector -> number of the block, counted over the pieces one after another.
        values: values to an exponent, as in ``FloatScales``; 0: no piece has exponents.
        headroom: as there.
    """

    pieces: Sequence[Piece]
    order: npt.NDArray[np.intp]
    values: int = 0
    headroom: int = 0

    @property
    def size(self) -> int:
        """Return the number of lanes."""
        return sum(piece.lanes.size for piece in self.pieces)

    def table(self, block: int) -> npt.NDArray[np.void]:
        """Return where each block is, in the order of the vector.

        Raises:
            TypeError: a piece is of other numbers.
            ValueError: a piece is empty, cannot be written or is not in one run of memory; exponents are too
                few; the order is of another number of blocks.
        """
        found = np.zeros(sum(piece.blocks(block) for piece in self.pieces), TABLE)
        if self.order.size != found.size:
            raise ValueError(f"an order of {self.order.size} blocks, of which the pieces have {found.size}")
        start = 0
        for piece in self.pieces:
            count = piece.blocks(block)
            self._fill(found[start : start + count], piece, block)
            start += count
        return found[self.order]

    def _fill(self, table: npt.NDArray[np.void], piece: Piece, block: int) -> None:
        first = contiguous(piece.lanes, "a piece", np.uint32, np.int32, np.float32)
        if not piece.lanes.size or not piece.lanes.flags.writeable:
            raise ValueError("a piece is empty or read-only, and a reduce replaces it in place")
        numbers = np.arange(table.size, dtype=np.uint64)
        table["lanes"] = first + numbers * np.uint64(4 * block)
        table["count"] = block
        table["count"][-1] = piece.lanes.size - (table.size - 1) * block
        table["how"] = piece.use
        if piece.exponents is not None:
            exponents = contiguous(piece.exponents, "exponents", np.uint32)
            if not self.values or piece.exponents.size != -(-piece.lanes.size // self.values):
                raise ValueError(f"{piece.exponents.size} exponents for {piece.lanes.size} values")
            table["exponents"] = exponents + numbers * np.uint64(block) // np.uint64(self.values) * np.uint64(
                4
            )
