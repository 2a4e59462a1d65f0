# SPDX-License-Identifier: Apache-2.0
"""Kernels that find the largest scores of many parameters; ``choice`` calls them one after another.

A score is a value of a parameter, or the norm of a block. Scores are compared by the bits of their
magnitudes; NaN counts as infinity.
"""

import triton
import triton.language as tl

INFINITE = tl.constexpr(0x7F800000)
BEYOND = tl.constexpr(0x7FFFFFFF)
LOOKED_AT = tl.constexpr(1 << 14)  # scores in a sample: at most
BIN = tl.constexpr(1 << 12)  # magnitudes, as integers, in a bin
BINS = tl.constexpr(1 << 13)
AT_ONCE = tl.constexpr(1 << 13)  # of the scores in a bin
COLUMNS = tl.constexpr(10)
FIELDS = tl.constexpr(16)

# Columns of the table, a row for each parameter.
SCORES = tl.constexpr(0)  # their address
COUNT = tl.constexpr(1)  # of scores
WANTED = tl.constexpr(2)
STRIDE = tl.constexpr(3)
SAMPLED = tl.constexpr(4)
RANK = tl.constexpr(5)
FIRST_WORD = tl.constexpr(6)  # the first word of the mask
VALUES = tl.constexpr(7)  # the address of the parameter's values
LIST = tl.constexpr(8)  # where the list of the scores in the bin begins
ROOM = tl.constexpr(9)  # of that list

# Fields of the state, a row for each parameter.
FLOOR = tl.constexpr(0)
LOW = tl.constexpr(1)
HIGH = tl.constexpr(2)
LEFT = tl.constexpr(3)  # how many of the bin are chosen
LISTED = tl.constexpr(4)
MISLED = tl.constexpr(5)  # too few scores reach the floor
CHOSEN = tl.constexpr(6)
NOT_ZERO = tl.constexpr(7)  # values of the chosen blocks
PEAK = tl.constexpr(8)  # of the energies
LARGEST = tl.constexpr(9)  # of the magnitudes


@triton.jit
def _magnitudes(scores, at, there):
    bits = tl.load(scores + at, mask=there, other=0) & 0x7FFFFFFF
    return tl.minimum(bits, INFINITE)


@triton.jit(do_not_specialize_on_alignment=["rows", "lengths", "addresses", "starts"])
def write_norms(
    rows, tile, lengths, addresses, starts, norms, state, SIZE: tl.constexpr, BLOCKS: tl.constexpr
):
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
    tl.atomic_max(state + row * FIELDS + PEAK, tl.max(bits, axis=0), sem="relaxed")
    tl.atomic_max(state + row * FIELDS + LARGEST, tl.max(tl.max(largest, axis=1), axis=0), sem="relaxed")


@triton.jit
def find_floors(table, state):
    """Find the magnitude that has a rank in a sample of each parameter's scores."""
    row = table + tl.program_id(0) * COLUMNS
    own = state + tl.program_id(0) * FIELDS
    scores = tl.load(row + SCORES).to(tl.pointer_type(tl.int32))
    rank = tl.load(row + RANK)
    i = tl.arange(0, LOOKED_AT)
    bits = _magnitudes(scores, i * tl.load(row + STRIDE), i < tl.load(row + SAMPLED))
    found = tl.full((), 0, tl.int32)
    bit = tl.full((), 1 << 30, tl.int32)
    while bit > 0:
        least = found | bit
        reached = tl.sum((bits >= least).to(tl.int32), axis=0)
        found = tl.where(reached >= rank, least, found)
        bit = bit >> 1
    found = tl.where((rank > 0) & (found < INFINITE), found, 0)
    found = tl.where(tl.load(row + WANTED) > 0, tl.maximum(found, 1), INFINITE)
    tl.store(own + FLOOR, found)


@triton.jit
def count_by_magnitude(table, tile, state, bins, TILE: tl.constexpr):
    """Count the scores that reach the floor, by how far they are above it."""
    number = tl.load(tile + 2 * tl.program_id(0))
    at = tl.load(tile + 2 * tl.program_id(0) + 1) + tl.arange(0, TILE)
    row = table + number * COLUMNS
    scores = tl.load(row + SCORES).to(tl.pointer_type(tl.int32))
    bits = _magnitudes(scores, at, at < tl.load(row + COUNT))
    floor = tl.load(state + number * FIELDS + FLOOR)
    own = tl.minimum((bits - floor) // BIN, BINS - 1)
    tl.atomic_add(bins + number * BINS + own, 1, mask=bits >= floor, sem="relaxed")


@triton.jit
def locate_bin(table, state, bins):
    """Find the bin of the least score that is chosen, and how many of that bin are."""
    row = table + tl.program_id(0) * COLUMNS
    own = state + tl.program_id(0) * FIELDS
    wanted = tl.load(row + WANTED)
    floor = tl.load(own + FLOOR)
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
    tl.store(own + LOW, low)
    tl.store(own + HIGH, tl.where(every, floor, high))
    tl.store(own + LEFT, tl.where(every, 0, wanted - above).to(tl.int32))
    tl.store(own + MISLED, ((total < wanted) & (floor > 1)).to(tl.int32))


@triton.jit(do_not_specialize_on_alignment=["listed", "places"])
def write_masks(table, tile, state, words, listed, places, WORDS: tl.constexpr):
    """Write the mask of the scores above the bin, and list those in it."""
    number = tl.load(tile + 2 * tl.program_id(0))
    first = tl.load(tile + 2 * tl.program_id(0) + 1)
    row = table + number * COLUMNS
    own = state + number * FIELDS
    scores = tl.load(row + SCORES).to(tl.pointer_type(tl.int32))
    count = tl.load(row + COUNT)
    bit = tl.arange(0, 32)[None, :]
    at = first + tl.arange(0, WORDS)[:, None] * 32 + bit
    bits = _magnitudes(scores, at, at < count)
    low = tl.load(own + LOW)
    high = tl.load(own + HIGH)
    chosen = (bits >= high).to(tl.int32)
    word = first // 32 + tl.arange(0, WORDS)
    tl.store(words + tl.load(row + FIRST_WORD) + word, tl.sum(chosen << bit, axis=1), mask=word * 32 < count)
    tl.atomic_add(own + CHOSEN, tl.sum(tl.sum(chosen, axis=1), axis=0), sem="relaxed")
    inside = (bits >= low) & (bits < high)
    if tl.sum(tl.sum(inside.to(tl.int32), axis=1), axis=0) > 0:
        here = tl.zeros([WORDS, 32], tl.int32)
        place = tl.atomic_add(own + LISTED + here, 1, mask=inside, sem="relaxed")
        kept = inside & (place < tl.load(row + ROOM))
        tl.store(listed + tl.load(row + LIST) + place, bits, mask=kept)
        tl.store(places + tl.load(row + LIST) + place, at.to(tl.int32), mask=kept)


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
def choose_in_bin(table, state, words, listed, places):
    """Choose the largest of each bin, of equal ones the first, and what is not finite.

    Most lists are short: their beginnings stay in registers.
    """
    row = table + tl.program_id(0) * COLUMNS
    own = state + tl.program_id(0) * FIELDS
    count = tl.minimum(tl.load(own + LISTED), tl.load(row + ROOM).to(tl.int32))
    if count > 0:
        listed += tl.load(row + LIST)
        places += tl.load(row + LIST)
        left = tl.load(own + LEFT)
        i = tl.arange(0, AT_ONCE)
        there = i < count
        first = tl.load(listed + i, mask=there, other=0)
        first_place = tl.load(places + i, mask=there, other=0)
        cut = tl.load(own + LOW)
        bit = tl.where(tl.load(own + HIGH) == BEYOND, 1 << 30, BIN // 2).to(tl.int32)
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
            word = words + tl.load(row + FIRST_WORD) + place // 32
            tl.atomic_or(word, (1 << (place % 32)).to(tl.int32), mask=chosen, sem="relaxed")
            tl.atomic_add(own + CHOSEN, tl.sum(chosen.to(tl.int32), axis=0), sem="relaxed")
            start += AT_ONCE


@triton.jit(do_not_specialize_on_alignment=["rows", "lengths"])
def count_values(rows, tile, table, lengths, state, words, SIZE: tl.constexpr, BLOCKS: tl.constexpr):
    """Count the values of chosen blocks that are not zero."""
    own = tl.load(tile + 2 * tl.program_id(0))
    number = tl.load(rows + own)
    row = table + number * COLUMNS
    length = tl.load(lengths + own)
    x = tl.load(row + VALUES).to(tl.pointer_type(tl.float32))
    block = tl.load(tile + 2 * tl.program_id(0) + 1) + tl.arange(0, BLOCKS)
    there = block * SIZE < length
    word = tl.load(words + tl.load(row + FIRST_WORD) + block // 32, mask=there, other=0)
    chosen = ((word >> (block % 32).to(tl.int32)) & 1) != 0
    at = block[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    value = tl.load(x + at, mask=chosen[:, None] & (at < length), other=0.0)
    found = tl.sum(tl.sum((value != 0).to(tl.int32), axis=1), axis=0)
    tl.atomic_add(state + number * FIELDS + NOT_ZERO, found, sem="relaxed")


@triton.jit(do_not_specialize_on_alignment=["addresses", "lengths"])
def copy_chosen(table, tile, words, addresses, lengths, SIZE: tl.constexpr, BLOCKS: tl.constexpr):
    """Copy the chosen blocks of each vector, and zeros in place of the others."""
    number = tl.load(tile + 2 * tl.program_id(0))
    block = tl.load(tile + 2 * tl.program_id(0) + 1) + tl.arange(0, BLOCKS)
    row = table + number * COLUMNS
    length = tl.load(lengths + number)
    x = tl.load(row + VALUES).to(tl.pointer_type(tl.float32))
    out = tl.load(addresses + number).to(tl.pointer_type(tl.float32))
    there = block * SIZE < length
    word = tl.load(words + tl.load(row + FIRST_WORD) + block // 32, mask=there, other=0)
    chosen = ((word >> (block % 32).to(tl.int32)) & 1) != 0
    at = block[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    value = tl.load(x + at, mask=chosen[:, None] & (at < length), other=0.0)
    tl.store(out + at, value, mask=at < length)


@triton.jit
def write_masks_from(table, tile, state, words, WORDS: tl.constexpr):
    """Write the mask of the values within bounds that reach a threshold, and of what is not finite."""
    number = tl.load(tile + 2 * tl.program_id(0))
    first = tl.load(tile + 2 * tl.program_id(0) + 1)
    row = table + number * COLUMNS
    scores = tl.load(row + SCORES).to(tl.pointer_type(tl.int32))
    count = tl.load(row + COUNT)
    bit = tl.arange(0, 32)[None, :]
    at = first + tl.arange(0, WORDS)[:, None] * 32 + bit
    bits = _magnitudes(scores, at, at < count)
    own = (at >= tl.load(row + 3)) & (at < tl.load(row + 4)) & (bits >= tl.load(row + 5))
    chosen = (own | (bits >= INFINITE)).to(tl.int32)
    word = first // 32 + tl.arange(0, WORDS)
    tl.store(words + tl.load(row + FIRST_WORD) + word, tl.sum(chosen << bit, axis=1), mask=word * 32 < count)
    tl.atomic_add(state + number * FIELDS + CHOSEN, tl.sum(tl.sum(chosen, axis=1), axis=0), sem="relaxed")
