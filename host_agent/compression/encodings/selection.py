# SPDX-License-Identifier: Apache-2.0
"""The part of a bucket that the workers agreed to send: from its vector to a packed one and back."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.compression.bucket_layout import BucketLayout, Segment
from weir.host_agent.compression.encodings.encoding import EncodingPlan
from weir.host_agent.compression.encodings.shared_mask import WORD_BITS, count_blocks, set_bits
from weir.host_agent.transport import engine


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
    def in_packed(self) -> slice:
        """Return its elements of the packed vector, in whole blocks."""
        start = self.target.vector_start
        return slice(start, start + -(-self.target.length // self.mask_block) * self.mask_block)

    def pack(self, vector: torch.Tensor, packed: torch.Tensor) -> None:
        """Copy this parameter's selected elements into the packed vector."""
        whole, part = vector[self.source.in_vector], packed[self.in_packed]
        if not self._natively("weir_mask_pack", whole, part):
            self.pack_torch(whole, part)

    def unpack(self, vector: torch.Tensor, packed: torch.Tensor) -> None:
        """Copy them back over those of the whole vector."""
        whole, part = vector[self.source.in_vector], packed[self.in_packed]
        if not self._natively("weir_mask_unpack", whole, part):
            self.unpack_torch(whole, part)

    def subtract(self, vector: torch.Tensor, packed: torch.Tensor) -> None:
        """Subtract them from those of the whole vector."""
        whole, part = vector[self.source.in_vector], packed[self.in_packed]
        if not self._natively("weir_mask_subtract", whole, part):
            self.subtract_torch(whole, part)

    def _natively(self, how: str, whole: torch.Tensor, part: torch.Tensor) -> bool:
        """Return whether the C side can do it, and has done it: with a mask, in ordinary memory."""
        if self.words is None or whole.device.type != "cpu":
            return False
        words = self.words.ctypes.data, self.words.size
        getattr(engine.library(), how)(
            whole.data_ptr(), whole.numel(), self.mask_block, *words, part.data_ptr()
        )
        return True

    def pack_torch(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Do what ``pack`` does, on any device."""
        if self.words is None:
            part[:] = whole
        else:
            padded = torch.nn.functional.pad(whole, (0, -whole.numel() % self.mask_block))
            part[:] = padded.view(-1, self.mask_block)[self._rows(whole.device)].view(-1)

    def unpack_torch(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Do what ``unpack`` does, on any device."""
        if self.words is None:
            whole[:] = part
        else:
            padded = torch.nn.functional.pad(whole, (0, -whole.numel() % self.mask_block))
            padded.view(-1, self.mask_block)[self._rows(whole.device)] = part.view(-1, self.mask_block)
            whole[:] = padded[: whole.numel()]

    def subtract_torch(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Do what ``subtract`` does, on any device."""
        if self.words is None:
            whole -= part
        else:
            everything = torch.zeros_like(whole)
            self.unpack_torch(everything, part)
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
    def of(cls, plan: EncodingPlan, whole: BucketLayout, masks: dict[str, Lanes]) -> "Selection":
        """Return what the masks select, by parameter name; of parameters without one, everything."""
        sizes = [plan.encodings[segment.name].mask_block for segment in whole]
        lengths = [
            segment.length
            if mask_block is None
            else _selected(segment.length, mask_block, masks[segment.name])
            for segment, mask_block in zip(whole, sizes, strict=True)
        ]
        layout = whole.resized(lengths, plan.packet_block) if masks else whole.in_blocks(plan.packet_block)
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
        for part in self.parts:
            part.pack(vector, packed)
            packed[self.layout.padding_of(part.target)] = 0
        return packed

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the whole vector that has these elements, and zeros elsewhere; may be ``packed`` itself."""
        if self.everything:
            return packed
        vector = torch.zeros(self.whole.length, dtype=packed.dtype, device=packed.device)
        for part in self.parts:
            part.unpack(vector, packed)
        return vector

    def subtract(self, vector: torch.Tensor, packed: torch.Tensor) -> None:
        """Subtract the packed elements from those of the whole vector, in place."""
        if self.everything:
            vector -= packed
            return
        for part in self.parts:
            part.subtract(vector, packed)

    def union(self, total: torch.Tensor) -> torch.Tensor:
        """Return which elements of the whole vector some worker has chosen: bool, as fine as the masks.

        total: the whole vector's sum, which says it of parameters that are sent whole.
        """
        if self.everything:
            return total != 0
        union = torch.zeros(self.whole.length, dtype=torch.bool, device=total.device)
        for part in self.parts:
            place = part.source.in_vector
            union[place] = total[place] != 0 if part.words is None else part.marked(total.device)
        return union

    def describe(self, index: int) -> str:
        """Say in an error message what element ``index`` of the packed vector is."""
        found = self.parts[0]
        for part in self.parts:
            if part.target.length and part.target.vector_start <= index:
                found = part
        return self.whole.describe(
            found.source.vector_start + found.place_of(index - found.target.vector_start)
        )


def _selected(length: int, mask_block: int, words: Lanes) -> int:
    """Return how many of a parameter's elements are in the blocks of a mask."""
    last = -(-length // mask_block) - 1
    selected = mask_block * count_blocks(words)
    if -length % mask_block and words[last // WORD_BITS] >> np.uint32(last % WORD_BITS) & 1:
        selected -= -length % mask_block
    return selected
