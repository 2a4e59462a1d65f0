# SPDX-License-Identifier: Apache-2.0
"""A hub and two workers that two routers separate from it."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.deploy.machines import Machine
from weir.netns import Namespace


class Routed(NamedTuple):
    """The machines, and the router beside the hub, whose interface to it is ``hub``."""

    hub: Machine
    workers: tuple[Machine, Machine]
    router: Namespace


@contextlib.contextmanager
def routed() -> Iterator[Routed]:
    """Yield a hub and two workers: 192.168.7.0/24 - router - 10.9.0.0/24 - router - 192.168.8.0/24."""
    with contextlib.ExitStack() as stack:
        hub, first, second = (Machine(name, stack) for name in ("hub", "h1", "h2"))
        near, far = (stack.enter_context(Namespace()) for _ in range(2))
        near.links.add_veth("hub", "eth0", there=hub.network.file)
        near.links.add_veth("far", "near", there=far.file)
        far.links.add_bridge("office")
        for name, machine in (("h1", first), ("h2", second)):
            far.links.add_veth(name, "eth0", there=machine.network.file)
            far.links.set(name, bridge="office", up=True)
        for where, interface, address in (
            (near, "hub", "192.168.7.254/24"),
            (near, "far", "10.9.0.1/24"),
            (far, "near", "10.9.0.2/24"),
            (far, "office", "192.168.8.254/24"),
            (hub.network, "eth0", "192.168.7.1/24"),
            (first.network, "eth0", "192.168.8.11/24"),
            (second.network, "eth0", "192.168.8.12/24"),
        ):
            where.links.set(interface, up=True)
            where.links.add_address(interface, address)
        for where, to, via in (
            (near, "192.168.8.0/24", "10.9.0.2"),
            (far, "192.168.7.0/24", "10.9.0.1"),
            (hub.network, "default", "192.168.7.254"),
            (first.network, "default", "192.168.8.254"),
            (second.network, "default", "192.168.8.254"),
        ):
            subprocess.run([*where.prefix, "ip", "route", "add", to, "via", via], check=True)
        for router in (near, far):
            router.call(lambda: Path("/proc/sys/net/ipv4/ip_forward").write_text("1"))
        yield Routed(hub, (first, second), near)
