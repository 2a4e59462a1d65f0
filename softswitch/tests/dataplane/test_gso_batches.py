# SPDX-License-Identifier: Apache-2.0
"""GSO batches of UDP datagrams: those that hosts send are segmented, and like frames leave as batches."""

import random
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from softp4.dataplane.ports import PortLoop
from softp4.native.ring import MAX_FRAME
from tests.dataplane.veths import Veths, forwarding, mac, made_veths

pytestmark = pytest.mark.root

SOL_PACKET: Final = 263
PACKET_VNET_HDR: Final = 15
SOL_UDP: Final = 17
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
WIDE_PAYLOAD: Final = 28 + 8 + 4 * 1024
NEEDS_CHECKSUM, TCP_GSO, UDP_GSO = 1, 1, 5


class Offload(NamedTuple):
    """``struct virtio_net_hdr``: what a kernel is to do, or has left undone, with a frame."""

    flags: int = 0
    kind: int = 0
    headers: int = 0
    size: int = 0
    start: int = 0
    offset: int = 0

    def pack(self) -> bytes:
        return struct.pack("=BBHHHH", *self)


@pytest.fixture(scope="module")
def lab() -> Iterator[Veths]:
    with made_veths() as made:
        yield made


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each frame leave by itself."""
    monkeypatch.setenv("SOFTP4_BATCHES", "off")


@pytest.fixture
def loop(lab: Veths) -> Iterator[PortLoop]:
    with forwarding(lab) as made:
        yield made


def offloading(lab: Veths, host: int) -> socket.socket:
    """Return a raw socket at a host whose frames have an Offload before them, both ways."""
    made = lab.raw(host)
    made.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    return made


def batch_of(headers: Any, payload: bytes, size: int) -> tuple[bytes, list[bytes]]:
    """Return a batch as a host's kernel hands it to its device, and the frames that it stands for.

    headers: up to UDP's, as of the first.
    """
    pieces = [payload[at : at + size] for at in range(0, len(payload), size)]
    frames = []
    for number, piece in enumerate(pieces):
        frame = headers.copy()
        if IP in frame:
            frame[IP].id = (frame[IP].id + number) % 0x10000
        frames.append(bytes(frame / Raw(piece)))
    whole = bytearray(bytes(headers / Raw(payload)))
    start = len(headers) - 8
    pseudo = _pseudo_sum(headers, 8 + len(payload))
    whole[start + 6 : start + 8] = pseudo.to_bytes(2, "big")
    return Offload(NEEDS_CHECKSUM, UDP_GSO, len(headers), size, start, 6).pack() + whole, frames


def _pseudo_sum(headers: Any, length: int) -> int:
    layer = headers[IP] if IP in headers else headers[IPv6]
    family = socket.AF_INET if IP in headers else socket.AF_INET6
    data = socket.inet_pton(family, layer.src) + socket.inet_pton(family, layer.dst)
    words = struct.unpack(f"!{len(data) // 2}H", data)
    total = sum(words) + 17 + length
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


ETHERNET: Final = Ether(src=mac(1), dst=mac(2))
NOBODY: Final = "10.0.0.9"  # whose host says nothing to what comes for it
V4: Final = IP(src="10.0.0.1", dst=NOBODY, tos=0x2A, id=65530, flags="DF")
V6: Final = IPv6(src="fd00::1", dst="fd00::9", tc=0x2A)
PORTS: Final = UDP(sport=4000, dport=5000)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(ETHERNET / V4 / PORTS, id="IPv4"),
        pytest.param(ETHERNET / V6 / PORTS, id="IPv6"),
        pytest.param(ETHERNET / Dot1Q(vlan=42, prio=3) / V4 / PORTS, id="VLAN"),
    ],
)
@pytest.mark.parametrize("size", [1, 700, 1452])
def test_a_batch_that_comes_in_is_segmented(lab: Veths, headers: Any, size: int) -> None:
    """The frames are those that a device would have made, checksums and all; short batches and long ones."""
    rng = random.Random(size)
    sent = [batch_of(headers, rng.randbytes(length), size) for length in (size + 1, 2 * size, 39 * size + 1)]
    with forwarding(lab) as loop, offloading(lab, 1) as one, lab.raw(2) as two:
        two.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        for batch, frames in sent:
            one.send(batch)
            for frame in frames:
                assert _tagged(two, headers) == frame
        assert loop.statistics(1).rx_batches == len(sent)
        assert loop.statistics(1).rx_packets == sum(len(frames) for _, frames in sent)


@pytest.mark.usefixtures("apart")
def test_jumbo_frames_pass_alone_and_in_batches(lab: Veths) -> None:
    """As long as a wide packet, which does not fit where the ring has room for a frame."""
    payload = random.Random(2).randbytes(5 * WIDE_PAYLOAD + 7)
    batch, frames = batch_of(ETHERNET / V4 / PORTS, payload, WIDE_PAYLOAD)
    try:
        with forwarding(lab) as loop, offloading(lab, 1) as one, lab.raw(2) as two:
            lab.set_mtu(9000)
            two.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            one.send(Offload().pack() + frames[0])
            one.send(batch)
            assert [two.recv(8192) for _ in range(7)] == [frames[0], *frames]
            assert loop.statistics(1).rx_batches == 1
            assert loop.statistics(1).rx_packets == loop.statistics(2).tx_packets == 7
    finally:
        lab.set_mtu(1500)


def _tagged(end: socket.socket, headers: Any) -> bytes:
    """Return a frame with the VLAN tag that the kernel takes out of what it hands over."""
    frame = end.recv(4096)
    return frame[:12] + bytes(headers)[12:16] + frame[12:] if Dot1Q in headers else frame


def test_what_is_no_batch_of_udp_is_dropped_and_counted(lab: Veths, apart: None, loop: PortLoop) -> None:
    segments = bytes(ETHERNET / IP(src="10.0.0.1", dst=NOBODY) / (b"\x50" * 20 + bytes(3000)))
    tcp = bytearray(segments)
    tcp[23] = socket.IPPROTO_TCP
    too_long, _ = batch_of(ETHERNET / V4 / PORTS, bytes(3 * MAX_FRAME), MAX_FRAME)
    good, frames = batch_of(ETHERNET / V4 / PORTS, bytes(3000), 1000)
    with offloading(lab, 1) as one, lab.raw(2) as two:
        one.send(Offload(NEEDS_CHECKSUM, TCP_GSO, 54, 1000, 34, 16).pack() + tcp)
        one.send(too_long)
        one.send(good)
        assert [two.recv(4096) for _ in frames] == frames
    assert loop.statistics(1).rx_oversize == 2
    assert loop.statistics(1).rx_batches == 2  # one of them of frames that are too long


def test_a_kernel_socket_sends_a_batch(lab: Veths, loop: PortLoop) -> None:
    payload = random.Random(1).randbytes(60_001)
    with lab.udp(1) as one, lab.udp(2) as two:
        two.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        size = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", 1000))]
        one.sendmsg([payload], size, 0, ("10.0.0.2", 5000))
        assert [two.recv(2000) for _ in range(61)] == [
            payload[at : at + 1000] for at in range(0, 60_001, 1000)
        ]
    assert loop.statistics(1).rx_batches == 1


def plain(number: int, length: int = 1000, **changed: Any) -> bytes:
    """Return a datagram without a UDP checksum, not to be fragmented."""
    fields: dict[str, Any] = {
        "dst": NOBODY,
        "id": number,
        "tos": 0x2A,
        "flags": "DF",
        "dport": 5000,
        "chksum": 0,
        **changed,
    }
    ip = IP(src="10.0.0.1", **{name: fields[name] for name in ("dst", "id", "tos", "flags")})
    udp = UDP(sport=4000, dport=fields["dport"], chksum=fields["chksum"])
    return bytes(ETHERNET / ip / udp / Raw(random.Random(number).randbytes(length)))


def at_once(lab: Veths, frames: Sequence[bytes], receive: Callable[[PortLoop], Any]) -> Any:
    """Return what ``receive`` gives when all frames wait at the switch before it begins."""
    with forwarding(lab, start=False) as loop, lab.raw(1) as one:
        for frame in frames:
            one.send(frame)
        loop.start()
        return receive(loop)


def test_like_frames_leave_as_a_batch(lab: Veths) -> None:
    """With room for 64 KiB at once, and the last one shorter."""
    frames = [plain(number) for number in range(39)] + [plain(39, 500), plain(40), plain(41)]
    with offloading(lab, 2) as two:
        batches, loop_saw = at_once(
            lab, frames, lambda loop: ([two.recv(70_000) for _ in range(2)], loop.statistics(2))
        )
    assert (loop_saw.tx_batches, loop_saw.tx_packets, loop_saw.tx_drops) == (2, len(frames), 0)
    assert loop_saw.tx_bytes == sum(map(len, frames))
    for batch, expected in zip(batches, (frames[:40], frames[40:]), strict=True):
        offload = Offload(*struct.unpack("=BBHHHH", batch[:10]))
        assert offload == Offload(NEEDS_CHECKSUM, UDP_GSO, offload.headers, 1000, 34, 6)
        assert batch[10 + 42 :] == b"".join(frame[42:] for frame in expected)
        whole = Ether(batch[10:])
        assert (whole[IP].len, whole[UDP].len) == (len(batch) - 24, len(batch) - 44)
        assert batch[10:26] == expected[0][:16]


def test_a_batch_with_checksums_leaves_as_a_batch(lab: Veths) -> None:
    """The switch segments it, which gives each frame a correct checksum, and coalesces the frames again."""
    batch, frames = batch_of(ETHERNET / V4 / PORTS, random.Random(3).randbytes(40_000), 1000)
    with forwarding(lab) as loop, offloading(lab, 1) as one, offloading(lab, 2) as two:
        one.send(batch)
        assert two.recv(70_000)[10 + 42 :] == batch[10 + 42 :]
        assert loop.statistics(1).rx_packets == loop.statistics(2).tx_packets == len(frames)
        assert loop.statistics(2).tx_batches == 1


def test_a_gathering_socket_gets_a_batch_and_any_other_its_datagrams(lab: Veths) -> None:
    frames = [plain(number, dst="10.0.0.2") for number in range(40)]
    payloads = [frame[42:] for frame in frames]
    with lab.udp(2) as two:
        two.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        assert at_once(lab, frames, lambda _: [two.recv(2000) for _ in frames]) == payloads
        two.setsockopt(SOL_UDP, UDP_GRO, 1)
        assert at_once(lab, frames, lambda _: two.recv(70_000)) == b"".join(payloads)


UNLIKE: Final = {
    "longer": lambda: plain(1, 1001),
    "another class": lambda: plain(1, tos=0x2B),
    "another port": lambda: plain(1, dport=5001),
    "a wrong checksum": lambda: plain(1, chksum=0x1234),
    "may be fragmented": lambda: plain(1, flags=0),
    "a trailer": lambda: plain(1, 998) + b"zz",
    "a wrong IPv4 checksum": lambda: plain(1)[:24] + b"\0\0" + plain(1)[26:],
    "no UDP": lambda: plain(1)[:23] + b"\x84" + plain(1)[24:],
    "no IP": lambda: plain(1)[:12] + b"\x88\xb5" + plain(1)[14:],
}


@pytest.mark.parametrize("name", UNLIKE)
def test_unlike_frames_leave_as_they_are(lab: Veths, name: str) -> None:
    frames = [plain(0), UNLIKE[name](), plain(2, 1002)]
    with lab.raw(2) as two:
        received, saw = at_once(
            lab, frames, lambda loop: ([two.recv(4096) for _ in frames], loop.statistics(2))
        )
    assert received == frames
    assert (saw.tx_batches, saw.tx_packets) == (0, 3)


@pytest.mark.parametrize("batches", ["on", "off"])
@pytest.mark.parametrize("seed", range(4))
def test_any_mixture_arrives_in_order(
    lab: Veths, monkeypatch: pytest.MonkeyPatch, seed: int, batches: str
) -> None:
    monkeypatch.setenv("SOFTP4_BATCHES", batches)
    rng = random.Random(seed)
    frames = []
    while len(frames) < 300:
        length, tos = rng.choice((1, 64, 1000, 1400)), rng.choice((0, 0x2A))
        frames += [
            plain(len(frames) + i, length, tos=tos, dst="10.0.0.2") for i in range(rng.choice((1, 2, 30, 70)))
        ]
    with lab.udp(2) as two:
        two.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        got, saw = at_once(lab, frames, lambda loop: ([two.recv(2000) for _ in frames], loop.statistics(2)))
    assert got == [frame[42:] for frame in frames]
    assert (saw.tx_batches > 0) == (batches == "on")


def test_an_interface_that_has_no_room_for_batches_counts_their_frames(lab: Veths) -> None:
    lab.switch.set_up("sw2", False)
    try:
        saw = at_once(lab, [plain(number) for number in range(40)], _when_dropped)
    finally:
        lab.switch.set_up("sw2")
    assert (saw.tx_packets, saw.tx_batches, saw.tx_drops) == (0, 0, 40)


def _when_dropped(loop: PortLoop) -> Any:
    while (saw := loop.statistics(2)).tx_drops == 0:
        pass
    return saw


def test_another_choice_than_on_and_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTP4_BATCHES", "maybe")
    with PortLoop() as loop, pytest.raises(ValueError, match="must be on or off"):
        loop.add_interface(1, "lo")
