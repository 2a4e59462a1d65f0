# SPDX-License-Identifier: Apache-2.0
"""UDP tunnels between switches."""

import contextlib
import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from softp4.dataplane.ports import PortError, PortLoop
from softp4.native.ring import MAX_FRAME, ShmPort
from softp4.runtime.queueing import Queueing
from softp4.switch import Switch
from tests.dataplane.test_queueing import MBIT, REPORT, order, read
from tests.p4rt.p4rt_client import TIMEOUT
from tests.programs import program

LOCAL = "127.0.0.1"
IN, OUT, TUNNEL = 1, 2, 3
_SO_NO_CHECK, _SOL_UDP, _UDP_SEGMENT = 11, 17, 103


def free_address(host: str = LOCAL) -> tuple[str, int]:
    """Return an address nobody uses at the moment."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        return host, probe.getsockname()[1]


@pytest.fixture
def loop() -> Iterator[PortLoop]:
    with Switch(program("queues")) as switch, PortLoop() as made:
        for number in (IN, OUT):
            made.add_queue(number, "queue")
        made.set_switch(switch)
        made.start()
        yield made


@pytest.fixture
def peer(loop: PortLoop) -> Iterator[socket.socket]:
    """Yield the other end of port TUNNEL, connected to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind((LOCAL, 0))
        end.settimeout(TIMEOUT)
        local = free_address()
        loop.add_udp(TUNNEL, local, end.getsockname())
        end.connect(local)
        yield end


def test_a_frame_is_a_datagram(loop: PortLoop, peer: socket.socket) -> None:
    for frame in (order(TUNNEL), order(TUNNEL).ljust(MAX_FRAME - REPORT, b"\7")):
        loop.inject(IN, frame)
        assert peer.recv(8192)[REPORT:] == frame
    for frame in (order(OUT), order(OUT).ljust(MAX_FRAME - REPORT, b"\7")):
        peer.send(frame)
        received = loop.receive(OUT, TIMEOUT)
        assert received is not None
        assert received[REPORT:] == frame
    stats = loop.statistics(TUNNEL)
    assert (stats.rx_packets, stats.tx_packets) == (2, 2)
    assert loop.ports()[TUNNEL].startswith(f"udp {LOCAL}:")


def test_strangers_are_not_heard(loop: PortLoop, peer: socket.socket) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for _ in range(10):
            stranger.sendto(order(OUT), peer.getpeername())
    peer.send(order(OUT, length=99))
    received = loop.receive(OUT, TIMEOUT)
    assert received is not None
    assert len(received) == 99
    assert loop.statistics(TUNNEL).rx_packets == 1


def test_a_peer_that_is_not_there_yet_is_no_trouble(loop: PortLoop) -> None:
    local, there = free_address(), free_address()
    loop.add_udp(TUNNEL, local, there)
    for _ in range(20):
        loop.inject(IN, order(TUNNEL))
        loop.drain(IN, TIMEOUT)
    assert loop.statistics(TUNNEL).tx_drops == 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as late:
        late.bind(there)
        late.settimeout(TIMEOUT)
        loop.inject(IN, order(TUNNEL))
        assert late.recv(4096)[REPORT:] == order(TUNNEL)
        late.sendto(order(OUT), local)
        assert loop.receive(OUT, TIMEOUT) is not None


def test_datagrams_too_long_are_counted(loop: PortLoop, peer: socket.socket) -> None:
    peer.send(bytes(MAX_FRAME + 1))
    peer.send(order(OUT))
    assert loop.receive(OUT, TIMEOUT) is not None
    assert loop.statistics(TUNNEL).rx_oversize == 1


def test_a_slow_tunnel_holds_back_what_it_sends_and_what_comes_in(
    loop: PortLoop, peer: socket.socket
) -> None:
    loop.set_queueing(TUNNEL, Queueing(rate_bps=1))
    for priority in (0, 1, 2):
        loop.inject(IN, order(TUNNEL, priority=priority))
    for _ in range(3):
        peer.send(order(OUT))
    assert loop.receive(OUT, TIMEOUT) is not None
    loop.drain(IN, TIMEOUT)
    assert loop.receive(OUT, 0.1) is None
    assert loop.waiting() == 2
    loop.set_rate(TUNNEL, 10**8)
    assert [peer.recv(8192)[1] for _ in range(3)] == [0, 2, 1]
    assert [loop.receive(OUT, TIMEOUT) is not None for _ in range(2)] == [True, True]


@pytest.mark.parametrize("host", [LOCAL, "::1"])
def test_two_switches_are_linked(host: str, tmp_path: Path) -> None:
    """Hosts on shared memory, switches in between on tunnels: every frame arrives, whole."""
    try:
        ends = free_address(host), free_address(host)
    except OSError:
        pytest.skip("this machine has no IPv6")
    rng = random.Random(7)
    with (
        Switch(program("queues")) as one,
        Switch(program("traffic")) as two,
        PortLoop() as left,
        PortLoop() as right,
    ):
        for loop, switch, name, here, there in (
            (left, one, "left", *ends),
            (right, two, "right", *reversed(ends)),
        ):
            (tmp_path / name).mkdir()
            loop.add_shm(IN, tmp_path / name)
            loop.add_udp(TUNNEL, here, there)
            loop.set_switch(switch)
            loop.start()
        with ShmPort(tmp_path / "left", IN) as source, ShmPort(tmp_path / "right", IN) as sink:
            for _ in range(20):
                frames = [order(TUNNEL) + rng.randbytes(rng.randrange(1400)) for _ in range(20)]
                for frame in frames:
                    assert source.send(frame)
                for frame in frames:
                    received = sink.recv(TIMEOUT)
                    assert received is not None
                    # the report's first bytes are an order to the second switch: to port 1
                    assert received.endswith(frame)


def test_errors(loop: PortLoop, peer: socket.socket) -> None:
    taken = peer.getpeername()
    with pytest.raises(PortError, match=rf"port 9, udp {LOCAL}:{taken[1]} to .*: Address already in use"):
        loop.add_udp(9, taken, free_address())
    with pytest.raises(PortError, match=r"port 9, udp .*nosuchhost"):
        loop.add_udp(9, free_address(), ("nosuchhost.invalid", 4))
    with pytest.raises(PortError, match="port 3 is already udp"):
        loop.add_udp(TUNNEL, free_address(), free_address())


def _socket_of(address: tuple[str, int]) -> socket.socket:
    """Return this process's socket that is bound to ``address``, once more."""
    for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=os.dup(number))
            if found.type == socket.SOCK_DGRAM and found.getsockname() == address:
                return found
            found.close()
    raise AssertionError(f"nothing is bound to {address}")


@pytest.mark.parametrize("kernel", ["segments", "refuses", "refuses at last"])
def test_frames_of_one_length_travel_in_batches(
    loop: PortLoop, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    """They arrive whole and in order, whatever the kernel makes of them."""
    if kernel == "refuses":
        monkeypatch.setenv("SOFTP4_BATCHES", "off")
    frames = [order(TUNNEL).ljust(length, bytes([n])) for n, length in enumerate([900] * 50 + [700])]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind((LOCAL, 0))
        peer.settimeout(TIMEOUT)
        local = free_address()
        loop.add_udp(TUNNEL, local, peer.getsockname())
        if kernel == "refuses at last":  # no batch may have checksums that nobody computes
            with _socket_of(local) as end:
                end.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
        loop.set_queueing(TUNNEL, Queueing(rate_bps=1))  # but for the first, they wait, and leave together
        for frame in frames:
            loop.inject(IN, frame)
        assert loop.drain(IN, TIMEOUT)
        loop.set_queueing(TUNNEL, None)
        assert [peer.recv(8192)[REPORT:] for _ in frames] == frames
        saw = loop.statistics(TUNNEL)
        assert (saw.tx_packets, saw.tx_drops) == (len(frames), 0)
        assert saw.tx_bytes == sum(REPORT + len(frame) for frame in frames)
        assert (saw.tx_batches > 0) == (kernel == "segments")


def test_frames_of_a_fast_line_travel_in_batches(loop: PortLoop, peer: socket.socket) -> None:
    """The loop does not wake for each frame, 8 us after the one before, and each still has its time."""
    count = 80
    loop.set_queueing(TUNNEL, Queueing(rate_bps=1, depth_packets=count))
    for _ in range(count):
        loop.inject(IN, order(TUNNEL, length=1000))
    assert loop.drain(IN, TIMEOUT)
    loop.set_queueing(TUNNEL, Queueing(rate_bps=1000 * MBIT, depth_packets=count))
    left = [read([(TUNNEL, peer.recv(8192))])[0].left for _ in range(count)][1:]
    assert all(abs(time - left[0] - 8 * number) <= 1 for number, time in enumerate(left))
    assert 0 < loop.statistics(TUNNEL).tx_batches < count / 4


@pytest.mark.parametrize("batches", ["on", "off"])
def test_batches_that_come_in_are_taken_apart(
    loop: PortLoop, monkeypatch: pytest.MonkeyPatch, batches: str
) -> None:
    monkeypatch.setenv("SOFTP4_BATCHES", batches)
    frames = [order(OUT).ljust(length, bytes([n])) for n, length in enumerate([900] * 50 + [700])]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind((LOCAL, 0))
        local = free_address()
        loop.add_udp(TUNNEL, local, peer.getsockname())
        peer.connect(local)
        peer.sendmsg([b"".join(frames)], [(_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", 900))])
        got = [loop.receive(OUT, TIMEOUT) for _ in frames]
    assert [frame[REPORT:] for frame in got if frame] == frames
    assert loop.statistics(TUNNEL).rx_batches == (batches == "on")
