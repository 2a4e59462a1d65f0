# SPDX-License-Identifier: Apache-2.0
"""docs/guides/hub.md, typed on machines that two routers separate from the hub."""

import contextlib
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.deploy.machines import NEEDS_MACHINES, ROOT, Machine, until
from tests.harness.typed import blocks
from weir.host_agent.transport.bindings import USUAL_PAYLOAD
from weir.host_agent.transport.report import FRAME_OVERHEAD
from weir.netns import Namespace

PAGE = ROOT / "docs/guides/hub.md"
BIN = "export PATH=/opt/weir/bin:$PATH\n"

pytestmark = NEEDS_MACHINES


@contextlib.contextmanager
def routed() -> Iterator[tuple[Machine, Machine, Machine]]:
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
        yield hub, first, second


@pytest.mark.timeout(400)  # two starts of torchrun, wherever else is much to do
def test_the_page_works_as_typed() -> None:
    on_hub, check, train = blocks(PAGE)
    with routed() as (hub, *workers):
        hub.types(f"{BIN}({on_hub.strip()}) > /tmp/hub.log 2>&1 &")
        until(lambda: "export" in hub.types("cat /tmp/hub.log"), lambda: hub.types("cat /tmp/hub.log"))
        export = re.search(r"export .*", hub.types("cat /tmp/hub.log"))
        assert export and export[0] in check
        shown = workers[0].types(BIN + check)
        assert "h1" in shown and "no answer" not in shown
        with ThreadPoolExecutor() as pool:
            both = list(
                pool.map(
                    lambda pair: pair[1].types(f"{BIN}{check}export NODE={pair[0]}\n{train}"),
                    enumerate(workers),
                )
            )
        found = [re.findall(r"parameters (\w{8})", text) for text in both]
        assert len(found[0]) == 1, both
        assert found[0] == found[1]
        assert hub.network.links.find("eth0").sent > 100


def test_the_page_has_todays_sizes() -> None:
    text = " ".join(PAGE.read_text().split())
    frame = USUAL_PAYLOAD + FRAME_OVERHEAD
    assert (
        f"of up to {frame:,} bytes is one UDP datagram: {frame + 28:,} bytes with IPv4, {frame + 48:,} with"
        in text
    )
