# SPDX-License-Identifier: Apache-2.0
"""AF_PACKET ports: kernel sockets in network namespaces talk through the switch, over veth pairs."""

import contextlib
import os
import select
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from native.ring import ShmPort
from softswitch.entry import Entry, Exact
from softswitch.ports import PortLoop
from softswitch.program import load_program
from softswitch.switch import Switch
from tests.harness.netns import inside, run
from tests.softswitch.p4rt_client import CONTROL, PATIENCE

pytestmark = pytest.mark.root

_ETH_P_ALL = 3
_T = TypeVar("_T")


class Lab:
    """Two host namespaces, each with an interface ``eth0`` joined to ``swN`` in the switch's namespace."""

    def __init__(self) -> None:
        prefix = f"wsp{os.getpid()}"
        self.switch = f"{prefix}s"
        self.hosts = {1: f"{prefix}h1", 2: f"{prefix}h2"}

    def make(self) -> None:
        for name in (self.switch, *self.hosts.values()):
            run("ip", "netns", "add", name)
            run("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
        for number, host in self.hosts.items():
            ends = ("link", "add", f"sw{number}", "type", "veth", "peer", "name", "eth0", "netns", host)
            run("ip", "-n", self.switch, *ends)
            run("ip", "-n", self.switch, "link", "set", f"sw{number}", "up")
            run("ip", "-n", host, "link", "set", "eth0", "address", mac(number), "up")
            run("ip", "-n", host, "addr", "add", f"10.0.0.{number}/24", "dev", "eth0")
            peer = 3 - number
            neighbour = ("lladdr", mac(peer), "dev", "eth0", "nud", "permanent")
            run("ip", "-n", host, "neigh", "add", f"10.0.0.{peer}", *neighbour)

    def remove(self) -> None:
        for name in (self.switch, *self.hosts.values()):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def at_switch(self, call: Callable[[], _T]) -> _T:
        return inside(self.switch, call)

    def udp(self, host: int) -> socket.socket:
        """A kernel UDP socket at a host, bound to port 5000."""

        def make() -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.bind((f"10.0.0.{host}", 5000))
            made.settimeout(PATIENCE)
            return made

        return inside(self.hosts[host], make)

    def raw(self, host: int) -> socket.socket:
        """A raw socket at a host that sees everything its interface receives."""

        def make() -> socket.socket:
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
            made.bind(("eth0", _ETH_P_ALL))
            made.settimeout(PATIENCE)
            return made

        return inside(self.hosts[host], make)


def mac(host: int) -> str:
    return f"02:00:00:00:00:{host:02x}"


def mac_bytes(host: int) -> bytes:
    return bytes.fromhex(mac(host).replace(":", ""))


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = Lab()
    try:
        made.make()
        yield made
    finally:
        made.remove()


@pytest.fixture
def loop(lab: Lab) -> Iterator[PortLoop]:
    """A running loop with both interfaces attached, over a switch that forwards by destination MAC."""
    with Switch(load_program(CONTROL), cpu_port=510) as switch, PortLoop() as made:
        for host in lab.hosts:
            key = (Exact(int.from_bytes(mac_bytes(host), "big")),)
            switch.insert_entry("ControlIngress.stations", Entry(key, "ControlIngress.forward", (host,)))
        made.set_switch(switch)
        for host in lab.hosts:
            lab.at_switch(lambda host=host: made.add_interface(host, f"sw{host}"))  # type: ignore[misc]
        made.start()
        yield made


def test_kernel_udp_passes_with_all_offloads_on(lab: Lab, loop: PortLoop) -> None:
    """Hosts leave the checksum to the device, which there is none of: the switch completes it."""
    with lab.udp(1) as one, lab.udp(2) as two:
        for size in (0, 1, 999, 1472):
            payload = os.urandom(size)
            one.sendto(payload, ("10.0.0.2", 5000))
            assert two.recvfrom(2048) == (payload, ("10.0.0.1", 5000))
            two.sendto(payload, ("10.0.0.1", 5000))
            assert one.recvfrom(2048) == (payload, ("10.0.0.2", 5000))


def test_frames_pass_unchanged_and_are_not_seen_twice(lab: Lab, loop: PortLoop) -> None:
    with lab.raw(1) as one, lab.raw(2) as two:
        before = loop.statistics(2)
        for index in range(300):
            frame = mac_bytes(2) + mac_bytes(1) + b"\x88\xb5" + b"%d" % index + os.urandom(index)
            one.send(frame)
            assert two.recv(2048) == frame
        after = loop.statistics(2)
    assert after.tx_packets - before.tx_packets == 300
    assert after.rx_packets == before.rx_packets  # what the switch sends does not come in again


def test_bursts_arrive_whole_and_in_order(lab: Lab, loop: PortLoop) -> None:
    with lab.raw(1) as one, lab.raw(2) as two:
        two.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        for _ in range(5):
            for index in range(200):
                one.send(mac_bytes(2) + mac_bytes(1) + b"\x88\xb5" + index.to_bytes(4, "big") + bytes(1000))
            found = [int.from_bytes(two.recv(2048)[14:18], "big") for _ in range(200)]
            assert found == list(range(200))
    assert loop.statistics(1).rx_drops == loop.statistics(2).tx_drops == 0


def test_vlan_tags_stay_in_the_frame(lab: Lab, loop: PortLoop, tmp_path: Path) -> None:
    """The kernel takes a tag out of a received frame; the switch must see, and send, what was on the wire."""
    tagged = mac_bytes(2) + mac_bytes(1) + b"\x81\x00\x60\x2a\x08\x00" + os.urandom(100)
    loop.capture(tmp_path / "vlan.pcapng")
    with lab.raw(1) as one:
        one.send(tagged)
        while loop.statistics(2).tx_packets == 0:
            pass
    loop.close()
    assert (tmp_path / "vlan.pcapng").read_bytes().count(tagged) == 2  # in, and out again


def test_frames_longer_than_the_switch_holds_are_counted(lab: Lab, loop: PortLoop) -> None:
    names = ((lab.hosts[1], "eth0"), (lab.switch, "sw1"))
    for namespace, name in names:
        run("ip", "-n", namespace, "link", "set", name, "mtu", "4000")
    with lab.raw(1) as one, lab.raw(2) as two:
        one.send(mac_bytes(2) + bytes(3000))
        short = mac_bytes(2) + mac_bytes(1) + b"\x88\xb5" + bytes(60)
        one.send(short)
        assert two.recv(2048) == short
    assert loop.statistics(1).rx_oversize == 1
    for namespace, name in names:
        run("ip", "-n", namespace, "link", "set", name, "mtu", "1500")


def test_frames_that_find_no_room_are_counted(lab: Lab) -> None:
    with PortLoop() as asleep:
        lab.at_switch(lambda: asleep.add_interface(1, "sw1"))
        with lab.raw(1) as one:
            for _ in range(2000):
                one.send(mac_bytes(2) + mac_bytes(1) + b"\x88\xb5" + bytes(60))
        assert 800 < asleep.statistics(1).rx_drops < 1200


def test_an_interface_that_goes_down_and_up_again(lab: Lab, loop: PortLoop) -> None:
    frame = mac_bytes(2) + mac_bytes(1) + b"\x88\xb5" + bytes(60)
    run("ip", "-n", lab.switch, "link", "set", "sw2", "down")
    with lab.raw(1) as one:
        one.send(frame)
        while loop.statistics(2).tx_drops == 0:
            pass
        run("ip", "-n", lab.switch, "link", "set", "sw2", "up")
        with lab.raw(2) as two:
            one.send(frame)
            assert two.recv(2048) == frame


def test_an_interface_that_vanishes_leaves_the_others_working(lab: Lab, loop: PortLoop) -> None:
    run("ip", "-n", lab.switch, "link", "add", "gone", "type", "veth", "peer", "name", "gonepeer")
    for end in ("gone", "gonepeer"):
        run("ip", "-n", lab.switch, "link", "set", end, "up")
    lab.at_switch(lambda: loop.add_interface(3, "gone"))
    run("ip", "-n", lab.switch, "link", "del", "gone")
    with lab.udp(1) as one, lab.udp(2) as two:
        one.sendto(b"still there", ("10.0.0.2", 5000))
        assert two.recv(100) == b"still there"
    used = _cpu_seconds()
    with contextlib.closing(lab.raw(1)) as idle:
        select.select([idle], [], [], 0.5)
    assert _cpu_seconds() - used < 0.4, "the loop spins on an interface that is gone"
    loop.remove(3)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def test_interfaces_and_shared_memory_mix(lab: Lab, loop: PortLoop, tmp_path: Path) -> None:
    """A host rings a bell, an interface fills a ring: the sleeping switch wakes for either."""
    loop.remove(1)
    loop.add_shm(1, tmp_path)
    frames = [mac_bytes(to) + mac_bytes(3 - to) + b"\x88\xb5" + bytes(46) for to in (1, 2)]
    with ShmPort(tmp_path, 1) as one, lab.raw(2) as two:
        for _ in range(200):
            one.send(frames[1])
            assert two.recv(2048) == frames[1]
            two.send(frames[0])
            assert one.recv(PATIENCE) == frames[0]


def test_traffic_control_on_the_switchs_side_is_honoured(lab: Lab, loop: PortLoop) -> None:
    """A queue on the interface may drop; the switch counts it, and stays alive."""
    run("tc", "-n", lab.switch, "qdisc", "add", "dev", "sw2", "root", "tbf", *_SLOW)
    try:
        with lab.raw(1) as one:
            for _ in range(200):
                one.send(mac_bytes(2) + mac_bytes(1) + b"\x88\xb5" + bytes(1000))
            while (now := loop.statistics(2)).tx_packets + now.tx_drops < 200:
                pass
        assert now.tx_drops > 100
    finally:
        run("tc", "-n", lab.switch, "qdisc", "del", "dev", "sw2", "root")
    with lab.udp(1) as one, lab.udp(2) as two:
        one.sendto(b"fast again", ("10.0.0.2", 5000))
        assert two.recv(100) == b"fast again"


_SLOW = ("rate", "100kbit", "burst", "2kb", "limit", "10kb")
