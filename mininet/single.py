#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One switch, N hosts, in Mininet: run a command on every host, its gradients summed by the switch.

    sudo python3 mininet/single.py --workers 4 --switch soft --run "weir train --model cnn --no-reference"

The command runs on every host as torchrun would start it (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and
finds the controller through WEIR_CONTROLLER, a Unix socket, because Mininet's hosts share the file system
but not the network. Without --run: Mininet's command line.

This file runs under the system's Python, where Debian's and Ubuntu's `mininet` package lives, and so imports
nothing of Weir: switch and controller are processes, as they are in production.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mininet.cli import CLI
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import Switch
from mininet.topo import Topo

ROOT = Path(__file__).resolve().parent.parent
AGGREGATION = {"mac": "02:00:00:00:00:fe", "ip": "10.0.0.254"}
GRPC = "127.0.0.1:9559"
START_TIMEOUT_S = 120  # the first start compiles the program to native code


class Single(Topo):
    """Hosts h1..hN, each on the switch port of its number."""

    def build(self, workers: int) -> None:
        switch = self.addSwitch("s1", inNamespace=True)
        for i in range(1, workers + 1):
            host = self.addHost(f"h{i}", ip=f"10.0.0.{i}/24", mac=f"02:00:00:00:00:{i:02x}")
            self.addLink(host, switch, port2=i)


class P4Switch(Switch):
    """A P4Runtime switch in its own namespace: the soft switch, or BMv2's simple_switch_grpc."""

    kind = "soft"
    folder = Path()

    def start(self, controllers: list) -> None:
        self.cmd("ip", "link", "set", "lo", "up")  # its P4Runtime is on loopback, in its own namespace
        ports = {port: str(intf) for port, intf in self.intfs.items() if str(intf) != "lo"}
        for interface in ports.values():
            offloads_off(self, interface)
        if self.kind == "soft":
            command = [weir(), "switch", "--grpc", GRPC]
            command += [word for port, name in ports.items() for word in ("--port", f"{port}={name}")]
        else:
            command = ["simple_switch_grpc", "--no-p4", "--device-id", "1"]
            command += [word for port, name in ports.items() for word in ("-i", f"{port}@{name}")]
            command += ["--", "--grpc-server-addr", GRPC, "--cpu-port", "510", "--priority-queues", "8"]
        self.process = spawn(self, command, self.folder / "switch.log")

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803 Mininet's name
        end(self.process)
        super().stop(deleteIntfs)


def weir() -> str:
    """The `weir` command: this checkout's, or the one on PATH."""
    own = ROOT / ".venv" / "bin" / "weir"
    found = str(own) if own.exists() else shutil.which("weir")
    if not found:
        sys.exit("no `weir` command: run `make .venv/ready` in the checkout, or pip install weir")
    return found


def offloads_off(node, interface: str) -> None:
    """A user-space switch needs checksums filled in and segments of wire size (ethtool is Mininet's own)."""
    words = ("rx", "tx", "sg", "tso", "gso", "gro")
    node.cmd("ethtool", "-K", interface, *(part for word in words for part in (word, "off")))


def spawn(node, command: list[str], log: Path, **extra: str) -> subprocess.Popen:
    with log.open("ab") as out:
        return node.popen(command, stdout=out, stderr=out, env={**os.environ, **extra})


def end(process: subprocess.Popen) -> None:
    """Ask it to end; insist after 10 s."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def start_controller(net: Mininet, folder: Path, workers: int) -> subprocess.Popen:
    """Write the topology, start the controller beside the switch, wait until it has programmed the switch."""
    hosts = [
        {"name": f"h{i}", "switch": "s1", "port": i, "mac": f"02:00:00:00:00:{i:02x}", "ip": f"10.0.0.{i}"}
        for i in range(1, workers + 1)
    ]
    switch = {
        "name": "s1", "device_id": 1, "grpc": GRPC, "target": P4Switch.kind, "aggregation": AGGREGATION,
    }  # fmt: skip
    (folder / "topology.json").write_text(json.dumps({"switches": [switch], "hosts": hosts}, indent=1))
    address = f"unix:{folder}/controller.sock"
    command = [weir(), "controller", "--topology", str(folder / "topology.json"), "--listen", address]
    process = spawn(net["s1"], command, folder / "controller.log")
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        asked = subprocess.run(
            [weir(), "status", "--controller", address, "--json"], capture_output=True, check=False
        )
        if asked.returncode == 0 and json.loads(asked.stdout)["switches"][0]["state"] == "ready":
            return process
        time.sleep(0.2)
    end(process)
    logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(folder.glob("*.log")))
    raise SystemExit(f"the controller did not start:\n{logs}")


def run_on_hosts(net: Mininet, folder: Path, workers: int, command: str) -> int:
    """Run the command on every host; show rank 0's output; the worst exit status."""
    processes = []
    path = f"{Path(weir()).parent}:{os.environ['PATH']}"
    for rank in range(workers):
        host = net[f"h{rank + 1}"]
        offloads_off(host, f"h{rank + 1}-eth0")
        host.cmd(
            "ip", "neigh", "replace", AGGREGATION["ip"], "lladdr", AGGREGATION["mac"], "dev", f"{host}-eth0"
        )
        env = {
            "PATH": path,
            "RANK": str(rank),
            "WORLD_SIZE": str(workers),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "29500",
            "WEIR_CONTROLLER": f"unix:{folder}/controller.sock",
            "WEIR_HOST": f"h{rank + 1}",
            "WEIR_LINK": "udp",
            "GLOO_SOCKET_IFNAME": f"{host}-eth0",
        }
        if rank == 0:
            processes.append(
                host.popen(shlex.split(command), stdout=None, stderr=None, env={**os.environ, **env})
            )
        else:
            processes.append(spawn(host, shlex.split(command), folder / f"h{rank + 1}.log", **env))
    try:
        statuses = [process.wait() for process in processes]
    except KeyboardInterrupt:
        for process in processes:
            end(process)
        return 130
    for rank, status in enumerate(statuses):
        if status and rank:
            sys.stderr.write(f"h{rank + 1} ended with {status}:\n")
            sys.stderr.write((folder / f"h{rank + 1}.log").read_text(errors="replace")[-3000:])
    return max(abs(status) for status in statuses)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4, help="number of hosts, 1 to 32 (default 4)")
    parser.add_argument(
        "--switch", choices=["soft", "bmv2"], default="soft", help="which switch (default soft)"
    )
    parser.add_argument(
        "--run", metavar="COMMAND", help="what to run on every host; without it, Mininet's CLI"
    )
    options = parser.parse_args()
    if not 1 <= options.workers <= 32:
        parser.error("--workers: from 1 to 32")
    if os.geteuid() != 0:
        parser.error("Mininet needs root: use sudo")
    if options.switch == "bmv2" and not shutil.which("simple_switch_grpc"):
        parser.error("simple_switch_grpc is not on PATH: install p4lang-bmv2 from p4lang's packages")
    setLogLevel("warning")
    folder = Path(tempfile.mkdtemp(prefix="weir-mininet-"))
    P4Switch.kind, P4Switch.folder = options.switch, folder
    net = Mininet(topo=Single(workers=options.workers), switch=P4Switch, controller=None)
    net.start()
    controller = None
    try:
        controller = start_controller(net, folder, options.workers)
        if options.run:
            return run_on_hosts(net, folder, options.workers, options.run)
        CLI(net)
        return 0
    finally:
        if controller:
            end(controller)
        net.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
