# SPDX-License-Identifier: Apache-2.0
"""The mask that workers share: which blocks of a parameter have an element that some worker sends.

Bit j of a parameter's mask, counted from the lowest bit of its first word, stands for its elements j * m to
j * m + m - 1. Every parameter has whole 32-bit words of its own, so its mask does not depend on what else is
in its bucket. The words of all masked parameters of a bucket, one after another, are the leaves of a tree:
a bit of a word one level up says whether a word below is not zero. The workers OR the top level, then of the
next one only the words that are not zero on some worker, and so on down: an empty region costs one bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import WORD_BITS, Lanes, pack_bits, set_bits
from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.compression import bindings
from weir.host_agent.compression.bucket_layout import BucketLayout, Segment
from weir.host_agent.compression.encodings.encoding import Encoding
from weir.host_agent.transport.arrays import address_of, contiguous
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.wire.definition import GROUP_LANES, Op

NO_LANES: Final = np.empty(0, np.uint32)
MOST_LEVELS = 3


def words_for(length: int, mask_block: int) -> int:
    """Return how many words the mask of a parameter with this many elements takes."""
    return -(-length // (mask_block * WORD_BITS))


def write_mask(vector: torch.Tensor, mask_block: int, words: Lanes) -> int:
    """Write which blocks of a flat float32 vector have an element that is not zero. NaN is not zero.

    words: ``words_for`` the vector, zero. Returns how many elements are not zero.
    """
    if vector.device.type == "cpu":
        values = array_of(vector)
        address = contiguous(values, "vector", np.float32)
        check_words(words, values.size, mask_block)
        return int(bindings.library().weir_mask_write(address, values.size, mask_block, address_of(words)))
    return write_mask_torch(vector, mask_block, words)


def write_mask_torch(vector: torch.Tensor, mask_block: int, words: Lanes) -> int:
    """Do what ``write_mask`` does on the vector's device: only the words, and the count, leave it."""
    chosen = vector != 0
    padded = torch.nn.functional.pad(chosen, (0, words.size * WORD_BITS * mask_block - chosen.numel()))
    bits = padded.view(-1, mask_block).any(dim=1).view(-1, 8)
    weights = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=bits.device)
    words.view(np.uint8)[:] = array_of((bits * weights).sum(dim=1, dtype=torch.uint8).cpu())
    return int(torch.count_nonzero(chosen))


def mark_blocks(vector: torch.Tensor, blocks: torch.Tensor, mask_block: int, words: Lanes) -> int:
    """Set the bits of these blocks of a flat vector in its mask, on any device.

    blocks: int64, ascending, each with an element that is not zero. Returns how many elements are not zero.
    """
    there = blocks.cpu().contiguous()
    bindings.library().weir_mask_mark(there.data_ptr(), there.numel(), address_of(words), words.size)
    if mask_block == 1:
        return blocks.numel()
    padded = torch.nn.functional.pad(vector, (0, -vector.numel() % mask_block)).view(-1, mask_block)
    return int(torch.count_nonzero(padded.index_select(0, blocks)))


@dataclass(frozen=True)
class Masks:
    """The masks of a bucket's parameters, one after another.

    words: of all of them. of, mask_blocks: those of each parameter that has a mask, and elements per bit.
    elements: how many are not zero in the blocks that are set, of those parameters whose mask is written.
    """

    words: Lanes
    of: Mapping[str, Lanes]
    mask_blocks: Mapping[str, int]
    elements: dict[str, int]

    @classmethod
    def zero(cls, layout: BucketLayout, encodings: Mapping[str, Encoding]) -> "Masks":
        """Return masks that are not written yet."""
        lengths = {segment.name: segment.length for segment in layout}
        blocks = {
            name: mask_block for name in lengths if (mask_block := encodings[name].mask_block) is not None
        }
        sizes = {name: words_for(lengths[name], mask_block) for name, mask_block in blocks.items()}
        words = np.zeros(sum(sizes.values()), np.uint32)
        return cls(words, _divided(words, sizes), blocks, {})

    def copy(self) -> "Masks":
        """Return masks that can be changed on their own."""
        words, sizes = self.words.copy(), {name: own.size for name, own in self.of.items()}
        return Masks(words, _divided(words, sizes), self.mask_blocks, dict(self.elements))

    def flags(self, segment: Segment) -> npt.NDArray[np.bool_]:
        """Return which of a parameter's elements are in blocks that are set."""
        size = self.mask_blocks[segment.name]
        blocks = set_bits(self.of[segment.name], -(-segment.length // size))
        return blocks.repeat(size)[: segment.length]


def _divided(words: Lanes, sizes: Mapping[str, int]) -> dict[str, Lanes]:
    """Return each parameter's words, of this many one after another."""
    parts, at = {}, 0
    for name, size in sizes.items():
        parts[name], at = words[at : at + size], at + size
    return parts


def unite(
    communicator: Communicator,
    words: Lanes,
    levels: int,
    service: ServiceClass = LOSSLESS,
    piggybacks: Lanes = NO_LANES,
) -> Lanes:
    """Return the OR of all workers' words, which takes ``levels`` reductions at most. May overwrite
    ``words``.

    levels: 1 to MOST_LEVELS, the same on all workers, as the number of words is. service: without budgets.
    piggybacks: lanes that travel with the top level, and become their OR, too.
    """
    if levels == 1 or not words.size:
        both = communicator.reduce_vector(np.concatenate([words, piggybacks]), Op.OR, GROUP_LANES, service)
        words[:], piggybacks[:] = both[: words.size], both[words.size :]
        return words
    above = unite(communicator, pack_bits(words != 0), levels - 1, service, piggybacks)
    places = np.flatnonzero(set_bits(above, words.size))
    words[places] = communicator.reduce_vector(words[places], Op.OR, None, service)
    return words


def check_words(words: npt.NDArray[Any], length: int, mask_block: int) -> None:
    """Raise ValueError unless there are as many words as a vector needs, which C reads and writes."""
    contiguous(words, "words", np.uint32)
    if words.size != words_for(length, mask_block):
        raise ValueError(
            f"{words.size} words for {length} elements, {words_for(length, mask_block)} are needed"
        )
