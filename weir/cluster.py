# SPDX-License-Identifier: Apache-2.0
"""A whole Weir on one machine: one soft switch and one controller, joined over shared memory, no root.

Everything lives in one private directory: sockets, topology, shared-memory ports, logs. Nobody but this
user can reach any of it, and nothing is left when the cluster stops or this process dies.
"""

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from weir.child import end, how_it_ended, log_tail, spawn
from weir.extras import require
from wire.definition import MAX_WORKERS

_START_TIMEOUT_S: Final = 120.0  # the first start compiles the switch program to native code
_PROBLEM_S: Final = 5.0
_NO_PROBLEM: Final = ("", "not tried yet")  # what the controller says during its first attempt
_POLL_S: Final = 0.02


class ClusterError(RuntimeError):
    """Switch or controller did not start or has died; the message ends with what it said."""


class LocalCluster:
    """One switch and one controller on this machine: ``start`` and ``stop`` it, or use local_cluster.

    Args:
        workers: how many hosts are attached, h1 to h<workers>, 1 to 32.
        pcap: capture file for the packets of all switch ports.
        directory: parent of the cluster's own directory; by default shared memory, where there is some.

    Raises:
        ValueError: a number of workers that no switch takes.
    """

    def __init__(
        self, workers: int = 4, *, pcap: Path | str | None = None, directory: Path | str | None = None
    ) -> None:
        if not 1 <= workers <= MAX_WORKERS:
            raise ValueError(f"workers is {workers}: a switch has 1 to {MAX_WORKERS} of them")
        self.workers = workers
        self._pcap = None if pcap is None else Path(pcap).absolute()
        self._parent = directory
        self._directory: Path | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def directory(self) -> Path:
        """Where everything lives, mode 0700. Raises ClusterError while the cluster does not run."""
        if self._directory is None:
            raise ClusterError("the local cluster is not running: call start() first")
        return self._directory

    @property
    def controller(self) -> str:
        """The controller's address, what WEIR_CONTROLLER is to say."""
        return f"unix:{self.directory / 'controller.sock'}"

    def start(self) -> None:
        """Start switch and controller; returns when the switch runs its program and workers can join.

        Raises ClusterError when one does not start; then nothing is left of either. Raises MissingExtraError
        in an environment that can only train.
        """
        if self._directory is not None:
            raise ClusterError("the local cluster runs already")
        require("a local cluster", "switch", "controller")
        self._directory = _private_directory(self._parent)
        try:
            switch = f"unix:{self.directory / 'switch.sock'}"
            self._start_switch(switch)
            self._write_topology(switch)
            self._start_controller()
            self._wait_for_program()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End both and remove the directory. May be called again.

        The directory goes first, as nobody would remove it should this process be killed in between; the
        others then end by themselves.
        """
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        while self._processes:  # the controller before the switch it talks to
            _, process = self._processes.popitem()
            end([process])

    def environment(self, rank: int) -> dict[str, str]:
        """What a worker's environment needs so that ``init_process_group("weir")`` finds its place.

        Raises ValueError for a rank this cluster has no host for.
        """
        if not 0 <= rank < self.workers:
            raise ValueError(f"rank {rank}: this cluster has {self.workers} workers, 0 to {self.workers - 1}")
        return {"WEIR_CONTROLLER": self.controller, "WEIR_HOST": f"h{rank + 1}", "WEIR_LINK": "shm"}

    def check(self) -> None:
        """Raise ClusterError if switch or controller has ended, with the end of its log."""
        for name, process in self._processes.items():
            if (status := process.poll()) is not None:
                raise ClusterError(f"the {name} died ({how_it_ended(status)}):\n{self._log(name)}")

    def status(self) -> Any:
        """The controller's ``StatusReply``: switches, ports, jobs, counters."""
        from controller.client import AgentClient

        with AgentClient(self.controller) as client:
            return client.status()

    def _start_switch(self, address: str) -> None:
        ports = self.directory / "ports"
        ports.mkdir()
        arguments = ["--shm", str(ports), "--grpc", address]
        for port in range(1, self.workers + 1):
            arguments += ["--port", f"{port}=shm"]
        if self._pcap is not None:
            arguments += ["--pcap", str(self._pcap)]
        self._start("switch", "softswitch", arguments)

    def _write_topology(self, switch: str) -> None:
        aggregation = {"mac": "02:00:00:00:00:fe", "ip": "10.0.0.254"}
        topology = {
            "switches": [
                {
                    "name": "s1",
                    "device_id": 1,
                    "grpc": switch,
                    "program": "weir_v1model",
                    "target": "soft",
                    "aggregation": aggregation,
                }
            ],
            "hosts": [
                {
                    "name": f"h{number}",
                    "switch": "s1",
                    "port": number,
                    "mac": f"02:00:00:00:00:{number:02x}",
                    "ip": f"10.0.0.{number}",
                    "shm": str(self.directory / "ports"),
                }
                for number in range(1, self.workers + 1)
            ],
        }
        (self.directory / "topology.json").write_text(json.dumps(topology, indent=2), encoding="utf-8")

    def _start_controller(self) -> None:
        topology = str(self.directory / "topology.json")
        self._start("controller", "controller", ["--topology", topology, "--listen", self.controller])

    def _wait_for_program(self) -> None:
        """Until the switch runs its program. A problem that stays is an error long before the timeout."""
        from controller.client import AgentClient

        began = seen = time.monotonic()
        problem = ""
        with AgentClient(self.controller) as client:
            while (switch := client.status().switches[0]).state != "ready":
                now = time.monotonic()
                if switch.problem != problem:
                    problem, seen = switch.problem, now
                patience = _START_TIMEOUT_S if problem in _NO_PROBLEM else _PROBLEM_S
                if now - seen > patience or now - began > _START_TIMEOUT_S:
                    raise ClusterError(f"the switch was not programmed: {problem}\n{self._log('switch')}")
                self.check()
                time.sleep(_POLL_S)

    def _start(self, name: str, module: str, arguments: list[str]) -> None:
        """Start one process and wait until its ready file says that it serves."""
        ready = self.directory / f"{name}.ready"
        log = self.directory / f"{name}.log"
        process = spawn(module, [*arguments, "--ready-file", str(ready)], log=log, remove=self.directory)
        self._processes[name] = process
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not ready.exists():
            if (status := process.poll()) is not None:
                raise ClusterError(f"the {name} did not start ({how_it_ended(status)}):\n{self._log(name)}")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the {name} was not ready after {_START_TIMEOUT_S:g} s:\n{self._log(name)}"
                )
            time.sleep(_POLL_S)

    def _log(self, name: str) -> str:
        return log_tail(self.directory / f"{name}.log") or "(it said nothing)"


@contextlib.contextmanager
def local_cluster(
    workers: int = 4, *, pcap: Path | str | None = None, directory: Path | str | None = None
) -> Iterator[LocalCluster]:
    """A running switch and controller for ``workers`` workers on this machine, stopped at the end.

    Args:
        workers: how many can join, 1 to 32.
        pcap: capture file for the packets of all switch ports.
        directory: parent of the private directory; by default shared memory, where there is some.

    Raises:
        ClusterError: switch or controller did not start; the message ends with what it said.

    Example::

        with weir.local_cluster(workers=2) as cluster:
            for rank in range(2):
                environment = {**os.environ, **cluster.environment(rank), "RANK": str(rank), ...}
                subprocess.Popen([sys.executable, "train.py"], env=environment)
    """
    cluster = LocalCluster(workers, pcap=pcap, directory=directory)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


def _private_directory(parent: Path | str | None) -> Path:
    """A new directory of mode 0700, in memory unless told otherwise; short, for Unix sockets' sake."""
    memory = Path("/dev/shm")
    if parent is None and memory.is_dir():
        parent = memory
    return Path(tempfile.mkdtemp(prefix="weir-", dir=parent))
