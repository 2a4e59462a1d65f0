# SPDX-License-Identifier: Apache-2.0
"""One switch in Mininet."""

from pathlib import Path

import pytest

from tests.mininet.scripts import NEEDED, SWITCHES, refusal, train

pytestmark = NEEDED


@SWITCHES
def test_a_model_trains_on_hosts_with_slow_links_beside_bursts_that_meet_there(
    switch: str, tmp_path: Path
) -> None:
    disturbed = ["--rate", "20mbit", "--background-load", "0.6"]
    run = train(
        "single.py", tmp_path, "--workers", "2", "--switch", switch, *disturbed, more="--method dense"
    )
    assert run["steps"] == 3
    assert run["replicas"]["identical_after_every_step"]
    assert run["delivery"]["marked"] > 0  # packets waited in the switch's own queues


@SWITCHES
def test_a_parameter_server_trains_over_links_that_lose_packets(switch: str, tmp_path: Path) -> None:
    network = ["--workers", "3", "--servers", "1", "--loss", "0.02"]
    run = train("single.py", tmp_path, *network, "--switch", switch, more="--mode ps")
    assert run["steps"] == 3
    assert run["replicas"]["identical_after_every_step"]
    assert run["per_worker"]["retransmissions"] > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--workers", "33"], "--workers: from 1 to 32"),
        (["--workers", "2", "--servers", "2"], "--servers: fewer than there are hosts"),
        (["--rate", "20"], "'20' is no rate without a unit"),
        (["--loss", "1"], "loss is 1.0: a share of packets"),
        (["--background-load", "0.5"], "set a rate for the links"),
    ],
)
def test_what_does_not_fit_is_refused(options: list[str], says: str) -> None:
    assert says in refusal("single.py", *options)
