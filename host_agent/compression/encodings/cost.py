# SPDX-License-Identifier: Apache-2.0
"""The bytes that a reduce, and the exchange of a bucket, put on the wire: exactly, from who has which blocks.

Bytes count all headers from Ethernet up, in both directions (``transport.report``). Nothing may be lost or
sent again: then the slot protocol (protocol.md) leaves no choice. The blocks of a vector are dealt to K
streams, as many as the slots in use have columns; stream k holds blocks k, k + K, ... A stream asks for its
first block by convention, then for each that some worker has. A slot's rounds are those of its busiest
column; every worker sends one packet in each and gets one back. Lanes are in them for blocks that the worker
(of results: some worker) has, whole blocks even at the vector's end.

The exchange of a bucket in which some parameter has a mask is, in this order: the levels of the mask tree,
the top one together with the codes of exponents, which are taken to be predicted right; the lanes. Of another
it is the exponents, then the lanes, as of all vectors (``weir.host_agent.collectives.shared_scales``): there
the workers first ask which blocks are not zero, if the last sum says that it pays; here, the same one.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives.communicator import fitting_block
from weir.host_agent.collectives.contribution import packet_block_of
from weir.host_agent.collectives.dtypes import LANE_BYTES, pack_bits
from weir.host_agent.collectives.packing import LaneFormat, WholeLanes
from weir.host_agent.collectives.shared_scales import WORTH_ASKING, WORTH_SELECTING, worth_asking
from weir.host_agent.compression.encodings.encoding import SCALE_BLOCK
from weir.host_agent.compression.encodings.mask_scales import Steps, steps_of
from weir.host_agent.compression.encodings.position_lists import PositionList, Region
from weir.host_agent.transport.report import FRAME_OVERHEAD
from weir.wire.definition import COLUMN, GROUP_LANES, SLOT_LANES, WEIR

Flags = npt.NDArray[np.bool_]

WORD: Final = 32
"""Bits to a word of a mask, and words below a bit of the level above."""

_UNITS: Final = SCALE_BLOCK // GROUP_LANES

_WIDER: Final = {2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class WireCost:
    """The packets and bytes of one or more reduces.

    packets: that each worker sends, and gets as many. up: bytes that each worker sends. down: bytes that each
    gets, the same for all. payload: of all of them, bytes of lanes, in this many blocks.
    """

    packets: int
    up: tuple[int, ...]
    down: int
    payload: int
    blocks: int

    @property
    def total(self) -> int:
        """Return bytes of all workers, in both directions."""
        return sum(self.up) + len(self.up) * self.down

    @property
    def values_and_indexes(self) -> int:
        """Return what is left without any header but an index of 32 bits to each block.

        In this unit papers give the cost of encodings: non-zero blocks x (block x 32 + 32) bits.
        """
        return self.payload + LANE_BYTES * self.blocks

    def __add__(self, other: "WireCost") -> "WireCost":
        up = tuple(map(add, self.up, other.up))
        return WireCost(
            self.packets + other.packets,
            up,
            self.down + other.down,
            self.payload + other.payload,
            self.blocks + other.blocks,
        )


# ------------------------------------------------------------------------------------------------- one reduce


@functools.cache
def headers(packet_block: int) -> int:
    """Return bytes of a packet without lanes, at this packet block."""
    return FRAME_OVERHEAD + WEIR.size + SLOT_LANES // packet_block * COLUMN.size


def slots_used(blocks: int, packet_block: int, slots: int, packet_lanes: int = SLOT_LANES) -> int:
    """Return how many of a job's slots a vector of this many blocks takes; an empty one takes one."""
    return min(slots, max(1, -(-blocks * packet_block // packet_lanes)))


def rounds(wanted: Flags, packet_block: int, slots: int, packet_lanes: int = SLOT_LANES) -> int:
    """Return rounds of all slots, which is the packets of each worker.

    wanted: blocks that some worker has. packet_lanes: those that a packet may have.
    """
    used = slots_used(wanted.size, packet_block, slots, packet_lanes)
    columns = packet_lanes // packet_block
    streams = used * columns
    asked = np.zeros(-(-max(wanted.size, 1) // streams) * streams, np.bool_)
    asked[: wanted.size] = wanted
    asked[: min(streams, wanted.size)] = True
    per_stream = asked.reshape(-1, used, columns).sum(axis=0)
    return int(np.maximum(per_stream.max(axis=1), 1).sum())


def reduce_cost(occupied: Flags, packet_block: int, slots: int, *, fill: bool = False) -> WireCost:
    """Return what one reduce costs.

    Args:
        occupied: bool[workers, blocks], which blocks of the vector each worker has non-zero.
        packet_block: lanes to a block, 32, 64, 128 or 256.
        slots: of the job.
        fill: as in TransportConfig: of blocks as large as a packet, workers send every one that is asked for;
            of smaller ones a packet has half as many.
    """
    union = np.asarray(occupied.any(axis=0))
    packet_lanes = SLOT_LANES
    if fill and packet_block == SLOT_LANES:
        union[: slots_used(union.size, packet_block, slots)] = True
        occupied = np.broadcast_to(union, occupied.shape)
    elif fill:
        packet_lanes //= 2
    packets = rounds(union, packet_block, slots, packet_lanes)
    bare, lanes = packets * headers(packet_block), packet_block * LANE_BYTES
    sent, got = np.count_nonzero(occupied, axis=1).tolist(), int(np.count_nonzero(union))
    blocks = sum(sent) + len(sent) * got
    return WireCost(
        packets, tuple(bare + lanes * n for n in sent), bare + lanes * got, lanes * blocks, blocks
    )


def by_block(flags: Flags, block: int) -> Flags:
    """Return bool[workers, blocks] of bool[workers, n]: which blocks (a power of two) have one set."""
    while block > 1:
        step = min(block, 8)
        if lacking := -flags.shape[1] % step:
            flags = np.pad(flags, ((0, 0), (0, lacking)))
        flags = np.ascontiguousarray(flags).view(_WIDER[step]) != 0
        block //= step
    return flags


# ---------------------------------------------------------------------------------------- a bucket's exchange


class Occupancy:
    """The elements of one parameter that each worker sends. sent: bool[workers, length]."""

    def __init__(self, sent: Flags) -> None:
        self.workers, self.length = sent.shape
        self._levels = {1: sent}
        self._packed: dict[int | None, Flags] = {}

    def at(self, size: int) -> Flags:
        """Return bool[workers, blocks] for blocks of ``size`` elements, a power of two, from the start."""
        if size not in self._levels:
            below = max(known for known in self._levels if known < size)
            self._levels[size] = by_block(self._levels[below], size // below)
        return self._levels[size]

    def packed(self, mask_block: int | None) -> Flags:
        """Return the same of its packed vector, by 32 lanes, padded to a whole number of SCALE_BLOCK."""
        if mask_block not in self._packed:
            self._packed[mask_block] = self._pack(mask_block)
        return self._packed[mask_block]

    def _pack(self, mask_block: int | None) -> Flags:
        if mask_block is None:
            return _padded(self.at(GROUP_LANES), _UNITS)
        union = self.at(mask_block).any(axis=0)
        if mask_block < GROUP_LANES:
            return by_block(
                _padded(self.at(mask_block)[:, union], SCALE_BLOCK // mask_block), GROUP_LANES // mask_block
            )
        parts = mask_block // GROUP_LANES
        rows = _padded(self.at(GROUP_LANES), parts).reshape(self.workers, -1, parts)[:, union]
        return _padded(rows.reshape(self.workers, -1), _UNITS)

    def filled(self, mask_block: int | None) -> Flags:
        """Return what ``packed`` is when every worker sends all that is selected."""
        packed = self.packed(mask_block)
        return np.broadcast_to(packed.any(axis=0), packed.shape)


def exchange_cost(
    parts: Sequence[Occupancy],
    mask_blocks: Sequence[int | None],
    *,
    packet_block: int,
    levels: int,
    slots: int,
    counters: int = 0,
    fills_union: bool = False,
    capacities: Sequence[int] | None = None,
    fill: bool = False,
    regions: Sequence[int] | None = None,
    form: LaneFormat | None = None,
) -> WireCost:
    """Return what the exchange of one bucket costs, in which rounding makes no block of lanes zero.

    Args:
        parts: its parameters.
        mask_blocks: of each parameter, elements per bit of its mask; None: it is sent whole.
        packet_block: values to a block of the packets that carry them.
        levels: of the mask tree, 1 to 3.
        slots: of the job.
        counters: how many numbers each worker sends along with the exponents, or with the lanes.
        fills_union: every worker sends all that is selected, and has no region of zeros.
        capacities: where lists of positions travel instead of the mask tree, of each parameter with a mask.
        fill: as in ``reduce_cost``.
        regions: of scales, elements in each, by parameter; None: as a planner has them that knows it all.
        form: of values in lanes, by default one in each.
    """
    form = form or WholeLanes(parts[0].workers)
    done = [WireCost(0, (0,) * parts[0].workers, 0, 0, 0)]
    masked = [(p, block) for p, block in zip(parts, mask_blocks, strict=True) if block is not None]
    if masked:
        codes = _codes(parts, mask_blocks, regions, fills_union, steps_of(form))
    if masked and capacities is not None:
        done.append(_lists([part.at(block) for part, block in masked], capacities, codes, slots, fill))
    elif masked:
        tree = np.concatenate([part.at(block * WORD) for part, block in masked], axis=1)
        for depth, words in enumerate(_tree(tree, levels)):
            wide = GROUP_LANES if depth == 0 else fitting_block(words.shape[1])  # the top level is sparse
            lanes = np.concatenate([words, codes], axis=1) if depth == 0 else words
            done.append(reduce_cost(by_block(lanes, wide), wide, slots, fill=fill))
    packed = np.concatenate(
        [
            part.filled(mask_block) if fills_union and mask_block is not None else part.packed(mask_block)
            for part, mask_block in zip(parts, mask_blocks, strict=True)
        ],
        axis=1,
    )
    notes = np.repeat(np.eye(len(packed), dtype=np.bool_), counters, axis=1)
    if not masked:
        return reduce(add, _without_masks(packed, notes, packet_block, form, slots, fill), done[0])
    block = packet_block_of(form, packet_block)
    lanes = by_block(_groups(packed, form), block // GROUP_LANES)
    lanes = np.concatenate([lanes, by_block(notes, block)], axis=1)
    return reduce(add, [*done, reduce_cost(lanes, block, slots, fill=fill)])


def _without_masks(
    packed: Flags, notes: Flags, packet_block: int, form: LaneFormat, slots: int, fill: bool
) -> list[WireCost]:
    """Return what each reduction of a bucket without masks costs: of a bitmap, if there is one; of scales and
    notes; of values.

    The decisions are those of ``collectives.shared_scales``.
    """
    done, scaled, block = [], packed, packet_block_of(form, packet_block)
    if form.fields > 1:  # no block stands by itself
        block = fitting_block(_groups(packed, form).shape[1] * GROUP_LANES)
    if packed.shape[1] >= WORTH_ASKING * _UNITS:
        occupied = by_block(packed, _UNITS)
        union = np.asarray(occupied.any(axis=0))
        selected = packed.reshape(*occupied.shape, _UNITS)[:, union].reshape(len(packed), -1)
        if worth_asking(union):
            bitmap = by_block(occupied, 8 * LANE_BYTES)
            wide = fitting_block(bitmap.shape[1])
            done.append(reduce_cost(by_block(bitmap, wide), wide, slots, fill=fill))
            scaled = selected
        if np.count_nonzero(union) <= union.size * WORTH_SELECTING:
            packed = selected
            block = packet_block_of(form, SCALE_BLOCK if form.fields > 1 else packet_block)
    if scaled.size or notes.size:
        scales = np.concatenate([by_block(scaled, _UNITS), notes], axis=1)
        done.append(reduce_cost(by_block(scales, GROUP_LANES), GROUP_LANES, slots, fill=fill))
    lanes = by_block(_groups(packed, form), block // GROUP_LANES)
    return [*done, reduce_cost(lanes, block, slots, fill=fill)]


def _groups(packed: Flags, form: LaneFormat) -> Flags:
    """Return which groups of lanes each worker has, of a packed vector that is given by 32 values."""
    fields = form.fields
    units = packed.reshape(len(packed), -1, _UNITS)
    units = np.pad(units, ((0, 0), (0, 0), (0, -_UNITS % fields)))
    return np.asarray(units.reshape(len(packed), -1, fields).any(axis=2))


def _codes(
    parts: Sequence[Occupancy],
    mask_blocks: Sequence[int | None],
    regions: Sequence[int] | None,
    fills_union: bool,
    steps: Steps,
) -> Flags:
    """Return which lanes of codes of scales each worker has."""
    sizes = regions or [_region(part, block, steps) for part, block in zip(parts, mask_blocks, strict=True)]
    codes = [
        part.at(size) | (fills_union and mask_block is not None)
        for part, size, mask_block in zip(parts, sizes, mask_blocks, strict=True)
    ]
    return by_block(np.concatenate(codes, axis=1), steps.codes_in_lane)


def _region(part: Occupancy, mask_block: int | None, steps: Steps) -> int:
    if mask_block is None:
        return SCALE_BLOCK

    def occupied(size: int) -> int:
        return int(np.count_nonzero(part.at(size).any(axis=0)))

    return steps.region_size(occupied(mask_block) * mask_block, occupied)


def _lists(
    chosen: Sequence[Flags], capacities: Sequence[int], codes: Flags, slots: int, fill: bool
) -> WireCost:
    """Return what workers' lists of positions take, and codes behind them. chosen: of each parameter,
    bool[workers, blocks].
    """
    region = Region([PositionList.of(own.shape[1], n) for own, n in zip(chosen, capacities, strict=True)])
    workers = len(chosen[0])
    lanes = np.zeros((workers, workers, region.lanes), np.uint32)
    for rank in range(workers):
        region.lists([pack_bits(own[rank]) for own in chosen]).write(lanes[rank, rank])
    sent = np.concatenate([lanes.reshape(workers, -1) != 0, codes], axis=1)
    return reduce_cost(by_block(sent, region.packet_block), region.packet_block, slots, fill=fill)


def _tree(words: Flags, levels: int) -> list[Flags]:
    """Return what is reduced of a mask tree, top level first: per worker, which of the words are not zero.

    words: those of the lowest level. Of each level but the top one, only words that are not zero on some
    worker.
    """
    tree = [words]
    while len(tree) < levels:
        tree.append(by_block(tree[-1], WORD))
    below = [level[:, level.any(axis=0)] for level in tree[:-1]]
    return [level for level in [tree[-1], *reversed(below)] if level.size]


def _padded(flags: Flags, multiple: int) -> Flags:
    lacking = -flags.shape[1] % multiple
    return np.pad(flags, ((0, 0), (0, lacking))) if lacking else flags
