# SPDX-License-Identifier: Apache-2.0
"""A switch's namespace and two hosts, joined by veth pairs: for tests of ports on network interfaces."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from softp4.dataplane.ports import PortLoop
from softp4.program.loader import load_program
from softp4.state.entry import Entry, Exact
from softp4.switch import Switch
from tests.p4rt.p4rt_client import CONTROL, PATIENCE
from weir.netns import Namespace

KINDS: Final = ("AF_PACKET", "AF_XDP native", "AF_XDP generic")
"""How a port may be attached to an interface. Drivers refuse native XDP for an MTU beyond a page."""

MTU: Final = {"AF_PACKET": 1500, "AF_XDP native": 1500, "AF_XDP generic": 4000}

_ETH_P_ALL = 3
_T = TypeVar("_T")


class Veths:
    """Two host namespaces, each with an interface ``eth0`` joined to ``swN`` in the switch's namespace."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        """Make them, until the end of ``stack``."""
        self.switch = stack.enter_context(Namespace())
        self.hosts = {number: stack.enter_context(Namespace()) for number in (1, 2)}
        for number, host in self.hosts.items():
            self.switch.links.add_veth(f"sw{number}", "eth0", there=host.file)
            self.switch.links.set(f"sw{number}", up=True)
            host.links.set("eth0", mac=mac(number), up=True)
            host.links.add_address("eth0", f"10.0.0.{number}/24")
            peer = 3 - number
            host.links.set_neighbour("eth0", f"10.0.0.{peer}", mac(peer))

    def set_mtu(self, mtu: int) -> None:
        for number, host in self.hosts.items():
            self.switch.links.set(f"sw{number}", mtu=mtu)
            host.links.set("eth0", mtu=mtu)

    @contextlib.contextmanager
    def vanishing(self, name: str) -> Iterator[None]:
        """Yield an interface of the switch's that is up, and gone after the block."""
        self.switch.links.add_veth(name, f"{name}-peer")
        for end in (name, f"{name}-peer"):
            self.switch.links.set(end, up=True)
        try:
            yield
        finally:
            self.switch.links.remove(name)

    def attach(self, loop: PortLoop, kind: str, number: int, interface: str) -> None:
        """Make an interface of the switch's a port."""
        add = loop.add_interface if kind == "AF_PACKET" else loop.add_xdp
        self.at_switch(lambda: add(number, interface))

    def at_switch(self, call: Callable[[], _T]) -> _T:
        return self.switch.call(call)

    def udp(self, host: int) -> socket.socket:
        """Return a kernel UDP socket at a host, bound to port 5000."""

        def make() -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.bind((f"10.0.0.{host}", 5000))
            made.settimeout(PATIENCE)
            return made

        return self.hosts[host].call(make)

    def raw(self, host: int) -> socket.socket:
        """Return a raw socket at a host that sees everything its interface receives."""

        def make() -> socket.socket:
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
            made.bind(("eth0", _ETH_P_ALL))
            made.settimeout(PATIENCE)
            return made

        return self.hosts[host].call(make)


def mac(host: int) -> str:
    return f"02:00:00:00:00:{host:02x}"


def mac_bytes(host: int) -> bytes:
    return bytes.fromhex(mac(host).replace(":", ""))


@contextlib.contextmanager
def made_veths() -> Iterator[Veths]:
    """Yield the namespaces, until the end of the block."""
    with contextlib.ExitStack() as stack:
        yield Veths(stack)


@contextlib.contextmanager
def forwarding(veths: Veths, kind: str, *, start: bool = True) -> Iterator[PortLoop]:
    """Yield a loop with both interfaces attached, over a switch that forwards by destination MAC.

    It runs, unless the caller is to start it.
    """
    veths.set_mtu(MTU[kind])
    with Switch(load_program(CONTROL), cpu_port=510) as switch, PortLoop() as loop:
        for host in veths.hosts:
            key = (Exact(int.from_bytes(mac_bytes(host), "big")),)
            switch.table("ControlIngress.stations").insert(Entry(key, "ControlIngress.forward", (host,)))
        loop.set_switch(switch)
        for host in veths.hosts:
            veths.attach(loop, kind, host, f"sw{host}")
            assert kind.removeprefix("AF_XDP ") in (kind, loop.ports()[host].split("(")[-1].rstrip(")"))
        if start:
            loop.start()
        yield loop
