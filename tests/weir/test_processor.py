# SPDX-License-Identifier: Apache-2.0
"""Processor time of processes and of the machine: what is read agrees with what processes say themselves."""

import os
import subprocess
import sys
import time

import pytest

from weir.process.processor import ProcessorTime, machine_seconds, process_seconds

BURN = """
import threading, time
def burn():
    while time.thread_time() < 0.2: pass
thread = threading.Thread(target=burn); thread.start(); thread.join()
print(time.process_time(), flush=True)
input()
"""


def test_all_threads_of_a_process_count_also_those_that_have_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = float(process.stdout.readline())
        read = process_seconds(process.pid)
        process.communicate("\n")
    assert 0.2 <= said <= read


def test_a_process_that_has_ended_has_no_time() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(ProcessLookupError, match=f"no such process: {process.pid}"):
        process_seconds(process.pid)


def test_what_a_process_uses_the_machine_is_busy_with() -> None:
    before = ProcessorTime.now([os.getppid()])
    until = time.process_time() + 0.5
    while time.process_time() < until:
        pass
    used = ProcessorTime.now([os.getppid()]) - before
    assert used.own >= 0.5
    assert used.machine >= 0.4  # in ticks
    assert 0 <= used.others <= machine_seconds()
