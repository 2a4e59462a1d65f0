# SPDX-License-Identifier: Apache-2.0
"""Machines that share nothing but links: of each its own network, files (but for the installation and the
compiler's cache), processes, shared memory and host name; systemctl.py stands in for systemd.
"""

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from softp4.native.build import cache_dir
from weir.netns import Namespace
from weir.netns.offloads import ALL, offloads_off

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240.0
JOB = "weir-job@demo"

NEEDS_MACHINES = [
    pytest.mark.root,
    pytest.mark.skipif(
        not all(map(shutil.which, ("ip", "unshare", "nsenter", "mount"))),
        reason="needs ip, unshare, nsenter and mount",
    ),
]

# What a machine starts as: folders of its own, the installation where the page has it, nothing in /etc/weir.
SETUP = """
set -e
mount --make-rprivate /
mount -t tmpfs none /mnt
number=0
for kept in {kept}; do mkdir /mnt/$number; mount --bind $kept /mnt/$number; number=$((number + 1)); done
cp -a /etc /mnt/etc && mount --bind /mnt/etc /etc
for own in /tmp /run /opt /dev/shm /var/lib /var/cache; do mount -t tmpfs none $own; done
number=0
for kept in {kept}; do mkdir -p $kept; mount --bind /mnt/$number $kept; number=$((number + 1)); done
mkdir -p /opt/weir/bin /run/bin /var/cache/weir-switch /var/cache/weir-job
for cache in /var/cache/*; do mount --bind {cache} $cache; done
ln -s {scripts}/weir {scripts}/torchrun /opt/weir/bin
printf '#!/bin/sh\\nexec {python} {root}/tests/deploy/systemctl.py "$@"\\n' > /run/bin/systemctl
chmod +x /run/bin/systemctl
# Names are in a file: a server that is not there is waited for.
rm -f /etc/resolv.conf; touch /etc/resolv.conf
printf '127.0.0.1 localhost\\n192.168.7.1 s1\\n192.168.7.11 h1\\n192.168.7.12 h2\\n' > /etc/hosts
hostname {name}
echo ready
exec sleep infinity
"""


class Machine:
    """One machine: a network namespace, and a process that holds its other namespaces."""

    def __init__(self, name: str, stack: contextlib.ExitStack, shared: Sequence[Path] = ()) -> None:
        self.network = stack.enter_context(Namespace())
        cache = cache_dir()
        cache.mkdir(parents=True, exist_ok=True)
        kept = dict.fromkeys(Path(path) for path in (ROOT, sys.prefix, sys.base_prefix, cache, *shared))
        hidden = [path for path in kept if path.parts[1] in ("tmp", "opt", "run", "var")]
        words = {
            "kept": " ".join(shlex.quote(str(path)) for path in hidden),
            "cache": shlex.quote(str(cache)),
            "scripts": shlex.quote(str(Path(sys.executable).parent)),
            "python": shlex.quote(sys.executable),
            "root": shlex.quote(str(ROOT)),
            "name": name,
        }
        unshared = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child")
        self._holder = subprocess.Popen(
            [*self.network.prefix, *unshared, "sh", "-c", SETUP.format(**words)],
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(self._end)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text()
        self._inside = ["nsenter", "--target", children.strip(), "--all"]

    def types(self, block: str) -> str:
        """Run what a person types in a root shell in the repository, and return what it says."""
        done = subprocess.run(
            [*self._inside, "sh", "-ec", f"cd {shlex.quote(str(ROOT))}\n{block}"],
            env={"PATH": "/run/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def journal(self, unit: str) -> str:
        """Return what a unit has said so far."""
        return self.types(f"cat /run/journal/{unit} || true")

    def _end(self) -> None:
        self._holder.kill()
        self._holder.wait()


def until(look: Callable[[], bool], words: Callable[[], str]) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + TIMEOUT_S
    while not look():
        assert time.monotonic() < deadline, words()
        time.sleep(0.02)


@contextlib.contextmanager
def on_one_switch(*shared: Path) -> Iterator[dict[str, Machine]]:
    """Yield s1, h1 and h2, of which each has an eth0 on one bridge, the office's Ethernet switch.

    shared: folders that all of them see.
    """
    with contextlib.ExitStack() as stack:
        found = {name: Machine(name, stack, shared) for name in ("s1", "h1", "h2")}
        office = stack.enter_context(Namespace())
        office.links.add_bridge("office")
        office.links.set("office", up=True)
        for (name, machine), address in zip(found.items(), (1, 11, 12), strict=True):
            office.links.add_veth(name, "eth0", there=machine.network.file)
            office.links.set(name, bridge="office", up=True)
            machine.network.links.set("eth0", up=True)
            machine.network.links.add_address("eth0", f"192.168.7.{address}/24")
        yield found


@contextlib.contextmanager
def cabled(*shared: Path) -> Iterator[dict[str, Machine]]:
    """Yield the machines of `on_one_switch`; eth1 and eth2 of s1 also go to eth1 of the others."""
    with on_one_switch(*shared) as found:
        for port, name in enumerate(("h1", "h2"), 1):
            host = found[name].network
            found["s1"].network.links.add_veth(f"eth{port}", "eth1", there=host.file)
            for where, interface in ((found["s1"].network, f"eth{port}"), (host, "eth1")):
                where.call(lambda interface=interface: offloads_off(interface, ALL))
        yield found


def for_second_host(typed: str) -> str:
    """Return what is typed on h2, from what is on h1."""
    for one, other in (
        ("02:00:00:00:00:01", "02:00:00:00:00:02"),
        ("10.0.0.1/24", "10.0.0.2/24"),
        ("WEIR_HOST=h1", "WEIR_HOST=h2"),
        ("NODE=0", "NODE=1"),
    ):
        assert one in typed
        typed = typed.replace(one, other)
    return typed


def parameters(hosts: tuple[Machine, Machine]) -> str:
    """Wait for both hosts' ranks, and return the fingerprint of the parameters that both ended with."""
    status = f"/run/journal/{JOB}.status"
    until(
        lambda: all("ended" in host.types(f"test -e {status} && echo ended || true") for host in hosts),
        lambda: "\n".join(host.journal(JOB) for host in hosts),
    )
    said = {number: host.journal(JOB) for number, host in enumerate(hosts)}
    found = [re.findall(r"parameters (\w{8})", text) for text in said.values()]
    assert len(found[0]) == 1, said
    assert found[0] == found[1], said
    return str(found[0][0])


def sent(host: Machine) -> int:
    """Return the packets that a host has sent over its cable."""
    return host.network.links.find("eth1").sent


def parameters_after_a_kill(switch: Machine, unit: str, hosts: tuple[Machine, Machine], packets: int) -> str:
    """Start the job on both hosts again, kill a unit of the switch in the middle, and return ``parameters``.

    packets: that a host has sent in the job before; the kill comes 30 % later.
    """
    number = f"cat /run/journal/{unit}.pid"
    process = switch.types(number)
    for host in hosts:
        host.types(f"rm /run/journal/{JOB}* && systemctl start {JOB}")
    until(lambda: sent(hosts[0]) > 1.3 * packets, lambda: hosts[0].journal(JOB))
    switch.types(f"kill -9 {process}")
    assert not any("parameters" in host.journal(JOB) for host in hosts)  # it was killed in the middle
    found = parameters(hosts)
    assert switch.types(number) != process
    return found
