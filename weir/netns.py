# SPDX-License-Identifier: Apache-2.0
"""Hosts on one machine with real links between them: network namespaces joined by veth pairs.

One namespace per host, one for all switches, and a veth pair from each host to its switch, shaped when
asked. The switch program, BMv2 or the soft switch, runs in the switches' namespace and forwards everything;
hosts reach nothing else. Racks and spines, losses, and background traffic are as in weir.network: the same
network that a local cluster builds, but with kernels at its ends. Needs root and iproute2.
"""

import contextlib
import ctypes
import fcntl
import itertools
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from weir import child
from weir.agent_service.client import AgentClient
from weir.controller.topology import Host, Target, Topology
from weir.network import NetworkSpec, Plan, incast, make_plan, switch_ports

_GRPC_PORT: Final = 9559  # and up, within the switches' own namespace
_FIRST_TUNNEL: Final = 20001  # UDP ports of tunnels; in a namespace of its own all are free
_START_TIMEOUT_S: Final = 240.0  # the first start compiles the program to native code
_SIOCETHTOOL: Final = 0x8946
_ETHTOOL_SET: Final = {"rx csum": 0x15, "tx csum": 0x17, "sg": 0x19, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}


class NamespaceError(RuntimeError):
    """A namespace, link or queue could not be made; the message holds the command and its words."""


@dataclass(frozen=True)
class Lab:
    """A made set of namespaces: ``switch`` and one per host, with the switch's interface for each host."""

    switch: str
    plan: Plan
    namespaces: tuple[str, ...]
    interfaces: tuple[str, ...]

    @property
    def topology(self) -> Topology:
        """Return what is where."""
        return self.plan.topology

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Return the hosts, in the order of ``namespaces``: workers and background hosts, rack by rack."""
        return self.topology.hosts

    def at_switch(self) -> list[str]:
        """Return what to put before a command that is to run where the switch is."""
        return ["ip", "netns", "exec", self.switch]

    def at_host(self, index: int) -> list[str]:
        """Return what to put before a command that is to run on host ``index`` (from 0)."""
        return ["ip", "netns", "exec", self.namespaces[index]]

    def at_worker(self, rank: int) -> list[str]:
        """Return what to put before a command that is to run on the host of that rank."""
        return self.at_host(self.hosts.index(self.plan.workers[rank]))


@contextlib.contextmanager
def lab(
    workers: int, *, switch: Target = "soft", rate: str | None = None, network: NetworkSpec | None = None
) -> Iterator[Lab]:
    """Make a namespace for every host and one for the switches, and remove them at the end.

    ``rate``: what ``tc`` takes, for example "200mbit"; both directions of every host's link are shaped to it
    with a token bucket (burst 32 kB, queue of 50 ms). ``network``: shape, rates, losses and background hosts;
    with its ``rate_bps`` only what hosts send is shaped by a token bucket, the rest by the switches'
    queues. Raises NamespaceError; ValueError when the workers do not fit the network.
    """
    if os.geteuid() != 0:
        raise NamespaceError("network namespaces need root")
    network = network or NetworkSpec()
    if switch != "soft" and (network.rate_bps or not network.shape.single):
        raise NamespaceError("shaped ports and tunnels between switches are the soft switch's: take that")
    prefix = f"weir{os.getpid() % 100000}"
    addresses: dict[str, str] = {}

    def grpc(name: str) -> str:
        return addresses.setdefault(name, f"127.0.0.1:{_GRPC_PORT + len(addresses)}")

    plan = make_plan(network, workers, grpc=grpc, target=switch)
    numbers = range(1, len(plan.topology.hosts) + 1)
    made = Lab(
        switch=f"{prefix}s",
        plan=plan,
        namespaces=tuple(f"{prefix}h{number}" for number in numbers),
        interfaces=tuple(f"{prefix}p{number}" for number in numbers),
    )
    names = (made.switch, *made.namespaces)
    try:
        for name in names:
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        for host, namespace, interface in zip(made.hosts, made.namespaces, made.interfaces, strict=True):
            _link(made, host, namespace, interface, rate)
        yield made
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _link(made: Lab, host: Host, namespace: str, interface: str, rate: str | None) -> None:
    """One veth pair: ``interface`` at the switch, ``eth0`` at the host, with static neighbours."""
    far = f"{interface}h"
    _run("ip", "link", "add", interface, "type", "veth", "peer", "name", far)
    for end in (interface, far):
        offloads_off(end)
    _run("ip", "link", "set", interface, "netns", made.switch)
    _run("ip", "link", "set", far, "netns", namespace, "name", "eth0")
    _run("ip", "-n", namespace, "link", "set", "eth0", "address", host.mac)
    _run("ip", "-n", namespace, "addr", "add", f"{host.ip}/24", "dev", "eth0")
    shape = made.plan.spec.rate_bps
    for where, name in ((made.switch, interface), (namespace, "eth0")):
        # IPv6 would send packets of its own accord; a test that expects exact packets has none.
        ipv6 = f"net.ipv6.conf.{name}.disable_ipv6=1"
        subprocess.run(
            ["ip", "netns", "exec", where, "sysctl", "-qw", ipv6], capture_output=True, check=False
        )
        _run("ip", "-n", where, "link", "set", name, "up")
        if rate:
            _shape(where, name, rate)
        elif shape and name == "eth0":
            _shape(where, name, f"{shape}bit")
    if not made.plan.spec.shape.single or made.plan.spec.loss:
        _neighbours(made, host, namespace)


def _shape(namespace: str, interface: str, rate: str) -> None:
    bucket = ("rate", rate, "burst", "32kb", "latency", "50ms")
    _run("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf", *bucket)


def _neighbours(made: Lab, host: Host, namespace: str) -> None:
    """Static neighbours, as lost ARP packets cost seconds, and the leaf as the way to other racks."""
    mac, ip = made.plan.gateway(host)
    rack = [(other.ip, other.mac) for other in made.topology.hosts_of(host.switch) if other != host]
    for address, hardware in ((ip, mac), *rack):
        _run("ip", "-n", namespace, "neigh", "replace", address, "lladdr", hardware, "dev", "eth0")
    if not made.plan.spec.shape.single:
        _run("ip", "-n", namespace, "route", "add", "default", "via", ip)


@dataclass(frozen=True)
class NetworkCluster:
    """A lab with a running switch and controller: what a ``LocalCluster`` is, with real links."""

    lab: Lab
    controller: str
    folder: Path

    def environment(self, rank: int) -> dict[str, str]:
        """Environment variables of the worker of that rank; run it with ``lab.at_worker(rank)``."""
        host = self.lab.plan.workers[rank]
        return {
            "WEIR_CONTROLLER": self.controller,
            "WEIR_HOST": host.name,
            "WEIR_LINK": "udp",
            "MASTER_ADDR": self.lab.plan.workers[0].ip,
            "GLOO_SOCKET_IFNAME": "eth0",
        }


@contextlib.contextmanager
def network_cluster(
    workers: int,
    *,
    switch: Target = "soft",
    rate: str | None = None,
    network: NetworkSpec | None = None,
    xdp: bool = False,
) -> Iterator[NetworkCluster]:
    """Yield a lab for that many workers, its switches (soft ones, or one BMv2), controller and background
    traffic.

    ``xdp``: the soft switch's ports are AF_XDP sockets. Other arguments as for ``lab``. Raises
    NamespaceError; its message ends with what the switches and the controller said.
    """
    with (
        lab(workers, switch=switch, rate=rate, network=network) as made,
        tempfile.TemporaryDirectory(prefix="weir-net-") as name,
    ):
        folder = Path(name)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            processes += start_switches(made, switch, folder, xdp=xdp)
            address = f"unix:{folder}/controller.sock"
            processes.append(_start_controller(made, folder, address))
            processes += _start_background(made, folder)
            yield NetworkCluster(made, address, folder)
        finally:
            child.end(list(reversed(processes)))


def start_switches(
    made: Lab, kind: Target, folder: Path, *, xdp: bool = False
) -> list[subprocess.Popen[bytes]]:
    """Start switches without a program at the lab's interfaces; their logs are ``folder``/NAME.log."""
    interfaces = dict(zip(made.hosts, made.interfaces, strict=True))
    if kind == "bmv2":
        return [_start_bmv2(made, {host.port: name for host, name in interfaces.items()}, folder)]
    kind_of_port = "xdp:" if xdp else ""
    tunnels = itertools.count(_FIRST_TUNNEL)
    ports = switch_ports(made.plan, lambda host: kind_of_port + interfaces[host], tunnels)
    return [
        child.spawn(
            "softswitch",
            ["--grpc", switch.grpc, *(word for port in ports[switch.name] for word in ("--port", port))],
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
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def _start_background(made: Lab, folder: Path) -> list[subprocess.Popen[bytes]]:
    """Return one process on every background host; they burst together."""
    started = []
    for host in made.plan.background:
        spec = incast(made.plan, only=host.name)
        if spec is not None:
            started.append(
                child.spawn(
                    "weir.background",
                    [spec.model_dump_json()],
                    log=folder / f"background-{host.name}.log",
                    prefix=made.at_host(made.hosts.index(host)),
                )
            )
    return started


def _start_controller(made: Lab, folder: Path, address: str) -> subprocess.Popen[bytes]:
    topology, ready = folder / "topology.json", folder / "controller.ready"
    topology.write_text(made.topology.model_dump_json(exclude_none=True))
    process = child.spawn(
        "controller",
        ["--topology", str(topology), "--listen", address, "--ready-file", str(ready)],
        log=folder / "controller.log",
        prefix=made.at_switch(),
    )
    deadline = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if ready.exists() and _programmed(address):
            return process
        time.sleep(0.05)
    child.end([process])
    names = (*(switch.name for switch in made.topology.switches), "controller")
    logs = "\n".join(f"{name}: {child.log_tail(folder / f'{name}.log')}" for name in names)
    raise NamespaceError(f"the switches were not programmed within {_START_TIMEOUT_S:g} s:\n{logs}")


def _programmed(controller: str) -> bool:
    """Do the switches hold what they must, so that hosts reach one another?"""
    with AgentClient(controller) as client:
        return all(switch.state == "ready" for switch in client.status().switches)


def offloads_off(interface: str) -> None:
    """Switch checksum, segmentation and receive offloads of ``interface`` off (ethtool -K, by ioctl).

    A switch in user space sees packets as the kernel hands them over: with offloads on, their checksums are
    not filled in and several segments arrive as one.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _ETHTOOL_SET.values():
            value = bytearray(struct.pack("II", command, 0))
            address = (ctypes.c_char * len(value)).from_buffer(value)
            request = struct.pack("16sP", interface.encode(), ctypes.addressof(address))
            with contextlib.suppress(OSError):  # a kernel without this offload has it off already
                fcntl.ioctl(control, _SIOCETHTOOL, request)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NamespaceError(f"{' '.join(command)}: {done.stderr.strip()}")
