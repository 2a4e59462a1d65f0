# SPDX-License-Identifier: Apache-2.0
"""Reads capture files (pcap and pcapng) and plays them into queue ports."""

import heapq
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from softp4.dataplane.ports import PortLoop

_PCAP_MAGIC: Final = {0xA1B2C3D4: 1000, 0xA1B23C4D: 1}  # nanoseconds per unit of the fraction
_PCAPNG_SECTION: Final = b"\x0a\x0d\x0d\x0a"
_INTERFACE, _SIMPLE_PACKET, _ENHANCED_PACKET = 1, 3, 6
_ETHERNET: Final = 1
_TSRESOL: Final = 9


class Flag(Protocol):
    """Something that tells whether it is set."""

    def is_set(self) -> bool: ...


class CaptureError(ValueError):
    """The file is not a capture of Ethernet frames, or breaks off in the middle of one."""


@dataclass(frozen=True)
class Captured:
    """A frame and when it was seen, in nanoseconds."""

    time: int
    frame: bytes


def read_capture(path: Path) -> Iterator[Captured]:
    """Yield the frames of a pcap (any byte order, µs or ns) or pcapng file.

    Raises CaptureError and OSError.
    """
    data = path.read_bytes()
    try:
        if data[:4] == _PCAPNG_SECTION:
            yield from _read_pcapng(data)
        else:
            yield from _read_pcap(data)
    except CaptureError as error:
        raise CaptureError(f"{path}: {error}") from None
    except struct.error:
        raise CaptureError(f"{path}: the file breaks off in the middle of a frame") from None


def _read_pcap(data: bytes) -> Iterator[Captured]:
    for order in "<>":
        unit = _PCAP_MAGIC.get(struct.unpack_from(order + "I", data)[0]) if len(data) >= 24 else None
        if unit is not None:
            break
    else:
        raise CaptureError("neither pcap nor pcapng")
    if struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF != _ETHERNET:
        raise CaptureError("not a capture of Ethernet frames")
    at = 24
    while at < len(data):
        seconds, fraction, length, _ = struct.unpack_from(order + "4I", data, at)
        at += 16
        yield Captured(seconds * 1_000_000_000 + fraction * unit, _slice(data, at, length))
        at += length


def _slice(data: bytes, at: int, length: int) -> bytes:
    frame = data[at : at + length]
    if len(frame) < length:
        raise CaptureError("the file breaks off in the middle of a frame")
    return frame


def _read_pcapng(data: bytes) -> Iterator[Captured]:
    at, order = 0, "<"
    resolutions: list[float] = []  # nanoseconds per tick of each interface
    while at < len(data):
        if data[at : at + 4] == _PCAPNG_SECTION:
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            resolutions = []
        kind, length = struct.unpack_from(order + "2I", data, at)
        if length < 12 or length % 4:
            raise CaptureError(f"a block of {length} bytes at offset {at}")
        body = _slice(data, at + 8, length - 12)
        if kind == _INTERFACE:
            if struct.unpack_from(order + "H", body)[0] != _ETHERNET:
                raise CaptureError("not a capture of Ethernet frames")
            resolutions.append(_resolution(body[8:], order))
        elif kind == _ENHANCED_PACKET:
            interface, high, low, captured, _ = struct.unpack_from(order + "5I", body)
            if interface >= len(resolutions):
                raise CaptureError(f"a frame of unknown interface {interface}")
            ticks = high << 32 | low
            yield Captured(int(ticks * resolutions[interface]), _slice(body, 20, captured))
        elif kind == _SIMPLE_PACKET:
            (original,) = struct.unpack_from(order + "I", body)
            yield Captured(0, body[4 : 4 + original])
        at += length


def _resolution(options: bytes, order: str) -> float:
    at = 0
    while at + 4 <= len(options):
        code, length = struct.unpack_from(order + "2H", options, at)
        if code == _TSRESOL and length == 1:
            exponent = options[at + 4]
            base = 2.0 if exponent & 0x80 else 10.0
            return float(1e9 / base ** (exponent & 0x7F))
        at += 4 + (length + 3) // 4 * 4
    return 1000.0


def play(loop: PortLoop, inputs: Mapping[int, Path], stop: Flag) -> int:
    """Put the frames of each queue port's capture file in, all files merged by time, as fast as they go.

    Returns how many frames were put in, once the program has taken them all or ``stop`` is set.
    Raises CaptureError and OSError.
    """

    def of_port(port: int, path: Path) -> Iterator[tuple[int, int, bytes]]:
        for captured in read_capture(path):
            yield captured.time, port, captured.frame

    frames = 0
    last: int | None = None
    for _, port, frame in heapq.merge(*(of_port(*item) for item in inputs.items()), key=lambda f: f[:2]):
        if last is not None and last != port:
            _drain(loop, last, stop)  # each port has a queue of its own: keep the order between them
        if stop.is_set():
            return frames
        loop.inject(port, frame)
        frames, last = frames + 1, port
    if last is not None:
        _drain(loop, last, stop)
    return frames


def _drain(loop: PortLoop, port: int, stop: Flag) -> None:
    while not stop.is_set() and not loop.drain(port, 0.1):
        pass
