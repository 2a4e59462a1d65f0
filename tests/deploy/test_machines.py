# SPDX-License-Identifier: Apache-2.0
"""deploy-machines.md, typed on machines that share nothing but links, with the units as they are."""

import os
import shutil
import subprocess
from collections.abc import Iterator

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
)
from tests.harness.effort import LONG
from tests.harness.typed import blocks

PAGE = ROOT / "docs/guides/deploy-machines.md"
UNITS = ROOT / "deploy/systemd"

pytestmark = NEEDS_MACHINES


@pytest.fixture
def machines() -> Iterator[dict[str, Machine]]:
    with cabled() as found:
        yield found


@pytest.mark.long
@pytest.mark.timeout(600)  # two starts of torchrun on three machines, wherever else is much to do
def test_the_page_works_as_typed_and_a_killed_switch_changes_no_bit(machines: dict[str, Machine]) -> None:
    """Killing it takes a second training, and is a long test."""
    switch, *hosts = machines.values()
    both = (hosts[0], hosts[1])
    on_switch, on_first = blocks(PAGE)
    on_hosts = (on_first, for_second_host(on_first))
    switch.types(on_switch)
    for host, typed in zip(hosts, on_hosts, strict=True):
        host.types(typed)
    undisturbed = parameters(both)
    packets = sent(hosts[0])
    assert packets > 100

    if LONG:
        assert parameters_after_a_kill(switch, "weir-switch", both, packets) == undisturbed


def test_units_are_what_systemd_accepts() -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    for unit in sorted(UNITS.iterdir()):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", unit],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
        )
        wrong = [line for line in done.stderr.splitlines() if "is not executable: No such file" not in line]
        assert not wrong
