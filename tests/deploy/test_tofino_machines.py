# SPDX-License-Identifier: Apache-2.0
"""deploy-tofino.md, typed on machines that share nothing but links; bf_switchd.py stands in for chip and
driver.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.machines import (
    NEEDS_MACHINES,
    ROOT,
    Machine,
    cabled,
    for_second_host,
    parameters,
    parameters_after_a_kill,
    sent,
    until,
)
from tests.harness.typed import blocks
from weir.p4src.build_tna import SCHEMA, keep

PAGE = ROOT / "docs/guides/deploy-tofino.md"
INSTALLED = Path("/opt/weir/tofino")

pytestmark = NEEDS_MACHINES


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    """Yield s1, which has bf_switchd and what the first block makes, but for the binary, h1 and h2."""
    (tmp_path / "asm").mkdir()
    (tmp_path / "bf-rt.json").write_bytes(SCHEMA.read_bytes())
    for name in ("context.json", "tofino.bin"):
        (tmp_path / "asm" / name).write_bytes(b"{}")
    with cabled(tmp_path) as found:
        switch = found["s1"]
        made = tmp_path / "made"
        keep(tmp_path, made)
        for file in sorted(path for path in made.rglob("*") if path.is_file()):
            place = INSTALLED / file.relative_to(made)
            text = file.read_text().replace(str(made), str(INSTALLED))
            switch.types(f"mkdir -p {place.parent} && cat > {place} << 'END'\n{text}\nEND")
        switch.types("mkdir -p /opt/sde/install/bin && printf '132=eth1\\n140=eth2\\n' > /run/ports")
        switch.types("ip link set eth1 up && ip link set eth2 up")
        switch.types(
            "cat > /opt/sde/install/bin/bf_switchd << 'END'\n"
            f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m tests.deploy.bf_switchd "$@"\nEND\n'
            "chmod +x /opt/sde/install/bin/bf_switchd"
        )
        yield found


@pytest.mark.long
@pytest.mark.timeout(900)  # two starts of torchrun, wherever else is much to do
def test_the_page_works_as_typed(machines: dict[str, Machine]) -> None:
    switch, *hosts = machines.values()
    both = (hosts[0], hosts[1])
    build, on_switch, status, on_first = blocks(PAGE)
    assert str(INSTALLED) in build
    switch.types(on_switch)
    until(
        lambda: "│ ready " in switch.types(f"{status.strip()} || true"),
        lambda: switch.journal("weir-controller") + switch.journal("weir-tofino"),
    )
    for host, typed in zip(hosts, (on_first, for_second_host(on_first)), strict=True):
        host.types(typed)
    undisturbed = parameters(both)
    packets = sent(hosts[0])
    assert packets > 100
    assert "round_complete" in switch.types(status)

    assert parameters_after_a_kill(switch, "weir-tofino", both, packets) == undisturbed
