# SPDX-License-Identifier: Apache-2.0
"""Vectors in parts, of which each rank wants one: what reduce_scatter, gather and all_to_all are made of.

A block of lanes has one owner, so each part starts on a block of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from weir.host_agent.collectives.communicator import Audience, Communicator, fitting_block
from weir.host_agent.collectives.dtypes import LANE_BYTES, Lanes
from weir.wire.definition import Op

ROOMY: Final = 2048
"""Elements that fill whole packets in whatever form: bytes, a lane or more for each, or packed lanes."""


@dataclass(frozen=True)
class Parts:
    """Parts of a vector, one after another, each padded to whole blocks.

    Attributes:
        counts: elements of each part.
        owners: the rank that wants each; every rank owns at most one.
        block: lanes in a block.
        unit: elements to a multiple of which each part is padded: a whole number of blocks of lanes, whatever
            the form of elements in lanes.
    """

    counts: tuple[int, ...]
    owners: tuple[int, ...]
    block: int
    unit: int

    @classmethod
    def of(cls, counts: Sequence[int], owners: Sequence[int], dtype: torch.dtype) -> "Parts":
        """Lay out parts of so many elements of a dtype."""
        in_lane = max(1, LANE_BYTES // dtype.itemsize)
        block = fitting_block(-(-max(counts, default=0) // in_lane))
        unit = ROOMY if max(counts, default=0) >= ROOMY else block * in_lane
        return cls(tuple(counts), tuple(owners), block, unit)

    @property
    def lengths(self) -> list[int]:
        """Return the elements of each part with its padding."""
        return [-(-count // self.unit) * self.unit for count in self.counts]

    @property
    def size(self) -> int:
        """Return the elements of the vector."""
        return sum(self.lengths)

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the flat vector of the parts, padded with zeros."""
        whole = torch.zeros(self.size, dtype=parts[0].dtype)
        for place, part in zip(torch.split(whole, self.lengths), parts, strict=True):
            place[: part.numel()] = part.detach().reshape(-1)
        return whole

    def of_rank(self, rank: int) -> slice:
        """Return where in the vector the elements of a rank's part are: nowhere when it owns none."""
        if rank not in self.owners:
            return slice(0, 0)
        index = self.owners.index(rank)
        start = sum(self.lengths[:index])
        return slice(start, start + self.counts[index])

    def locate(self, index: int) -> tuple[int, int]:
        """Return the part that an element of the vector is in, and which one of it."""
        for part, length in enumerate(self.lengths):
            if index < length:
                return part, index
            index -= length
        raise IndexError(f"the vector has {self.size} elements")

    def audience(self, lanes: int, planes: int = 1, block: int | None = None) -> Audience:
        """Return who wants each block of so many lanes.

        The lanes are ``planes`` vectors one after another, in each of which the parts have their proportion.
        """
        of_unit = lanes * self.unit // (planes * self.size * (block or self.block))
        counts = [length // self.unit * of_unit for length in self.lengths]
        return np.tile(np.repeat(np.array(self.owners, np.int16), counts), planes)


def reduce(communicator: Communicator, lanes: Lanes, op: Op, parts: Parts | None, planes: int = 1) -> Lanes:
    """Reduce ``lanes`` in place, each part for its owner, and return them; for all, without parts."""
    if parts is None or not lanes.size:
        return communicator.reduce(lanes, op)
    return communicator.reduce(lanes, op, parts.block, audience=parts.audience(lanes.size, planes))
