# SPDX-License-Identifier: Apache-2.0
"""docs/guides/three-boxes.md, typed on machines that share nothing but one ordinary Ethernet switch."""

import re

import pytest

from tests.deploy.machines import NEEDS_MACHINES, ROOT, on_one_switch, parameters
from tests.harness.typed import blocks
from weir.host_agent.transport.bindings import MAX_PAYLOAD, USUAL_PAYLOAD

PAGE = ROOT / "docs/guides/three-boxes.md"
IP_AND_UDP = 28
TUNNEL = 50  # outer IPv4 and UDP, VXLAN, inner Ethernet

pytestmark = NEEDS_MACHINES


@pytest.mark.long
@pytest.mark.timeout(400)  # two starts of torchrun, wherever else is much to do
def test_the_page_works_as_typed() -> None:
    on_switch, on_first, on_second, on_any = blocks(PAGE)
    with on_one_switch() as machines:
        switch, first, second = machines.values()
        switch.types(on_switch)
        first.types(on_first)
        second.types(on_second)
        alone = re.findall(r"parameters (\w{8})", switch.types(on_any))
        assert alone == [parameters((first, second))] * 2
        for host in (first, second):
            tunnel = host.network.links.find("weir0")
            assert tunnel.sent > 100
            assert f"the usual MTU of 1,500 it has {tunnel.mtu:,}" in PAGE.read_text()


def test_the_page_has_todays_sizes() -> None:
    text = " ".join(PAGE.read_text().split())
    usual, wide = USUAL_PAYLOAD + IP_AND_UDP, MAX_PAYLOAD + IP_AND_UDP
    assert (
        f"Weir's packets have up to {usual:,} bytes there, so any card with an MTU of {usual + TUNNEL:,}"
        in text
    )
    assert f"have up to {wide:,}: cards and Ethernet switch need an MTU of {wide + TUNNEL:,} or more" in text
