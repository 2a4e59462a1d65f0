# SPDX-License-Identifier: Apache-2.0
"""What a failing test started is ended; what a passing one started is its own affair."""

import subprocess
import sys

import pytest

from tests.harness.processes import children, none_after_failure, wait_until_gone

_PARENT = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.read()"


def sleeping() -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline()
    return process


def test_a_failing_test_leaves_no_process() -> None:
    with pytest.raises(AssertionError, match="planted"), none_after_failure():
        process = sleeping()
        started = [process.pid, *children(process.pid)]
        assert len(started) == 2
        raise AssertionError("planted")
    process.communicate(timeout=30)
    wait_until_gone(*started)


def test_processes_of_a_test_that_passes_are_left_alone() -> None:
    with none_after_failure():
        process = sleeping()
    assert process.poll() is None
    for pid in children(process.pid):
        subprocess.run(["kill", str(pid)], check=True)
    process.communicate("", timeout=30)
