# SPDX-License-Identifier: Apache-2.0
"""Treatment of frames by a congested device: their lanes are cut off, or they are marked."""

import struct
from typing import Final

from weir.host_agent.flows.frames import header_sum
from weir.wire import definition as d

_IPV4: Final = 14  # offsets in an Ethernet frame that holds IPv4 without options
_UDP: Final = _IPV4 + 20
_WEIR: Final = _UDP + 8
_WITH_LANES: Final = (d.PacketType.CONTRIBUTION, d.PacketType.RESULT)


def trim(frame: bytes) -> bytes:
    """Return the frame of a contribution or result without its lanes, in the top class; any other as it is.

    Whether the packet is protected is not asked: a foreign device does not know.
    """
    if not _is_weir(frame) or frame[_WEIR] & 15 not in _WITH_LANES or not frame[_WEIR + 3]:
        return frame
    payload = d.WEIR.size + d.COLUMN.size * d.columns(frame[_WEIR + 2] & 15)
    cut = bytearray(frame[: _WEIR + payload])
    cut[_WEIR + 1] |= d.Flag.TRIMMED
    cut[_WEIR + 3] = 0  # groups
    struct.pack_into("!H", cut, _UDP + 4, payload + 8)
    struct.pack_into("!H", cut, _IPV4 + 2, payload + 28)
    return _with_class(cut, d.RELIABLE_DSCP << 2 | cut[_IPV4 + 1] & 3)


def mark(frame: bytes) -> bytes:
    """Return the frame with "congestion experienced" in its IPv4 header, if its sender can be told so."""
    if not _is_ipv4(frame) or frame[_IPV4 + 1] & 3 == d.NOT_ECT:
        return frame
    return _with_class(bytearray(frame), frame[_IPV4 + 1] | d.CE)


def _is_ipv4(frame: bytes) -> bool:
    return len(frame) >= _UDP and frame[12:15] == b"\x08\x00\x45"


def _is_weir(frame: bytes) -> bool:
    ports = frame[_UDP : _UDP + 4]
    port = d.UDP_PORT.to_bytes(2, "big")
    long_enough = len(frame) >= _WEIR + d.WEIR.size
    return _is_ipv4(frame) and long_enough and frame[_IPV4 + 9] == 17 and port in (ports[:2], ports[2:])


def _with_class(frame: bytearray, traffic_class: int) -> bytes:
    """Return the frame with this traffic class, and the right IPv4 checksum."""
    frame[_IPV4 + 1] = traffic_class
    frame[_IPV4 + 10 : _IPV4 + 12] = b"\0\0"
    struct.pack_into("!H", frame, _IPV4 + 10, 0xFFFF ^ header_sum(bytes(frame[_IPV4:_UDP])))
    return bytes(frame)
