# SPDX-License-Identifier: Apache-2.0
"""A controller that is killed and started again in the middle of a torchrun job, all in real processes."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

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


def _until(condition: Callable[[], bool], needed: "Sequence[subprocess.Popen[bytes]]", folder: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        alive = all(process.poll() is None for process in needed)
        assert alive and time.monotonic() < deadline, _logs(folder)
        time.sleep(0.02)


def _logs(folder: Path) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in folder.glob("*.log"))


def test_a_torchrun_job_outlives_its_controller_and_sums_exactly(short_path: Path) -> None:
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
    launched = ("--standalone", "--nproc-per-node", 2, _SCRIPT, folder)
    with (
        _running(folder / "switch.log", "softp4", "run", *switch_options) as switch,
        contextlib.ExitStack() as jobs,
    ):
        with controller() as first:
            _until((folder / "controller.ready").exists, [switch, first], folder)
            job = jobs.enter_context(_running(folder / "job.log", "torch.distributed.run", *launched))
            _until(lambda: rounds() > 20, [switch, first, job], folder)
            first.kill()
            first.wait(_TIMEOUT_S)
        without = rounds()
        _until(lambda: rounds() > without + 50, [switch, job], folder)
        (folder / "controller.ready").unlink(missing_ok=True)
        with controller() as second:
            _until((folder / "controller.ready").exists, [switch, second, job], folder)
            _until(lambda: members() == ["attending"] * 2, [switch, second, job], folder)
            back, now = rounds(), time.monotonic()
            _until(lambda: time.monotonic() > now + _LEASE_S + 1, [switch, second, job], folder)
            assert rounds() > back, _logs(folder)
            (folder / "stop").touch()
            assert job.wait(_TIMEOUT_S) == 0, _logs(folder)
            _until(lambda: members() == [], [switch, second], folder)
    said = re.findall(r"rank (\d): (\d+) exact sums", (folder / "job.log").read_text())
    assert sorted(rank for rank, _ in said) == ["0", "1"]
    assert len({count for _, count in said}) == 1
