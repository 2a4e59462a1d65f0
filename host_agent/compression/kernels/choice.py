# SPDX-License-Identifier: Apache-2.0
"""The blocks of largest norm of many parameters at once: the twin of ``weir_choose`` in reach.c.

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
import triton
import triton.language as tl

from weir.host_agent.compression.kernels.tiles import tiles
from weir.host_agent.compression.transfer import to_device, to_host

SAMPLE: Final = 1 << 13
LOOKED_AT = tl.constexpr(1 << 14)  # scores in a sample: at most
INFINITE = tl.constexpr(0x7F800000)
BEYOND = tl.constexpr(0x7FFFFFFF)
BIN = tl.constexpr(1 << 12)  # magnitudes, as integers, in a bin
BINS = tl.constexpr(1 << 13)
AT_ONCE = tl.constexpr(1 << 13)  # of the scores in a bin
COLUMNS = tl.constexpr(10)
FIELDS = tl.constexpr(16)

_DEVIATIONS: Final = 4.0  # of the rank in the sample, as in reach.c
_LEAST_ENERGY: Final = int(np.float32(2.0**-80).view(np.uint32))  # as in reach.c
_TILE: Final = 4096  # scores, or values, of one program
_LEAST_ROOM: Final = 1 << 14
_ROOM_SHARE: Final = 128  # of so many scores there is room for one: bfloat16 has 1 in 400 equal, at most
_WORD: Final = 32

# Columns of the table, a row for each parameter.
_SCORES = tl.constexpr(0)  # their address
_COUNT = tl.constexpr(1)  # of scores
_WANTED = tl.constexpr(2)
_STRIDE = tl.constexpr(3)
_SAMPLED = tl.constexpr(4)
_RANK = tl.constexpr(5)
_WORDS = tl.constexpr(6)  # the first word of the mask
_VALUES = tl.constexpr(7)  # the address of the parameter's values
_LIST = tl.constexpr(8)  # where the list of the scores in the bin begins
_ROOM = tl.constexpr(9)  # of that list

# Fields of the state, a row for each parameter.
_FLOOR = tl.constexpr(0)
_LOW = tl.constexpr(1)
_HIGH = tl.constexpr(2)
_LEFT = tl.constexpr(3)  # how many of the bin are chosen
_LISTED = tl.constexpr(4)
_MISLED = tl.constexpr(5)  # too few scores reach the floor
_CHOSEN = tl.constexpr(6)
_NOT_ZERO = tl.constexpr(7)  # values of the chosen blocks
_PEAK = tl.constexpr(8)  # of the energies
_LARGEST = tl.constexpr(9)  # of the magnitudes


@triton.jit
def _magnitudes(scores, at, there):
    bits = tl.load(scores + at, mask=there, other=0) & 0x7FFFFFFF
    return tl.minimum(bits, INFINITE)


@triton.jit(do_not_specialize_on_alignment=["rows", "lengths", "addresses", "starts"])
def _norms(rows, tile, lengths, addresses, starts, norms, state, SIZE: tl.constexpr, BLOCKS: tl.constexpr):
    """Write the norm of each block of SIZE values; rows: which parameters have such blocks."""
    own = tl.load(tile + 2 * tl.program_id(0))
    row = tl.load(rows + own)
    first = tl.load(tile + 2 * tl.program_id(0) + 1)
    length = tl.load(lengths + own)
    x = tl.load(addresses + own).to(tl.pointer_type(tl.float32))
    block = first + tl.arange(0, BLOCKS)
    WIDTH: tl.constexpr = SIZE if SIZE < 16 else 16
    at = block[:, None] * SIZE + tl.arange(0, WIDTH)[None, :]
    sums = tl.zeros([BLOCKS, WIDTH], tl.float32)
    largest = tl.zeros([BLOCKS, WIDTH], tl.int32)
    for step in tl.static_range(SIZE // WIDTH):
        value = tl.load(x + at + step * WIDTH, mask=at + step * WIDTH < length, other=0.0)
        sums = sums + value * value
        largest = tl.maximum(largest, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    folded = tl.reshape(sums, [BLOCKS, WIDTH // 2, 2])
    left, right = tl.split(folded)
    sums2 = left + right
    if WIDTH >= 4:
        left4, right4 = tl.split(tl.reshape(sums2, [BLOCKS, WIDTH // 4, 2]))
        sums2 = left4 + right4
    if WIDTH >= 8:
        left8, right8 = tl.split(tl.reshape(sums2, [BLOCKS, WIDTH // 8, 2]))
        sums2 = left8 + right8
    if WIDTH >= 16:
        left16, right16 = tl.split(tl.reshape(sums2, [BLOCKS, WIDTH // 16, 2]))
        sums2 = left16 + right16
    energies = tl.reshape(sums2, [BLOCKS])
    there = block * SIZE < length
    tl.store(norms + tl.load(starts + own) + block, tl.sqrt_rn(energies), mask=there)
    bits = energies.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    tl.atomic_max(state + row * FIELDS + _PEAK, tl.max(bits, axis=0), sem="relaxed")
    tl.atomic_max(state + row * FIELDS + _LARGEST, tl.max(tl.max(largest, axis=1), axis=0), sem="relaxed")


@triton.jit
def _floors(table, state):
    """Find the magnitude that has a rank in a sample of each parameter's scores."""
    row = table + tl.program_id(0) * COLUMNS
    own = state + tl.program_id(0) * FIELDS
    scores = tl.load(row + _SCORES).to(tl.pointer_type(tl.int32))
    rank = tl.load(row + _RANK)
    i = tl.arange(0, LOOKED_AT)
    bits = _magnitudes(scores, i * tl.load(row + _STRIDE), i < tl.load(row + _SAMPLED))
    found = tl.full((), 0, tl.int32)
    bit = tl.full((), 1 << 30, tl.int32)
    while bit > 0:
        least = found | bit
        reached = tl.sum((bits >= least).to(tl.int32), axis=0)
        found = tl.where(reached >= rank, least, found)
        bit = bit >> 1
    found = tl.where((rank > 0) & (found < INFINITE), found, 0)
    found = tl.where(tl.load(row + _WANTED) > 0, tl.maximum(found, 1), INFINITE)
    tl.store(own + _FLOOR, found)


@triton.jit
def _histogram(table, tile, state, bins, TILE: tl.constexpr):
    """Count the scores that reach the floor, by how far they are above it."""
    number = tl.load(tile + 2 * tl.program_id(0))
    at = tl.load(tile + 2 * tl.program_id(0) + 1) + tl.arange(0, TILE)
    row = table + number * COLUMNS
    scores = tl.load(row + _SCORES).to(tl.pointer_type(tl.int32))
    bits = _magnitudes(scores, at, at < tl.load(row + _COUNT))
    floor = tl.load(state + number * FIELDS + _FLOOR)
    own = tl.minimum((bits - floor) // BIN, BINS - 1)
    tl.atomic_add(bins + number * BINS + own, 1, mask=bits >= floor, sem="relaxed")


@triton.jit
def _locate(table, state, bins):
    """Find the bin of the least score that is chosen, and how many of that bin are."""
    row = table + tl.program_id(0) * COLUMNS
    own = state + tl.program_id(0) * FIELDS
    wanted = tl.load(row + _WANTED)
    floor = tl.load(own + _FLOOR)
    number = tl.arange(0, BINS)
    counted = tl.load(bins + tl.program_id(0) * BINS + number)
    total = tl.sum(counted, axis=0)
    found = tl.full((), 0, tl.int32)
    bit = tl.full((), BINS // 2, tl.int32)
    while bit > 0:
        least = found | bit
        reached = tl.sum(tl.where(number >= least, counted, 0), axis=0)
        found = tl.where(reached >= wanted, least, found)
        bit = bit >> 1
    above = tl.sum(tl.where(number > found, counted, 0), axis=0)
    every = (total <= wanted) | (wanted == 0)
    low = tl.where(every, floor, floor + found * BIN)
    high = tl.where(found == BINS - 1, BEYOND, low + BIN)
    tl.store(own + _LOW, low)
    tl.store(own + _HIGH, tl.where(every, floor, high))
    tl.store(own + _LEFT, tl.where(every, 0, wanted - above).to(tl.int32))
    tl.store(own + _MISLED, ((total < wanted) & (floor > 1)).to(tl.int32))


@triton.jit(do_not_specialize_on_alignment=["listed", "places"])
def _mark(table, tile, state, words, listed, places, WORDS: tl.constexpr):
    """Write the mask of the scores above the bin, and list those in it."""
    number = tl.load(tile + 2 * tl.program_id(0))
    first = tl.load(tile + 2 * tl.program_id(0) + 1)
    row = table + number * COLUMNS
    own = state + number * FIELDS
    scores = tl.load(row + _SCORES).to(tl.pointer_type(tl.int32))
    count = tl.load(row + _COUNT)
    bit = tl.arange(0, 32)[None, :]
    at = first + tl.arange(0, WORDS)[:, None] * 32 + bit
    bits = _magnitudes(scores, at, at < count)
    low = tl.load(own + _LOW)
    high = tl.load(own + _HIGH)
    chosen = (bits >= high).to(tl.int32)
    word = first // 32 + tl.arange(0, WORDS)
    tl.store(words + tl.load(row + _WORDS) + word, tl.sum(chosen << bit, axis=1), mask=word * 32 < count)
    tl.atomic_add(own + _CHOSEN, tl.sum(tl.sum(chosen, axis=1), axis=0), sem="relaxed")
    inside = (bits >= low) & (bits < high)
    if tl.sum(tl.sum(inside.to(tl.int32), axis=1), axis=0) > 0:
        here = tl.zeros([WORDS, 32], tl.int32)
        place = tl.atomic_add(own + _LISTED + here, 1, mask=inside, sem="relaxed")
        kept = inside & (place < tl.load(row + _ROOM))
        tl.store(listed + tl.load(row + _LIST) + place, bits, mask=kept)
        tl.store(places + tl.load(row + _LIST) + place, at.to(tl.int32), mask=kept)


@triton.jit
def _reaching(listed, first, there, count, least):
    """Count the listed magnitudes that are ``least`` or more; ``first``: those of them that come first."""
    found = tl.sum((there & (first >= least)).to(tl.int32), axis=0)
    start = tl.full((), AT_ONCE, tl.int32)
    while start < count:
        i = start + tl.arange(0, AT_ONCE)
        bits = tl.load(listed + i, mask=i < count, other=0)
        found += tl.sum(((i < count) & (bits >= least)).to(tl.int32), axis=0)
        start += AT_ONCE
    return found


@triton.jit
def _equal_before(listed, places, equal, first_place, count, value, place):
    """Count the listed magnitudes of one value that lie before a place; ``equal``: those that come first."""
    found = tl.sum((equal & (first_place < place)).to(tl.int32), axis=0)
    start = tl.full((), AT_ONCE, tl.int32)
    while start < count:
        i = start + tl.arange(0, AT_ONCE)
        bits = tl.load(listed + i, mask=i < count, other=0)
        own = tl.load(places + i, mask=i < count, other=0)
        found += tl.sum(((i < count) & (bits == value) & (own < place)).to(tl.int32), axis=0)
        start += AT_ONCE
    return found


@triton.jit(do_not_specialize_on_alignment=["listed", "places"])
def _refine(table, state, words, listed, places):
    """Choose the largest of each bin, of equal ones the first, and what is not finite.

    Most lists are short: their beginnings stay in registers.
    """
    row = table + tl.program_id(0) * COLUMNS
    own = state + tl.program_id(0) * FIELDS
    count = tl.minimum(tl.load(own + _LISTED), tl.load(row + _ROOM).to(tl.int32))
    if count > 0:
        listed += tl.load(row + _LIST)
        places += tl.load(row + _LIST)
        left = tl.load(own + _LEFT)
        i = tl.arange(0, AT_ONCE)
        there = i < count
        first = tl.load(listed + i, mask=there, other=0)
        first_place = tl.load(places + i, mask=there, other=0)
        cut = tl.load(own + _LOW)
        bit = tl.where(tl.load(own + _HIGH) == BEYOND, 1 << 30, BIN // 2).to(tl.int32)
        while bit > 0:
            least = tl.where(bit < BEYOND - cut, cut + bit, BEYOND)  # which nothing reaches
            cut = tl.where(_reaching(listed, first, there, count, least) >= left, least, cut)
            bit = bit >> 1
        need = left - _reaching(listed, first, there, count, cut + 1)
        equal = there & (first == cut)
        last = tl.full((), 0, tl.int32)  # of the places that are chosen of equal ones
        bit = tl.full((), 1 << 30, tl.int32)
        while bit > 0:
            place = last | bit
            before = _equal_before(listed, places, equal, first_place, count, cut, place)
            last = tl.where(before < need, place, last)
            bit = bit >> 1
        start = tl.full((), 0, tl.int32)
        while start < count:
            at = start + i
            bits = tl.load(listed + at, mask=at < count, other=0)
            place = tl.load(places + at, mask=at < count, other=0)
            chosen = (bits > cut) | ((bits == cut) & (place <= last)) | (bits >= INFINITE)
            chosen = chosen & (at < count)
            word = words + tl.load(row + _WORDS) + place // 32
            tl.atomic_or(word, (1 << (place % 32)).to(tl.int32), mask=chosen, sem="relaxed")
            tl.atomic_add(own + _CHOSEN, tl.sum(chosen.to(tl.int32), axis=0), sem="relaxed")
            start += AT_ONCE


@triton.jit(do_not_specialize_on_alignment=["rows", "lengths"])
def _count(rows, tile, table, lengths, state, words, SIZE: tl.constexpr, BLOCKS: tl.constexpr):
    """Count the values of chosen blocks that are not zero."""
    own = tl.load(tile + 2 * tl.program_id(0))
    number = tl.load(rows + own)
    row = table + number * COLUMNS
    length = tl.load(lengths + own)
    x = tl.load(row + _VALUES).to(tl.pointer_type(tl.float32))
    block = tl.load(tile + 2 * tl.program_id(0) + 1) + tl.arange(0, BLOCKS)
    there = block * SIZE < length
    word = tl.load(words + tl.load(row + _WORDS) + block // 32, mask=there, other=0)
    chosen = ((word >> (block % 32).to(tl.int32)) & 1) != 0
    at = block[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    value = tl.load(x + at, mask=chosen[:, None] & (at < length), other=0.0)
    found = tl.sum(tl.sum((value != 0).to(tl.int32), axis=1), axis=0)
    tl.atomic_add(state + number * FIELDS + _NOT_ZERO, found, sem="relaxed")


@triton.jit(do_not_specialize_on_alignment=["addresses", "lengths"])
def _copy(table, tile, words, addresses, lengths, SIZE: tl.constexpr, BLOCKS: tl.constexpr):
    """Copy the chosen blocks of each vector, and zeros in place of the others."""
    number = tl.load(tile + 2 * tl.program_id(0))
    block = tl.load(tile + 2 * tl.program_id(0) + 1) + tl.arange(0, BLOCKS)
    row = table + number * COLUMNS
    length = tl.load(lengths + number)
    x = tl.load(row + _VALUES).to(tl.pointer_type(tl.float32))
    out = tl.load(addresses + number).to(tl.pointer_type(tl.float32))
    there = block * SIZE < length
    word = tl.load(words + tl.load(row + _WORDS) + block // 32, mask=there, other=0)
    chosen = ((word >> (block % 32).to(tl.int32)) & 1) != 0
    at = block[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    value = tl.load(x + at, mask=chosen[:, None] & (at < length), other=0.0)
    tl.store(out + at, value, mask=at < length)


@triton.jit
def _mark_from(table, tile, state, words, WORDS: tl.constexpr):
    """Write the mask of the values within bounds that reach a threshold, and of what is not finite."""
    number = tl.load(tile + 2 * tl.program_id(0))
    first = tl.load(tile + 2 * tl.program_id(0) + 1)
    row = table + number * COLUMNS
    scores = tl.load(row + _SCORES).to(tl.pointer_type(tl.int32))
    count = tl.load(row + _COUNT)
    bit = tl.arange(0, 32)[None, :]
    at = first + tl.arange(0, WORDS)[:, None] * 32 + bit
    bits = _magnitudes(scores, at, at < count)
    own = (at >= tl.load(row + 3)) & (at < tl.load(row + 4)) & (bits >= tl.load(row + 5))
    chosen = (own | (bits >= INFINITE)).to(tl.int32)
    word = first // 32 + tl.arange(0, WORDS)
    tl.store(words + tl.load(row + _WORDS) + word, tl.sum(chosen << bit, axis=1), mask=word * 32 < count)
    tl.atomic_add(state + number * FIELDS + _CHOSEN, tl.sum(tl.sum(chosen, axis=1), axis=0), sem="relaxed")


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
        self.state = torch.zeros((len(counts), FIELDS.value), dtype=torch.int32, device=device)

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
    if not vectors:
        return []
    marks = choose(vectors, sizes, counts)
    state = marks.fetch(masks)
    found: list[int | None] = []
    for own, size, mask, room in zip(state, sizes, masks, marks.rooms, strict=True):
        if is_chosen(own, size, room):
            found.append(int(own[_CHOSEN.value if size == 1 else _NOT_ZERO.value]))
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
    _copy[(len(cut),)](marks.table, cut, marks.words, addresses, lengths, size, per)
    (state,) = to_host(marks.state)
    return [number for number, own in enumerate(state) if not is_chosen(own, size, marks.rooms[number])]


def is_chosen(state: npt.NDArray[np.int32], size: int, room: int) -> bool:
    """Return whether the choice of a parameter was made: the sample was good, squares do, the list was long
    enough.
    """
    peak = int(state[_PEAK.value])
    squares = size == 1 or not state[_LARGEST.value] or (peak != INFINITE.value and peak >= _LEAST_ENERGY)
    return bool(squares and not state[_MISLED.value] and state[_LISTED.value] <= room)


def choose(
    vectors: Sequence[torch.Tensor], sizes: Sequence[int], wanted: Sequence[int], *, counted: bool = True
) -> Marks:
    """Begin to choose so many blocks of these sizes of each vector; counted: and to count their values."""
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
    bins = torch.zeros((len(vectors), BINS.value), dtype=torch.int32, device=device)
    listed = torch.empty((2, int(lists[-1])), dtype=torch.int32, device=device)
    _floors[parameters](table, marks.state, num_warps=8)
    _histogram[grid](table, blocks, marks.state, bins, _TILE)
    _locate[parameters](table, marks.state, bins, num_warps=8)
    _mark[grid](table, blocks, marks.state, marks.words, listed[0], listed[1], _TILE // _WORD)
    _refine[parameters](table, marks.state, marks.words, listed[0], listed[1], num_warps=8)
    for size, own in _by_size(sizes).items() if counted else ():
        lengths = to_device(np.array([vectors[i].numel() for i in own], np.int64), device)
        per = max(_TILE // size, 16)
        cut = tiles(tuple(counts[i] for i in own), per, device)
        which = to_device(np.array(own, np.int64), device)
        _count[(len(cut),)](which, cut, table, lengths, marks.state, marks.words, size, per)
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
        _norms[(len(cut),)](
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
    """Return the stride of a sample of so many scores, how many it has, and the rank to look for; 0: none.

    Of few scores the sample is all of them, and the rank is exact.
    """
    if count <= LOOKED_AT.value:
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
    if not vectors:
        return []
    device = vectors[0].device
    counts = [vector.numel() for vector in vectors]
    marks = Marks(counts, device)
    least = np.float32(threshold)
    bits = (
        INFINITE.value if not np.isfinite(least) else max(int(least.view(np.uint32)), 1) if least > 0 else 1
    )
    rows = [
        (vector.data_ptr(), count, 0, *own, bits, int(words), 0, 0, 0)
        for vector, count, own, words in zip(vectors, counts, bounds, marks.starts, strict=False)
    ]
    table: Any = to_device(np.array(rows, np.int64), device)
    blocks = tiles(tuple(counts), _TILE, device)
    _mark_from[(len(blocks),)](table, blocks, marks.state, marks.words, _TILE // _WORD)
    return [int(own[_CHOSEN.value]) for own in marks.fetch(masks)]
