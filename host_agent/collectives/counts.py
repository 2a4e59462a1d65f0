# SPDX-License-Identifier: Apache-2.0
"""Sums of small counts: 2 to 16 of them in each 32-bit lane, added by the switch unawares.

A lane has 32 / w fields of w bits. Every worker puts an integer from 0 to c into each field, and n c < 2^w:
so no field of a sum reaches into the next. A sign is such a count: 1 for plus, 0 for minus. The sum of n
signs is then 2 k - n, for k that the field holds: fields of 2 bits for up to 3 workers, of 4 for up to 15.

All workers must be in the sum: a worker that is left out would count as so many minus signs.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives import bindings
from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.transport.arrays import address_of, contiguous
from weir.wire.definition import Op

WIDTHS: Final = (2, 4, 8, 16)

Counts = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class CountLanes:
    """A form of counts in lanes.

    Attributes:
        width: bits of a field.
    """

    width: int

    @classmethod
    def holding(cls, most: int) -> Self:
        """Return the narrowest form whose fields hold sums up to ``most``. ValueError when there is none."""
        for width in WIDTHS:
            if most < 1 << width:
                return cls(width)
        raise ValueError(f"fields of {WIDTHS[-1]} bits hold sums up to {(1 << WIDTHS[-1]) - 1}, not {most}")

    @property
    def most(self) -> int:
        """Return the greatest sum that a field holds."""
        return (1 << self.width) - 1

    def lanes(self, count: int) -> int:
        """Return how many lanes so many counts take."""
        return -(-count * self.width // 32)

    def pack(self, counts: Counts) -> npt.NDArray[np.uint32]:
        """Return the lanes of some counts; the last one's unused fields are zero."""
        lanes = np.empty(self.lanes(counts.size), np.uint32)
        address = contiguous(counts, "counts", np.uint8)
        bindings.library().weir_pack_counts(address, counts.size, self.width, address_of(lanes))
        return lanes

    def unpack(self, lanes: npt.NDArray[np.uint32], count: int) -> Sums:
        """Return the first ``count`` counts of lanes, or sums of lanes."""
        sums = np.empty(count, np.uint16)
        address = contiguous(lanes, "lanes", np.uint32)
        bindings.library().weir_unpack_counts(address, count, self.width, address_of(sums))
        return sums

    def sum(self, communicator: Communicator, counts: Counts) -> Sums:
        """Return the sums of all workers' counts. No sum may be above ``most``."""
        return self.unpack(communicator.reduce(self.pack(counts), Op.ADD), counts.size)
