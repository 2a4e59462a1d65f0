# SPDX-License-Identifier: Apache-2.0
"""Capture files of every kind that people have are read, and bad ones refused with a reason."""

import contextlib
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.l2 import Ether
from scapy.utils import PcapNgWriter, PcapWriter

from softp4.dataplane.pcap import Captured, CaptureError, read_capture

FRAMES = [bytes(range(n)) * 2 for n in (14, 30, 61)]
TIMES = [1_700_000_000_000_001_000 + n * 1_000_000_007 for n in range(3)]


def written(path: Path, writer: PcapWriter | PcapNgWriter) -> Path:
    for frame, time in zip(FRAMES, TIMES, strict=True):
        packet = Ether(frame)
        packet.time = time / 1e9
        writer.write(packet)
    writer.close()
    return path


@pytest.mark.parametrize("endian", ["<", ">"])
@pytest.mark.parametrize("nano", [False, True])
def test_pcap(tmp_path: Path, endian: str, nano: bool) -> None:
    path = tmp_path / "x.pcap"
    found = list(read_capture(written(path, PcapWriter(str(path), endianness=endian, nano=nano))))
    assert [captured.frame for captured in found] == FRAMES
    for captured, time in zip(found, TIMES, strict=True):
        assert abs(captured.time - time) <= 1000  # scapy's own time is a double


def test_pcapng(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    found = list(read_capture(written(path, PcapNgWriter(str(path)))))
    assert [captured.frame for captured in found] == FRAMES
    for captured, time in zip(found, TIMES, strict=True):
        assert abs(captured.time - time) <= 1000


def _block(kind: int, body: bytes, order: str = "<") -> bytes:
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def _section(order: str = "<") -> bytes:
    return _block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def _interface(resolution: int, order: str = "<", link: int = 1) -> bytes:
    options = struct.pack(order + "HHB3xHH", 9, 1, resolution, 0, 0)
    return _block(1, struct.pack(order + "HHI", link, 0, 0) + options, order)


def _packet(interface: int, ticks: int, frame: bytes, order: str = "<") -> bytes:
    head = struct.pack(order + "5I", interface, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame))
    return _block(6, head + frame + bytes(-len(frame) % 4), order)


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_clocks_of_each_interface_and_several_sections(tmp_path: Path, order: str) -> None:
    path = tmp_path / "x.pcapng"
    first = _section(order) + _interface(9, order) + _interface(0x80 | 10, order)
    first += _packet(0, 5, b"a" * 14, order) + _packet(1, 1024, b"b" * 15, order)
    simple = _block(3, struct.pack(order + "I", 14) + b"c" * 14 + bytes(2), order)
    unknown = _block(0x0BAD, b"skip", order)
    path.write_bytes(
        first + _section(order) + _interface(3, order) + unknown + _packet(0, 7, b"d" * 14, order) + simple
    )
    assert list(read_capture(path)) == [
        Captured(5, b"a" * 14),
        Captured(1_000_000_000, b"b" * 15),
        Captured(7_000_000, b"d" * 14),
        Captured(0, b"c" * 14),
    ]


_PCAP = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "neither pcap nor pcapng"),
        (b"GIF89a" + bytes(40), "neither pcap nor pcapng"),
        (_PCAP + bytes(7), "breaks off in the middle of a frame"),
        (_PCAP + struct.pack("<4I", 0, 0, 60, 60) + bytes(59), "breaks off in the middle of a frame"),
        (_PCAP[:20] + b"\x69\0\0\0", "not a capture of Ethernet frames"),
        (_section() + _interface(6, link=105), "not a capture of Ethernet frames"),
        (_section() + _packet(0, 0, b"x" * 14), "a frame of unknown interface 0"),
        (_section() + struct.pack("<II", 6, 0) + bytes(8), "a block of 0 bytes at offset 28"),
        (_section() + _interface(6) + _packet(0, 0, b"x" * 14)[:-9], "breaks off"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=message) as error:
        list(read_capture(path))
    assert str(path) in str(error.value)


@given(st.sampled_from([_PCAP, _section(), _section() + _interface(6)]), st.binary(max_size=80))
def test_garbage_ends_in_frames_or_in_a_capture_error(head: bytes, tail: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(head + tail)
        file.flush()
        with contextlib.suppress(CaptureError):
            list(read_capture(Path(file.name)))
