# SPDX-License-Identifier: Apache-2.0
"""Ports on interfaces: sockets in network namespaces talk through the switch, over veth pairs."""

import contextlib
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from softp4.dataplane.ports import PortLoop
from softp4.native.ring import ShmPort
from softp4.runtime.queueing import Queueing
from tests.dataplane.veths import Veths, forwarding, mac_bytes, made_veths
from tests.p4rt.p4rt_client import TIMEOUT

pytestmark = pytest.mark.root

_SLOW: Final = ("rate", "100kbit", "burst", "2048", "latency", "640ms")


@pytest.fixture(scope="module")
def lab() -> Iterator[Veths]:
    with made_veths() as made:
        yield made


@pytest.fixture
def loop(lab: Veths) -> Iterator[PortLoop]:
    with forwarding(lab) as made:
        yield made


def test_kernel_udp_passes_with_all_offloads_on(lab: Veths, loop: PortLoop) -> None:
    """Hosts leave the checksum to the device, which there is none of: the switch completes it."""
    with lab.udp(1) as one, lab.udp(2) as two:
        for size in (0, 1, 999, 1472):
            payload = os.urandom(size)
            one.sendto(payload, ("10.0.0.2", 5000))
            assert two.recvfrom(2048) == (payload, ("10.0.0.1", 5000))
            two.sendto(payload, ("10.0.0.1", 5000))
            assert one.recvfrom(2048) == (payload, ("10.0.0.2", 5000))


def test_what_the_kernel_left_undone_is_done_once_though_frames_wait_outside(
    lab: Veths, loop: PortLoop
) -> None:
    loop.set_queueing(1, Queueing(rate_bps=1_000_000))  # 8 ms each
    payloads = [os.urandom(958) for _ in range(5)]
    with lab.udp(1) as one, lab.udp(2) as two:
        for payload in payloads:
            one.sendto(payload, ("10.0.0.2", 5000))
        assert [two.recv(2048) for _ in payloads] == payloads


def test_frames_pass_unchanged_and_are_not_seen_twice(lab: Veths, loop: PortLoop) -> None:
    with lab.raw(1) as one, lab.raw(2) as two:
        before = loop.statistics(2)
        for index in range(300):
            frame = mac_bytes(2) + mac_bytes(1) + b"\x88\xb5" + b"%d" % index + os.urandom(index)
            one.send(frame)
            assert two.recv(2048) == frame
        after = loop.statistics(2)
    assert after.tx_packets - before.tx_packets == 300
    assert after.rx_packets == before.rx_packets  # what the switch sends does not come in again


def test_bursts_arrive_whole_and_in_order(lab: Veths, loop: PortLoop) -> None:
    with lab.raw(1) as one, lab.raw(2) as two:
        two.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        for _ in range(5):
            for index in range(200):
                one.send(mac_bytes(2) + mac_bytes(1) + b"\x88\xb5" + index.to_bytes(4, "big") + bytes(1000))
            found = [int.from_bytes(two.recv(2048)[14:18], "big") for _ in range(200)]
            assert found == list(range(200))
    assert loop.statistics(1).rx_drops == loop.statistics(2).tx_drops == 0


def test_vlan_tags_stay_in_the_frame(lab: Veths, loop: PortLoop, tmp_path: Path) -> None:
    """The kernel takes a tag out of a received frame; the switch must see, and send, what was on the wire."""
    tagged = mac_bytes(2) + mac_bytes(1) + b"\x81\x00\x60\x2a\x08\x00" + os.urandom(100)
    loop.capture(tmp_path / "vlan.pcapng")
    with lab.raw(1) as one:
        one.send(tagged)
        while loop.statistics(2).tx_packets == 0:
            pass
    loop.close()
    assert (tmp_path / "vlan.pcapng").read_bytes().count(tagged) == 2  # in, and out again


def test_frames_longer_than_the_switch_holds_are_counted(lab: Veths, loop: PortLoop) -> None:
    ends = ((lab.hosts[1], "eth0"), (lab.switch, "sw1"))
    for namespace, name in ends:
        namespace.set_mtu(name, 6000)
    with lab.raw(1) as one, lab.raw(2) as two:
        one.send(mac_bytes(2) + bytes(5000))
        short = mac_bytes(2) + mac_bytes(1) + b"\x88\xb5" + bytes(60)
        one.send(short)
        assert two.recv(2048) == short
    assert loop.statistics(1).rx_oversize == 1
    for namespace, name in ends:
        namespace.set_mtu(name, 1500)


def test_frames_that_find_no_room_are_counted(lab: Veths) -> None:
    with PortLoop() as asleep:
        lab.attach(asleep, 1, "sw1")
        with lab.raw(1) as one:
            for _ in range(2000):
                one.send(mac_bytes(2) + mac_bytes(1) + b"\x88\xb5" + bytes(60))
        assert 800 < asleep.statistics(1).rx_drops < 1200


def test_an_interface_that_goes_down_and_up_again(lab: Veths, loop: PortLoop) -> None:
    frame = mac_bytes(2) + mac_bytes(1) + b"\x88\xb5" + bytes(60)
    lab.switch.set_up("sw2", False)
    with lab.raw(1) as one:
        one.send(frame)
        while loop.statistics(2).tx_drops == 0:
            pass
        lab.switch.set_up("sw2")
        with lab.raw(2) as two:
            one.send(frame)
            assert two.recv(2048) == frame


def test_an_interface_that_vanishes_leaves_the_others_working(lab: Veths, loop: PortLoop) -> None:
    with lab.vanishing("gone"):
        lab.attach(loop, 3, "gone")
    with lab.raw(1) as one, lab.raw(2) as two:
        one.send(frame := mac_bytes(2) + mac_bytes(1) + b"\x88\xb5" + bytes(60))
        assert two.recv(2048) == frame
    used = _cpu_seconds()
    with contextlib.closing(lab.raw(1)) as idle:
        select.select([idle], [], [], 0.5)
    assert _cpu_seconds() - used < 0.4, "the loop spins on an interface that is gone"
    loop.remove(3)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def test_interfaces_and_shared_memory_mix(lab: Veths, loop: PortLoop, tmp_path: Path) -> None:
    """A host rings a bell, an interface fills a ring: the sleeping switch wakes for either."""
    loop.remove(1)
    loop.add_shm(1, tmp_path)
    frames = [mac_bytes(to) + mac_bytes(3 - to) + b"\x88\xb5" + bytes(46) for to in (1, 2)]
    with ShmPort(tmp_path, 1) as one, lab.raw(2) as two:
        for _ in range(200):
            one.send(frames[1])
            assert two.recv(2048) == frames[1]
            two.send(frames[0])
            assert one.recv(TIMEOUT) == frames[0]


def test_traffic_control_on_the_switchs_side_is_honoured(lab: Veths, loop: PortLoop) -> None:
    """A queue on the interface may drop; the switch counts it, and stays alive."""
    lab.switch.tc("qdisc", "replace", "dev", "sw2", "root", "tbf", *_SLOW)
    try:
        with lab.raw(1) as one:
            for _ in range(200):
                one.send(mac_bytes(2) + mac_bytes(1) + b"\x88\xb5" + bytes(1000))
            while (now := loop.statistics(2)).tx_packets + now.tx_drops < 200:
                pass
        assert now.tx_drops > 100
    finally:
        lab.switch.tc("qdisc", "delete", "dev", "sw2", "root")
    with lab.udp(1) as one, lab.udp(2) as two:
        one.sendto(b"fast again", ("10.0.0.2", 5000))
        assert two.recv(100) == b"fast again"
