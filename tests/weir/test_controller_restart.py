# SPDX-License-Identifier: Apache-2.0
"""A controller that is killed and started again in the middle of a job, all in real processes."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tests.harness.forked import run_ranks
from weir.agent_service.client import AgentClient
from weir.controller.topology import single_switch

_SCRIPT = Path(__file__).with_name("endless_sums.py")
_TIMEOUT_S = 120.0
_LEASE_S = 6


@contextlib.contextmanager
def _running(log: Path, module: str, *arguments: object) -> "Iterator[subprocess.Popen[bytes]]":
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={**os.environ, "WEIR_CONTROLLER": f"unix:{log.parent}/controller.sock"},
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(_TIMEOUT_S)


def _all_run(*parts: "subprocess.Popen[bytes] | Future[str]") -> Callable[[], bool]:
    """Return what tells whether no process and no job has ended."""
    return lambda: (
        not any(part.done() if isinstance(part, Future) else part.poll() is not None for part in parts)
    )


def _until(condition: Callable[[], bool], alive: Callable[[], bool], folder: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert alive() and time.monotonic() < deadline, _logs(folder)
        time.sleep(0.02)


def _logs(folder: Path) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in folder.glob("*.log"))


def test_a_job_outlives_its_controller_and_sums_exactly(short_path: Path) -> None:
    folder = short_path
    (folder / "ports").mkdir()
    topology, state = folder / "topology.json", folder / "state.json"
    switch_at, address = f"unix:{folder}/switch.sock", f"unix:{folder}/controller.sock"
    described = single_switch(2, switch_at, str(folder / "ports"), target="soft")
    topology.write_text(described.model_dump_json(exclude_none=True))
    options = (topology, "--listen", address, "--state-file", state, "--lease", _LEASE_S)

    def controller() -> "contextlib.AbstractContextManager[subprocess.Popen[bytes]]":
        ready = ("--ready-file", folder / "controller.ready")
        return _running(folder / "controller.log", "weir.controller", *options, *ready)

    def rounds() -> int:
        """Return how many sums all ranks have had."""
        had = [folder / f"rounds-{rank}" for rank in range(2)]
        return min(int(path.read_text()) if path.exists() else 0 for path in had)

    def members() -> list[str]:
        with AgentClient(address) as client:
            return [member.state for job in client.status().jobs for member in job.members]

    ports = [word for port in (1, 2) for word in ("--port", f"{port}=shm")]
    switch_options = ("--grpc", switch_at, "--shm", folder / "ports", "--no-control", *ports)
    with (
        _running(folder / "switch.log", "softp4", "run", *switch_options) as switch,
        ThreadPoolExecutor(1) as pool,
    ):
        with controller() as first:
            _until((folder / "controller.ready").exists, _all_run(switch, first), folder)
            place = {"WEIR_CONTROLLER": address}
            job = pool.submit(run_ranks, 2, _SCRIPT, str(folder), environment=place)
            _until(lambda: rounds() > 20, _all_run(switch, first, job), folder)
            first.kill()
            first.wait(_TIMEOUT_S)
        without = rounds()
        _until(lambda: rounds() > without + 50, _all_run(switch, job), folder)
        (folder / "controller.ready").unlink(missing_ok=True)
        with controller() as second:
            needed = _all_run(switch, second, job)
            _until((folder / "controller.ready").exists, needed, folder)
            _until(lambda: members() == ["attending"] * 2, needed, folder)
            back, now = rounds(), time.monotonic()
            _until(lambda: time.monotonic() > now + _LEASE_S + 1, needed, folder)
            assert rounds() > back, _logs(folder)
            (folder / "stop").touch()
            said = re.findall(r"rank (\d): (\d+) exact sums", job.result(_TIMEOUT_S))
            _until(lambda: members() == [], _all_run(switch, second), folder)
    assert sorted(rank for rank, _ in said) == ["0", "1"]
    assert len({count for _, count in said}) == 1
