# SPDX-License-Identifier: Apache-2.0
"""The masks of what is not zero of many parameters at once: the twin of ``weir_mask_write`` in masks.c."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from weir.host_agent.compression.kernels.tiles import tiles
from weir.host_agent.compression.transfer import to_device, to_host

_TILE: Final = 8192  # values of one program


@triton.jit
def _write(table, tile, words, counts, SIZE: tl.constexpr, WORDS: tl.constexpr):
    """Write masks; table: int64[parameters, 4], address and length of each, its first word, its number."""
    row = table + 4 * tl.load(tile + 2 * tl.program_id(0))
    word = tl.load(tile + 2 * tl.program_id(0) + 1) + tl.arange(0, WORDS)
    x = tl.load(row).to(tl.pointer_type(tl.float32))
    length = tl.load(row + 1)
    block = tl.reshape(word[:, None] * 32 + tl.arange(0, 32)[None, :], [WORDS * 32])
    at = block[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    value = tl.load(x + at, mask=at < length, other=0.0)
    found = (value != 0).to(tl.int32)
    tl.atomic_add(counts + tl.load(row + 3), tl.sum(tl.sum(found, axis=1), axis=0), sem="relaxed")
    bits = tl.reshape(tl.max(found, axis=1), [WORDS, 32]) << tl.arange(0, 32)[None, :]
    tl.store(words + tl.load(row + 2) + word, tl.sum(bits, axis=1), mask=word * 32 * SIZE < length)


def write_masks(
    vectors: Sequence[torch.Tensor], sizes: Sequence[int], masks: Sequence[npt.NDArray[np.uint32]]
) -> list[int]:
    """Write which blocks of each vector have a value that is not zero. NaN is not zero.

    Args:
        vectors: flat float32, on a device.
        sizes: values in a block of each.
        masks: words of each; overwritten.

    Returns:
        How many values of each vector are not zero.
    """
    if not vectors:
        return []
    device = vectors[0].device
    starts = np.cumsum([0, *(mask.size for mask in masks)])
    words = torch.empty(int(starts[-1]), dtype=torch.int32, device=device)
    counts = torch.zeros(len(vectors), dtype=torch.int32, device=device)
    for size in sorted(set(sizes)):
        own = [number for number, theirs in enumerate(sizes) if theirs == size]
        facts = [(vectors[i].data_ptr(), vectors[i].numel(), int(starts[i]), i) for i in own]
        per = max(1, _TILE // (32 * size))
        cut = tiles(tuple(masks[i].size for i in own), per, device)
        if len(cut):
            _write[(len(cut),)](to_device(np.array(facts, np.int64), device), cut, words, counts, size, per)
    written, found = to_host(words, counts)
    for mask, start in zip(masks, starts, strict=False):
        mask[:] = written[start : start + mask.size].view(np.uint32)
    return [int(count) for count in found]
