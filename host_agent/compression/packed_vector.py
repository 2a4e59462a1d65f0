# SPDX-License-Identifier: Apache-2.0
"""The packed vector of a gradient step where it is: in main memory, or on a device that makes its lanes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.contribution import Contribution, HostVector, Vector
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.collectives.packing import LaneFormat
from weir.host_agent.collectives.quantize import Fixed, Floats, Rows
from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.compression.encodings.encoding import SCALE_BLOCK
from weir.host_agent.compression.transfer import to_device, to_host
from weir.host_agent.compression.vectors import has_kernels

if TYPE_CHECKING:
    from weir.host_agent.compression.kernels.lanes import Blocks

Lost = npt.NDArray[np.integer[Any]]


class PackedVector(Vector, Protocol):
    """A vector to be summed, and the way back of what becomes of it.

    Attributes:
        keeps_lanes: they stay as they are when the lanes in main memory become the sum.
    """

    keeps_lanes: bool

    def delivered(self, own: Contribution, lost: Lost) -> torch.Tensor:
        """Return the values that this vector's own lanes stand for, without the blocks ``lost`` of packets.

        own: made of this vector; unless ``keeps_lanes``, it was kept apart from the sum.
        """

    def decoded(self, total: Contribution) -> torch.Tensor:
        """Return the values that a sum of lanes stands for, where this vector is."""


def packed_vector(
    packed: torch.Tensor, on_device: torch.Tensor | None = None, largest: Floats | None = None
) -> PackedVector:
    """Return a packed vector as what may be summed.

    Args:
        packed: flat float32, on any device.
        on_device: the bits of the largest magnitude of each SCALE_BLOCK of it, there, if these are known.
        largest: these magnitudes in main memory, if they are known.
    """
    return OnDevice(packed, on_device) if has_kernels(packed) else InMemory(packed, largest)


class InMemory(HostVector):
    """A packed vector in main memory, or a copy there of one on a device without kernels."""

    keeps_lanes = False

    def __init__(self, packed: torch.Tensor, largest: Floats | None = None) -> None:
        super().__init__(array_of(packed.cpu()))
        self._device, self._largest = packed.device, largest

    def scales(self, form: LaneFormat, scale_block: int) -> Lanes:
        """Return the scale of each block, without reading the vector where its largest values are known."""
        if self._largest is None or scale_block != SCALE_BLOCK:
            return super().scales(form, scale_block)
        return form.scales(self._largest, 1)

    def delivered(self, own: Contribution, lost: Lost) -> torch.Tensor:
        """Return the values of the lanes that were kept: lost ones are zero in them already."""
        return torch.from_numpy(own.values()).to(self._device)

    def decoded(self, total: Contribution) -> torch.Tensor:
        """Return the values of a sum."""
        return torch.from_numpy(total.values()).to(self._device)


class OnDevice:
    """A packed vector on a device with kernels: of its values only lanes leave it, in pinned memory."""

    keeps_lanes = True

    def __init__(self, packed: torch.Tensor, largest: torch.Tensor | None = None) -> None:
        self._packed, self._largest = packed, largest
        self._lanes = packed.new_empty(0, dtype=torch.int32)
        self._blocks: Blocks | None = None
        self.size = packed.numel()

    def numbers(self) -> Floats:
        """Return a copy in main memory."""
        return to_host(self._packed)[0]

    def scales(self, form: LaneFormat, scale_block: int) -> Lanes:
        """Return the scale of each block."""
        from weir.host_agent.compression.kernels.buckets import largest_bits

        if scale_block != SCALE_BLOCK:
            raise ValueError(f"scales of {scale_block} values: on a device they are of {SCALE_BLOCK}")
        largest = largest_bits(self._packed) if self._largest is None else self._largest
        return form.scales(to_host(largest)[0].view(np.float32), 1)

    def lanes(
        self,
        form: LaneFormat,
        rows: Rows | None,
        scales: Lanes,
        scale_block: int,
        take: Callable[[int], Fixed],
    ) -> Fixed:
        """Return lanes, in pinned memory of their own; they stay on the device, too."""
        from weir.host_agent.compression.kernels.lanes import Blocks

        self._blocks = Blocks(form, rows, scales, scale_block, self._packed.device)
        self._lanes = self._blocks.encode(self._packed)
        copy: Fixed = to_host(self._lanes)[0]
        return copy

    def delivered(self, own: Contribution, lost: Lost) -> torch.Tensor:
        """Return the values of the lanes on the device."""
        if lost.size:
            blocks = to_device(lost.astype(np.int64), self._lanes.device)
            self._lanes.view(-1, own.packet_block).index_fill_(0, blocks, 0)
        return self._values(self._lanes)

    def decoded(self, total: Contribution) -> torch.Tensor:
        """Return the values of a sum, of which the lanes are copied to the device."""
        return self._values(to_device(total.lanes, self._packed.device))

    def _values(self, lanes: torch.Tensor) -> torch.Tensor:
        assert self._blocks is not None, "lanes come first"
        values = torch.zeros_like(self._packed)
        self._blocks.decode(lanes, values)
        return values
