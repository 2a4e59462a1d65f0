# SPDX-License-Identifier: Apache-2.0
"""What the Mininet networks of this folder share: P4 switches, the controller, commands on every host.

These files run under the system's Python, where Debian's and Ubuntu's `mininet` package lives, and so import
nothing of Weir: switches and controller are processes, as they are in production. They meet over Unix
sockets, because Mininet's nodes share the file system but not the network.
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
from collections.abc import Callable
from pathlib import Path

from mininet.cli import CLI
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import Switch
from mininet.topo import Topo

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 120  # the first start compiles the program to native code


class P4Switch(Switch):
    """A P4Runtime switch in its own namespace: the soft switch, or BMv2's simple_switch_grpc."""

    kind = "soft"
    folder = Path()
    port_options = ""  # what follows every port on the soft switch's command line
    started = 0

    def start(self, controllers: list) -> None:
        self.cmd("ip", "link", "set", "lo", "up")
        ports = {port: str(intf) for port, intf in self.intfs.items() if str(intf) != "lo"}
        for interface in ports.values():
            offloads_off(self, interface)
        P4Switch.started += 1
        self.device_id = P4Switch.started
        if self.kind == "soft":
            command = [weir(), "switch", "--grpc", self.grpc, "--device-id", str(self.device_id)]
            command += [
                word
                for port, name in ports.items()
                for word in ("--port", f"{port}={name}{self.port_options}")
            ]
        else:
            command = ["simple_switch_grpc", "--no-p4", "--device-id", str(self.device_id)]
            command += [word for port, name in ports.items() for word in ("-i", f"{port}@{name}")]
            command += ["--", "--grpc-server-addr", self.grpc, "--cpu-port", "510", "--priority-queues", "8"]
        self.process = spawn(self, command, self.folder / f"{self.name}.log")

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803 Mininet's name
        end(self.process)
        super().stop(deleteIntfs)

    @property
    def grpc(self) -> str:
        """Where it serves P4Runtime."""
        return f"unix:{self.folder}/{self.name}.sock"

    def entry(self, mac: str, ip: str) -> dict:
        """The switch as a topology file has it; its aggregation address is ``mac`` and ``ip``."""
        return {
            "name": self.name,
            "device_id": self.device_id,
            "grpc": self.grpc,
            "target": self.kind,
            "aggregation": {"mac": mac, "ip": ip},
        }


def run(parser: argparse.ArgumentParser, make: Callable[..., Topo], describe: Callable[..., dict]) -> int:
    """Parse the command line, build the network, run the command on its hosts or Mininet's command line.

    ``make`` builds the Mininet topology from the options, ``describe`` the controller's from network and
    options.
    """
    parser.add_argument(
        "--switch", choices=["soft", "bmv2"], default="soft", help="which switch (default soft)"
    )
    parser.add_argument(
        "--run", metavar="COMMAND", help="what to run on every host; without it, Mininet's CLI"
    )
    options = parser.parse_args()
    topo = make(parser, options)
    if os.geteuid() != 0:
        parser.error("Mininet needs root: use sudo")
    if options.switch == "bmv2" and not shutil.which("simple_switch_grpc"):
        parser.error("simple_switch_grpc is not on PATH: install p4lang-bmv2 from p4lang's packages")
    setLogLevel("warning")
    folder = Path(tempfile.mkdtemp(prefix="weir-mininet-"))
    P4Switch.kind, P4Switch.folder = options.switch, folder
    net = Mininet(topo=topo, switch=P4Switch, controller=None)
    net.start()
    controller = None
    try:
        topology = describe(net, options)
        controller = start_controller(net, folder, topology)
        if options.run:
            return run_on_hosts(net, folder, topology, options.run)
        CLI(net)
        return 0
    finally:
        if controller:
            end(controller)
        net.stop()
        shutil.rmtree(folder, ignore_errors=True)


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


def start_controller(net: Mininet, folder: Path, topology: dict) -> subprocess.Popen:
    """Write the topology, start the controller, wait until it has programmed all switches."""
    (folder / "topology.json").write_text(json.dumps(topology, indent=1))
    address = f"unix:{folder}/controller.sock"
    command = [weir(), "controller", "--topology", str(folder / "topology.json"), "--listen", address]
    process = spawn(net[topology["switches"][0]["name"]], command, folder / "controller.log")
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        asked = subprocess.run(
            [weir(), "status", "--controller", address, "--json"], capture_output=True, check=False
        )
        if asked.returncode == 0:
            switches = json.loads(asked.stdout)["switches"]
            if all(switch["state"] == "ready" and not switch["given_up"] for switch in switches):
                return process
        time.sleep(0.2)
    end(process)
    logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(folder.glob("*.log")))
    raise SystemExit(f"the controller did not start:\n{logs}")


def run_on_hosts(net: Mininet, folder: Path, topology: dict, command: str) -> int:
    """Run the command on every host; show rank 0's output; the worst exit status."""
    processes = []
    path = f"{Path(weir()).parent}:{os.environ['PATH']}"
    leaf_of = {switch["name"]: switch["aggregation"] for switch in topology["switches"]}
    for rank, entry in enumerate(topology["hosts"]):
        host, own = net[entry["name"]], leaf_of[entry["switch"]]
        offloads_off(host, f"{host}-eth0")
        host.cmd("ip", "neigh", "replace", own["ip"], "lladdr", own["mac"], "dev", f"{host}-eth0")
        env = {
            "PATH": path,
            "RANK": str(rank),
            "WORLD_SIZE": str(len(topology["hosts"])),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": topology["hosts"][0]["ip"],
            "MASTER_PORT": "29500",
            "WEIR_CONTROLLER": f"unix:{folder}/controller.sock",
            "WEIR_HOST": entry["name"],
            "WEIR_LINK": "udp",
            "GLOO_SOCKET_IFNAME": f"{host}-eth0",
        }
        if rank == 0:
            processes.append(
                host.popen(shlex.split(command), stdout=None, stderr=None, env={**os.environ, **env})
            )
        else:
            processes.append(spawn(host, shlex.split(command), folder / f"{host}.log", **env))
    try:
        statuses = [process.wait() for process in processes]
    except KeyboardInterrupt:
        for process in processes:
            end(process)
        return 130
    for entry, status in list(zip(topology["hosts"], statuses, strict=True))[1:]:
        if status:
            sys.stderr.write(f"{entry['name']} ended with {status}:\n")
            sys.stderr.write((folder / f"{entry['name']}.log").read_text(errors="replace")[-3000:])
    return max(abs(status) for status in statuses)
