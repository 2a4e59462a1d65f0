# SPDX-License-Identifier: Apache-2.0
"""One switch in Mininet."""

from pathlib import Path

from tests.mininet.scripts import NEEDED, SWITCHES, refusal, train

pytestmark = NEEDED


@SWITCHES
def test_a_model_trains_on_mininet_hosts(switch: str, tmp_path: Path) -> None:
    run = train("single.py", tmp_path, "--workers", "2", "--switch", switch)
    assert run["steps"] == 3
    assert run["replicas"]["identical_after_every_step"]
    assert run["per_worker"]["bytes_up"] > 0


def test_a_number_of_hosts_that_no_switch_serves_is_refused() -> None:
    assert "--workers: from 1 to 32" in refusal("single.py", "--workers", "33")
