# SPDX-License-Identifier: Apache-2.0
"""The part of a bucket that the workers agreed to send: from its vector to a packed one and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.dtypes import Lanes, set_bits
from weir.host_agent.compression import bindings
from weir.host_agent.compression.bucket_layout import BucketLayout, Segment
from weir.host_agent.compression.encodings.encoding import EncodingPlan
from weir.host_agent.compression.encodings.shared_mask import check_words
from weir.host_agent.compression.vectors import has_kernels, is_native
from weir.host_agent.transport.arrays import address_of, contiguous
from weir.wire.definition import SLOT_LANES

if TYPE_CHECKING:
    from weir.host_agent.compression.kernels.parts import Places


@dataclass(frozen=True)
class Part:
    """One parameter's elements, ``source`` of the whole vector and ``target`` of the packed one.

    words: the mask of the blocks of ``mask_block`` elements that are packed; None: all elements are. A
    partial block, the last one, is padded with zeros in the packed vector.
    """

    source: Segment
    target: Segment
    mask_block: int
    words: Lanes | None

    @property
    def blocks(self) -> int:
        """Return how many blocks are packed of a parameter that has a mask; 0 of one that has none."""
        return 0 if self.words is None else -(-self.target.length // self.mask_block)

    @property
    def in_packed(self) -> slice:
        """Return its elements of the packed vector, in whole blocks."""
        start = self.target.vector_start
        return slice(start, start + -(-self.target.length // self.mask_block) * self.mask_block)

    def travelled(self, packed: torch.Tensor) -> int:
        """Return how many elements some worker had chosen. packed: the packed vector's sum."""
        if self.words is None:
            return int(torch.count_nonzero(packed[self.in_packed]))
        return self.target.length

    def pack(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Copy this parameter's selected elements to its place of the packed vector, on any device."""
        if self.words is None:
            part[:] = whole
        else:
            padded = torch.nn.functional.pad(whole, (0, -whole.numel() % self.mask_block))
            part[:] = padded.view(-1, self.mask_block)[self._rows(whole.device)].view(-1)

    def unpack(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Copy them back over those of the whole vector."""
        if self.words is None:
            whole[:] = part
        else:
            padded = torch.nn.functional.pad(whole, (0, -whole.numel() % self.mask_block))
            padded.view(-1, self.mask_block)[self._rows(whole.device)] = part.view(-1, self.mask_block)
            whole[:] = padded[: whole.numel()]

    def subtract(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Subtract them from those of the whole vector."""
        if self.words is None:
            whole -= part
        else:
            everything = torch.zeros_like(whole)
            self.unpack(everything, part)
            whole -= everything

    def _rows(self, device: torch.device) -> torch.Tensor:
        """Return which blocks are selected: bool."""
        assert self.words is not None, "of a parameter that has a mask"
        return torch.from_numpy(set_bits(self.words, -(-self.source.length // self.mask_block))).to(device)

    def marked(self, device: torch.device) -> torch.Tensor:
        """Return which of the parameter's elements the mask selects: bool."""
        spread = self._rows(device).unsqueeze(1).expand(-1, self.mask_block)
        return spread.reshape(-1)[: self.source.length]

    def place_of(self, index: int) -> int:
        """Return which of the parameter's elements is element ``index`` of its packed ones."""
        if self.words is None:
            return index
        block = int(np.flatnonzero(set_bits(self.words))[index // self.mask_block])
        return block * self.mask_block + index % self.mask_block


@dataclass(frozen=True)
class Selection:
    """The elements of a bucket's vector that travel, the same on all workers.

    whole: layout of the vector. layout: of the packed one: the same parameters, of each only what is
    selected; its blocks are those of the packets. Where every parameter is sent whole, both vectors are one.
    """

    plan: EncodingPlan
    whole: BucketLayout
    layout: BucketLayout
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, plan: EncodingPlan, whole: BucketLayout, masks: Mapping[str, Lanes]) -> "Selection":
        """Return what the masks select, by parameter name; of parameters without one, everything."""
        sizes = [plan.encodings[segment.name].mask_block for segment in whole]
        layout = whole.in_blocks(plan.packet_block)
        if masks:
            layout = whole.resized(_selected(whole, sizes, masks), plan.packet_block)
        parts = tuple(
            Part(source, target, mask_block or 1, masks.get(source.name))
            for source, target, mask_block in zip(whole, layout, sizes, strict=True)
        )
        return cls(plan, whole, layout, parts)

    @cached_property
    def everything(self) -> bool:
        """Return whether every parameter is sent whole."""
        return all(part.words is None for part in self.parts)

    def pack(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the selected elements of a whole vector; the vector itself where everything is selected."""
        if self.everything:
            return vector
        packed = torch.empty(self.layout.length, dtype=vector.dtype, device=vector.device)
        if (places := self._places(vector)) is not None:
            places.pack(vector, packed)
            return packed
        if not is_native(vector):
            return self.pack_torch(vector, packed)
        bindings.library().weir_parts_pack(*self._native_parts, vector.data_ptr(), packed.data_ptr())
        return packed

    def pack_torch(self, vector: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
        """Do what ``pack`` does, on any device; ``packed`` is overwritten, and returned."""
        for part in self.parts:
            part.pack(vector[part.source.in_vector], packed[part.in_packed])
            packed[self.layout.padding_of(part.target)] = 0
        return packed

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the whole vector that has these elements, and zeros elsewhere; may be ``packed`` itself."""
        if self.everything:
            return packed
        vector = torch.empty(self.whole.length, dtype=packed.dtype, device=packed.device)
        if (places := self._places(packed)) is not None:
            places.unpack(packed, vector)
            return vector
        if not is_native(packed):
            return self.unpack_torch(vector, packed)
        bindings.library().weir_parts_unpack(
            *self._native_parts, packed.data_ptr(), vector.data_ptr(), vector.numel()
        )
        return vector

    def unpack_torch(self, vector: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
        """Do what ``unpack`` does, on any device; ``vector`` is overwritten, and returned."""
        vector.zero_()
        for part in self.parts:
            part.unpack(vector[part.source.in_vector], packed[part.in_packed])
        return vector

    def collect(self, packed: torch.Tensor, bucket: torch.Tensor) -> None:
        """Overwrite a bucket by what ``unpack`` returns, without the vector between them if that is
        possible.
        """
        places = None if self.everything or not has_kernels(bucket) else self._places(packed)
        if places is not None:
            places.collect(packed, bucket)
            return
        if self.everything or not is_native(packed, bucket):
            self.whole.collect(self.unpack(packed), bucket)
            return
        bindings.library().weir_parts_collect(
            *self._native_parts, self.whole.native_segments, packed.data_ptr(), bucket.data_ptr()
        )

    def subtract(self, vector: torch.Tensor, packed: torch.Tensor) -> None:
        """Subtract the packed elements from those of the whole vector, in place."""
        if self.everything:
            vector -= packed
        elif (places := self._places(vector)) is not None:
            places.subtract(packed, vector)
        elif is_native(vector, packed):
            bindings.library().weir_parts_subtract(*self._native_parts, packed.data_ptr(), vector.data_ptr())
        else:
            self.subtract_torch(vector, packed)

    def subtract_torch(self, vector: torch.Tensor, packed: torch.Tensor) -> None:
        """Do what ``subtract`` does, on any device."""
        for part in self.parts:
            part.subtract(vector[part.source.in_vector], packed[part.in_packed])

    def union(self, total: torch.Tensor) -> torch.Tensor:
        """Return which elements of the whole vector some worker has chosen: bool, as fine as the masks.

        total: the whole vector's sum, which says it of parameters that are sent whole.
        """
        if self.everything:
            return total != 0
        union = torch.empty(self.whole.length, dtype=torch.bool, device=total.device)
        if not is_native(total):
            return self.union_torch(total, union)
        bindings.library().weir_parts_union(
            *self._native_parts, total.data_ptr(), union.data_ptr(), union.numel()
        )
        return union

    def union_torch(self, total: torch.Tensor, union: torch.Tensor) -> torch.Tensor:
        """Do what ``union`` does, on any device; ``union`` is overwritten, and returned."""
        union.zero_()
        for part in self.parts:
            place = part.source.in_vector
            union[place] = total[place] != 0 if part.words is None else part.marked(total.device)
        return union

    def largest(self, values: Lanes, run: int, unit: int) -> Lanes:
        """Return the largest of the values of every ``unit`` elements of the packed vector.

        Args:
            values: uint32, one for every ``run`` elements of the whole vector.
            run: a multiple of every mask's blocks and of ``unit``; each parameter begins with one.
            unit: elements.
        """
        units = np.zeros(self.layout.length // unit, np.uint32)
        address = contiguous(values, "values", np.uint32)
        bindings.library().weir_parts_largest(*self._native_parts, address, run, unit, address_of(units))
        return units

    def travelling(self, size: int) -> npt.NDArray[np.bool_]:
        """Return of which blocks of this many elements of the whole vector something travels.

        size: a multiple of every mask's blocks; each parameter begins with one.
        """
        found = np.zeros(self.whole.length // size, np.bool_)
        first = 0
        for part in self.parts:
            own, first = self._starts[first : first + part.blocks], first + part.blocks
            if part.words is None:
                found[self.whole.in_blocks(size).blocks_of(part.source)] = True
            else:
                found[(part.source.vector_start + own) // size] = True
        return found

    def _places(self, vector: torch.Tensor) -> "Places | None":
        """Return the tables for kernels where a vector is; None: there are none."""
        if not has_kernels(vector) or vector.dtype != torch.float32 or self.whole.align != SLOT_LANES:
            return None
        from weir.host_agent.compression.kernels.parts import Places

        known: dict[torch.device, Places] = self.__dict__.setdefault("_on_device", {})
        if vector.device not in known:
            rows, first = [], 0
            for part in self.parts:
                row = (part.mask_block.bit_length() - 1, part.source.vector_start, part.source.length)
                begin = -1 if part.words is None else first
                rows.append((begin, part.blocks, *row, part.target.vector_start, part.source.bucket_start))
                first += part.blocks
            owners = self.layout.in_blocks(self.layout.align).owners
            known[vector.device] = Places(np.array(rows, np.int64), self._starts, owners, vector.device)
        return known[vector.device]

    @cached_property
    def _native_parts(self) -> tuple[int, int]:
        """Return where ``struct weir_part`` of each part is (parts.c), and how many there are."""
        return address_of(self._structs), len(self.parts)

    @cached_property
    def _structs(self) -> npt.NDArray[np.uint64]:
        rows, starts, at = [], self._starts, address_of(self._starts)
        for part in self.parts:
            source, target = part.source, part.target
            rows.append(
                (
                    0 if part.words is None else at,
                    part.blocks,
                    part.mask_block,
                    source.vector_start,
                    source.length,
                    target.vector_start,
                    self.layout.padding_of(target).stop,
                )
            )
            at += part.blocks * starts.itemsize
        return np.array(rows, np.uint64)

    @cached_property
    def _starts(self) -> Lanes:
        """First elements of the blocks that are packed, parameter after parameter."""
        masked = [
            (part.words, part.source.length, part.mask_block) for part in self.parts if part.words is not None
        ]
        rows = _masks(masked)
        starts = np.empty(max(1, sum(part.blocks for part in self.parts)), np.uint32)
        bindings.library().weir_masks_starts(address_of(rows), len(rows), address_of(starts))
        return starts

    def starts_of(self, index: int) -> Lanes | None:
        """Return the first elements of the blocks that are packed of a part; None where all of it is."""
        if self.parts[index].words is None:
            return None
        first = sum(part.blocks for part in self.parts[:index])
        return self._starts[first : first + self.parts[index].blocks]

    def blocks_by_size(self, index: int, packed: torch.Tensor, levels: int) -> torch.Tensor | None:
        """Return how many blocks of 2^k elements of a parameter hold one that is not zero, as
        ``pyramid.counts`` does; None: not here.

        index: of the part. packed: zero, as the whole vector is, where nothing was selected.
        """
        if self.parts[index].words is None or not is_native(packed):
            return None
        found = torch.zeros(levels, dtype=torch.int64)
        part = address_of(self._structs) + index * self._structs.strides[0]
        bindings.library().weir_part_pyramid(part, packed.data_ptr(), levels, found.data_ptr())
        return found

    def describe(self, index: int) -> str:
        """Say in an error message what element ``index`` of the packed vector is."""
        found = self.parts[0]
        for part in self.parts:
            if part.target.length and part.target.vector_start <= index:
                found = part
        return self.whole.describe(
            found.source.vector_start + found.place_of(index - found.target.vector_start)
        )


def _selected(whole: BucketLayout, sizes: Sequence[int | None], masks: Mapping[str, Lanes]) -> list[int]:
    """Return how many of each parameter's elements are in the blocks of its mask, all where it has none."""
    rows = _masks(
        [(masks[s.name], s.length, size) for s, size in zip(whole, sizes, strict=True) if size is not None]
    )
    found = np.empty(len(rows), np.uint64)
    bindings.library().weir_masks_count(address_of(rows), len(rows), address_of(found))
    counts = iter(found.tolist())
    return [s.length if size is None else next(counts) for s, size in zip(whole, sizes, strict=True)]


def _masks(masks: Sequence[tuple[Lanes, int, int]]) -> npt.NDArray[np.uint64]:
    """Return each mask as ``struct weir_mask``, in masks.c. masks: words, elements, elements in a block."""
    for words, length, size in masks:
        check_words(words, length, size)
    return np.array([(address_of(words), length, size) for words, length, size in masks], np.uint64)


@dataclass(frozen=True)
class Summed:
    """A bucket's sum over all workers. packed: of what travelled."""

    selection: Selection
    packed: torch.Tensor

    @cached_property
    def whole(self) -> torch.Tensor:
        """Whole vector."""
        return self.selection.unpack(self.packed)

    @cached_property
    def union(self) -> torch.Tensor:
        """Return which elements some worker had chosen: bool, as fine as the masks."""
        return self.selection.union(self.whole)
