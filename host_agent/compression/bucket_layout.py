# SPDX-License-Identifier: Apache-2.0
"""Layouts: where each parameter's gradient lies in a bucket, and in the vector that is made of it.

In the vector each parameter starts on a multiple of ``align`` elements of its own. So what is chosen, scaled
and summed for a parameter depends on that parameter alone, not on which bucket DDP put it in: DDP rebuilds
its buckets after the first iteration, and once more after a restart from a checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.compression import bindings
from weir.host_agent.compression.transfer import to_host
from weir.host_agent.compression.vectors import has_kernels, is_native
from weir.host_agent.transport.arrays import address_of
from weir.wire.definition import SLOT_LANES

if TYPE_CHECKING:
    from weir.host_agent.compression.kernels.buckets import Places


class Parameters(Protocol):
    """A model as far as its gradients' exchange knows it: a torch.nn.Module is one."""

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield every parameter with its name, in the order of the forward pass."""


_NOTHING: Final[Mapping[str, torch.Tensor]] = {}


@dataclass(frozen=True)
class Segment:
    """One parameter: its name and shape, its place in the bucket and its place in the vector."""

    name: str
    shape: tuple[int, ...]
    length: int
    bucket_start: int
    vector_start: int

    @property
    def in_bucket(self) -> slice:
        """Return its elements of the bucket."""
        return slice(self.bucket_start, self.bucket_start + self.length)

    @property
    def in_vector(self) -> slice:
        """Return its elements of the vector, padding left out."""
        return slice(self.vector_start, self.vector_start + self.length)


@dataclass(frozen=True)
class BucketLayout:
    """All parameters of one bucket, in its order.

    Attributes:
        index: of the bucket.
        packet_block: elements in a block, the unit of what is sent, classified and lost.
        length: of the vector, a multiple of ``align``.
        segments: its parameters.
        align: each parameter starts on a multiple of it; a multiple of the packet block.
    """

    index: int
    packet_block: int
    length: int
    segments: tuple[Segment, ...]
    align: int

    @classmethod
    def of(
        cls,
        index: int,
        names: Sequence[str],
        parameters: Sequence[torch.Tensor],
        packet_block: int,
        align: int | None = None,
    ) -> "BucketLayout":
        """Return the layout of bucket ``index`` that holds these parameters' gradients one after another.

        align: by default the packet block.
        """
        align = align or packet_block
        segments, bucket_start, vector_start = [], 0, 0
        for name, parameter in zip(names, parameters, strict=True):
            length = parameter.numel()
            segments.append(Segment(name, tuple(parameter.shape), length, bucket_start, vector_start))
            bucket_start += length
            vector_start += -(-length // align) * align
        return cls(index, packet_block, vector_start, tuple(segments), align)

    def in_blocks(self, packet_block: int) -> "BucketLayout":
        """Return the same layout, with blocks of another size that divides ``align``."""
        return self if packet_block == self.packet_block else replace(self, packet_block=packet_block)

    def resized(self, lengths: Sequence[int], packet_block: int) -> "BucketLayout":
        """Return a layout of the same parameters with this many elements of each in the vector."""
        segments, start = [], 0
        for segment, length in zip(self.segments, lengths, strict=True):
            segments.append(Segment(segment.name, segment.shape, length, segment.bucket_start, start))
            start += -(-length // self.align) * self.align
        return BucketLayout(self.index, packet_block, start, tuple(segments), self.align)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)

    @cached_property
    def elements(self) -> int:
        """Return how many elements the parameters have, padding left out."""
        return sum(segment.length for segment in self.segments)

    def blocks_of(self, segment: Segment) -> slice:
        """Return a parameter's blocks of the vector: no other parameter has a part of them."""
        first = segment.vector_start // self.packet_block
        return slice(first, first - (-segment.length // self.packet_block))

    def padding_of(self, segment: Segment) -> slice:
        """Return the elements of the vector between a parameter's last one and the next parameter's first."""
        end = segment.vector_start + segment.length
        return slice(end, -(-end // self.align) * self.align)

    @cached_property
    def owners(self) -> npt.NDArray[np.intp]:
        """Index of the segment that each block of the vector is of."""
        counts = [-(-segment.length // self.align) for segment in self.segments]
        return np.repeat(
            np.arange(len(counts)), np.array(counts, np.intp) * (self.align // self.packet_block)
        )

    @cached_property
    def block_lengths(self) -> torch.Tensor:
        """Return how many lanes of each block are elements, 1 where all are padding; float32."""
        lengths = torch.full((self.length // self.packet_block,), float(self.packet_block))
        for segment in self.segments:
            blocks = self.blocks_of(segment)
            if remainder := segment.length % self.packet_block:
                lengths[blocks.stop - 1] = remainder
            lengths[blocks.stop : self.padding_of(segment).stop // self.packet_block] = 1
        return lengths

    def spread(
        self,
        bucket: torch.Tensor,
        divisor: float = 1,
        residuals: Mapping[str, torch.Tensor] = _NOTHING,
        largest: npt.NDArray[np.float32] | None = None,
    ) -> torch.Tensor:
        """Return the bucket (flat, any float dtype) over ``divisor`` as a new vector: float32, padded with
        zeros.

        residuals: by parameter what is then added to it, float32; of some, or of none. largest: becomes the
        largest magnitude of every ``align`` elements of the vector, which saves to read it once more.

        Raises:
            ValueError: a residual, or the bucket, is of another length.
        """
        if self._has_kernels(bucket):
            vector, bits, _ = self.spread_on_device(bucket, divisor, residuals)
            if largest is not None:
                largest[:] = to_host(bits)[0].view(np.float32)
            return vector
        added = self._added(bucket, residuals)
        vector = torch.empty(self.length, dtype=torch.float32, device=bucket.device)
        if is_native(bucket, *(one for one in added if one is not None)):
            if largest is None:
                largest = np.empty(self.length // self.align, np.float32)
            addresses = np.array([0 if one is None else one.data_ptr() for one in added], np.uint64)
            bindings.library().weir_spread(
                self.native_segments,
                len(self.segments),
                bucket.data_ptr(),
                divisor,
                address_of(addresses),
                vector.data_ptr(),
                self.align,
                address_of(largest),
            )
            return vector
        for segment, one in zip(self.segments, added, strict=True):
            place = vector[segment.in_vector]
            place[:] = bucket[segment.in_bucket]
            place /= divisor
            if one is not None:
                place += one
            vector[self.padding_of(segment)] = 0
        if largest is not None:
            largest[:] = array_of(vector.view(-1, self.align).abs().amax(dim=1).cpu())
        return vector

    def _has_kernels(self, bucket: torch.Tensor) -> bool:
        """Return whether kernels can spread a bucket, and collect it."""
        return self.align == SLOT_LANES and has_kernels(bucket)

    def _added(
        self, bucket: torch.Tensor, residuals: Mapping[str, torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """Return each parameter's residual, where the bucket is; None: it has none."""
        if bucket.numel() != self.elements:
            raise ValueError(f"the bucket has {bucket.numel()} elements, its parameters {self.elements}")
        found = []
        for segment in self.segments:
            one = residuals.get(segment.name)
            if one is not None and one.numel() != segment.length:
                raise ValueError(
                    f"the residual of {segment.name!r} has {one.numel()} elements, "
                    f"the parameter {segment.length}"
                )
            found.append(one if one is None else one.to(bucket.device))
        return found

    def spread_on_device(
        self, bucket: torch.Tensor, divisor: float, residuals: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Do ``spread`` by a kernel, without waiting for the device.

        Returns:
            The vector; the bits of the largest magnitude of every ``align`` elements, int32; and which of
            these blocks are zero in the bucket, bool.
        """
        added = self._added(bucket, residuals)
        addresses = [0 if one is None else one.data_ptr() for one in added]  # added lives until the end
        return self._places(bucket.device).spread(bucket, divisor, addresses)

    def _places(self, device: torch.device) -> "Places":
        """Return the tables for kernels on a device."""
        from weir.host_agent.compression.kernels.buckets import Places

        known: dict[torch.device, Places] = self.__dict__.setdefault("_on_device", {})
        if device not in known:
            owners = self.in_blocks(self.align).owners
            known[device] = Places(self._structs.view(np.int64), owners, device)
        return known[device]

    def idle(self, bucket: torch.Tensor, divisor: float, block: int) -> torch.Tensor:
        """Return which blocks of this many elements, which divide the vector, are zero in ``spread(bucket,
        divisor)``: bool.
        """
        if is_native(bucket):
            found = torch.ones(self.length // block, dtype=torch.bool)
            bindings.library().weir_find_gradients(
                self.native_segments,
                len(self.segments),
                bucket.data_ptr(),
                divisor,
                block,
                found.data_ptr(),
            )
            return found
        return torch.logical_not(self.spread(bucket, divisor).view(-1, block).any(dim=1))

    @property
    def native_segments(self) -> int:
        """Return where ``struct weir_segment`` of each parameter is, in parts.c."""
        return address_of(self._structs)

    @cached_property
    def _structs(self) -> npt.NDArray[np.uint64]:
        rows = [(s.bucket_start, s.length, s.vector_start, self.padding_of(s).stop) for s in self.segments]
        return np.array(rows, np.uint64).reshape(-1, 4)

    def collect(self, vector: torch.Tensor, bucket: torch.Tensor) -> None:
        """Overwrite the bucket by the vector's elements: the inverse of ``spread``."""
        if is_native(vector, bucket):
            bindings.library().weir_collect(
                self.native_segments, len(self.segments), vector.data_ptr(), bucket.data_ptr()
            )
            return
        if has_kernels(vector) and self._has_kernels(bucket):
            self._places(bucket.device).collect(vector, bucket)
            return
        for segment in self.segments:
            bucket[segment.in_bucket] = vector[segment.in_vector]

    def describe(self, index: int) -> str:
        """Say in an error message what element ``index`` of the vector is."""
        owner = self.segments[0]
        for segment in self.segments:
            if segment.vector_start <= index:
                owner = segment
        return (
            f"gradient of parameter {owner.name!r} of shape {owner.shape} "
            f"(element {index - owner.vector_start}, bucket {self.index})"
        )


@dataclass(frozen=True)
class Span:
    """The place of a parameter in the gradient of the whole model.

    start: its first element, counted over all parameters in the module's order, which DDP's buckets do not
    change; length: its elements; total: those of the model.
    """

    name: str
    start: int
    length: int
    total: int


def spans_of(module: Parameters) -> dict[str, Span]:
    """Return where the trained parameters of a module lie in its gradient, by name."""
    named = [(name, p.numel()) for name, p in module.named_parameters() if p.requires_grad]
    total, start, spans = sum(length for _, length in named), 0, {}
    for name, length in named:
        spans[name] = Span(name, start, length, total)
        start += length
    return spans
