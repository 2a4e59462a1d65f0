# SPDX-License-Identifier: Apache-2.0
"""Predictions of what an encoding would cost, from counts that all workers know.

Counts do not say where blocks are, so this is an estimate where
``weir.host_agent.compression.encodings.cost`` is exact; it is made with operations that IEEE 754 rounds in
one way only (no powers, no logarithms), so that every worker comes to the same number.

Down, everything follows from the union of what the workers send. Up, it takes the *share* of a union's blocks
that a worker has, which is known for the mask in use and estimated for the others: a block of packed lanes
comes from some blocks of the parameter, and what share of these a worker has was counted, too.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from weir.host_agent.collectives.communicator import fitting_block
from weir.host_agent.collectives.contribution import packet_block_of
from weir.host_agent.collectives.dtypes import LANE_BYTES
from weir.host_agent.collectives.packing import LaneFormat
from weir.host_agent.collectives.shared_scales import WORTH_A_ROUND_TRIP, WORTH_ASKING
from weir.host_agent.compression.encodings.cost import WORD, headers
from weir.host_agent.compression.encodings.encoding import SCALE_BLOCK
from weir.host_agent.compression.encodings.mask_scales import steps_of
from weir.host_agent.compression.encodings.position_lists import PositionList, Region
from weir.host_agent.compression.encodings.pyramid import LEVELS
from weir.host_agent.compression.vectors import sum_in_order
from weir.wire.definition import BLOCK_SIZES, GROUP_LANES, SLOT_LANES

UNION_LEVELS: Final = 18
"""Of the union, blocks of 1 to 2^17 elements are counted."""

TREE_LEVELS: Final = (1, 2, 3)

_SPREAD: Final = {32: 1.42, 64: 1.03, 128: 0.56, 256: 0.0}
"""Of as many equal normal variables as a packet has columns: their greatest, in standard deviations."""

_BUCKET: Final = 25 * 2**20 // LANE_BYTES
"""Elements in a bucket, unless the model is smaller: DDP's default."""


@dataclass(frozen=True)
class JobSize:
    """The workers, the slots of their job, how many elements their model has, as far as it is known, the form
    of values in lanes, and how many lanes of ADD its switches take in a packet, if not any number
    (``PacketShape``).
    """

    workers: int
    slots: int
    elements: int
    form: LaneFormat
    max_lanes: int = 0

    @property
    def unsummed(self) -> int:
        """Return how many lanes of another operator than ADD its switches take in a packet."""
        return min(self.max_lanes, GROUP_LANES)


@dataclass(frozen=True)
class PacketShape:
    """The packets of a reduce: lanes to a block, blocks to a packet, bytes of headers.

    Behind a switch that takes packets of few lanes alone, blocks travel in parts of this many lanes, one to a
    packet; results of smaller ones are filled with zeros, which count as headers here.
    """

    block: int
    columns: int
    headers: int

    @classmethod
    def of(cls, block: int, max_lanes: int) -> Self:
        """Return that of a reduce in blocks of this many lanes, in packets of ``max_lanes``; 0: any "
        "number."""
        if max_lanes:
            part = min(block, max_lanes)
            return cls(part, 1, headers(SLOT_LANES) + (max_lanes - part) * LANE_BYTES // 2)
        return cls(block, SLOT_LANES // block, headers(block))

    @property
    def lanes(self) -> int:
        """Most lanes of a packet."""
        return self.block * self.columns


@dataclass(frozen=True)
class Counts:
    """The counts of one parameter.

    Attributes:
        length: elements of the parameter.
        union: blocks of 2^k elements that some worker had, k from 0 to 17.
        shares: of those of 2^k elements, the share that one worker had, on average, k from 0 to 8.
        mask_block: in use when they were counted.
        packed: of the blocks of 32, 64, 128 and 256 lanes of the packed vector, the share that one worker
            had.
    """

    length: int
    union: tuple[int, ...]
    shares: tuple[float, ...]
    mask_block: int | None
    packed: tuple[float, ...]

    def blocks(self, size: int) -> int:
        """Return blocks of ``size`` elements, a power of two, that some worker had."""
        level = size.bit_length() - 1
        if level < len(self.union):
            return self.union[level]
        return min(self.union[-1], -(-self.length // size))

    def share(self, mask_block: int | None, packet_block: int) -> float:
        """Return the share of the packed vector's blocks of this many lanes that one worker has."""
        if mask_block is None or packet_block <= mask_block:
            return self.shares[packet_block.bit_length() - 1]
        if mask_block == self.mask_block:
            return self.packed[BLOCK_SIZES.index(packet_block)]
        guess = self._guess(mask_block, packet_block)
        if (
            self.mask_block is not None
            and packet_block > self.mask_block
            and (known := self._guess(self.mask_block, packet_block)) > 0
        ):
            guess *= self.packed[BLOCK_SIZES.index(packet_block)] / known
        return min(max(guess, self.shares[mask_block.bit_length() - 1]), 1.0)

    def _guess(self, mask_block: int, packet_block: int) -> float:
        """Return the share from those of blocks of the parameter, of any size, that a packed block has parts
        of.

        It is empty when all of those are: each size gives an upper bound, the better the more a worker's
        elements keep together.
        """
        selected = self.blocks(mask_block)
        if not selected:
            return 0.0
        further = packet_block / mask_block - 1.0
        return min(
            at_least_one(self.shares[level], 1.0 + further * self.union[level] / selected)
            for level in range(mask_block.bit_length() - 1, LEVELS)
        )


def at_least_one(share: float, draws: float) -> float:
    """Return the chance that one of this many independent draws (at least 1) is a hit, each with chance
    ``share``.
    """
    whole = math.floor(draws)
    missed, base, left = 1.0, 1.0 - share, whole
    while left:
        if left & 1:
            missed *= base
        base *= base
        left >>= 1
    return 1.0 - missed * (1.0 - (draws - whole) * share)


@dataclass(frozen=True)
class PackedBlocks:
    """The part that parameters have in the reduce of a bucket's packed vector, at one packet block.

    blocks: of the vector. wanted: that some worker has. sent: by all workers together.
    """

    blocks: float = 0.0
    wanted: float = 0.0
    sent: float = 0.0

    def times(self, parts: int) -> "PackedBlocks":
        """Return the same in blocks that are ``parts`` times smaller."""
        return PackedBlocks(self.blocks * parts, self.wanted * parts, self.sent * parts)

    @classmethod
    def sum(cls, parts: Iterable[Self]) -> Self:
        """Return what one or more parameters have together."""
        return cls(
            *map(sum_in_order, zip(*((part.blocks, part.wanted, part.sent) for part in parts), strict=True))
        )


def block_sizes(form: LaneFormat) -> tuple[int, ...]:
    """Return the sizes that a block of the packets can have, in values: whole groups of lanes, or all that
    share a scale.
    """
    return tuple(
        values for values in BLOCK_SIZES if values == SCALE_BLOCK or not values % (GROUP_LANES * form.fields)
    )


def lanes_of(counts: Counts, mask_block: int | None, packet_block: int, workers: int) -> PackedBlocks:
    """Return one parameter's."""
    unit = SCALE_BLOCK // packet_block
    if mask_block is None:
        blocks, wanted = -(-counts.length // SCALE_BLOCK) * unit, counts.blocks(packet_block)
    else:
        lanes = counts.blocks(mask_block) * mask_block
        blocks, wanted = -(-lanes // SCALE_BLOCK) * unit, -(-lanes // packet_block)
    return PackedBlocks(blocks, wanted, workers * wanted * counts.share(mask_block, packet_block))


def lanes_bytes(lanes: PackedBlocks, packet_block: int, job: JobSize, others: float = 0.0) -> float:
    """Return all workers' bytes, both ways, of a reduce of these blocks; of the headers, their part.

    packet_block: values in a block. others: blocks of the same vector that are not in ``lanes``.
    """
    if not lanes.blocks:
        return 0.0
    shape = PacketShape.of(packet_block_of(job.form, packet_block), job.max_lanes)
    parts = job.form.lanes(packet_block) // shape.block
    lanes, others = lanes.times(parts), others * parts
    streams = job.slots * shape.columns
    rows = max(1.0, (lanes.blocks + others) / streams)
    density = lanes.wanted / lanes.blocks
    asked = 1.0 + (rows - 1.0) * density
    spread = _SPREAD[SLOT_LANES // shape.columns]
    busiest = min(rows, asked + spread * math.sqrt((rows - 1.0) * density * (1.0 - density)))
    packets = lanes.blocks / rows * busiest / shape.columns
    sent = lanes.sent + job.workers * lanes.wanted
    return 2.0 * job.workers * packets * shape.headers + sent * shape.block * LANE_BYTES


def full_bytes(lanes: float, packet_block: int, workers: int, *, max_lanes: int = 0) -> float:
    """Return the same of a reduce in which every worker has all lanes. max_lanes: of these, in a packet."""
    shape = PacketShape.of(packet_block, max_lanes)
    return 2.0 * workers * (lanes / shape.lanes * shape.headers + lanes * LANE_BYTES)


def region_of(counts: Counts, mask_block: int, form: LaneFormat) -> int:
    """Return elements in a region of a masked parameter's scales."""
    return steps_of(form).region_size(counts.blocks(mask_block) * mask_block, counts.blocks)


def scales_of(counts: Counts, mask_block: int | None, form: LaneFormat) -> float:
    """Return how many lanes codes of scales a parameter adds to a bucket that has masks."""
    if mask_block is None:
        codes = min(-(-counts.length // SCALE_BLOCK), GROUP_LANES * counts.blocks(SCALE_BLOCK * GROUP_LANES))
    else:
        codes = -(-counts.length // region_of(counts, mask_block, form))
    return codes / steps_of(form).codes_in_lane


@dataclass(frozen=True)
class MaskWords:
    """The part that parameters have in a mask tree: words of each level, and those that are not empty.

    sparse: words of each level in blocks of 32 that are not empty.
    """

    whole: tuple[float, ...] = (0.0,) * len(TREE_LEVELS)
    present: tuple[float, ...] = (0.0,) * len(TREE_LEVELS)
    sparse: tuple[float, ...] = (0.0,) * len(TREE_LEVELS)

    @classmethod
    def sum(cls, parts: Iterable[Self]) -> Self:
        """Return what one or more parameters have together."""
        vectors = zip(*((part.whole, part.present, part.sparse) for part in parts), strict=True)
        return cls(*(tuple(map(sum_in_order, zip(*own, strict=True))) for own in vectors))


def words_of(counts: Counts, mask_block: int) -> MaskWords:
    """Return one parameter's."""
    whole, present, sparse = [], [], []
    words, size = -(-counts.length // mask_block), mask_block
    for _ in TREE_LEVELS:
        words, size = -(-words // WORD), size * WORD
        whole.append(float(words))
        present.append(float(counts.blocks(size)))
        sparse.append(float(min(words, GROUP_LANES * counts.blocks(size * GROUP_LANES))))
    return MaskWords(tuple(whole), tuple(present), tuple(sparse))


def tree_bytes(words: MaskWords, levels: int, job: JobSize, piggybacks: float = 0.0) -> float:
    """Return all workers' bytes, both ways, of a bucket's mask tree: the top level whole, below it what is
    there.

    piggybacks: lanes that travel with the top level.
    """
    top = levels - 1
    total = _vector_bytes(words.whole[top] + piggybacks, words.sparse[top] + piggybacks, GROUP_LANES, job)
    for present in words.present[:top]:
        total += _vector_bytes(present, present, fitting_block(math.ceil(present)), job)
    return total


def waiting_bytes(levels: int, job: JobSize) -> float:
    """Return what it is worth to all workers, in bytes both ways, not to wait for a tree's further levels."""
    return 2.0 * job.workers * (levels - 1) * WORTH_A_ROUND_TRIP


def _vector_bytes(lanes: float, wanted: float, packet_block: int, job: JobSize) -> float:
    """Return the same of a vector of this many lanes, of which this many are wanted, and every worker has
    them.
    """
    if not lanes:
        return 0.0
    shape = PacketShape.of(packet_block, job.unsummed)
    packets = max(math.ceil(wanted / shape.lanes), min(job.slots, math.ceil(lanes / shape.lanes)))
    sent = math.ceil(wanted / shape.block) * shape.block * LANE_BYTES
    return 2.0 * job.workers * (packets * shape.headers + sent)


def lists_bytes(region: Region, job: JobSize) -> float:
    """Return the same of all workers' lists of positions, which is exact."""
    sent = job.workers * region.lanes
    shape = PacketShape.of(region.packet_block, job.unsummed)
    packets = max(math.ceil(sent / shape.lanes), 1)
    return job.workers * (2.0 * packets * shape.headers + (region.lanes + sent) * LANE_BYTES)


def bitmap_bytes(blocks: float, job: JobSize) -> float:
    """Return the same of the bitmap of a vector without masks, of this many blocks of SCALE_BLOCK."""
    lanes = math.ceil(blocks / WORD)
    return _vector_bytes(lanes, lanes, fitting_block(lanes), job) if blocks >= WORTH_ASKING else 0.0


def scales_bytes(scales: float, job: JobSize) -> float:
    """Return the same of a bucket's exponents."""
    return _vector_bytes(scales, scales, GROUP_LANES, job)


def mask_bytes(counts: Counts, mask_block: int, workers: int, *, max_lanes: int = 0) -> float:
    """Return what one parameter's mask adds to a tree of as many levels as suit it best, packets being
    shared.
    """
    words = words_of(counts, mask_block)
    below, costs = 0.0, []
    for sparse, present in zip(words.sparse, words.present, strict=True):
        costs.append(below + full_bytes(sparse, GROUP_LANES, workers, max_lanes=max_lanes))
        below += full_bytes(present, SLOT_LANES, workers, max_lanes=max_lanes)
    return min(costs)


def list_bytes(form: PositionList, workers: int) -> float:
    """Return what one parameter's lists of positions add to those of all workers, packets being shared."""
    lanes = form.bits / WORD
    headers_both_ways = 2.0 * workers * workers * lanes / SLOT_LANES * headers(SLOT_LANES)
    return headers_both_ways + workers * (workers + 1) * lanes * LANE_BYTES


def parameter_bytes(counts: Counts, mask_block: int | None, packet_block: int, job: JobSize) -> float:
    """Return what one parameter adds to the cost of a bucket of the usual size, whatever else is in it."""
    lanes = lanes_of(counts, mask_block, packet_block, job.workers)
    bucket = min(job.elements, _BUCKET) / packet_block
    others = bucket * lanes.blocks * packet_block / max(counts.length, 1) - lanes.blocks
    total = lanes_bytes(lanes, packet_block, job, max(0.0, others))
    total += full_bytes(
        scales_of(counts, mask_block, job.form), GROUP_LANES, job.workers, max_lanes=job.unsummed
    )
    if mask_block is None:
        return total
    return total + mask_bytes(counts, mask_block, job.workers, max_lanes=job.unsummed)
