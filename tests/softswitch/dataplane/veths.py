# SPDX-License-Identifier: Apache-2.0
"""A switch's namespace and two hosts, joined by veth pairs: for tests of ports on network interfaces."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from tests.harness.netns import inside, run
from tests.softswitch.p4rt.p4rt_client import CONTROL, PATIENCE
from weir.softswitch.dataplane.ports import PortLoop
from weir.softswitch.program.loader import load_program
from weir.softswitch.state.entry import Entry, Exact
from weir.softswitch.switch import Switch

KINDS: Final = ("AF_PACKET", "AF_XDP native", "AF_XDP generic")
"""How a port may be attached to an interface. Drivers refuse native XDP for an MTU beyond a page."""

MTU: Final = {"AF_PACKET": 1500, "AF_XDP native": 1500, "AF_XDP generic": 4000}

_ETH_P_ALL = 3
_T = TypeVar("_T")


class Veths:
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

    def set_mtu(self, mtu: int) -> None:
        for number, host in self.hosts.items():
            run("ip", "-n", self.switch, "link", "set", f"sw{number}", "mtu", str(mtu))
            run("ip", "-n", host, "link", "set", "eth0", "mtu", str(mtu))

    def attach(self, loop: PortLoop, kind: str, number: int, interface: str) -> None:
        """Make an interface of the switch's a port."""
        add = loop.add_interface if kind == "AF_PACKET" else loop.add_xdp
        self.at_switch(lambda: add(number, interface))

    def at_switch(self, call: Callable[[], _T]) -> _T:
        return inside(self.switch, call)

    def udp(self, host: int) -> socket.socket:
        """Return a kernel UDP socket at a host, bound to port 5000."""

        def make() -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.bind((f"10.0.0.{host}", 5000))
            made.settimeout(PATIENCE)
            return made

        return inside(self.hosts[host], make)

    def raw(self, host: int) -> socket.socket:
        """Return a raw socket at a host that sees everything its interface receives."""

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


@contextlib.contextmanager
def made_veths() -> Iterator[Veths]:
    """Yield the namespaces, until the end of the block."""
    made = Veths()
    try:
        made.make()
        yield made
    finally:
        made.remove()


@contextlib.contextmanager
def forwarding(veths: Veths, kind: str) -> Iterator[PortLoop]:
    """Yield a running loop with both interfaces attached, over a switch that forwards by destination MAC."""
    veths.set_mtu(MTU[kind])
    with Switch(load_program(CONTROL), cpu_port=510) as switch, PortLoop() as loop:
        for host in veths.hosts:
            key = (Exact(int.from_bytes(mac_bytes(host), "big")),)
            switch.insert_entry("ControlIngress.stations", Entry(key, "ControlIngress.forward", (host,)))
        loop.set_switch(switch)
        for host in veths.hosts:
            veths.attach(loop, kind, host, f"sw{host}")
            assert kind.removeprefix("AF_XDP ") in (kind, loop.ports()[host].split("(")[-1].rstrip(")"))
        loop.start()
        yield loop
