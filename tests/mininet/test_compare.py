# SPDX-License-Identifier: Apache-2.0
"""BMv2 beside the soft switch: the same training, the same parameters, and nothing for an audit to find."""

import subprocess

import pytest

from tests.mininet.scripts import FOLDER, NEEDED, SYSTEM_PYTHON

pytestmark = [*NEEDED, pytest.mark.bmv2]

TRAIN = "weir train --model mlp --epochs 1 --max-steps 3"


def test_two_racks_train_the_same_on_both_switches() -> None:
    command = [SYSTEM_PYTHON, str(FOLDER / "compare.py"), "--network", "two-racks", "--repeat", "1"]
    command += ["--audit", "--train", TRAIN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    header, *rows = (line.split() for line in done.stdout.splitlines())
    assert header[:3] == ["network", "links", "switch"]
    assert [row[:3] for row in rows] == [["two-racks", "free", name] for name in ("soft", "bmv2", "bmv2")]
    soft, bmv2, ratios = rows
    assert bmv2[10:12] == soft[10:12]  # accuracy, parameters
    assert all(row[-2:] == ["0", "findings"] for row in (soft, bmv2))
    assert float(ratios[6]) > 1  # bytes up: BMv2's packets are smaller
