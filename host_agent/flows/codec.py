# SPDX-License-Identifier: Apache-2.0
"""Flow packets as Python values. ``decode`` answers bytes from the network with a packet or a verdict, and
never raises.

Example::

    Chunk(Head(flow=7, worker=1, tensor=3, count=10, layer=2), index=4, account=0, data=b"...").encode()
    match decode(payload):
        case Chunk() as chunk: ...
        case FlowVerdict() as why: ...
"""

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.flows.config import MAX_DATA
from weir.host_agent.flows.verdict import FlowVerdict
from weir.wire.definition import FLOW, LAYER_CLASSES, MAGNITUDE_CLASSES, VERSION, Flag, FlowType

MAX_ACCOUNTS: Final = 128
"""Accounts of one tensor: their terms fit into one probe."""

MAX_BITMAP: Final = 1024
"""Bytes of bitmap in one packet: 8192 chunks."""

_HEADER: Final = struct.Struct("!BBBBIIIII")
_RANGE: Final = struct.Struct("!II")  # end of the range asked about; whether to decide
_TERM: Final = 8  # bytes of an account's terms: lanes, budget
_FIRST_BYTE: Final = VERSION << 4
# As plain numbers: ~ of an IntFlag leaves out bits that have no name.
_ALLOWED: Final[dict[int, int]] = {
    FlowType.CHUNK: int(Flag.PROTECTED | Flag.TRIMMED),
    FlowType.PROBE: int(Flag.PROTECTED | Flag.TRIMMED),
    FlowType.BITMAP: int(Flag.PROTECTED | Flag.TRIMMED | Flag.CONGESTED),
    FlowType.STOP: int(Flag.PROTECTED | Flag.TRIMMED | Flag.CONGESTED),
}

assert _HEADER.size == FLOW.size

Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Head:
    """Fields of every packet of a tensor, as in `weir.wire.definition.FLOW`."""

    flow: int
    worker: int
    tensor: int
    count: int
    layer: int = 0
    magnitude: int = 0

    def pack(self, kind: FlowType, flags: int, index: int, first: int) -> bytes:
        """Return the 24 bytes. Raises struct.error when a value does not fit its field."""
        return _HEADER.pack(
            _FIRST_BYTE | kind,
            flags,
            self.layer << 4 | self.magnitude,
            self.worker,
            self.flow,
            self.tensor,
            index,
            self.count,
            first,
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk's values, float32 in network byte order; none when a switch trimmed it."""

    head: Head
    index: int
    account: int
    data: bytes
    protected: bool = True
    trimmed: bool = False

    def encode(self) -> bytes:
        """Return the UDP payload."""
        flags = Flag.PROTECTED * self.protected | Flag.TRIMMED * self.trimmed
        return self.head.pack(FlowType.CHUNK, flags, self.index, self.account) + self.data


@dataclass(frozen=True, slots=True)
class Terms:
    """Loss budget of a tensor: per account its lanes, and how many of them need not arrive."""

    lanes: tuple[int, ...]
    budgets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """The sender asks what arrived of chunks ``first`` to ``end`` - 1.

    When ``end`` is the tensor's count all of it was sent. final: so long ago that what has not come is lost.
    terms: None when a switch cut them off.
    """

    head: Head
    number: int
    first: int
    end: int
    final: bool
    terms: Terms | None

    def encode(self) -> bytes:
        """Return the UDP payload."""
        header = self.head.pack(FlowType.PROBE, Flag.PROTECTED, self.number, self.first)
        if self.terms is None:
            raise ValueError("a probe is sent with its terms")
        pairs = np.array([self.terms.lanes, self.terms.budgets], ">u4").T
        return header + _RANGE.pack(self.end, self.final) + pairs.tobytes()


@dataclass(frozen=True, slots=True)
class Bitmap:
    """Chunks that the receiver has: bit i of ``bits`` is chunk ``first`` + i, up to the tensor's last.

    answers: the number of the probe this answers, 0 when nobody asked. congested: what is new here met
    congestion. trimmed: the bits are of chunks that arrived without their data. ``bits`` None: a switch cut
    them off, or the probe this answers was cut.
    """

    head: Head
    answers: int
    first: int
    bits: Bits | None
    congested: bool = False
    trimmed: bool = False

    def encode(self) -> bytes:
        """Return the UDP payload."""
        flags = Flag.PROTECTED | Flag.CONGESTED * self.congested | Flag.TRIMMED * self.trimmed
        return self.head.pack(FlowType.BITMAP, flags, self.answers, self.first) + _pack_bits(self.bits)


@dataclass(frozen=True, slots=True)
class Stop:
    """From the receiver: what was delivered, finally. Back from the sender: that it knows.

    bits: as in a bitmap; ``complete`` instead when every chunk was delivered. ``cut``: a switch cut them off.
    """

    head: Head
    answers: int
    first: int
    bits: Bits | None
    congested: bool = False
    cut: bool = False

    @property
    def complete(self) -> bool:
        """Return whether every chunk was delivered (in the sender's confirmation: nothing)."""
        return self.bits is None and not self.cut

    def encode(self) -> bytes:
        """Return the UDP payload."""
        flags = Flag.PROTECTED | Flag.CONGESTED * self.congested
        return self.head.pack(FlowType.STOP, flags, self.answers, self.first) + _pack_bits(self.bits)


FlowPacket = Chunk | Probe | Bitmap | Stop


def decode(payload: bytes) -> FlowPacket | FlowVerdict:
    """Return the packet in a UDP payload, or why it is none."""
    if len(payload) < FLOW.size:
        return FlowVerdict.SHORT
    kind, flags, classes, worker, flow, tensor, index, count, first = _HEADER.unpack_from(payload)
    if kind & 0xF0 != _FIRST_BYTE:
        return FlowVerdict.BAD_VERSION
    allowed = _ALLOWED.get(kind & 0x0F)
    if allowed is None:
        return FlowVerdict.BAD_TYPE
    if flags & ~allowed:
        return FlowVerdict.BAD_FLAGS
    layer, magnitude = classes >> 4, classes & 0x0F
    if layer >= LAYER_CLASSES or magnitude >= MAGNITUDE_CLASSES:
        return FlowVerdict.BAD_CLASS
    if not count:
        return FlowVerdict.BAD_COUNT
    if not tensor:
        return FlowVerdict.BAD_TENSOR
    head = Head(flow, worker, tensor, count, layer, magnitude)
    data = payload[FLOW.size :]
    trimmed, congested = bool(flags & Flag.TRIMMED), bool(flags & Flag.CONGESTED)
    match kind & 0x0F:
        case FlowType.CHUNK:
            return _chunk(head, index, first, data, bool(flags & Flag.PROTECTED), trimmed)
        case FlowType.PROBE:
            return _probe(head, index, first, data, trimmed)
        case FlowType.BITMAP:
            bits = None if trimmed and not data else _unpack_bits(head, first, data)
            if isinstance(bits, FlowVerdict):
                return bits
            return Bitmap(head, index, first, bits, congested, trimmed)
        case _:
            if trimmed and data:
                return FlowVerdict.BAD_LENGTH
            if not trimmed and not data and first:
                return FlowVerdict.BAD_FIRST
            bits = _unpack_bits(head, first, data) if data else None
            if isinstance(bits, FlowVerdict):
                return bits
            return Stop(head, index, first, bits, congested, cut=trimmed)


def _chunk(
    head: Head, index: int, account: int, data: bytes, protected: bool, trimmed: bool
) -> Chunk | FlowVerdict:
    if index >= head.count:
        return FlowVerdict.BAD_INDEX
    if account >= MAX_ACCOUNTS:
        return FlowVerdict.BAD_FIRST
    if len(data) > MAX_DATA or len(data) % 4 or bool(data) == trimmed:
        return FlowVerdict.BAD_LENGTH
    return Chunk(head, index, account, data, protected, trimmed)


def _probe(head: Head, number: int, first: int, data: bytes, trimmed: bool) -> Probe | FlowVerdict:
    if not number:
        return FlowVerdict.BAD_INDEX
    if trimmed and not data:
        return Probe(head, number, first, head.count, False, None)
    accounts, rest = divmod(len(data) - _RANGE.size, _TERM)
    if trimmed or rest or not 1 <= accounts <= MAX_ACCOUNTS:
        return FlowVerdict.BAD_LENGTH
    end, final = _RANGE.unpack_from(data)
    if not first <= end <= head.count:
        return FlowVerdict.BAD_FIRST
    if final > 1:
        return FlowVerdict.BAD_TERMS
    lanes, budgets = np.frombuffer(data, ">u4", offset=_RANGE.size).reshape(-1, 2).T
    return Probe(head, number, first, end, bool(final), Terms(tuple(lanes.tolist()), tuple(budgets.tolist())))


def _pack_bits(bits: Bits | None) -> bytes:
    return b"" if bits is None else np.packbits(bits, bitorder="little").tobytes()


def _unpack_bits(head: Head, first: int, data: bytes) -> Bits | FlowVerdict:
    """Return the bits that a bitmap's data holds; those behind the tensor's last chunk must be zero."""
    if first >= head.count:
        return FlowVerdict.BAD_FIRST
    left = head.count - first
    if not 1 <= len(data) <= min(MAX_BITMAP, -(-left // 8)):
        return FlowVerdict.BAD_LENGTH
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").view(np.bool_)
    if bits[left:].any():
        return FlowVerdict.BAD_BITMAP
    return bits[:left]
