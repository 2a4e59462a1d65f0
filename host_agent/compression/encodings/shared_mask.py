# SPDX-License-Identifier: Apache-2.0
"""The mask that workers share: which blocks of a parameter have an element that some worker sends.

Bit j of a parameter's mask, counted from the lowest bit of its first word, stands for its elements j * m to
j * m + m - 1. Every parameter has whole 32-bit words of its own, so its mask does not depend on what else is
in its bucket. The words of all masked parameters of a bucket, one after another, are the leaves of a tree:
a bit of a word one level up says whether a word below is not zero. The workers OR the top level, then of the
next one only the words that are not zero on some worker, and so on down: an empty region costs one bit.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.transport import engine
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.wire.definition import GROUP_LANES, Op

WORD_BITS = 32
NO_LANES: Final = np.empty(0, np.uint32)
MOST_LEVELS = 3


def words_for(length: int, mask_block: int) -> int:
    """Return how many words the mask of a parameter with so many elements takes."""
    return -(-length // (mask_block * WORD_BITS))


def write_mask(vector: torch.Tensor, mask_block: int, words: Lanes) -> int:
    """Write which blocks of a flat float32 vector have an element that is not zero. NaN is not zero.

    words: ``words_for`` the vector, zero. Returns how many elements are not zero.
    """
    if vector.device.type == "cpu":
        values = vector.numpy()
        address = engine.contiguous(values, "vector", np.float32)
        _check_words(words, values.size, mask_block)
        return int(
            engine.library().weir_mask_write(address, values.size, mask_block, engine.address_of(words))
        )
    return write_mask_torch(vector, mask_block, words)


def write_mask_torch(vector: torch.Tensor, mask_block: int, words: Lanes) -> int:
    """Do what ``write_mask`` does on the vector's device: only the words, and the count, leave it."""
    chosen = vector != 0
    padded = torch.nn.functional.pad(chosen, (0, words.size * WORD_BITS * mask_block - chosen.numel()))
    bits = padded.view(-1, mask_block).any(dim=1).view(-1, 8)
    weights = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=bits.device)
    words.view(np.uint8)[:] = (bits * weights).sum(dim=1, dtype=torch.uint8).cpu().numpy()
    return int(torch.count_nonzero(chosen))


@dataclass(frozen=True)
class Marked:
    """Blocks of a vector that are chosen.

    blocks: int64, ascending, on any device; size: elements in each; elements: those that are not zero.
    """

    blocks: torch.Tensor
    size: int
    elements: int

    @classmethod
    def of(cls, blocks: torch.Tensor, size: int, vector: torch.Tensor) -> "Marked":
        """Return these blocks of a flat vector, each of which has an element that is not zero."""
        if size == 1:
            return cls(blocks, size, blocks.numel())
        padded = torch.nn.functional.pad(vector, (0, -vector.numel() % size)).view(-1, size)
        return cls(blocks, size, int(torch.count_nonzero(padded.index_select(0, blocks))))

    def write(self, words: Lanes) -> None:
        """Set their bits in the vector's mask."""
        blocks = self.blocks.cpu().contiguous()
        engine.library().weir_mask_mark(
            blocks.data_ptr(), blocks.numel(), engine.address_of(words), words.size
        )

    def flags(self, length: int) -> torch.Tensor:
        """Return which of the vector's elements they have: bool."""
        flags = torch.zeros(-(-length // self.size), self.size, dtype=torch.bool, device=self.blocks.device)
        flags[self.blocks] = True
        return flags.view(-1)[:length]


def count_blocks(words: Lanes) -> int:
    """Return how many bits are set."""
    return int(engine.library().weir_mask_count(engine.address_of(words), words.size))


def block_starts(words: Lanes, mask_block: int, count: int) -> Lanes:
    """Return the first element of each of the ``count`` blocks that are set."""
    starts = np.empty(count, np.uint32)
    engine.library().weir_mask_starts(
        engine.address_of(words), words.size, mask_block, engine.address_of(starts), count
    )
    return starts


def set_bits(words: Lanes, count: int | None = None) -> npt.NDArray[np.bool_]:
    """Return the bits as an array, ``count`` of them, by default all."""
    return np.unpackbits(words.view(np.uint8), count=count, bitorder="little").view(np.bool_)


def pack_bits(flags: npt.NDArray[np.bool_]) -> Lanes:
    """Return the words that have these bits, as many as needed: the opposite of ``set_bits``."""
    words = np.zeros(-(-flags.size // WORD_BITS), np.uint32)
    bits = np.packbits(flags, bitorder="little")
    words.view(np.uint8)[: bits.size] = bits
    return words


def unite(
    communicator: Communicator,
    words: Lanes,
    levels: int,
    service: ServiceClass = LOSSLESS,
    riders: Lanes = NO_LANES,
) -> Lanes:
    """Return the OR of all workers' words, which takes ``levels`` reductions at most. May overwrite
    ``words``.

    levels: 1 to MOST_LEVELS, the same on all workers, as the number of words is. service: without budgets.
    riders: lanes that travel with the top level, and become their OR, too.
    """
    if levels == 1 or not words.size:
        both = communicator.reduce(np.concatenate([words, riders]), Op.OR, GROUP_LANES, service)
        words[:], riders[:] = both[: words.size], both[words.size :]
        return words
    above = unite(communicator, pack_bits(words != 0), levels - 1, service, riders)
    places = np.flatnonzero(set_bits(above, words.size))
    words[places] = communicator.reduce(words[places], Op.OR, None, service)
    return words


def _check_words(words: npt.NDArray[Any], length: int, mask_block: int) -> None:
    """Refuse words that are not as many as the vector needs, which the C side reads and writes."""
    engine.contiguous(words, "words", np.uint32)
    if words.size != words_for(length, mask_block):
        raise ValueError(
            f"{words.size} words for {length} elements, {words_for(length, mask_block)} are needed"
        )
