# SPDX-License-Identifier: Apache-2.0
"""Tests are skipped by name for want of a tool, and fail for want of one that ``WEIR_REQUIRE`` names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_NEEDING = "tests/wire/test_dissector.py"  # tshark; nothing is on the PATH that it gets here


def run_without_tools(require: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", _NEEDING]
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PATH": "/nonexistent", "WEIR_REQUIRE": require}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


def test_a_test_without_its_tool_is_skipped_by_name() -> None:
    done = run_without_tools("bmv2,p4c")
    assert done.returncode == 0, done.stdout
    assert "needs tshark on PATH" in done.stdout


def test_a_tool_that_is_required_must_be_there() -> None:
    done = run_without_tools("root,tshark")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "required: needs tshark on PATH" in done.stdout


def test_a_need_that_nobody_has_is_refused() -> None:
    done = run_without_tools("tshark,wireshark")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    markers = "root, bmv2, simple_switch, p4c, tofino, mininet, tshark, cuda, wireguard"
    assert f"required: wireshark: expected some of {markers}" in done.stderr
