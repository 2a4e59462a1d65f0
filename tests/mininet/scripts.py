# SPDX-License-Identifier: Apache-2.0
"""Run the scripts of ``mininet/`` as a user would, with the system's own Mininet package."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.harness.weir_needs import SYSTEM_PYTHON
from weir.pcap.audit import PacketAudit, Rule

FOLDER = Path(__file__).resolve().parents[2] / "mininet"
TRAIN = "weir train --model cnn --epochs 1 --max-steps 3 --no-reference --out"


NEEDED = [pytest.mark.root, pytest.mark.mininet]
SWITCHES = pytest.mark.parametrize("switch", ["soft", pytest.param("bmv2", marks=pytest.mark.bmv2)])


def train(script: str, folder: Path, *options: str, more: str = "") -> dict[str, Any]:
    """Return three training steps on every host; what the run's summary says of them.

    Every port of every switch is captured, and an audit finds nothing. ``more``: options of the training.
    """
    captures = ["--pcap", str(folder / "pcap")]
    run = f"{TRAIN} {folder}/runs {more}"
    command = [SYSTEM_PYTHON, str(FOLDER / script), *options, *captures, "--run", run]
    with (folder / "log").open("wb") as log:
        done = subprocess.run(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, timeout=240, check=False
        )
    assert done.returncode == 0, (folder / "log").read_text(errors="replace")
    audit = PacketAudit.of_files(sorted((folder / "pcap").iterdir()))
    assert not audit.findings, audit.findings[:3]
    assert audit.report.checked[Rule.SUMS] > 100
    (summary,) = folder.glob("runs/*/summary.json")
    return dict(json.loads(summary.read_text())["runs"]["weir"])


def refusal(script: str, *options: str) -> str:
    """Return what the script says about options that it does not take."""
    done = subprocess.run(
        [SYSTEM_PYTHON, str(FOLDER / script), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    return done.stderr
