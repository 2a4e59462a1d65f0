# SPDX-License-Identifier: Apache-2.0
"""Sums of pending values over all workers: what of its own each worker delivered, and the mean of all.

*One bit.* The workers first sum the mean magnitude of each row; s, the mean of all workers', is so known to
all before anybody quantises. Then each sends the sign of every value, and delivers s times that sign. The
mean of all is s (2 k - n) / n for k plus signs of n workers. A scale of a worker's own could not be taken out
of the sum of signs: what one worker holds back would be what the others believe it has sent.

*Fixed point.* Values of 8, 16 or 32 bits, as in ``weir.host_agent.collectives.packing``.

In both, what is not delivered is exactly known to the worker, and stays pending.
"""

from dataclasses import dataclass
from typing import Final, Literal, Protocol

import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.contribution import HostVector
from weir.host_agent.collectives.counts import CountLanes
from weir.host_agent.collectives.packing import LANE_ERROR, LaneFormat, WholeLanes, lane_format
from weir.host_agent.collectives.shared_scales import encode
from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.compression.updates.harm import Delivered
from weir.host_agent.compression.updates.layout import ROW
from weir.host_agent.compression.updates.parts import Parts
from weir.wire.definition import Op

ValueBits = Literal[1, 8, 16, 32]
VALUE_BITS: Final[tuple[ValueBits, ...]] = (1, 8, 16, 32)

_SCALES_IN_A_BLOCK: Final = 64  # row scales that share an exponent: those of few layers


@dataclass(frozen=True)
class Pending:
    """The pending values of a worker, and the shared point that they are delivered to.

    Attributes:
        parts: its parameters, which hold them; become weights, of a shared point that has moved.
        norms: float32[rows], sums of magnitudes in each row; for signs only.
        rows: those in turn, ascending; None: all.
        shared: the shared point, float32[rows, ROW].
        factors: float32[parameters], by which the shared point is multiplied first.
    """

    parts: Parts
    norms: torch.Tensor
    rows: torch.Tensor | None
    shared: torch.Tensor
    factors: torch.Tensor


class Delivery(Protocol):
    """A form of sums of pending values."""

    def deliver(self, communicator: Communicator, pending: Pending) -> Delivered:
        """Sum over all workers, which make the same call, and end the step; return what was delivered.

        If the network fails, the parameters hold what is pending, and the shared point is as it was.
        """


class Signs:
    """One bit to a value, with the scale that all workers know."""

    def deliver(self, communicator: Communicator, pending: Pending) -> Delivered:
        """Sum scales, then signs."""
        workers, parts, rows = communicator.size, pending.parts, pending.rows
        norms, lengths = pending.norms, parts.layout.lengths
        if rows is not None:
            norms, lengths = norms[rows], lengths[rows]
        scales = sum_whole(communicator, norms / lengths).div_(workers)
        form = CountLanes(workers)
        lanes = communicator.reduce_vector(parts.signs(rows, form), Op.ADD)
        parts.settle_signs(rows, scales, lanes, form, pending.shared, pending.factors)
        return Delivered(scales.square().mul_(lengths), scales * norms)


class FixedPoint:
    """Values of 8, 16 or 32 bits in lanes."""

    def __init__(self, bits: Literal[8, 16, 32], workers: int) -> None:
        self._form = lane_format(bits, LANE_ERROR, workers)

    def deliver(self, communicator: Communicator, pending: Pending) -> Delivered:
        """Sum in fixed point."""
        wanted = pending.parts.value_rows(pending.rows)
        own, mean = self.mean(communicator, wanted)
        pending.parts.settle(pending.rows, own, mean, pending.shared, pending.factors)
        return Delivered(own.square().sum(1), wanted.mul_(own).sum(1))

    def mean(self, communicator: Communicator, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what a worker puts into the sum of rows, and the mean of all workers'."""
        own, total = _summed(communicator, rows, self._form, ROW)
        return own, total.div_(communicator.size)


def delivery(bits: ValueBits, workers: int) -> Delivery:
    """Return the form of sums with this many bits to a value. ValueError: there is none for this many "
    "workers."""
    if bits not in VALUE_BITS:
        raise ValueError(f"{bits!r} bits to a value: there are {', '.join(map(str, VALUE_BITS))}")
    return Signs() if bits == 1 else FixedPoint(bits, workers)


def sum_whole(communicator: Communicator, values: torch.Tensor) -> torch.Tensor:
    """Return the sum of a few values over all workers, in whole lanes whatever the group's precision is."""
    return _summed(communicator, values, WholeLanes(communicator.size), _SCALES_IN_A_BLOCK)[1]


def _summed(
    communicator: Communicator, values: torch.Tensor, form: LaneFormat, scale_block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what this worker puts into a fixed-point sum, and the sum, in the values' shape."""
    flat = array_of(values.contiguous().view(-1))
    mine = encode(communicator, HostVector(flat), str, scale_block, form=form, dense=True)
    own = torch.from_numpy(mine.values()).view(values.shape)
    total, _ = mine.add(communicator, keep=False)
    return own, torch.from_numpy(total.values()).view(values.shape)
