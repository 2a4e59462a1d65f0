# SPDX-License-Identifier: Apache-2.0
"""Kernels that find which values changed, and move these: see ``weir.host_agent.compression.changes``.

A program has a *tile* of values, TILE_WORDS words of the mask. The first kernel reads both versions once,
writes the mask and counts each tile's changes; where a tile's values begin follows from the sum of the counts
before. The second one reads the mask, and values only where its bits are set.

Vectors have integers of as many bits as their values; masks have uint32, counts and ends int64.
"""

from typing import Final

import torch
import triton
import triton.language as tl

WORD_BITS: Final = 32
TILE_WORDS: Final = 256
COMPARE_WARPS: Final = 8
MOVE_WARPS: Final = 8


def find(old: torch.Tensor | None, new: torch.Tensor, update: bool, mask: torch.Tensor) -> torch.Tensor:
    """Write the mask of the values that differ; return each tile's count. old: None: zeros."""
    counts = torch.empty(_tiles(mask), dtype=torch.int64, device=new.device)
    tile = TILE_WORDS * WORD_BITS
    whole = new.numel() // tile
    for first, programs in ((0, whole), (whole, counts.numel() - whole)):
        if programs:
            _find[(programs,)](
                new if old is None else old,
                new,
                mask,
                counts,
                first,
                new.numel(),
                OLD=old is not None,
                UPDATE=update,
                WHOLE=first < whole,
                WORDS=TILE_WORDS,
                num_warps=COMPARE_WARPS,
            )
    return counts


def count(mask: torch.Tensor) -> torch.Tensor:
    """Return how many bits each tile of a mask has."""
    counts = torch.empty(_tiles(mask), dtype=torch.int64, device=mask.device)
    _count[(counts.numel(),)](mask, counts, mask.numel(), WORDS=TILE_WORDS)
    return counts


def move(
    mask: torch.Tensor,
    counts: torch.Tensor,
    ends: torch.Tensor,
    vector: torch.Tensor,
    values: torch.Tensor,
    *,
    into_vector: bool,
) -> None:
    """Move the values that a mask selects from a vector, one after another, or back into it.

    counts, ends: of each tile, and of it and all before. Nothing is read or written beyond vector and values.
    """
    _move[(counts.numel(),)](
        mask,
        counts,
        ends,
        vector,
        values,
        mask.numel(),
        vector.numel(),
        values.numel(),
        INTO_VECTOR=into_vector,
        WORDS=TILE_WORDS,
        num_warps=MOVE_WARPS,
    )


def _tiles(mask: torch.Tensor) -> int:
    return -(-mask.numel() // TILE_WORDS)


@triton.jit
def _ones(word):
    """Count the bits of each uint32 that are set."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    word = word + (word >> 8)
    return ((word + (word >> 16)) & 0x3F).to(tl.int32)


@triton.jit(do_not_specialize=["first", "length"])
def _find(
    old,
    new,
    mask,
    counts,
    first,
    length,
    OLD: tl.constexpr,
    UPDATE: tl.constexpr,
    WHOLE: tl.constexpr,
    WORDS: tl.constexpr,
):
    tile = (first + tl.program_id(0)).to(tl.int64)
    words = tl.arange(0, WORDS)
    bits = tl.arange(0, 32)
    start = tile * (WORDS * 32)
    at = words[:, None] * 32 + bits[None, :]
    inside = None if WHOLE else start + at < length  # a mask would keep loads from being 16 bytes wide
    after = tl.load(new + start + at, mask=inside)
    changed = after != (tl.load(old + start + at, mask=inside) if OLD else 0)
    if not WHOLE:
        changed &= inside
    word = tl.sum(changed.to(tl.uint32) << bits.to(tl.uint32)[None, :], axis=1)  # no two with the same bit
    tl.store(mask + tile * WORDS + words, word, mask=None if WHOLE else start + words * 32 < length)
    tl.store(counts + tile, tl.sum(_ones(word), axis=0).to(tl.int64))
    if UPDATE:  # all values of a word, for stores as wide as the loads
        written = (word != 0)[:, None]
        tl.store(old + start + at, after, mask=written if WHOLE else written & inside)


@triton.jit(do_not_specialize=["size"])
def _count(mask, counts, size, WORDS: tl.constexpr):
    tile = tl.program_id(0).to(tl.int64)
    at = tile * WORDS + tl.arange(0, WORDS)
    word = tl.load(mask + at, mask=at < size, other=0)
    tl.store(counts + tile, tl.sum(_ones(word), axis=0).to(tl.int64))


@triton.jit(do_not_specialize=["size", "length", "total"])
def _move(
    mask,
    counts,
    ends,
    vector,
    values,
    size,
    length,
    total,
    INTO_VECTOR: tl.constexpr,
    WORDS: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    found = tl.load(counts + tile)
    if found > 0:
        at = tile * WORDS + tl.arange(0, WORDS)
        left = tl.load(mask + at, mask=at < size, other=0)
        ones = _ones(left)
        rank = tl.load(ends + tile) - found + (tl.cumsum(ones, axis=0) - ones)
        turns = tl.max(ones, axis=0)
        while turns > 0:  # the lowest bit of each word that has one left
            value = at * 32 + _ones((left ^ (left - 1)) >> 1)
            here = (left != 0) & (value < length) & (rank < total)
            if INTO_VECTOR:
                tl.store(vector + value, tl.load(values + rank, mask=here), mask=here)
            else:
                tl.store(values + rank, tl.load(vector + value, mask=here), mask=here)
            rank += 1
            left = left & (left - 1)
            turns -= 1
