# SPDX-License-Identifier: Apache-2.0
"""The blocks of largest norm of many parameters at once: the twin of ``weir_choose`` in choice.c.

Which blocks these are does not depend on how they are found, so the masks are those of the C code, bit for
bit: norms are added up in its order, and of equal ones the first are chosen.

Nothing is sorted, and the host waits for the device once, at the end. A sample gives a magnitude that the
blocks to be chosen reach, almost certainly, and few others. One pass counts the blocks that reach it in 8192
bins, at most 2048 of them to a binade; so it is known in which bin the least block to be chosen lies. A
second pass marks the blocks above that bin, and lists those in it, in most cases some thousands. Among these
one program finds the least.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.compression.kernels import ranking
from weir.host_agent.compression.kernels.tiles import tiles
from weir.host_agent.compression.transfer import to_device, to_host

SAMPLE: Final = 1 << 13

_DEVIATIONS: Final = 4.0  # of the rank in the sample, as in choice.c
_LEAST_ENERGY: Final = int(np.float32(2.0**-80).view(np.uint32))  # as in choice.c
_TILE: Final = 4096  # scores, or values, of one program
_LEAST_ROOM: Final = 1 << 14
_ROOM_SHARE: Final = 128  # scores for each one that there is room for: bfloat16 has 1 in 400 equal, at most
_WORD: Final = 32


class Marks:
    """The masks of many parameters while they are on the device.

    Attributes:
        words: int32, the masks one after another.
        starts: the first word of each.
        rooms: how many scores in a bin can be listed of each.
        table: a row for each parameter, see the columns above.
        state: likewise, see the fields.
    """

    def __init__(self, counts: Sequence[int], device: torch.device) -> None:
        self.table = torch.empty(0, dtype=torch.int64, device=device)
        sizes = [-(-count // _WORD) for count in counts]
        self.starts = np.cumsum([0, *sizes])
        self.rooms = [min(count, max(_LEAST_ROOM, count // _ROOM_SHARE)) for count in counts]
        self.words = torch.empty(int(self.starts[-1]), dtype=torch.int32, device=device)
        self.state = torch.zeros((len(counts), ranking.FIELDS.value), dtype=torch.int32, device=device)

    def fetch(self, masks: Sequence[npt.NDArray[np.uint32]]) -> npt.NDArray[np.int32]:
        """Wait for the masks, copy them to main memory and return the state, int32[parameters, FIELDS]."""
        words, state = to_host(self.words, self.state)
        for mask, start in zip(masks, self.starts, strict=False):
            mask[:] = words[start : start + mask.size].view(np.uint32)
        return state


def mark_largest(
    vectors: Sequence[torch.Tensor],
    sizes: Sequence[int],
    counts: Sequence[int],
    masks: Sequence[npt.NDArray[np.uint32]],
) -> list[int | None]:
    """Do ``dfs_blocks.mark_largest`` for vectors on a device."""
    if not any(vector.numel() for vector in vectors):
        return [0] * len(vectors)
    marks = choose(vectors, sizes, counts)
    state = marks.fetch(masks)
    found: list[int | None] = []
    for own, size, mask, room in zip(state, sizes, masks, marks.rooms, strict=True):
        if is_chosen(own, size, room):
            found.append(int(own[ranking.CHOSEN.value if size == 1 else ranking.NOT_ZERO.value]))
        else:
            mask[:] = 0
            found.append(None)
    return found


def copy_largest(
    vectors: Sequence[torch.Tensor], size: int, counts: Sequence[int], outs: Sequence[torch.Tensor]
) -> list[int]:
    """Do ``dfs_blocks.copy_largest`` on a device, and return for which vectors that was not possible."""
    device = vectors[0].device
    marks = choose(vectors, [size] * len(vectors), counts, counted=False)
    facts = [(out.data_ptr(), out.numel()) for out in outs]
    addresses, lengths = to_device(np.array(facts, np.int64).T.copy(), device)
    per = max(1, _TILE // size)
    cut = tiles(tuple(-(-vector.numel() // size) for vector in vectors), per, device)
    ranking.copy_chosen[(len(cut),)](marks.table, cut, marks.words, addresses, lengths, size, per)
    (state,) = to_host(marks.state)
    return [number for number, own in enumerate(state) if not is_chosen(own, size, marks.rooms[number])]


def is_chosen(state: npt.NDArray[np.int32], size: int, room: int) -> bool:
    """Return whether the choice of a parameter was made: the sample was good, squares do, the list was long
    enough.
    """
    peak = int(state[ranking.PEAK.value])
    squares = (
        size == 1
        or not state[ranking.LARGEST.value]
        or (peak != ranking.INFINITE.value and peak >= _LEAST_ENERGY)
    )
    return bool(squares and not state[ranking.MISLED.value] and state[ranking.LISTED.value] <= room)


def choose(
    vectors: Sequence[torch.Tensor], sizes: Sequence[int], wanted: Sequence[int], *, counted: bool = True
) -> Marks:
    """Begin to choose the ``wanted`` blocks of each vector; counted: and to count their values."""
    device = vectors[0].device
    counts = [-(-v.numel() // size) for v, size in zip(vectors, sizes, strict=True)]
    marks = Marks(counts, device)
    norms, starts = _write_norms(vectors, sizes, counts, marks.state)
    rows, lists = [], np.cumsum([0, *marks.rooms])
    for i, (vector, size, count) in enumerate(zip(vectors, sizes, counts, strict=True)):
        scores = vector.data_ptr() if size == 1 else norms.data_ptr() + 4 * starts[i]
        sample = _sample(count, wanted[i])
        place = (int(marks.starts[i]), vector.data_ptr(), int(lists[i]), marks.rooms[i])
        rows.append((scores, count, wanted[i], *sample, *place))
    marks.table = table = to_device(np.array(rows, np.int64), device)
    blocks = tiles(tuple(counts), _TILE, device)
    grid, parameters = (len(blocks),), (len(vectors),)
    bins = torch.zeros((len(vectors), ranking.BINS.value), dtype=torch.int32, device=device)
    listed = torch.empty((2, int(lists[-1])), dtype=torch.int32, device=device)
    ranking.find_floors[parameters](table, marks.state, num_warps=8)
    ranking.count_by_magnitude[grid](table, blocks, marks.state, bins, _TILE)
    ranking.locate_bin[parameters](table, marks.state, bins, num_warps=8)
    ranking.write_masks[grid](table, blocks, marks.state, marks.words, listed[0], listed[1], _TILE // _WORD)
    ranking.choose_in_bin[parameters](table, marks.state, marks.words, listed[0], listed[1], num_warps=8)
    for size, own in _by_size(sizes).items() if counted else ():
        lengths = to_device(np.array([vectors[i].numel() for i in own], np.int64), device)
        per = max(_TILE // size, 16)
        cut = tiles(tuple(counts[i] for i in own), per, device)
        which = to_device(np.array(own, np.int64), device)
        ranking.count_values[(len(cut),)](which, cut, table, lengths, marks.state, marks.words, size, per)
    return marks


def _write_norms(
    vectors: Sequence[torch.Tensor], sizes: Sequence[int], counts: Sequence[int], state: torch.Tensor
) -> tuple[torch.Tensor, list[int]]:
    """Return the norms of all blocks of more than one value, and where those of each vector begin."""
    starts, end = [], 0
    for size, count in zip(sizes, counts, strict=True):
        starts.append(end)
        end += count if size > 1 else 0
    device = vectors[0].device
    norms = torch.empty(end, device=device)
    for size, own in _by_size(sizes).items():
        facts = [(i, vectors[i].numel(), vectors[i].data_ptr(), starts[i]) for i in own]
        rows, lengths, addresses, places = to_device(np.array(facts, np.int64).T.copy(), device)
        per = max(_TILE // size, 16)
        cut = tiles(tuple(counts[i] for i in own), per, device)
        ranking.write_norms[(len(cut),)](
            rows, cut, lengths, addresses, places, norms, state, size, per, enable_fp_fusion=False
        )
    return norms, starts


def _by_size(sizes: Sequence[int]) -> dict[int, list[int]]:
    """Return the parameters with blocks of each size above one."""
    found: dict[int, list[int]] = {}
    for number, size in enumerate(sizes):
        if size > 1:
            found.setdefault(size, []).append(number)
    return found


def _sample(count: int, wanted: int) -> tuple[int, int, int]:
    """Return the stride of a sample of ``count`` scores, how many it has, and the rank to look for; 0: none.

    Of few scores the sample is all of them, and the rank is exact.
    """
    if count <= ranking.LOOKED_AT.value:
        return 1, count, wanted
    stride = count // SAMPLE
    while math.gcd(stride, 210) != 1:  # the sample must not follow the rhythm of kernels and channels
        stride += 1
    looked_at = -(-count // stride)
    expected = wanted / count * looked_at
    rank = math.ceil(expected + _DEVIATIONS * math.sqrt(expected) + 2.0)
    return stride, looked_at, rank if rank < looked_at else 0


def mark_from(
    vectors: Sequence[torch.Tensor],
    bounds: Sequence[tuple[int, int]],
    threshold: float,
    masks: Sequence[npt.NDArray[np.uint32]],
) -> list[int]:
    """Mark the values that reach a threshold, within bounds of each vector, and what is not finite anywhere.

    Zeros never are. Returns how many values are marked of each vector.

    Args:
        vectors: flat float32, on a device.
        bounds: of each vector, the first place in question and the one after the last.
        threshold: a magnitude; one that is not finite marks only what is not.
        masks: words, one bit a value; overwritten.
    """
    counts = [vector.numel() for vector in vectors]
    if not any(counts):
        return [0] * len(vectors)
    device = vectors[0].device
    marks = Marks(counts, device)
    least = np.float32(threshold)
    bits = int(max(least, np.float32(0)).view(np.uint32)) if np.isfinite(least) else ranking.INFINITE.value
    rows = [
        (vector.data_ptr(), count, 0, *own, max(bits, 1), int(words), 0, 0, 0)
        for vector, count, own, words in zip(vectors, counts, bounds, marks.starts, strict=False)
    ]
    table: Any = to_device(np.array(rows, np.int64), device)
    blocks = tiles(tuple(counts), _TILE, device)
    ranking.write_masks_from[(len(blocks),)](table, blocks, marks.state, marks.words, _TILE // _WORD)
    return [int(own[ranking.CHOSEN.value]) for own in marks.fetch(masks)]
