# SPDX-License-Identifier: Apache-2.0
"""What a reduce, and the exchange of a bucket, puts on the wire: exactly, from who has which blocks.

Bytes count all headers from Ethernet up, in both directions (host_agent.report). Nothing may be lost or sent
again: then the slot protocol (docs/protocol.md) leaves no choice. The blocks of a vector are dealt to K
streams, as many as the slots in use have columns; stream k holds blocks k, k + K, ... A stream asks for its
first block by convention, then for each that some worker has. A slot's rounds are those of its busiest
column, every worker sends one packet in each and gets one back. Lanes are in them for blocks that the worker
(of results: some worker) has, whole blocks even at the vector's end.

The exchange of a bucket (host_agent.formats) is, in this order: the levels of the mask tree from the top, if
some parameter has a mask; the exponents; the lanes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from host_agent.dtypes import LANE_BYTES
from host_agent.primitive import fitting_block
from host_agent.report import FRAME_OVERHEAD
from wire.definition import COLUMN, GROUP_LANES, SLOT_LANES, WEIR

Flags = npt.NDArray[np.bool_]

UNIT: Final = SLOT_LANES
"""Elements of a packed vector that share an exponent, and of which each parameter has a whole number."""

WORD: Final = 32
"""Bits to a word of a mask, and words below a bit of the level above."""

MASKS: Final = (None, 1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Elements per mask bit; None: no mask, the parameter is sent whole."""

BLOCKS: Final = (32, 64, 128, 256)
"""Lanes to a packet block."""

_COARSEST: Final = 13  # log2 of the elements below a word of the coarsest mask


@dataclass(frozen=True)
class Traffic:
    """What one or more reduces put on the wire.

    packets: that each worker sends, and gets as many. up: bytes that each worker sends. down: bytes that each
    gets, the same for all.
    """

    packets: int
    up: tuple[int, ...]
    down: int

    @property
    def total(self) -> int:
        """Bytes of all workers, in both directions."""
        return sum(self.up) + len(self.up) * self.down

    def __add__(self, other: "Traffic") -> "Traffic":
        up = tuple(a + b for a, b in zip(self.up, other.up, strict=True))
        return Traffic(self.packets + other.packets, up, self.down + other.down)


def headers(block: int) -> int:
    """Bytes of a packet without lanes, at this packet block."""
    return FRAME_OVERHEAD + WEIR.size + SLOT_LANES // block * COLUMN.size


def slots_used(blocks: int, block: int, slots: int) -> int:
    """How many of a job's slots a vector of so many blocks takes; an empty one takes one."""
    return min(slots, max(1, -(-blocks * block // SLOT_LANES)))


def rounds(wanted: Flags, block: int, slots: int) -> int:
    """Rounds of all slots, which is the packets of each worker, when some worker has the blocks ``wanted``."""
    used, columns = slots_used(wanted.size, block, slots), SLOT_LANES // block
    streams = used * columns
    asked = np.zeros(-(-max(wanted.size, 1) // streams) * streams, np.bool_)
    asked[: wanted.size] = wanted
    asked[: min(streams, wanted.size)] = True
    per_stream = asked.reshape(-1, used, columns).sum(axis=0)
    return int(np.maximum(per_stream.max(axis=1), 1).sum())


def reduce_traffic(occupied: Flags, block: int, slots: int, *, fill: bool = False) -> Traffic:
    """One reduce. occupied: bool[workers, blocks], which blocks of the vector each worker has non-zero.

    block: lanes to a block, 32, 64, 128 or 256. slots: of the job. fill: as in TransportConfig: workers send
    every block that is asked for.
    """
    workers, blocks = occupied.shape
    union = occupied.any(axis=0)
    if fill:
        union[: slots_used(blocks, block, slots) * (SLOT_LANES // block)] = True
        occupied = np.broadcast_to(union, occupied.shape)
    packets = rounds(union, block, slots)
    bare, lanes = packets * headers(block), block * LANE_BYTES
    sent = np.count_nonzero(occupied, axis=1)
    return Traffic(
        packets, tuple(bare + lanes * int(n) for n in sent), bare + lanes * int(np.count_nonzero(union))
    )


def by_block(lanes: Flags, block: int) -> Flags:
    """bool[workers, n] of single lanes as bool[workers, blocks]: which blocks have one; the last is padded."""
    workers, count = lanes.shape
    if count % block:
        lanes = np.pad(lanes, ((0, 0), (0, -count % block)))
    return lanes.reshape(workers, -1, block).any(axis=2)
