# SPDX-License-Identifier: Apache-2.0
"""Mininet's command line, and what the scripts say to a Python that has no Mininet."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mininet.scripts import FOLDER, SYSTEM_PYTHON
from tests.p4rt.p4rt_client import CONTROL


def _typed(script: str, *options: str, lines: list[str]) -> str:
    """Return what the command line prints to somebody who types these lines."""
    done = subprocess.run(
        [SYSTEM_PYTHON, str(FOLDER / script), *options],
        input="".join(f"{line}\n" for line in lines),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # where Mininet prints
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.root
@pytest.mark.mininet
def test_commands_print_and_hosts_know_their_controller() -> None:
    knock = f"h1 {SYSTEM_PYTHON} {Path(__file__).with_name('knock.py')} 10.0.0.2"
    asks = ["h2 echo rank $RANK of $WORLD_SIZE is $WEIR_HOST", "h1 weir status"]
    said = _typed("single.py", "--workers", "2", lines=["nodes", "pingall", knock, *asks])
    assert "available nodes are" in said
    assert "*** Results:" in said  # of the pings, where there is `ping`
    assert "refused" in said
    assert "rank 1 of 2 is h2" in said
    assert "s1" in said.partition("rank 1 of 2 is h2")[2]


@pytest.mark.root
@pytest.mark.mininet
def test_commands_print_with_any_program() -> None:
    said = _typed("any_program.py", "--program", str(CONTROL), lines=["nodes"])
    assert "available nodes are" in said


@pytest.mark.parametrize("script", ["single.py", "leaf_spine.py", "any_program.py"])
def test_a_python_without_mininet_is_told_which_one_has_it(script: str, tmp_path: Path) -> None:
    """It is an environment without any package: this one's might have Mininet's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    python, path = tmp_path / "bin" / "python", str(FOLDER / script)
    done = subprocess.run([python, path, "--run", "weir status"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        f"{path}: {python} has no Mininet: apt install mininet, and start it with the system's Python: "
        f"sudo /usr/bin/python3 {path} --run 'weir status'\n"
    )
