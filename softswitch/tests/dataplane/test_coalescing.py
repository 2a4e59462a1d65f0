# SPDX-License-Identifier: Apache-2.0
"""Frames made a batch of, and a batch segmented into frames, without an interface in between."""

import contextlib
import ctypes
import random
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from softp4.dataplane.loop_bindings import library

NOTE = 10  # bytes of a struct virtio_net_hdr
HEADERS = 42
ROOM = 1 << 20  # more than a send_batch or a segmenter has


def frame(number: int, length: int, chksum: int | None = 0) -> bytes:
    payload = random.Random(number).randbytes(length)
    ip = IP(src="10.0.0.1", dst="10.0.0.2", id=7, flags="DF")
    ethernet = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    return bytes(ethernet / ip / UDP(chksum=chksum) / Raw(payload))


@contextlib.contextmanager
def joined(frames: Sequence[bytes]) -> Iterator[Any]:
    """Yield a send_batch that holds these frames as one message."""
    batch, port = ctypes.create_string_buffer(ROOM), ctypes.create_string_buffer(4096)
    kind = ctypes.addressof(ctypes.c_char.in_dll(library(), "COALESCED_DATAGRAMS"))
    library().batch_init(batch, ctypes.c_void_p(kind), 1)
    assert library().batch_add(batch, port, -1, frames[0], len(frames[0])) == 0
    for each in frames[1:]:
        assert library().coalesce_can(each, len(each))
        assert library().coalesce_alike(frames[0], each)
        assert library().batch_join(batch, each, len(each), HEADERS)
    yield lambda fd: library().batch_flush(batch, port, fd)


def sent(frames: Sequence[bytes], room: int) -> list[bytes]:
    """Return the messages in which frames that were joined arrive, over a socket that takes this many "
    "bytes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs, joined(frames) as flush:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)

        def send() -> None:
            flush(ours.fileno())
            ours.send(b"")

        thread = threading.Thread(target=send)
        thread.start()
        messages = list(iter(lambda: theirs.recv(1 << 17), b""))
        thread.join()
        return messages


def segmented(message: bytes) -> list[bytes]:
    """Return the frames that a batch with its note is segmented into; none when it is no batch."""
    note = ctypes.create_string_buffer(message[:NOTE], NOTE)
    memory = ctypes.create_string_buffer(message[NOTE:], max(1, len(message) - NOTE))
    batch, length = ctypes.create_string_buffer(4096), ctypes.c_uint32()
    library().segment_frame.restype = ctypes.c_void_p
    found = []
    if library().segment_begin(batch, memory, len(message) - NOTE, note) == 0:
        while at := library().segment_frame(batch, ctypes.byref(length)):
            assert ctypes.addressof(memory) <= at <= ctypes.addressof(memory) + len(memory) - length.value
            found.append(ctypes.string_at(at, length.value))
            library().segment_next(batch)
    return found


@given(
    length=st.integers(1, 1400),
    count=st.integers(2, 20),
    last=st.integers(1, 1400),
    chksum=st.sampled_from((0, None)),
)
def test_a_batch_is_cut_into_the_frames_it_was_made_of(
    length: int, count: int, last: int, chksum: int | None
) -> None:
    """But for what segmentation adds: UDP checksums, and identifications that count."""
    lengths = [length] * (count - 1) + [min(last, length)]
    frames = [frame(number, each, chksum) for number, each in enumerate(lengths)]
    (batch,) = sent(frames, 1 << 20)
    for number, (got, put) in enumerate(zip(segmented(batch), frames, strict=True)):
        expected = Ether(put)
        expected[IP].id += number
        del expected[IP].chksum, expected[UDP].chksum
        assert got == bytes(expected)


@pytest.mark.parametrize("chksum", [0, None])
def test_a_batch_that_is_refused_leaves_frame_by_frame(chksum: int | None) -> None:
    """Each with a UDP checksum, and without any offload in its note."""
    lengths = [900] * 8 + [70]
    received = sent([frame(number, length, chksum) for number, length in enumerate(lengths)], 4096 // 2)
    assert [message[NOTE:] for message in received] == [
        frame(number, length, None) for number, length in enumerate(lengths)
    ]
    assert {message[:NOTE] for message in received} == {bytes(NOTE)}


def test_a_batch_has_64_frames_and_64_kilobytes_at_most() -> None:
    for length, most in ((10, 64), (1400, 46)):
        frames = [frame(number, length) for number in range(most)]
        batch, port = ctypes.create_string_buffer(ROOM), ctypes.create_string_buffer(4096)
        kind = ctypes.addressof(ctypes.c_char.in_dll(library(), "COALESCED_DATAGRAMS"))
        library().batch_init(batch, ctypes.c_void_p(kind), 1)
        library().batch_add(batch, port, -1, frames[0], len(frames[0]))
        joins = [library().batch_join(batch, frames[0], len(frames[0]), HEADERS) for _ in range(most)]
        assert joins == [1] * (most - 1) + [0]


@given(
    data=st.data(),
    note=st.tuples(
        st.sampled_from((0, 1, 1, 1)),
        st.sampled_from((0, 1, 3, 5, 5, 5, 0x85)),
        st.integers(0, 0xFFFF),
        st.integers(0, 0xFFFF) | st.integers(0, 1500),
        st.sampled_from((0, 13, 34, 34, 38, 54, 120, 0xFFFF)),
        st.sampled_from((6, 6, 6, 0, 16, 0xFFFF)),
    ),
)
def test_any_bytes_are_cut_within_their_bounds(data: st.DataObject, note: tuple[int, ...]) -> None:
    body = bytearray(data.draw(st.binary(max_size=300)))
    if data.draw(st.booleans()):
        body[:14] = frame(1, 1)[:15]
    segmented(struct.pack("=BBHHHH", *note) + bytes(body))
