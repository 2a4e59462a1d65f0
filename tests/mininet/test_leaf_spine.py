# SPDX-License-Identifier: Apache-2.0
"""Racks and spines in Mininet: gradients are summed in two tiers, and all else is routed between racks."""

from pathlib import Path

import pytest

from tests.mininet.scripts import NEEDED, SWITCHES, refusal, train

pytestmark = NEEDED


@SWITCHES
def test_a_model_trains_on_hosts_of_two_racks(switch: str, tmp_path: Path) -> None:
    """The workers also meet over TCP, through a spine."""
    run = train("leaf_spine.py", tmp_path, "--hosts", "1", "--switch", switch, "--loss", "0.02")
    assert run["steps"] == 3
    assert run["replicas"]["identical_after_every_step"]
    assert run["per_worker"]["retransmissions"] > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--racks", "3", "--hosts", "11"], "--racks, --hosts: from 1 to 32 hosts in all"),
        (["--spines", "17"], "--spines: from 1 to 16"),
    ],
)
def test_what_does_not_fit_is_refused(options: list[str], says: str) -> None:
    assert says in refusal("leaf_spine.py", *options)
