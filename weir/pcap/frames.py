# SPDX-License-Identifier: Apache-2.0
"""Weir packets out of a capture file, pcap or pcapng."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weir.host_agent.transport.codec import CodecError, Packet
from weir.wire.definition import UDP_PORT

_VLAN_TYPES: Final = (0x8100, 0x88A8)
_IPV4: Final = 0x0800
_UDP: Final = 17


class CaptureError(ValueError):
    """The file cannot be read as a capture; the message names it."""


@dataclass(frozen=True)
class CapturedFrame:
    """One frame of the capture. Exactly one of ``packet`` and ``problem`` is set for a Weir frame, and
    neither for any other.

    time: seconds, as captured. port: the interface's name in the capture, when it has one. size: bytes.
    """

    time: float
    port: str
    size: int
    packet: Packet | None = None
    problem: str | None = None


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
        for frame, about in reader:
            name = getattr(about, "ifname", None) or b""
            packet, problem = _weir(frame)
            yield CapturedFrame(
                _time(reader, about), name.decode(errors="replace"), len(frame), packet, problem
            )


def _time(reader: Any, about: Any) -> float:
    if hasattr(about, "tshigh"):
        if about.tshigh is None:  # pcapng's simple packets have no time
            return 0.0
        return float((about.tshigh << 32 | about.tslow) / about.tsresol)
    return float(about.sec + about.usec / (1e9 if reader.nano else 1e6))


def _weir(frame: bytes) -> tuple[Packet | None, str | None]:
    """Return the Weir packet in an Ethernet frame, or why there is none where there should be."""
    payload = udp_payload(frame)
    if payload is None:
        return None, None
    try:
        return Packet.decode(payload), None
    except CodecError as error:
        return None, str(error)


def udp_payload(frame: bytes) -> bytes | None:
    """Return the payload of an Ethernet/IPv4/UDP frame from or to Weir's port; None of any other frame."""
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
    except (struct.error, IndexError):
        return None
    if UDP_PORT not in (source, destination):
        return None
    return frame[udp + 8 : udp + length]
