# SPDX-License-Identifier: Apache-2.0
"""A switch's namespace and two hosts, joined by veth pairs: for tests of ports on network interfaces."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Final

from softp4.dataplane.ports import PortLoop
from softp4.program.loader import load_program
from softp4.state.entry import Entry, Exact
from softp4.switch import Switch
from tests.harness.netns import Namespace
from tests.p4rt.p4rt_client import CONTROL, TIMEOUT

_ETH_P_ALL: Final = 3


class Veths:
    """Two host namespaces, each with an interface ``eth0`` joined to ``swN`` in the switch's namespace."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        """Make them, until the end of ``stack``."""
        self.switch = stack.enter_context(Namespace())
        self.hosts = {number: stack.enter_context(Namespace()) for number in (1, 2)}
        for number, host in self.hosts.items():
            self.switch.add_veth(f"sw{number}", "eth0", there=host)
            host.ip("link", "set", "eth0", "address", mac(number))
            host.ip("address", "add", f"10.0.0.{number}/24", "dev", "eth0")
            peer = 3 - number
            host.ip("neighbour", "replace", f"10.0.0.{peer}", "lladdr", mac(peer), "dev", "eth0")

    def set_mtu(self, mtu: int) -> None:
        for number, host in self.hosts.items():
            self.switch.set_mtu(f"sw{number}", mtu)
            host.set_mtu("eth0", mtu)

    @contextlib.contextmanager
    def vanishing(self, name: str) -> Iterator[None]:
        """Yield an interface of the switch's that is up, and gone after the block."""
        self.switch.add_veth(name, f"{name}-peer")
        try:
            yield
        finally:
            self.switch.ip("link", "delete", name)

    def attach(self, loop: PortLoop, number: int, interface: str) -> None:
        """Make an interface of the switch's a port."""
        self.switch.call(lambda: loop.add_interface(number, interface))

    def udp(self, host: int) -> socket.socket:
        """Return a kernel UDP socket at a host, bound to port 5000."""

        def make() -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.bind((f"10.0.0.{host}", 5000))
            made.settimeout(TIMEOUT)
            return made

        return self.hosts[host].call(make)

    def raw(self, host: int) -> socket.socket:
        """Return a raw socket at a host that sees everything its interface receives."""

        def make() -> socket.socket:
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
            made.bind(("eth0", _ETH_P_ALL))
            made.settimeout(TIMEOUT)
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
def forwarding(veths: Veths, *, start: bool = True) -> Iterator[PortLoop]:
    """Yield a loop with both interfaces attached, over a switch that forwards by destination MAC.

    It runs, unless the caller is to start it.
    """
    with Switch(load_program(CONTROL), cpu_port=510) as switch, PortLoop() as loop:
        for host in veths.hosts:
            key = (Exact(int.from_bytes(mac_bytes(host), "big")),)
            switch.table("ControlIngress.stations").insert(Entry(key, "ControlIngress.forward", (host,)))
        loop.set_switch(switch)
        for host in veths.hosts:
            veths.attach(loop, host, f"sw{host}")
        if start:
            loop.start()
        yield loop
