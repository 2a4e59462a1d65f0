# SPDX-License-Identifier: Apache-2.0
"""A lab whose switches run, with a controller and background traffic: a local cluster with real links."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from softp4.native.batches import batches_wanted
from softp4.native.build import is_compiling
from softp4.native.claims import write_secret
from softp4.native.scratch import scratch_folder
from weir.agent_service.client import AgentClient
from weir.controller.wiring import Host, Target
from weir.netns.lab import HUB_ADDRESS, Lab, bridged_lab, cable_ends, lab
from weir.netns.namespace import NamespaceError
from weir.network import NetworkSpec, incast, over_ip, switch_ports
from weir.process import child

_FIRST_CLAIMED: Final = 9701  # UDP ports that hosts claim; in a namespace of its own all are free
_SECRET: Final = "secret"
_START_TIMEOUT_S: Final = 240.0  # without a compiler at work, which a first start waits for


@dataclass(frozen=True)
class NetworkCluster:
    """A lab with running switches and controller: a ``LocalCluster`` with real links."""

    lab: Lab
    controller: str
    folder: Path
    processes: Mapping[str, subprocess.Popen[bytes]]
    lookout: child.Lookout = field(default_factory=child.Lookout)

    def environment(self, rank: int) -> dict[str, str]:
        """Return environment variables of the worker of that rank; run it with ``lab.at_worker(rank)``."""
        return {
            **self.lab.environment(),
            "WEIR_CONTROLLER": self.controller,
            "WEIR_HOST": self.lab.plan.workers[rank].name,
            "WEIR_LINK": "udp" if self.lab.plan.workers[rank].claimed is None else "ip",
        }

    def status(self) -> Any:
        """Return the controller's ``StatusReply``: switches, ports, jobs, counters."""
        with AgentClient(self.controller) as client:
            return client.status()

    def switch_pids(self) -> list[int]:
        """Return the processes of the switches."""
        return [self.processes[switch.name].pid for switch in self.lab.topology.switches]

    def check(self) -> None:
        """Raise NamespaceError with its log's end if a process has ended, but for a spine beside
        another.
        """
        lost, spines = self.lost_spines(), self.lab.plan.spines
        _check(self.processes, self.folder, self.lookout, lost if len(lost) < len(spines) else {})

    def lost_spines(self) -> dict[str, str]:
        """Return spines that have ended: name -> how, as text."""
        spines = self.lab.plan.spines
        return {name: how for name in spines if (how := self.lookout.look(self.processes[name]))}


@dataclass(frozen=True)
class BridgedNetwork:
    """A lab of kernel bridges with background traffic: the same links for a peer over TCP."""

    lab: Lab
    folder: Path
    processes: Mapping[str, subprocess.Popen[bytes]]
    lookout: child.Lookout = field(default_factory=child.Lookout)

    def environment(self, _rank: int) -> dict[str, str]:
        """Return environment variables of a worker; run it with ``lab.at_worker(rank)``."""
        return self.lab.environment()

    def switch_pids(self) -> list[int]:
        """Return none: a bridge is no process."""
        return []

    def check(self) -> None:
        """Raise NamespaceError with its log's end if a process has ended."""
        _check(self.processes, self.folder, self.lookout, {})


def _check(
    processes: Mapping[str, subprocess.Popen[bytes]],
    folder: Path,
    lookout: child.Lookout,
    spared: Mapping[str, str],
) -> None:
    for name, process in processes.items():
        if (how := lookout.look(process)) and name not in spared:
            raise NamespaceError(f"{name} died ({how}):\n{child.log_tail(folder / f'{name}.log')}")


@contextlib.contextmanager
def network_cluster(
    workers: int,
    *,
    switch: Target = "soft",
    rate: str | None = None,
    network: NetworkSpec | None = None,
    bridged: bool = False,
    ip: bool = False,
) -> Iterator[NetworkCluster]:
    """Yield a lab for that many workers, its switches (soft ones, or one BMv2), controller and background
    traffic.

    Arguments as for ``lab``. ip: the hosts claim their ports of the one soft switch over IP. Raises
    NamespaceError; its message ends with the last words of switches and controller.
    """
    batches = switch == "soft" and batches_wanted()
    with (
        lab(
            workers, switch=switch, rate=rate, network=network, bridged=bridged, batches=batches, ip=ip
        ) as cabled,
        scratch_folder("weir-net") as folder,
    ):
        made = _over_ip(cabled, folder) if ip else cabled
        processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            switches = start_switches(made, switch, folder)
            processes.update(zip((one.name for one in made.topology.switches), switches, strict=True))
            address = f"unix:{folder}/controller.sock"
            processes["controller"] = _start_controller(made, folder, address)
            processes.update(_start_background(made, folder))
            yield NetworkCluster(made, address, folder, processes)
        finally:
            child.end(list(reversed(processes.values())))


def _over_ip(cabled: Lab, folder: Path) -> Lab:
    secret = folder / _SECRET
    write_secret(secret)
    return replace(cabled, plan=over_ip(cabled.plan, str(secret), _FIRST_CLAIMED, HUB_ADDRESS))


@contextlib.contextmanager
def bridged_network(workers: int, network: NetworkSpec) -> Iterator[BridgedNetwork]:
    """Yield a lab whose switches are kernel bridges, with background traffic; errors as for ``lab``."""
    with bridged_lab(workers, network=network) as made, scratch_folder("weir-net") as folder:
        processes = _start_background(made, folder)
        try:
            yield BridgedNetwork(made, folder, processes)
        finally:
            child.end(list(processes.values()))


def start_switches(made: Lab, kind: Target, folder: Path) -> list[subprocess.Popen[bytes]]:
    """Start switches without a program at the lab's interfaces; their logs are ``folder``/NAME.log."""
    interfaces = dict(zip(made.hosts, made.interfaces, strict=True))
    if kind == "bmv2":
        return [_start_bmv2(made, {host.port: name for host, name in interfaces.items()}, folder)]

    def attached(host: Host) -> str:
        if host.claimed is None:
            return interfaces[host]
        return f"claim:{HUB_ADDRESS}:{host.claimed}:{folder / _SECRET}"

    ports = switch_ports(made.plan, attached, cable_ends)
    return [
        child.spawn(
            "softp4",
            [
                "run",
                "--grpc",
                switch.grpc,
                *(word for port in ports[switch.name] for word in ("--port", port)),
            ],
            log=folder / f"{switch.name}.log",
            prefix=made.at_switch(),
        )
        for switch in made.topology.switches
    ]


def _start_bmv2(made: Lab, ports: dict[int, str], folder: Path) -> subprocess.Popen[bytes]:
    if not shutil.which("simple_switch_grpc"):
        raise NamespaceError("simple_switch_grpc is not on PATH: install BMv2 from p4lang's packages")
    (switch,) = made.topology.switches
    command = [*made.at_switch(), "simple_switch_grpc", "--no-p4", "--device-id", "1"]
    command += [word for port, name in ports.items() for word in ("-i", f"{port}@{name}")]
    command += ["--", "--grpc-server-addr", switch.grpc, "--cpu-port", "510", "--priority-queues", "8"]
    with (folder / f"{switch.name}.log").open("ab") as out:
        return subprocess.Popen(child.tied(command), stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def _start_background(made: Lab, folder: Path) -> dict[str, subprocess.Popen[bytes]]:
    """Return one process on every background host, by its name; they burst together."""
    started = {}
    for host in made.plan.background:
        name, spec = f"background-{host.name}", incast(made.plan, only=host.name)
        if spec is not None:
            started[name] = child.spawn(
                "weir.background",
                [spec.model_dump_json()],
                log=folder / f"{name}.log",
                prefix=made.at_host(made.hosts.index(host)),
            )
    return started


def _start_controller(made: Lab, folder: Path, address: str) -> subprocess.Popen[bytes]:
    topology, ready = folder / "topology.json", folder / "controller.ready"
    topology.write_text(made.topology.model_dump_json(exclude_none=True))
    process = child.spawn(
        "weir.controller",
        [str(topology), "--listen", address, "--ready-file", str(ready)],
        log=folder / "controller.log",
        prefix=made.at_switch(),
    )
    deadline = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and (time.monotonic() < deadline or is_compiling()):
        if ready.exists() and _programmed(address):
            return process
        time.sleep(0.05)
    child.end([process])
    names = (*(switch.name for switch in made.topology.switches), "controller")
    logs = "\n".join(f"{name}: {child.log_tail(folder / f'{name}.log')}" for name in names)
    raise NamespaceError(f"the switches were not programmed within {_START_TIMEOUT_S:g} s:\n{logs}")


def _programmed(controller: str) -> bool:
    """Tell whether the switches hold what they must, so that hosts reach one another."""
    with AgentClient(controller) as client:
        return all(switch.state == "ready" for switch in client.status().switches)
