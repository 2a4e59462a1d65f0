# SPDX-License-Identifier: Apache-2.0
"""docs/guides/hub.md, typed on machines that two routers separate from the hub."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.deploy.machines import NEEDS_MACHINES, ROOT, until
from tests.deploy.routed import routed
from tests.harness.typed import blocks
from weir.host_agent.transport.bindings import USUAL_PAYLOAD
from weir.host_agent.transport.report import FRAME_OVERHEAD

PAGE = ROOT / "docs/guides/hub.md"
BIN = "export PATH=/opt/weir/bin:$PATH\n"

pytestmark = NEEDS_MACHINES


@pytest.mark.timeout(400)  # two starts of torchrun, wherever else is much to do
def test_the_page_works_as_typed() -> None:
    on_hub, check, train = blocks(PAGE)[:3]
    with routed() as (hub, workers, _):
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
