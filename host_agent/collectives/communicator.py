# SPDX-License-Identifier: Apache-2.0
"""The one thing the network does, as the collectives see it."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.tagging import LOSSLESS, Tagging
from weir.wire.definition import GROUP_LANES, SLOT_LANES, Op


class Primitive(Protocol):
    """Reduces lanes over the workers of a group; ``transport.reducer.Reducer`` is the real one."""

    def reduce(self, lanes: Lanes, op: Op, block: int = ..., tagging: Tagging = ...) -> ReduceReport:
        """Replace ``lanes`` (C-contiguous uint32) by the reduction over all workers, in place.

        Losslessly, but for what the tagging's budgets allow.
        """

    def barrier(self) -> ReduceReport:
        """Return when every worker has called it."""


class Scratch:
    """Memory for lanes, kept from one operation to the next: fresh pages cost more than the arithmetic."""

    def __init__(self) -> None:
        self._lanes: npt.NDArray[np.int32] = np.empty(0, np.int32)

    def take(self, count: int) -> npt.NDArray[np.int32]:
        """``count`` lanes of any content, until the next call."""
        if count > self._lanes.size:
            self._lanes = np.empty(count, np.int32)
        return self._lanes[:count]


@dataclass(frozen=True)
class Communicator:
    """A group of workers as one of them sees it: the primitive, its own rank, how many there are.

    For one thread at a time.
    """

    primitive: Primitive
    rank: int
    size: int
    scratch: Scratch = field(default_factory=Scratch)

    def reduce(self, lanes: Lanes, op: Op, block: int | None = None, tagging: Tagging = LOSSLESS) -> Lanes:
        """Reduce ``lanes`` in place and returns them; no lanes, no packets."""
        if lanes.size:
            self.primitive.reduce(lanes, op, block or fitting_block(lanes.size), tagging)
        return lanes


def fitting_block(lanes: int) -> int:
    """Return the smallest block that holds ``lanes`` lanes, else the largest: short vectors send short
    packets.
    """
    block = GROUP_LANES
    while block < lanes and block < SLOT_LANES:
        block *= 2
    return block
