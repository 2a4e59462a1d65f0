# SPDX-License-Identifier: Apache-2.0
"""Values that a captured frame holds: its envelope, and the Weir packet in it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from weir.wire.definition import GROUPS, Flag, FlowType, Op, PacketType, group_lanes

Lanes = npt.NDArray[np.uint32]
Bits = npt.NDArray[np.bool_]

_ALL_GROUPS: Final = (1 << GROUPS) - 1
# As plain numbers, which are faster than flags.
_PROTECTED, _TRIMMED, _CONGESTED = int(Flag.PROTECTED), int(Flag.TRIMMED), int(Flag.CONGESTED)
_ANSWER, _DISAGREE, _ELSEWHERE = int(Flag.ANSWER), int(Flag.DISAGREE), int(Flag.ELSEWHERE)


class _Flagged:
    """A packet's flags (`weir.wire.definition.Flag`)."""

    __slots__ = ()
    flags: int

    @property
    def protected(self) -> bool:
        """Return whether the sender gives up nothing."""
        return self.flags & _PROTECTED != 0

    @property
    def trimmed(self) -> bool:
        """Return whether a switch cut the lanes or data off."""
        return self.flags & _TRIMMED != 0

    @property
    def congested(self) -> bool:
        """Return whether something that it is made of met congestion."""
        return self.flags & _CONGESTED != 0

    @property
    def answer(self) -> bool:
        """Return whether it was sent because a switch asked, or early."""
        return self.flags & _ANSWER != 0

    @property
    def disagree(self) -> bool:
        """Return whether the round's packets are of different operations."""
        return self.flags & _DISAGREE != 0

    @property
    def elsewhere(self) -> bool:
        """Return whether the lanes went to others."""
        return self.flags & _ELSEWHERE != 0


_COMBINE: Final = {Op.ADD: np.add, Op.MAX: np.maximum, Op.OR: np.bitwise_or}


def combined(op: Op, parts: Iterable[Lanes], size: int) -> Lanes:
    """Return what an operator makes of lanes, ``size`` of each; zeros of none."""
    total = np.zeros(size, np.uint32)
    for lanes in parts:
        total = _COMBINE[op](total, lanes)
    return total


class Checksum(Enum):
    """States of a UDP checksum. PARTIAL: the capture was made before a device filled it in."""

    ABSENT = "absent"
    RIGHT = "right"
    PARTIAL = "partial"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Datagram:
    """A captured UDP datagram from or to one of Weir's ports, and what its headers say.

    addresses are dotted or with colons. checksum: "" or what is wrong with IPv4's. length: "" or what is
    wrong with the lengths. whole: False when the capture has only the beginning of the frame.
    """

    source_mac: str
    destination_mac: str
    source: str
    destination: str
    source_port: int
    destination_port: int
    dscp: int
    ecn: int
    ttl: int
    flow: bool
    checksum: str
    udp_checksum: Checksum
    length: str
    whole: bool
    payload: bytes

    @property
    def ends(self) -> tuple[str, int, str, int]:
        """Return source and destination, addresses and ports."""
        return self.source, self.source_port, self.destination, self.destination_port


class Column(NamedTuple):
    """One fused column of a slot packet: its block and the next one."""

    block: int
    next: int


@dataclass(frozen=True, slots=True)
class SlotPacket(_Flagged):
    """A packet of the slot protocol; fields as in `weir.wire.definition.WEIR`. body: the lanes' bytes."""

    type: PacketType
    flags: int
    op: Op
    block_log2: int
    groups: int
    job: int
    worker: int
    layer: int
    magnitude: int
    slot: int
    round: int
    included: int
    audience: int
    count: int
    check: int
    columns: tuple[Column, ...]
    body: bytes

    @property
    def counts(self) -> bool:
        """Return whether a switch counts its sender as seen: not without lanes that nobody gave up."""
        return not (self.trimmed and self.protected)

    @property
    def lanes(self) -> Lanes:
        """Lanes of all groups, zero where there are none: uint32[256], of a wide one [1024]."""
        if self.groups == _ALL_GROUPS:
            return np.frombuffer(self.body, ">u4").astype(np.uint32)
        width = group_lanes(self.block_log2)
        lanes = np.zeros((GROUPS, width), np.uint32)
        if self.groups:
            present = [group for group in range(GROUPS) if self.groups >> group & 1]
            lanes[present] = np.frombuffer(self.body, ">u4").reshape(-1, width)
        return lanes.reshape(-1)

    def has_lanes(self, column: int) -> bool:
        """Return whether the lanes of a column, or some of them, are in the packet."""
        groups = GROUPS // len(self.columns)
        return bool(self.groups >> column * groups & (1 << groups) - 1)


@dataclass(frozen=True, slots=True)
class FlowPacket(_Flagged):
    """A packet of a flow; fields as in `weir.wire.definition.FLOW`. data: what follows the header."""

    type: FlowType
    flags: int
    layer: int
    magnitude: int
    worker: int
    flow: int
    tensor: int
    index: int
    count: int
    first: int
    data: bytes

    @property
    def bits(self) -> Bits | None:
        """Bits of a bitmap or stop, from chunk ``first`` on; None when there are none."""
        if not self.data or self.type not in (FlowType.BITMAP, FlowType.STOP):
            return None
        bits = np.unpackbits(np.frombuffer(self.data, np.uint8), bitorder="little").view(np.bool_)
        return bits[: self.count - self.first]

    @property
    def terms(self) -> list[tuple[int, int]] | None:
        """Lanes and the budget of each account, of a probe that has its terms."""
        if self.type is not FlowType.PROBE or not self.data:
            return None
        numbers = np.frombuffer(self.data, ">u4")[2:].tolist()
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    @property
    def name(self) -> str:
        """Return which tensor of which flow it is of."""
        return f"flow {self.flow:#x} worker {self.worker} tensor {self.tensor}"
