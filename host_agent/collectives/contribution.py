# SPDX-License-Identifier: Apache-2.0
"""One worker's part of a sum of float32: fixed-point lanes, and the scales that all workers agreed on."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives import quantize
from weir.host_agent.collectives.communicator import Audience, Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.collectives.non_finite import Places
from weir.host_agent.collectives.packing import LaneFormat
from weir.host_agent.collectives.quantize import Fixed, Floats, Rows
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.wire.definition import Op

NO_NOTES: Final = np.empty(0, np.uint32)


class Vector(Protocol):
    """Float32 values to sum, which may be on a device."""

    @property
    def size(self) -> int:
        """Return the number of values."""

    def numbers(self) -> Floats:
        """Return the values in main memory."""

    def scales(self, form: LaneFormat, scale_block: int) -> Lanes:
        """Return the scale of each block, see ``LaneFormat.scales``."""

    def lanes(
        self,
        form: LaneFormat,
        rows: Rows | None,
        scales: Lanes,
        scale_block: int,
        take: Callable[[int], Fixed],
    ) -> Fixed:
        """Return lanes in main memory, see ``LaneFormat.encode``."""


class HostVector:
    """Float32 values in main memory, flat."""

    def __init__(self, values: Floats) -> None:
        self._values = values
        self.size = values.size

    def numbers(self) -> Floats:
        """Return the values themselves."""
        return self._values

    def scales(self, form: LaneFormat, scale_block: int) -> Lanes:
        """Return the scale of each block."""
        return form.scales(self._values, scale_block)

    def lanes(
        self,
        form: LaneFormat,
        rows: Rows | None,
        scales: Lanes,
        scale_block: int,
        take: Callable[[int], Fixed],
    ) -> Fixed:
        """Return lanes in memory from ``take``."""
        return form.encode(self._values, rows, scales, scale_block, take)


@dataclass(frozen=True)
class Scales:
    """The scales that all workers agreed on.

    Attributes:
        values: one scale for each block.
        unit: values of the vector in a block.
        rows: numbers of the blocks that have a scale; the others are zero on every worker. None: all have.
        apart: where the sum is not finite; None: nowhere.
    """

    values: Lanes
    unit: int
    rows: quantize.Rows | None = None
    apart: Places | None = None


@dataclass(frozen=True)
class Contribution:
    """One worker's part of a float32 sum: fixed-point lanes, and the scale that all workers agreed on.

    Attributes:
        lanes, scales: of the blocks in ``rows``.
        rows: numbers of the blocks of the vector, the same on every worker; the others are zero on every
            worker. None: all blocks.
        count: values of the vector.
        scale_block: values that share a scale.
        packet_block: lanes in a block of the packets, which is skipped or lost as a whole. With rows and
            budgets it divides the lanes of a ``scale_block``.
        form: how values fill lanes.
        apart: where the sum is not finite, whatever the lanes say; None: nowhere.
    """

    lanes: npt.NDArray[np.int32]
    scales: Lanes
    rows: quantize.Rows | None
    count: int
    scale_block: int
    packet_block: int
    form: LaneFormat
    apart: Places | None = None

    def add(
        self,
        communicator: Communicator,
        *,
        keep: bool,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
        notes: Lanes = NO_NOTES,
    ) -> tuple["Contribution", ReduceReport]:
        """Return the sum of all workers' contributions, itself in this form, and how it was made.

        Args:
            communicator: of all workers, which make the same call.
            keep: keep this contribution, with zeros in the blocks that no result included. Otherwise the sum
                overwrites its memory.
            service: may have budgets only if the lanes fill whole blocks. Its arrays have an element for each
                block of the packets in ``lanes``.
            audience: who wants each of these blocks.
            notes: lanes that travel along; replaced by their sum. Not with budgets or audiences.
        """
        lanes = whole = self.lanes.copy() if keep else self.lanes
        if notes.size:
            padding = np.zeros(-lanes.size % self.packet_block, np.int32)
            whole = np.concatenate([lanes, padding, notes.view(np.int32)])
        report = communicator.reduce_lanes(
            whole.view(np.uint32), Op.ADD, self.packet_block, service, audience
        )
        if notes.size:
            lanes, notes[:] = whole[: lanes.size], whole[-notes.size :].view(np.uint32)
        if keep and report.given_back.blocks.size:
            give_back(self.lanes, report.given_back.blocks, self.packet_block)
        return replace(self, lanes=lanes), report

    def places(self) -> npt.NDArray[np.uint32] | None:
        """Return the vector's packet block for each one in ``lanes``; None: the same numbers."""
        if self.rows is None:
            return None
        parts = np.arange(self.form.lanes(self.scale_block) // self.packet_block, dtype=np.uint32)
        found: npt.NDArray[np.uint32] = (self.rows[:, np.newaxis] * np.uint32(parts.size) + parts).reshape(-1)
        return found

    def scales_of(self, values: int) -> Lanes:
        """Return the greatest scale of each run of ``values`` values of the vector; 0 where all are zero.

        ``values`` is a multiple of the scale block.
        """
        scales = self.scales
        if self.rows is not None:
            scales = np.zeros(-(-self.count // self.scale_block), np.uint32)
            scales[self.rows] = self.scales
        return np.asarray(scales.reshape(-1, values // self.scale_block).max(axis=1))

    def occupied(self) -> npt.NDArray[np.bool_]:
        """Return for each packet block in ``lanes`` whether this worker sends it, because it is not zero."""
        return np.asarray(self.lanes.reshape(-1, self.packet_block).any(axis=1))

    def values(self) -> npt.NDArray[np.float32]:
        """Return the vector that the lanes stand for.

        For a worker's own contribution this is exact, because lanes have no more significant bits than a
        float32. A sum may have more; then it is rounded once.
        """
        vector = np.zeros(self.count, np.float32)
        self.write(vector)
        return vector

    def part(self, blocks: npt.NDArray[np.intp]) -> "Contribution":
        """Return a copy of some of its scale blocks."""
        rows = blocks.astype(np.uint32) if self.rows is None else self.rows[blocks]
        lanes = self.lanes.reshape(-1, self.form.lanes(self.scale_block))[blocks].reshape(-1)
        return replace(self, lanes=lanes, scales=self.scales[blocks], rows=rows)

    def write(self, vector: npt.NDArray[np.float32]) -> None:
        """Overwrite the blocks of ``vector`` that have lanes here."""
        self.form.decode(self.lanes, self.rows, self.scales, self.scale_block, vector)
        if self.apart is not None:
            self.apart.write(vector)


def packet_block_of(form: LaneFormat, values: int) -> int:
    """Return the largest block of the packets, in lanes, that divides a scale block of ``values``."""
    return largest_block(form.lanes(values))


def largest_block(lanes: int) -> int:
    """Return the largest power of two that divides a number of lanes."""
    return lanes & -lanes


def give_back(flat: npt.NDArray[Any], blocks: npt.NDArray[np.integer[Any]], packet_block: int) -> None:
    """Zero ``blocks`` of ``flat``: no result included them, so they are not delivered."""
    flat.reshape(-1, packet_block)[blocks] = 0
