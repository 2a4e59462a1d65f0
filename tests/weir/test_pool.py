# SPDX-License-Identifier: Apache-2.0
"""Commands that compute in several processes: however they end, no process is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.processes import children, wait_until_gone

TAIL = ["bench", "tail", "--processes", "2"]
CALIBRATE = ["calibrate", "--model", "mlp", "--jobs", "2"]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("command", "number"),
    [
        (TAIL, signal.SIGINT),
        (TAIL, signal.SIGTERM),
        (TAIL, signal.SIGKILL),
        (CALIBRATE, signal.SIGTERM),
        (CALIBRATE, signal.SIGKILL),
    ],
)
def test_a_signal_ends_every_process(command: list[str], number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "weir", *command],
        cwd=tmp_path,
        stderr=subprocess.STDOUT,
        stdout=(tmp_path / "log").open("wb"),
    )
    while len(started := children(process.pid)) < 3:  # two that compute, and what keeps track of them
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(3)  # they are at it
    process.send_signal(number)
    assert process.wait(30) != 0
    wait_until_gone(*started)
    if command is TAIL:
        assert "runs in virtual time, 2 at a time" in (tmp_path / "log").read_text()


@pytest.mark.root
def test_a_bench_that_is_told_to_end_takes_its_switches_and_folders_with_it(
    tmp_path: Path, short_path: Path
) -> None:
    folders = short_path  # of Unix sockets
    command = ["bench", "training", "--model", "mlp", "--workers", "2", "--no-virtual", "--peers", "ps"]
    process = subprocess.Popen(
        [sys.executable, "-m", "weir", *command],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(folders)},
        stderr=subprocess.STDOUT,
        stdout=(tmp_path / "log").open("wb"),
    )
    while "step 1 of" not in (tmp_path / "log").read_text():
        assert process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.05)
    started = children(process.pid)
    assert len(started) >= 7, started  # 4 leaves and spines, the controller, 2 workers
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130, (tmp_path / "log").read_text()
    wait_until_gone(*started)
    assert list(folders.glob("weir-*-*")) == []  # torch and the switches' control channels have folders there
