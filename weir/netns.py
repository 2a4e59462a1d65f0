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
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from controller.topology import Host, single_switch

_SIOCETHTOOL: Final = 0x8946
_ETHTOOL_SET: Final = {"rx csum": 0x15, "tx csum": 0x17, "sg": 0x19, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}


class NamespaceError(RuntimeError):
    """A namespace, link or queue could not be made; the message holds the command and its words."""


@dataclass(frozen=True)
class Lab:
    """A made set of namespaces: ``switch`` and one per host, with the switch's interface for each host."""

    switch: str
    hosts: tuple[Host, ...]
    namespaces: tuple[str, ...]
    interfaces: tuple[str, ...]

    def in_switch(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs ``argv`` where the switch is."""
        return ["ip", "netns", "exec", self.switch, *argv]

    def in_host(self, index: int, argv: Sequence[str]) -> list[str]:
        """The command line that runs ``argv`` on host ``index`` (from 0)."""
        return ["ip", "netns", "exec", self.namespaces[index], *argv]


@contextlib.contextmanager
def lab(hosts: int, *, rate: str | None = None) -> Iterator[Lab]:
    """Make ``hosts`` namespaces and one for the switch, and remove them at the end.

    ``rate``: what ``tc`` takes, for example "200mbit"; both directions of every link are shaped to it with
    a token bucket (burst 32 kB, queue of 50 ms). Raises NamespaceError.
    """
    if os.geteuid() != 0:
        raise NamespaceError("network namespaces need root")
    prefix = f"weir{os.getpid() % 100000}"
    plan = single_switch(hosts, grpc="127.0.0.1:9559").hosts
    made = Lab(
        switch=f"{prefix}s",
        hosts=tuple(plan),
        namespaces=tuple(f"{prefix}h{host.port}" for host in plan),
        interfaces=tuple(f"{prefix}p{host.port}" for host in plan),
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
