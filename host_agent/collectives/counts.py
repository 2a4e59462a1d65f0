# SPDX-License-Identifier: Apache-2.0
"""Sums of small counts: several of them in each 32-bit lane, added by the switch unawares.

A lane is a number to some base b, and its digits are counts. Where all workers' counts of a place add up to
less than b, no digit of the sum reaches into the next. So the switch, which adds whole lanes, adds digits.
With b^d <= 2^32 a lane holds d of them:

    sums up to   1   2   3   4   5   6   7   8  12  15  16  31  255
    digits      32  20  16  13  12  11  10  10   8   8   7   6    4

Counts go in chunks of CHUNK, each to the fewest lanes that hold it.

A sign is such a count: 1 for plus, 0 for minus. The sum of n signs is then 2 k - n, for the digit k. All
workers must be in the sum: one that is left out would count as this many minus signs.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives import bindings
from weir.host_agent.transport.arrays import address_of, contiguous

MOST: Final = (1 << 16) - 1
"""The greatest sum that there is a form for."""

CHUNK: Final = 1 << 14
"""Counts that are packed at a time: as csrc/counts.h has it."""

Counts = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class CountLanes:
    """A form of counts in lanes.

    Attributes:
        most: the greatest sum, from 1 to MOST.

    Raises:
        ValueError: ``most`` is out of range.
    """

    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.most <= MOST:
            raise ValueError(f"sums of counts go up to {MOST}, not {self.most}")

    @property
    def base(self) -> int:
        """Number to which lanes are written."""
        return self.most + 1

    @property
    def digits(self) -> int:
        """Return how many counts a lane holds."""
        found = 1
        while self.base ** (found + 1) <= 1 << 32:
            found += 1
        return found

    def lanes(self, count: int) -> int:
        """Return how many lanes this many counts take."""
        whole, rest = divmod(count, CHUNK)
        return whole * -(-CHUNK // self.digits) - (-rest // self.digits)

    def pack(self, counts: Counts) -> npt.NDArray[np.uint32]:
        """Return the lanes of some counts, none of them above ``most``."""
        lanes = np.empty(self.lanes(counts.size), np.uint32)
        self.pack_into(counts, lanes)
        return lanes

    def pack_into(self, counts: Counts, lanes: npt.NDArray[np.uint32]) -> None:
        """Write the lanes of some counts to the beginning of ``lanes``."""
        bindings.library().weir_pack_counts(
            contiguous(counts, "counts", np.uint8), counts.size, self.base, self.digits, address_of(lanes)
        )

    def unpack(self, lanes: npt.NDArray[np.uint32], count: int) -> Sums:
        """Return the first ``count`` counts of lanes, or sums of lanes."""
        sums = np.empty(count, np.uint16)
        bindings.library().weir_unpack_counts(
            contiguous(lanes, "lanes", np.uint32), count, self.base, self.digits, address_of(sums)
        )
        return sums
