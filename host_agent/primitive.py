# SPDX-License-Identifier: Apache-2.0
"""The one thing the network does, as the collectives see it."""

from dataclasses import dataclass
from typing import Protocol

from host_agent.dtypes import Lanes
from host_agent.report import ReduceReport
from wire.definition import GROUP_LANES, SLOT_LANES, Op


class Primitive(Protocol):
    """Reduces lanes over the workers of a group; ``host_agent.reducer.Reducer`` is the real one."""

    def reduce(self, lanes: Lanes, op: Op, block: int = ...) -> ReduceReport:
        """Replaces ``lanes`` (C-contiguous uint32) by the reduction over all workers, in place."""

    def barrier(self) -> ReduceReport:
        """Returns when every worker has called it."""


@dataclass(frozen=True)
class Peers:
    """A group of workers as one of them sees it: the primitive, its own rank, how many there are."""

    primitive: Primitive
    rank: int
    size: int

    def reduce(self, lanes: Lanes, op: Op, block: int | None = None) -> Lanes:
        """Reduces ``lanes`` in place and returns them; no lanes, no packets."""
        if lanes.size:
            self.primitive.reduce(lanes, op, block or fitting_block(lanes.size))
        return lanes


def fitting_block(lanes: int) -> int:
    """The smallest block that holds ``lanes`` lanes, else the largest: short vectors send short packets."""
    block = GROUP_LANES
    while block < lanes and block < SLOT_LANES:
        block *= 2
    return block
