# SPDX-License-Identifier: Apache-2.0
"""The Mininet script, run as a user would, with the system's own Mininet package."""

import json
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "mininet" / "single.py"
SYSTEM_PYTHON = "/usr/bin/python3"


def _has_mininet() -> bool:
    probe = [SYSTEM_PYTHON, "-c", "import mininet.net"]
    return (
        os.access(SYSTEM_PYTHON, os.X_OK)
        and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    )


pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not _has_mininet(), reason="needs the system's Mininet package (apt install mininet)"),
]


@pytest.mark.parametrize("switch", ["soft", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def test_a_model_trains_on_mininet_hosts(switch: str, tmp_path: Path) -> None:
    train = f"weir train --model cnn --epochs 1 --max-steps 3 --no-reference --out {tmp_path}/runs"
    command = [SYSTEM_PYTHON, str(SCRIPT), "--workers", "2", "--switch", switch, "--run", train]
    with (tmp_path / "log").open("wb") as log:
        done = subprocess.run(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, timeout=240, check=False
        )
    assert done.returncode == 0, (tmp_path / "log").read_text(errors="replace")
    (summary,) = tmp_path.glob("runs/*/summary.json")
    run = json.loads(summary.read_text())["runs"]["weir"]
    assert run["steps"] == 3
    assert run["replicas"]["identical_after_every_step"]
    assert run["per_worker"]["bytes_up"] > 0


def test_a_number_of_hosts_that_no_switch_serves_is_refused() -> None:
    done = subprocess.run(
        [SYSTEM_PYTHON, str(SCRIPT), "--workers", "33"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--workers: from 1 to 32" in done.stderr
