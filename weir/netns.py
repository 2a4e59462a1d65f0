# SPDX-License-Identifier: Apache-2.0
"""Hosts on one machine with real links between them: network namespaces joined by veth pairs.

One namespace per host, one for the switch, and a veth pair from each host to the switch, shaped when asked.
The switch program, BMv2 or the soft switch, runs in the switch's namespace and forwards everything; hosts
reach nothing else. Needs root and iproute2.
"""

import contextlib
import ctypes
import fcntl
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

from controller.client import AgentClient
from controller.topology import Host, Target, Topology, single_switch
from weir import child

_GRPC: Final = "127.0.0.1:9559"  # within the switch's own namespace
_START_TIMEOUT_S: Final = 120.0  # the first start compiles the program to native code
_SIOCETHTOOL: Final = 0x8946
_ETHTOOL_SET: Final = {"rx csum": 0x15, "tx csum": 0x17, "sg": 0x19, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}


class NamespaceError(RuntimeError):
    """A namespace, link or queue could not be made; the message holds the command and its words."""


@dataclass(frozen=True)
class Lab:
    """A made set of namespaces: ``switch`` and one per host, with the switch's interface for each host."""

    switch: str
    topology: Topology
    namespaces: tuple[str, ...]
    interfaces: tuple[str, ...]

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts, in the order of ``namespaces``."""
        return self.topology.hosts

    def at_switch(self) -> list[str]:
        """What to put before a command that is to run where the switch is."""
        return ["ip", "netns", "exec", self.switch]

    def at_host(self, index: int) -> list[str]:
        """What to put before a command that is to run on host ``index`` (from 0)."""
        return ["ip", "netns", "exec", self.namespaces[index]]


@contextlib.contextmanager
def lab(hosts: int, *, switch: Target = "soft", rate: str | None = None) -> Iterator[Lab]:
    """Make ``hosts`` namespaces and one for the switch, and remove them at the end.

    ``rate``: what ``tc`` takes, for example "200mbit"; both directions of every link are shaped to it with
    a token bucket (burst 32 kB, queue of 50 ms). Raises NamespaceError.
    """
    if os.geteuid() != 0:
        raise NamespaceError("network namespaces need root")
    prefix = f"weir{os.getpid() % 100000}"
    plan = single_switch(hosts, grpc=_GRPC, target=switch)
    made = Lab(
        switch=f"{prefix}s",
        topology=plan,
        namespaces=tuple(f"{prefix}h{host.port}" for host in plan.hosts),
        interfaces=tuple(f"{prefix}p{host.port}" for host in plan.hosts),
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
    for where, name in ((made.switch, interface), (namespace, "eth0")):
        # IPv6 would send packets of its own accord; a test that expects exact packets has none.
        ipv6 = f"net.ipv6.conf.{name}.disable_ipv6=1"
        subprocess.run(
            ["ip", "netns", "exec", where, "sysctl", "-qw", ipv6], capture_output=True, check=False
        )
        _run("ip", "-n", where, "link", "set", name, "up")
        if rate:
            shape = ("rate", rate, "burst", "32kb", "latency", "50ms")
            _run("tc", "-n", where, "qdisc", "add", "dev", name, "root", "tbf", *shape)


@dataclass(frozen=True)
class NetworkCluster:
    """A lab with a running switch and controller: what a ``LocalCluster`` is, with real links."""

    lab: Lab
    controller: str
    folder: Path

    def environment(self, rank: int) -> dict[str, str]:
        """Environment variables of the worker on host ``rank``; run it with ``lab.at_host(rank)``."""
        host = self.lab.hosts[rank]
        return {
            "WEIR_CONTROLLER": self.controller,
            "WEIR_HOST": host.name,
            "WEIR_LINK": "udp",
            "MASTER_ADDR": self.lab.hosts[0].ip,
            "GLOO_SOCKET_IFNAME": "eth0",
        }


@contextlib.contextmanager
def network_cluster(
    hosts: int, *, switch: Target = "soft", rate: str | None = None
) -> Iterator[NetworkCluster]:
    """A lab of ``hosts``, its switch (the soft switch, or BMv2) and its controller, until the end.

    Raises NamespaceError; its message ends with what the switch and the controller said.
    """
    with (
        lab(hosts, switch=switch, rate=rate) as made,
        tempfile.TemporaryDirectory(prefix="weir-net-") as name,
    ):
        folder = Path(name)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            processes.append(start_switch(made, switch, folder))
            address = f"unix:{folder}/controller.sock"
            processes.append(_start_controller(made, folder, address))
            yield NetworkCluster(made, address, folder)
        finally:
            child.end(list(reversed(processes)))


def start_switch(made: Lab, kind: Target, folder: Path) -> subprocess.Popen[bytes]:
    """Start a switch without a program at the lab's interfaces; its log is ``folder``/switch.log."""
    ports = list(zip(made.hosts, made.interfaces, strict=True))
    log = folder / "switch.log"
    if kind == "soft":
        arguments = ["--grpc", _GRPC]
        arguments += [word for host, name in ports for word in ("--port", f"{host.port}={name}")]
        return child.spawn("softswitch", arguments, log=log, prefix=made.at_switch())
    if not shutil.which("simple_switch_grpc"):
        raise NamespaceError("simple_switch_grpc is not on PATH: install BMv2 from p4lang's packages")
    command = [*made.at_switch(), "simple_switch_grpc", "--no-p4", "--device-id", "1"]
    command += [word for host, name in ports for word in ("-i", f"{host.port}@{name}")]
    command += ["--", "--grpc-server-addr", _GRPC, "--cpu-port", "510"]
    with log.open("ab") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


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
    logs = "\n".join(child.log_tail(folder / f"{name}.log") for name in ("switch", "controller"))
    raise NamespaceError(f"the switch was not programmed within {_START_TIMEOUT_S:g} s:\n{logs}")


def _programmed(controller: str) -> bool:
    """Does the switch hold what it must, so that hosts reach one another?"""
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
