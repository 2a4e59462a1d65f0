# SPDX-License-Identifier: Apache-2.0
"""Controller packets: P4Runtime's metadata to and from the header that the program sees (16.1)."""

from collections.abc import Sequence
from typing import Any

from softp4.errors import Code, ControlError
from softp4.p4rt.p4info import P4InfoIndex
from softp4.p4rt.p4info_objects import FieldInfo
from softp4.p4rt.values import decode, encode
from softp4.p4runtime.schema import p4runtime_pb2

Message = Any
"""A P4Runtime message; the stubs carry no types."""


def _header_bytes(fields: Sequence[FieldInfo]) -> int:
    return (sum(field.bits for field in fields) + 7) // 8


def frame_of_packet_out(info: P4InfoIndex, packet: Message) -> bytes:
    """Return the frame to put in at the CPU port: the "packet_out" header, then the payload.

    Fields follow each other most significant bit first; what is missing to a whole byte is zero.
    Raises ControlError INVALID_ARGUMENT for metadata that P4Info does not describe.
    """
    fields = info.packet_headers.get("packet_out", ())
    given = {metadata.metadata_id: metadata.value for metadata in packet.metadata}
    if len(given) != len(packet.metadata):
        raise ControlError(Code.INVALID_ARGUMENT, "packet-out: a metadata id is given twice")
    bits = value = 0
    for field in fields:
        where = f"packet-out, metadata {field.name}"
        if field.id not in given:
            raise ControlError(Code.INVALID_ARGUMENT, f"{where} is missing")
        value = value << field.bits | decode(given.pop(field.id), field.bits, where)
        bits += field.bits
    if given:
        raise ControlError(Code.INVALID_ARGUMENT, f"packet-out has no metadata with id {min(given)}")
    length = _header_bytes(fields)
    return (value << (8 * length - bits)).to_bytes(length, "big") + bytes(packet.payload)


def packet_in_of_frame(info: P4InfoIndex, frame: bytes) -> Message:
    """Return the PacketIn for a frame that left at the CPU port: its "packet_in" header as metadata.

    Raises ControlError INVALID_ARGUMENT for a frame shorter than that header.
    """
    fields = info.packet_headers.get("packet_in", ())
    length = _header_bytes(fields)
    if len(frame) < length:
        raise ControlError(Code.INVALID_ARGUMENT, f"a frame of {len(frame)} bytes has no packet_in header")
    message = p4runtime_pb2.PacketIn(payload=frame[length:])
    value, left = int.from_bytes(frame[:length], "big"), 8 * length
    for field in fields:
        left -= field.bits
        message.metadata.add(metadata_id=field.id, value=encode(value >> left & ((1 << field.bits) - 1)))
    return message
