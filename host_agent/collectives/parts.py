# SPDX-License-Identifier: Apache-2.0
"""Vectors in parts, of which each rank wants one: what reduce_scatter, gather and all_to_all are made of.

A block of lanes has one audience, so each part begins on a block of its own. Parts of one length alternate,
some blocks at a time: then the links of all ranks are in use all the time, not one after another.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch

from weir.host_agent.collectives.communicator import Audience, Communicator, fitting_block
from weir.host_agent.collectives.dtypes import LANE_BYTES, Lanes
from weir.wire.definition import Op

ROOMY: Final = 2048
"""Elements that fill whole packets in whatever form: bytes, a lane or more for each, or packed lanes."""


FEW_BLOCKS: Final = 1024
"""Audiences of no more blocks are worth keeping: to make them takes longer than to add up their lanes."""


@dataclass(frozen=True)
class Parts:
    """Parts of a vector in units, padded with zeros.

    Attributes:
        counts: elements of each part.
        audience: who wants each, as ``Audience`` has it.
        block: lanes in a block.
        unit: elements in a unit: a whole number of blocks of lanes, whatever the form of elements in lanes.
    """

    counts: tuple[int, ...]
    audience: tuple[int, ...]
    block: int
    unit: int

    @classmethod
    def of(cls, counts: Sequence[int], audience: Sequence[int], dtype: torch.dtype) -> "Parts":
        """Lay out parts of this many elements of a dtype."""
        return _laid_out(tuple(counts), tuple(audience), max(1, LANE_BYTES // dtype.itemsize))

    @cached_property
    def starts(self) -> list[int] | None:
        """Return where each part begins, if all are in one piece each: their units do not alternate."""
        if self.take_turns and self.lengths and self.lengths[0] > 1:
            return None
        return [self.unit * units for units in itertools.accumulate(self.lengths, initial=0)][:-1]

    @cached_property
    def lengths(self) -> list[int]:
        """Units of each part."""
        return [-(-count // self.unit) for count in self.counts]

    @cached_property
    def take_turns(self) -> bool:
        """Return whether a unit of each part follows one of the part before."""
        return len(set(self.lengths)) == 1

    @property
    def size(self) -> int:
        """Elements of the vector."""
        return self.unit * sum(self.lengths)

    def join(self, parts: Sequence[torch.Tensor | None], dtype: torch.dtype) -> torch.Tensor:
        """Return the flat vector of the parts, of zeros where they are None."""
        whole = torch.zeros(self.size // self.unit, self.unit, dtype=dtype)
        for index, part in enumerate(parts):
            if part is not None and part.numel():
                flat = part.detach().reshape(-1)
                padding = -flat.numel() % self.unit
                whole[self._places(index)] = torch.nn.functional.pad(flat, (0, padding)).view(-1, self.unit)
        return whole.view(-1)

    def part(self, whole: torch.Tensor, index: int) -> torch.Tensor:
        """Return a part of the vector, flat."""
        rows = whole.view(-1, self.unit)[self._places(index)]
        return rows.reshape(-1)[: self.counts[index]]

    def locate(self, element: int) -> tuple[int, int]:
        """Return the part that an element of the vector is in, and which one of it."""
        unit, within = divmod(element, self.unit)
        if self.take_turns:
            before, part = divmod(unit, len(self.counts))
            return part, before * self.unit + within
        for part, length in enumerate(self.lengths):
            if unit < length:
                return part, unit * self.unit + within
            unit -= length
        raise IndexError(f"the vector has {self.size} elements")

    def of_blocks(self, lanes: int, planes: int = 1, block: int | None = None) -> Audience:
        """Return who wants each block of this many lanes; the array may not be written to.

        The lanes are ``planes`` vectors one after another, in each of which the units have their proportion.
        """
        found = self._known.get((lanes, planes, block))
        if found is None:
            found = self._spread(lanes, planes, block)
            found.flags.writeable = False
            if found.size <= FEW_BLOCKS:
                self._known[lanes, planes, block] = found
        return found

    @cached_property
    def _known(self) -> dict[tuple[int, int, int | None], Audience]:
        """Return what ``of_blocks`` has found of short vectors."""
        return {}

    def _spread(self, lanes: int, planes: int, block: int | None) -> Audience:
        in_unit = lanes * self.unit // (planes * self.size * (block or self.block))
        parts = np.array(self.audience, np.int16)
        units = np.tile(parts, self.lengths[0]) if self.take_turns else np.repeat(parts, self.lengths)
        return np.tile(np.repeat(units, in_unit), planes)

    def _places(self, index: int) -> slice:
        """Return where the units of a part are."""
        if self.take_turns:
            return slice(index, None, len(self.counts))
        start = sum(self.lengths[:index])
        return slice(start, start + self.lengths[index])


@functools.lru_cache(maxsize=64)  # a program makes the same calls over and over
def _laid_out(counts: tuple[int, ...], audience: tuple[int, ...], in_lane: int) -> Parts:
    most = max(counts, default=0)
    block = fitting_block(-(-most // in_lane))
    return Parts(counts, audience, block, ROOMY if most >= ROOMY else block * in_lane)


def reduce_parts(
    communicator: Communicator, lanes: Lanes, op: Op, parts: Parts | None, planes: int = 1
) -> Lanes:
    """Reduce ``lanes`` in place, each part for its audience, and return them; for all, without parts."""
    if parts is None or not lanes.size:
        return communicator.reduce_vector(lanes, op)
    return communicator.reduce_vector(lanes, op, parts.block, audience=parts.of_blocks(lanes.size, planes))
