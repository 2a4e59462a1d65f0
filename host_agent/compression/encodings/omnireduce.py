# SPDX-License-Identifier: Apache-2.0
"""OmniReduce's bytes on the wire for the same gradients, as its open code sends them.

Fei et al., "Efficient Sparse Collective Communication and its application to Accelerate Distributed Deep
Learning", SIGCOMM 2021; sands-lab/omnireduce, ``omnireduce-RDMA`` without GPUDirect (``direct_memory = 0``).

The tensor is cut into messages of a fixed size, which its threads share out in runs; the messages of a thread
go to its slots in turn. A message has several columns of a block each. A worker's first message to every slot
has the first block of every column, also where it is zero; then it sends the blocks that the aggregator asks
for and it has, as many columns as there are in one message. The aggregator answers a slot when all columns
that are not done are complete, to every worker, with their sums and the least next offset of each.

A message is an RDMA write with immediate: the blocks, then an offset of 32 bits for each of them. On the wire
(RoCEv2, path MTU 1024 as in its code) every packet has Ethernet 14, IPv4 20, UDP 8, BTH 12 and ICRC 4 bytes,
the first one RETH 16, the last one ImmDt 4. Acknowledgements, which the network cards send, are left out.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.compression.encodings.cost import Flags

_PACKET: Final = 14 + 20 + 8 + 12 + 4
_MESSAGE: Final = 16 + 4
_MTU: Final = 1024
_SLOTS: Final = 8  # of a thread, for each aggregator (QPNUM_FACTOR)
_VALUE, _OFFSET = 4, 4


@dataclass(frozen=True)
class Setup:
    """OmniReduce's settings, by default those of its example configuration.

    block, message: in elements; the message is a multiple of the block. value_bits: of an element; its open
    code has 32.
    """

    block: int = 256
    message: int = 256
    threads: int = 8
    aggregators: int = 1
    value_bits: float = 32

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's values."""
        return math.ceil(self.block * self.value_bits / 8)

    def __post_init__(self) -> None:
        if min(self.block, self.message, self.threads, self.aggregators) < 1 or self.message % self.block:
            raise ValueError(f"{self}: a message is a multiple of the block, and nothing is below 1")


@dataclass(frozen=True)
class Cost:
    """up: bytes that all workers send. down: bytes that all of them get."""

    up: int
    down: int

    @property
    def total(self) -> int:
        """Bytes in both directions."""
        return self.up + self.down


def on_the_wire(occupied: Flags, setup: Setup | None = None) -> Cost:
    """Return one all-reduce, headers included.

    occupied: bool[workers, blocks], which blocks (of ``setup.block`` elements) each worker has non-zero.
    """
    setup = setup or Setup()
    columns = setup.message // setup.block
    workers, blocks = occupied.shape
    messages = -(-blocks // columns)
    padded = np.zeros((workers, messages * columns), np.bool_)
    padded[:, :blocks] = occupied
    by_message = padded.reshape(workers, messages, columns)
    up, down, start = 0, 0, 0
    for thread in reversed(range(setup.threads)):
        count = messages // setup.threads + (messages % setup.threads > thread)
        part = by_message[:, start : start + count]
        start += count
        if count:
            sent, answered = _thread(part, min(count, _SLOTS * setup.aggregators))
            up += _bytes(sent, setup.block_bytes)
            down += workers * _bytes(answered, setup.block_bytes)
    return Cost(up, down)


def values_and_indexes(
    occupied: Flags, block: int, *, index: int = _OFFSET, value_bits: float = 8 * _VALUE
) -> Cost:
    """Return the cost that papers give: of each non-zero block its values and an index, of this many bytes.

    occupied: as above, for blocks of ``block`` elements. value_bits: of an element.
    """
    each = math.ceil(block * value_bits / 8) + index
    union = int(np.count_nonzero(occupied.any(axis=0)))
    return Cost(int(np.count_nonzero(occupied)) * each, len(occupied) * union * each)


def _thread(part: Flags, slots: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return blocks in each message of all workers, and of the aggregator to one of them.

    part: bool[workers, messages, columns], those of one thread.
    """
    workers, count, columns = part.shape
    rows = -(-count // slots)
    grid = np.zeros((workers, rows * slots, columns), np.bool_)
    grid[:, :count] = part
    later = grid.reshape(workers, rows, slots, columns)[:, 1:]  # the first row is sent in any case
    asked = np.asarray(later.any(axis=0))
    turns = asked.cumsum(axis=0)  # the round in which a block is asked for, from 1 on
    rounds = 1 + int(turns.max(initial=0))
    place = np.arange(slots)[:, np.newaxis] * rounds + turns
    sent = [np.full(workers * slots, columns, np.int64)]
    sent += [np.bincount(place[own], minlength=1) for own in later]
    # A column takes part in the rounds from 0 to that of its last block.
    last = asked.sum(axis=0)[..., np.newaxis]
    answered = (np.arange(rounds) <= last).sum(axis=1).reshape(-1)
    return np.concatenate(sent), answered.astype(np.int64)


def _bytes(blocks: npt.NDArray[np.int64], values: int) -> int:
    """Return the bytes of messages with this many blocks; those with none are not sent.

    values: bytes of a block's.
    """
    payload = blocks[blocks > 0] * (values + _OFFSET)
    packets = -(-payload // _MTU)
    return int((payload + packets * _PACKET + _MESSAGE).sum())
