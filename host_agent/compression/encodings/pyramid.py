# SPDX-License-Identifier: Apache-2.0
"""Counts of the blocks of a vector that are not empty, at 1, 2, 4, ... elements to a block, in one pass.

A block of 2k elements is not empty when one of its two halves is: each level follows from the one below,
which is half as long. Eight bytes that are 0 or 1 are also one 64-bit number, so three levels are counted by
reading the same bytes as wider and wider numbers, and only every third is written down. All of it happens on
the vector's device.
"""

from typing import Final

import numpy as np
import torch

from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.compression import bindings
from weir.host_agent.compression.encodings.selection import Summed
from weir.host_agent.compression.vectors import is_native

LEVELS: Final = 9
"""Levels for blocks of 1 to 256 elements."""

_WIDER: Final = (torch.int16, torch.int32, torch.int64)


def counts(vector: torch.Tensor, levels: int = LEVELS) -> torch.Tensor:
    """Return how many blocks of 2^k elements of a flat vector, bool or numbers, hold one that is not zero.

    Returns int64[levels], for k = 0, 1, ..., on the vector's device; the last block may be partial.
    """
    if is_native(vector):
        native = torch.zeros(levels, dtype=torch.int64)
        bindings.library().weir_pyramid(vector.data_ptr(), vector.numel(), levels, native.data_ptr())
        return native
    return counts_torch(vector, levels)


def counts_of_blocks(starts: Lanes, size: int, length: int, levels: int) -> list[int]:
    """Return how many blocks of 2^k elements of a vector have a part of some blocks, for k = 0, 1, ...

    Args:
        starts: first elements of the blocks, ascending.
        size: elements in a block, a power of two; the vector's last one may be shorter.
        length: of the vector.
        levels: how many k.
    """
    if not starts.size:
        return [0] * levels
    fine, found = size.bit_length() - 1, []
    short = max(int(starts[-1]) + size - length, 0)  # elements that the last block lacks
    for level in range(levels):
        if level < fine:
            found.append((starts.size << (fine - level)) - (short >> level))
        else:
            places = starts >> np.uint32(level)
            found.append(1 + int(np.count_nonzero(places[1:] != places[:-1])))
    return found


def counts_of_part(summed: Summed, index: int, levels: int) -> torch.Tensor:
    """Return the same of one parameter's elements of a bucket's sum. index: of its part.

    Only what travelled is looked at, where that is possible.
    """
    found = summed.selection.blocks_by_size(index, summed.packed, levels)
    if found is None:
        found = counts(summed.whole[summed.selection.parts[index].source.in_vector], levels)
    return found


def counts_torch(vector: torch.Tensor, levels: int) -> torch.Tensor:
    """Return the same on any device, of any type."""
    found = []
    flags = _flags(vector)
    while True:
        found.append(torch.count_nonzero(flags))
        for wider in _WIDER:
            if len(found) < levels:
                found.append(torch.count_nonzero(flags.view(wider)))
        if len(found) >= levels:
            return torch.stack(found[:levels])
        found.pop()  # counted again as the first level of the next round
        flags = _flags(flags.view(torch.int64))


def _flags(vector: torch.Tensor) -> torch.Tensor:
    """Return for each element whether it is not zero, uint8; padded with zeros to a multiple of eight."""
    length = vector.numel()
    padded = max(1, -(-length // 8)) * 8
    if vector.dtype == torch.bool and padded == length and vector.storage_offset() % 8 == 0:
        return vector.contiguous().view(torch.uint8)
    flags = torch.empty(padded, dtype=torch.bool, device=vector.device)
    if vector.dtype == torch.bool:
        flags[:length] = vector
    else:
        torch.ne(vector, 0, out=flags[:length])
    flags[length:] = False
    return flags.view(torch.uint8)
