# SPDX-License-Identifier: Apache-2.0
"""The benchmarks, on sizes too small to say anything."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from softp4.bench.lookups import ACL, LENGTH, ROUTER, Lookups, compare, measure
from softp4.bench.rules import PORTS, filtered, filters, routed, routes
from softp4.switch import Switch


def test_every_packet_meets_its_entry() -> None:
    """So that no lookup that is timed is a cheap miss."""
    entries = routes(200, 1)
    packets = routed(entries, 300, 2)
    with Switch(ROUTER.program) as switch:
        for entry in entries:
            switch.table(ROUTER.table).insert(entry)
        for packet in packets:
            ((port, frame),) = switch.process(1, packet.frame(LENGTH), 0)
            assert 0 <= port < PORTS
            assert frame[22] == 63, "the TTL"
            assert sum(int.from_bytes(frame[at : at + 2], "big") for at in range(14, 34, 2)) % 0xFFFF == 0
    rules = filters(200, 1)
    with Switch(ACL.program) as switch:
        for entry in rules:
            switch.table(ACL.table).insert(entry)
        for packet in filtered(rules, 300, 2):
            assert len(switch.process(1, packet.frame(LENGTH), 0)) == 1


@pytest.mark.simple_switch
@pytest.mark.parametrize("case", [ROUTER, ACL], ids=["router", "acl"])
def test_bmv2_takes_part(case: Lookups) -> None:
    rates = compare(case, 30, 5000, repeats=1)
    assert {name: len(found) for name, found in rates.items()} == {"soft switch": 1, "BMv2": 1}
    assert min(rates["soft switch"] + rates["BMv2"]) > 0, "frames left both"


def test_a_lookup_takes_time() -> None:
    point = measure(ROUTER, 30, 1)
    assert (point.entries, point.case) == (30, ROUTER.name)
    assert min(point.frame, point.insert) > 0


@pytest.mark.parametrize("what", ["lookups", "requests"])
def test_the_command_prints_a_table(what: str) -> None:
    command = [
        sys.executable,
        "-m",
        "softp4.bench",
        what,
        "--repeats",
        "1",
        "--entries",
        "40",
        "--rules",
        "40",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "soft switch" in done.stdout


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def command_of(pid: int) -> str:
    """Return a process's command line; "" of one that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("what", "program"),
    [
        ("requests", "softp4 run"),
        pytest.param("requests", "simple_switch_grpc", marks=pytest.mark.simple_switch),
        pytest.param("lookups", "simple_switch", marks=pytest.mark.simple_switch),
    ],
)
def test_a_bench_that_is_killed_leaves_no_switch_behind(what: str, program: str) -> None:
    command = [sys.executable, "-m", "softp4.bench", what, "--repeats", "50", "--entries", "500"]
    found: list[int] = []

    def runs() -> bool:
        assert bench.poll() is None, "it ended before its switch was found"
        found[:] = [
            child
            for child in children(bench.pid)
            if f"{program} " in command_of(child) and "tied.py" not in command_of(child)
        ]
        return bool(found)

    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as bench:
        try:
            until(runs)
        finally:
            bench.kill()
    until(lambda: not command_of(found[0]))
