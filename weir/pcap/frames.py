# SPDX-License-Identifier: Apache-2.0
"""Weir packets out of a capture file, pcap or pcapng."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

from weir.host_agent.flows.codec import FlowPacket
from weir.host_agent.flows.codec import decode as decode_flow
from weir.host_agent.flows.verdict import FlowVerdict
from weir.host_agent.transport.codec import CodecError, Packet
from weir.wire.definition import FLOW_PORT, UDP_PORT

_VLAN_TYPES: Final = (0x8100, 0x88A8)
_IPV4: Final = 0x0800
_UDP: Final = 17


class CaptureError(ValueError):
    """The file cannot be read as a capture; the message names it."""


@dataclass(frozen=True)
class Datagram:
    """Addresses, class and payload of a captured UDP datagram from or to one of Weir's ports."""

    source: str
    destination: str
    dscp: int
    ecn: int
    flow: bool
    payload: bytes


@dataclass(frozen=True)
class CapturedFrame:
    """One frame of the capture.

    Of ``packet``, ``flow`` and ``problem`` exactly one is set for a Weir frame, and none for any other.

    file: name of the capture. number: of the frame in it, from 1. time: seconds, as captured. port: the
    interface's name in the capture, when it has one. size: bytes. udp: of a Weir frame, what it is in.
    """

    file: str
    number: int
    time: float
    port: str
    size: int
    udp: Datagram | None = None
    packet: Packet | None = None
    flow: FlowPacket | None = None
    problem: str | None = None

    @property
    def ends(self) -> tuple[str, str] | None:
        """Return where the frame came from and where it went, of an interface that is called ``A > B``."""
        here, arrow, there = self.port.partition(" > ")
        return (here, there) if arrow else None

    @property
    def place(self) -> str:
        """Return where the frame is: the file, its number, and the interface if that has a name."""
        return f"{self.file} #{self.number}" + (f" ({self.port})" if self.port else "")


def read_frames(path: Path) -> Iterator[CapturedFrame]:
    """Yield all frames in order. Raises CaptureError when the file is no capture or cannot be opened."""
    from scapy.error import Scapy_Exception
    from scapy.utils import RawPcapReader

    try:
        reader = RawPcapReader(str(path))
    except (OSError, Scapy_Exception) as error:
        words = getattr(error, "strerror", None) or error
        raise CaptureError(f"{path}: {words}") from None
    with reader:
        for number, (data, about) in enumerate(reader, 1):
            name = (getattr(about, "ifname", None) or b"").decode(errors="replace")
            yield frame_of(data, str(path), number, _time(reader, about), name)


def frame_of(data: bytes, file: str, number: int, time: float, port: str) -> CapturedFrame:
    """Return an Ethernet frame with what it says."""
    udp = _datagram(data)
    if udp is None:
        return CapturedFrame(file, number, time, port, len(data))
    packet, flow, problem = _decode(udp)
    return CapturedFrame(file, number, time, port, len(data), udp, packet, flow, problem)


def _time(reader: Any, about: Any) -> float:
    if hasattr(about, "tshigh"):
        if about.tshigh is None:  # pcapng's simple packets have no time
            return 0.0
        return float((about.tshigh << 32 | about.tslow) / about.tsresol)
    return float(about.sec + about.usec / (1e9 if reader.nano else 1e6))


def _decode(udp: Datagram) -> tuple[Packet | None, FlowPacket | None, str | None]:
    """Return the Weir packet in a datagram, or why there is none where there should be."""
    if udp.flow:
        flow = decode_flow(udp.payload)
        if isinstance(flow, FlowVerdict):
            return None, None, f"{len(udp.payload)} bytes to or from the flow port: {flow.name}"
        return None, flow, None
    try:
        return Packet.decode(udp.payload), None, None
    except CodecError as error:
        return None, None, str(error)


def _datagram(frame: bytes) -> Datagram | None:
    """Return the datagram in an Ethernet/IPv4/UDP frame from or to one of Weir's ports; None of any other."""
    try:
        at = 12
        (kind,) = struct.unpack_from("!H", frame, at)
        while kind in _VLAN_TYPES:
            at += 4
            (kind,) = struct.unpack_from("!H", frame, at)
        ip = at + 2
        if kind != _IPV4 or frame[ip + 9] != _UDP:
            return None
        udp = ip + 4 * (frame[ip] & 0xF)
        source, destination, length = struct.unpack_from("!HHH", frame, udp)
        sender, receiver = struct.unpack_from("!II", frame, ip + 12)
    except (struct.error, IndexError):
        return None
    ports = (source, destination)
    if UDP_PORT not in ports and FLOW_PORT not in ports:
        return None
    return Datagram(
        str(IPv4Address(sender)),
        str(IPv4Address(receiver)),
        dscp=frame[ip + 1] >> 2,
        ecn=frame[ip + 1] & 3,
        flow=UDP_PORT not in ports,
        payload=frame[udp + 8 : udp + length],
    )
