# SPDX-License-Identifier: Apache-2.0
"""A program that knows nothing of Weir, in Mininet, on either switch."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mininet.scripts import FOLDER, NEEDED, SWITCHES, SYSTEM_PYTHON, refusal
from tests.p4rt.p4rt_client import CONTROL

pytestmark = NEEDED

_KNOCK = f"{SYSTEM_PYTHON} {Path(__file__).with_name('knock.py')} 10.0.0.2"
_CONTROL = f"{sys.executable} -m tests.mininet.stations"


def _knock(switch: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [SYSTEM_PYTHON, str(FOLDER / "any_program.py"), "--program", str(CONTROL), "--switch", switch]
    return subprocess.run(
        [*command, *options, "--run", _KNOCK],
        cwd=FOLDER.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@SWITCHES
def test_hosts_reach_one_another_once_the_tables_are_filled(switch: str) -> None:
    done = _knock(switch, "--control", _CONTROL, "--cpu-port", "255")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("refused\n")


def test_a_switch_that_does_not_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    done = _knock("soft", "--program", str(broken))
    assert done.returncode != 0
    assert "s1 ended with status 1" in done.stderr
    assert "broken.json" in done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--program", "/nowhere.json"], "--program: there is no file /nowhere.json"),
        (["--program", str(CONTROL), "--hosts", "0"], "--hosts: from 1 to 250"),
    ],
)
def test_what_does_not_fit_is_refused(options: list[str], says: str) -> None:
    assert says in refusal("any_program.py", *options)
