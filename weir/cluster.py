# SPDX-License-Identifier: Apache-2.0
"""A whole Weir on one machine: soft switches and a controller, workers over shared memory, no root.

By default one switch; or racks of workers, each with a leaf, and spines above them, joined by UDP tunnels
over loopback. Everything lives in one private directory: sockets, topology, shared-memory ports, logs.
Nobody but this user can reach any of it, and nothing is left when the cluster stops or this process dies.
"""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from softp4.native.build import is_compiling
from softp4.native.scratch import scratch_folder
from softp4.native.shared_memory import PORT_BYTES, is_full, no_room
from weir.network import LOOPBACK, NetworkPlan, NetworkSpec, incast, make_plan, switch_ports, udp_tunnels
from weir.process.child import Lookout, end, how_it_ended, log_tail, spawn
from weir.wire.definition import MAX_CHILDREN

if TYPE_CHECKING:
    from weir.agent_service.tls import TlsFiles
    from weir.controller.wiring import Host

MEMORY: Final = Path("/dev/shm")
"""Where local clusters are by default, if it is there."""

_FILES: Final = 256 << 10  # bytes for the topology, the logs of a start, and what else there is
_WITHOUT_MEMORY: Final = (
    "`weir clean` removes leftovers of killed Weir processes; with WEIR_LOCAL=on, ranks of one machine need "
    "no ports"
)
_START_TIMEOUT_S: Final = 240.0  # without a compiler at work, which a first start waits for
_PROBLEM_S: Final = 5.0
_NO_PROBLEM: Final = ("", "not tried yet")  # what the controller says during its first attempt
_POLL_S: Final = 0.02


class ClusterError(RuntimeError):
    """Switch or controller did not start or has died; the message ends with what it said."""


class LocalCluster:
    """Switches and a controller on this machine: ``start`` and ``stop`` it, or use local_cluster.

    Args:
        workers: how many workers can join, 1 to 32.
        network: shape, links, losses and background traffic; by default one switch and nothing in the way.
        pcap: capture file for the packets of all switch ports; with several switches, of each a file with its
            name before the suffix (run.leaf1.pcapng).
        directory: parent of the cluster's own directory; by default shared memory, where there is some.
        threads: of each switch, see ``weir switch --threads``.

    Raises:
        ValueError: a number of workers that the network does not take.
    """

    def __init__(
        self,
        workers: int = 4,
        *,
        network: NetworkSpec | None = None,
        pcap: Path | str | None = None,
        directory: Path | str | None = None,
        threads: int = 1,
    ) -> None:
        if not 1 <= workers <= MAX_CHILDREN:
            raise ValueError(f"workers is {workers}: a switch serves 1 to {MAX_CHILDREN}")
        self.workers = workers
        self.network = network or NetworkSpec()
        if workers < self.network.shape.racks:
            raise ValueError(f"{workers} workers cannot be spread over {self.network.shape.racks} racks")
        self._pcap = None if pcap is None else Path(pcap).absolute()
        self._parent = directory
        self._threads = threads
        self._directory: Path | None = None
        self._plan: NetworkPlan | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._capture_problem = ""
        self._tls: TlsFiles | None = None  # of the controller, which shows its own certificate to itself
        self._scratch = contextlib.ExitStack()
        self._lookout = Lookout()

    @property
    def directory(self) -> Path:
        """Directory of everything, mode 0700. Raises ClusterError while the cluster does not
        run.
        """
        if self._directory is None:
            raise ClusterError("the local cluster is not running: call start() first")
        return self._directory

    @property
    def controller(self) -> str:
        """Controller's address, for WEIR_CONTROLLER."""
        return f"unix:{self.directory / 'controller.sock'}"

    @property
    def plan(self) -> NetworkPlan:
        """Network as it was built. Raises ClusterError while the cluster does not run."""
        if self._plan is None:
            raise ClusterError("the local cluster is not running: call start() first")
        return self._plan

    def start(self) -> None:
        """Start switches and controller; returns when the switches run their program and workers can join.

        Raises ClusterError when one does not start; then nothing is left of any.
        """
        if self._directory is not None:
            raise ClusterError("the local cluster is already running")
        # In memory unless told otherwise; a short name, for Unix sockets' sake.
        parent = self._parent or (MEMORY if MEMORY.is_dir() else None)
        self._directory = self._scratch.enter_context(scratch_folder("weir-cluster", parent))
        try:
            self._plan = self._make_plan()
            self._require_memory(self._plan)
            self._start_switches(self._plan)
            topology = self.directory / "topology.json"
            topology.write_text(self._plan.topology.model_dump_json(exclude_none=True, indent=2), "utf-8")
            arguments = [str(topology), "--listen", self.controller, *self._secured()]
            self._spawn("controller", "weir.controller", arguments)
            for name in self._processes:
                self._wait_until_ready(name)
            self._wait_for_program()
            self._start_background(self._plan)
        except OSError as error:
            self.stop()
            raise ClusterError(f"the local cluster's files: {error}") from error
        except BaseException:
            self.stop()
            raise

    def _secured(self) -> list[str]:
        """Return the controller's options of TLS."""
        files = vars(self._tls) if self._tls else {}
        return [word for name, path in files.items() if path for word in (f"--tls-{name}", str(path))]

    def _make_plan(self) -> NetworkPlan:
        """Return the network that must be built."""
        return make_plan(
            self.network,
            self.workers,
            grpc=self._grpc,
            shm=lambda leaf: str(self._ports_of(leaf)),
        )

    def _grpc(self, switch: str) -> str:
        return f"unix:{self.directory / switch}.sock"

    def _attached(self, _host: "Host") -> str:
        """Return what a host's port of its switch is, as after ``--port N=``."""
        return "shm"

    def stop(self) -> None:
        """End all processes and remove the directory. May be called again.

        The directory goes first, as nobody would remove it should this process be killed in between; the
        others then end by themselves.
        """
        with self._capturing():
            self._end()

    def check_capture(self) -> None:
        """Raise ClusterError if the capture file that was asked for is not complete, once all has stopped."""
        if self._capture_problem:
            raise ClusterError(self._capture_problem)

    @contextlib.contextmanager
    def _capturing(self) -> Iterator[None]:
        """Keep what the switches that capture say of their files while they end."""
        switches = self._plan.topology.switches if self._plan and self._pcap else ()
        processes = {
            switch.name: process
            for switch in switches
            if (process := self._processes.get(switch.name)) is not None
        }
        with contextlib.ExitStack() as logs:  # which outlive their folder
            opened = {
                name: logs.enter_context((self.directory / f"{name}.log").open(errors="replace"))
                for name in processes
            }
            yield
            for name, process in processes.items():
                if process.returncode:
                    *_, said = ["", *opened[name].read().splitlines()]
                    how = how_it_ended(process.returncode)
                    self._capture_problem = (
                        f"no complete capture, as the {_called(name)} ended with {how}: {said}"
                    )

    def _capture_of(self, switch: str) -> Path | None:
        """Return the capture file of a switch."""
        if self._pcap is None or self.network.shape.single:
            return self._pcap
        return self._pcap.with_suffix(f".{switch}{self._pcap.suffix}")

    def _end(self) -> None:
        self._scratch.close()
        self._directory = None
        # Background first, then the controller before the switches it talks to, and those together.
        first = [name for name in ("background", "controller") if name in self._processes]
        for name in first:
            end([self._processes.pop(name)])
        end(list(self._processes.values()))
        self._processes.clear()
        self._plan = None

    def environment(self, rank: int) -> dict[str, str]:
        """Return the environment variables with which ``init_process_group("weir")`` finds this cluster.

        Args:
            rank: of the worker, from 0.

        Raises:
            ValueError: the cluster has no host for this rank.
        """
        if not 0 <= rank < self.workers:
            raise ValueError(f"rank {rank}: this cluster has {self.workers} workers, 0 to {self.workers - 1}")
        host = self.plan.workers[rank]
        return {"WEIR_CONTROLLER": self.controller, "WEIR_HOST": host.name, "WEIR_LINK": "shm"}

    def switch_pids(self) -> list[int]:
        """Return the processes of the switches. Raises ClusterError while the cluster does not run."""
        return [self._processes[switch.name].pid for switch in self.plan.topology.switches]

    def check(self) -> None:
        """Raise ClusterError, with its log's end, if a process has ended that the others need.

        A spine is not needed while another spine runs: the controller moves its slots there.
        """
        for name, how in self._lost().items():
            if not self._spared(name):
                raise ClusterError(f"the {_called(name)} died ({how}):\n{self._log(name)}")

    def lost_spines(self) -> dict[str, str]:
        """Return the spines that have ended while others run: name -> how, as text."""
        spines = self._plan.spines if self._plan else ()
        return {name: how for name, how in self._lost().items() if name in spines}

    def status(self) -> Any:
        """Return the controller's ``StatusReply``: switches, ports, jobs, counters."""
        from weir.agent_service.client import AgentClient

        with AgentClient(self.controller, self._tls) as client:
            return client.status()

    def _lost(self) -> dict[str, str]:
        """Return the processes that have ended: name -> how, as text."""
        looked = {name: self._lookout.look(process) for name, process in self._processes.items()}
        return {name: how for name, how in looked.items() if how}

    def _spared(self, name: str) -> bool:
        spines = self._plan.spines if self._plan else ()
        return name in spines and len(self.lost_spines()) < len(spines)

    def _ports_of(self, leaf: str) -> Path:
        """Return the directory of a leaf's shared-memory ports; of one switch alone, ``ports``."""
        return self.directory / ("ports" if self.network.shape.single else f"ports-{leaf}")

    def _require_memory(self, plan: NetworkPlan) -> None:
        """Raise ClusterError where there is no room for the hosts' ports, which take their memory at once."""
        ports = sum(host.shm is not None for host in plan.topology.hosts)
        needed = ports * PORT_BYTES + _FILES
        if is_full(self.directory, needed):
            lack = no_room(self.directory.parent, f"a local cluster of {ports} hosts", needed)
            raise ClusterError(f"{lack}. {_WITHOUT_MEMORY}")

    def _start_switches(self, plan: NetworkPlan) -> None:
        """Start all switches at once."""
        tunnels = free_udp_ports(2 * len(plan.cables))
        ports = switch_ports(plan, self._attached, udp_tunnels(iter(tunnels)))
        for switch in plan.topology.switches:
            arguments = ["--grpc", switch.grpc, "--device-id", str(switch.device_id)]
            arguments += ["--threads", str(self._threads)]
            if switch.name in plan.leaves:
                folder = self._ports_of(switch.name)
                folder.mkdir()
                arguments += ["--shm", str(folder)]
            arguments += [word for port in ports[switch.name] for word in ("--port", port)]
            capture = self._capture_of(switch.name)
            if capture is not None:
                arguments += ["--pcap", str(capture)]
            self._spawn(switch.name, "softp4", ["run", *arguments])

    def _start_background(self, plan: NetworkPlan) -> None:
        spec = incast(plan)
        if spec is not None:
            self._spawn("background", "weir.background", [spec.model_dump_json()], ready=False)

    def _wait_for_program(self) -> None:
        """Wait until all switches run their program. A problem that stays is an error long before the
        timeout.
        """
        from weir.agent_service.client import AgentClient

        began = seen = time.monotonic()
        problem = ""
        with AgentClient(self.controller, self._tls) as client:
            while waiting := [s for s in client.status().switches if s.state != "ready"]:
                now = time.monotonic()
                if waiting[0].problem != problem:
                    problem, seen = waiting[0].problem, now
                timeout = _START_TIMEOUT_S if problem in _NO_PROBLEM else _PROBLEM_S
                late = now - seen > timeout or now - began > _START_TIMEOUT_S
                if late and is_compiling():  # on a slow machine the controller gives up attempts meanwhile
                    began = seen = now
                elif late:
                    name = waiting[0].name
                    raise ClusterError(
                        f"the {_called(name)} was not programmed: {problem}\n{self._log(name)}"
                    )
                self.check()
                time.sleep(_POLL_S)

    def _spawn(self, name: str, module: str, arguments: list[str], *, ready: bool = True) -> None:
        """Start one process. ``ready``: it takes --ready-file, to be waited for with _wait_until_ready."""
        if ready:
            arguments = [*arguments, "--ready-file", str(self.directory / f"{name}.ready")]
        log = self.directory / f"{name}.log"
        self._processes[name] = spawn(module, arguments, log=log, remove=self.directory)

    def _wait_until_ready(self, name: str) -> None:
        """Wait until a process's ready file says that it serves."""
        ready, process = self.directory / f"{name}.ready", self._processes[name]
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not ready.exists():
            if how := self._lookout.look(process):
                raise ClusterError(f"the {_called(name)} did not start ({how}):\n{self._log(name)}")
            if time.monotonic() > deadline and is_compiling():
                deadline = time.monotonic() + _START_TIMEOUT_S
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the {_called(name)} was not ready after {_START_TIMEOUT_S:g} s:\n{self._log(name)}"
                )
            time.sleep(_POLL_S)

    def _log(self, name: str) -> str:
        return log_tail(self.directory / f"{name}.log") or "(it said nothing)"


@contextlib.contextmanager
def local_cluster(
    workers: int = 4,
    *,
    network: NetworkSpec | None = None,
    pcap: Path | str | None = None,
    directory: Path | str | None = None,
    threads: int = 1,
) -> Iterator[LocalCluster]:
    """Run switches and a controller for ``workers`` workers on this machine; stop them at the end.

    Args:
        workers: how many can join, 1 to 32.
        network: shape, links, losses and background traffic; by default one switch and nothing in the way.
        pcap: capture file for the packets of all switch ports; with several switches, of each a file with its
            name before the suffix (run.leaf1.pcapng).
        directory: parent of the private directory; by default shared memory, where there is some.
        threads: of each switch, see ``weir switch --threads``.

    Raises:
        ClusterError: a switch or the controller did not start; the message ends with what it said. Or, at the
            end of the block, the capture file is not complete.

    Example::

        with weir.local_cluster(workers=2) as cluster:
            for rank in range(2):
                environment = {**os.environ, **cluster.environment(rank), "RANK": str(rank), ...}
                subprocess.Popen([sys.executable, "train.py"], env=environment)
    """
    cluster = LocalCluster(workers, network=network, pcap=pcap, directory=directory, threads=threads)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()
    cluster.check_capture()


def free_udp_ports(count: int) -> list[int]:
    """Return that many different UDP ports of the loopback interface that nobody uses now."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _called(name: str) -> str:
    """Return a process in an error message: "switch leaf1", "controller"."""
    words = {"s1": "switch", "controller": "controller", "background": "background traffic"}
    return words.get(name, f"switch {name}")
