# SPDX-License-Identifier: Apache-2.0
"""Packets of published weights, and why one is refused. The format is ``wire.definition.WEIGHTS``.

A *message* makes a version of the weights: an update from the version before, or a snapshot, which is whole.
It travels in DATA packets: its code, and in a last packet the digest of the version, which may be known later
than the code. STATE says which messages there are; ASK says which packets of one are missing.
"""

import struct
from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from weir.host_agent.transport.arrays import address_of
from weir.host_agent.weights import native
from weir.wire.definition import KEY_BYTES, VERSION, WEIGHTS, WEIGHTS_DATA, WeightsType

_HEAD: Final = struct.Struct("!BBHIIII")  # all but the check
_CHECK_BYTES: Final = 8
_STATE: Final = struct.Struct("!II8s")
HEADER_BYTES: Final = WEIGHTS.size
PACKET_BYTES: Final = HEADER_BYTES + WEIGHTS_DATA
DIGEST_BYTES: Final = 32
ASK_BITS: Final = 8 * 512
"""Packets that one question covers."""

assert _HEAD.size + _CHECK_BYTES == HEADER_BYTES


class Verdict(IntEnum):
    """Verdict on a packet that came; all but the first two mean that it was refused, and changed nothing."""

    ACCEPTED = 0
    DUPLICATE = 1
    MALFORMED = 2
    WRONG_JOB = 3
    BAD_CHECK = 4
    WRONG_SENDER = 5
    WRONG_LAYOUT = 6
    TOO_LONG = 7
    NOT_WANTED = 8


class Name(NamedTuple):
    """Name of a message: the version that it makes, and whether it is a snapshot."""

    number: int
    snapshot: bool


@dataclass(frozen=True)
class Packet:
    """One packet; the fields are those of the header."""

    type: WeightsType
    job: int
    number: int = 0
    index: int = 0
    count: int = 0
    snapshot: bool = False
    data: bytes | memoryview = b""

    @property
    def name(self) -> Name:
        """Name of the message that it is about."""
        return Name(self.number, self.snapshot)

    def encode(self, key: bytes) -> bytes:
        """Return the UDP payload. key: of the job, KEY_BYTES long."""
        _refuse_other_lengths(key)
        head = _HEAD.pack(
            VERSION << 4 | self.type,
            self.snapshot,
            len(self.data),
            self.job,
            self.number,
            self.index,
            self.count,
        )
        packet = np.frombuffer(bytearray(b"".join((head, bytes(_CHECK_BYTES), self.data))), np.uint8)
        native.library().weir_weights_sign(key, address_of(packet), packet.size)
        return packet.tobytes()


def decode(payload: bytes, job: int, key: bytes) -> Packet | Verdict:
    """Return the packet in a UDP payload, or why it is none of this job."""
    if len(payload) < HEADER_BYTES:
        return Verdict.MALFORMED
    first, snapshot, size, theirs, number, index, count = _HEAD.unpack_from(payload)
    kind, data = first & 15, memoryview(payload)[HEADER_BYTES:]
    if first >> 4 != VERSION or kind not in _KINDS or snapshot > 1:
        return Verdict.MALFORMED
    if size != len(data) or size > WEIGHTS_DATA:
        return Verdict.MALFORMED
    if theirs != job:
        return Verdict.WRONG_JOB
    _refuse_other_lengths(key)
    if not native.library().weir_weights_is_signed(key, payload, len(payload)):
        return Verdict.BAD_CHECK
    return Packet(WeightsType(kind), job, number, index, count, bool(snapshot), data)


_KINDS: Final = frozenset(WeightsType)


def _refuse_other_lengths(key: bytes) -> None:
    """C reads KEY_BYTES of a key, whatever its length."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a job's key has {KEY_BYTES} bytes, not {len(key)}")


@dataclass(frozen=True)
class Datagrams:
    """UDP payloads of one size, the last of which may be shorter, one behind the other.

    payloads: uint8. size: of each. to: one subscriber's address; None: all of them.
    """

    payloads: npt.NDArray[np.uint8]
    size: int
    to: Hashable | None

    @classmethod
    def single(cls, payload: bytes, to: Hashable | None) -> "Datagrams":
        """Return one payload."""
        return cls(np.frombuffer(bytearray(payload), np.uint8), len(payload), to)

    @property
    def count(self) -> int:
        """Number of datagrams."""
        return -(-self.payloads.size // self.size)

    def split(self) -> list[bytes]:
        """Return each payload."""
        whole = self.payloads.tobytes()
        return [whole[at : at + self.size] for at in range(0, len(whole), self.size)]


class DataWriter:
    """Writes DATA packets of a job. key: the job's."""

    def __init__(self, job: int, key: bytes) -> None:
        _refuse_other_lengths(key)
        self._job, self._key = job, key

    def write(
        self, name: Name, packets: int, first: int, data: npt.NDArray[np.uint8], to: Hashable | None
    ) -> Datagrams:
        """Return packets that follow one another.

        Args:
            name, packets: of the message.
            first: index of the first packet.
            data: in them; whole ones but for the last.
            to: see Datagrams.
        """
        out = np.empty(data.size + HEADER_BYTES * packets_of(data.size), np.uint8)
        of = native.Message(self._job, name.number, name.snapshot, packets)
        library = native.library()
        library.weir_weights_write(self._key, of, first, address_of(data), data.size, address_of(out))
        return Datagrams(out, min(PACKET_BYTES, out.size), to)


@dataclass(frozen=True)
class State:
    """State of a publisher.

    newest: version; 0: there is none yet. packets: of the update that made it. oldest: update that is kept.
    snapshot: version of which a snapshot can be had; 0: none. snapshot_packets: of that. layout: fingerprint
    of the tensors that the weights are, 8 bytes.
    """

    newest: int
    packets: int
    oldest: int
    snapshot: int
    snapshot_packets: int
    layout: bytes

    def packet(self, job: int) -> Packet:
        """Return the packet that says so."""
        data = _STATE.pack(self.snapshot, self.snapshot_packets, self.layout)
        return Packet(WeightsType.STATE, job, self.newest, self.oldest, self.packets, data=data)

    @classmethod
    def of(cls, packet: Packet) -> "State | Verdict":
        """Return the state that a packet says."""
        if len(packet.data) != _STATE.size:
            return Verdict.MALFORMED
        return cls(packet.number, packet.count, packet.index, *_STATE.unpack(packet.data))


def bitmap(first: int, indices: list[int]) -> bytes:
    """Return a question's bits: these packets are missing. first: the least of them."""
    bits = bytearray((indices[-1] - first) // 8 + 1)
    for index in indices:
        bits[(index - first) // 8] |= 1 << (index - first) % 8
    return bytes(bits)


def indices(first: int, bits: bytes | memoryview) -> list[int]:
    """Return the packets that a question names."""
    return [
        first + 8 * at + bit for at, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1
    ]


def packets_of(length: int) -> int:
    """Return how many packets this many bytes of data take."""
    return -(-length // WEIGHTS_DATA)
