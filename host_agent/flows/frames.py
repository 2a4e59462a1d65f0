# SPDX-License-Identifier: Apache-2.0
"""The Ethernet, IPv4 and UDP headers around a flow packet, for links that carry whole frames."""

import ipaddress
import struct
from functools import lru_cache
from typing import Final, NamedTuple

from weir.host_agent.transport.frames import Datagram
from weir.host_agent.transport.report import FRAME_OVERHEAD
from weir.wire.definition import FLOW_PORT

_IPV4: Final = b"\x08\x00"
_PLAIN: Final = 0x45  # version 4, no options
_UDP: Final = 17
_TTL: Final = 64
_DONT_FRAGMENT: Final = 0x4000
_IP: Final = struct.Struct("!BBHHHBBH4s4s")
_PORTS: Final = struct.Struct("!HHHH")
_IP_AT, _UDP_AT = 14, 34
_KNOWN: Final = 4096  # addresses whose other form is remembered


class Address(NamedTuple):
    """Address of a host's flows: dotted IPv4 address and UDP port."""

    ip: str
    port: int = FLOW_PORT


class Arrival(NamedTuple):
    """A flow packet that came out of a frame."""

    payload: bytes
    traffic_class: int
    source: Address


def wrap(datagram: Datagram, source: Address, source_mac: bytes, to: Address, next_hop_mac: bytes) -> bytes:
    """Return the frame that carries a datagram. No UDP checksum: legal over IPv4, and a switch may cut the
    data.
    """
    length = len(datagram.payload) + _PORTS.size
    header = [
        _PLAIN,
        datagram.traffic_class,
        _IP.size + length,
        0,
        _DONT_FRAGMENT,
        _TTL,
        _UDP,
        0,
        _packed(source.ip),
        _packed(to.ip),
    ]
    header[7] = 0xFFFF ^ header_sum(_IP.pack(*header))
    udp = _PORTS.pack(source.port, to.port, length, 0)
    return b"".join((next_hop_mac, source_mac, _IPV4, _IP.pack(*header), udp, datagram.payload))


def unwrap(frame: bytes, here: Address, mac: bytes) -> Arrival | None:
    """Return the flow packet in a frame to this host; None when the frame is anything else."""
    if len(frame) < FRAME_OVERHEAD or frame[:6] != mac or frame[12:14] != _IPV4:
        return None
    header = frame[_IP_AT:_UDP_AT]
    first, traffic_class, total, _, fragment, _, protocol, _, source, to = _IP.unpack(header)
    if first != _PLAIN or protocol != _UDP or fragment & 0x3FFF or header_sum(header) != 0xFFFF:
        return None
    source_port, port, length, _ = _PORTS.unpack_from(frame, _UDP_AT)
    if to != _packed(here.ip) or port != here.port:
        return None
    if not _PORTS.size <= length <= total - _IP.size <= len(frame) - _UDP_AT:
        return None
    payload = frame[FRAME_OVERHEAD : _UDP_AT + length]
    return Arrival(payload, traffic_class, Address(_dotted(source), source_port))


@lru_cache(_KNOWN)
def _packed(ip: str) -> bytes:
    return ipaddress.IPv4Address(ip).packed


@lru_cache(_KNOWN)
def _dotted(packed: bytes) -> str:
    return str(ipaddress.IPv4Address(packed))


def header_sum(header: bytes) -> int:
    """Return the ones' complement sum of an IPv4 header without options: 0xFFFF when it is right, RFC
    1071.
    """
    total: int = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return (total & 0xFFFF) + (total >> 16)
