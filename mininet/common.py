# SPDX-License-Identifier: Apache-2.0
"""The part that all Mininet networks of this folder share: Weir's controller, and commands on every host.

Switches (p4switch.py) and controller meet over Unix sockets, because Mininet's nodes share the file system
but not the network.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

SYSTEM_PYTHON = "/usr/bin/python3"  # the one that Debian's and Ubuntu's `mininet` package is for

try:
    from mininet.cli import CLI
    from mininet.log import setLogLevel
    from mininet.net import Mininet
    from mininet.topo import Topo
except ImportError as error:
    if error.name is None or error.name.partition(".")[0] != "mininet":
        raise
    hint = "apt install mininet"
    if Path(sys.executable).parent != Path(SYSTEM_PYTHON).parent:
        hint += f", and start it with the system's Python: sudo {SYSTEM_PYTHON} {shlex.join(sys.argv)}"
    raise SystemExit(f"{sys.argv[0]}: {sys.executable} has no Mininet: {hint}") from None

from p4switch import P4Switch, end, offloads_off, spawn, tied, weir  # noqa: E402 it needs Mininet, too

START_TIMEOUT_S = 120  # the first start compiles the program to native code


class Single(Topo):
    """Hosts h1..hN, each on the switch port of its number."""

    def build(self, workers: int) -> None:
        switch = self.addSwitch("s1", inNamespace=True)
        for i in range(1, workers + 1):
            host = self.addHost(f"h{i}", ip=f"10.0.0.{i}/24", mac=f"02:00:00:00:00:{i:02x}")
            self.addLink(host, switch, port2=i)


def entry(switch: P4Switch, mac: str, ip: str) -> dict:
    """Describe a switch as a topology file does; its aggregation address is ``mac`` and ``ip``."""
    return {
        "name": switch.name,
        "device_id": switch.device_id,
        "grpc": switch.grpc,
        "target": switch.kind,
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
    parser.add_argument(
        "--pcap", metavar="DIR", help="capture every port of every switch there: weir audit DIR/*"
    )
    options = parser.parse_args()
    topo = make(parser, options)
    if os.geteuid() != 0:
        parser.error("Mininet needs root: use sudo")
    if options.switch == "bmv2" and not shutil.which("simple_switch_grpc"):
        parser.error("simple_switch_grpc is not on PATH: install p4lang-bmv2 from p4lang's packages")
    setLogLevel("warning")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it cleans up, as after Ctrl-C
    folder = Path(P4Switch.scratch())
    pcap = Path(options.pcap).resolve() if options.pcap else None
    if pcap:
        pcap.mkdir(parents=True, exist_ok=True)
        os.environ["WEIR_TRAINS"] = "off"  # else a capture has a train of packets as one
    switch = partial(P4Switch, kind=options.switch, port_options=port_options(options), pcap=pcap)
    net = Mininet(topo=topo, switch=switch, controller=None)
    net.start()
    controller = None
    try:
        topology = describe(net, options)
        controller = start_controller(net, folder, topology)
        prepare_hosts(net, topology)
        if options.run:
            return run_on_hosts(net, folder, topology, options.run)
        for rank, entry in enumerate(topology["hosts"]):
            own = environment(folder, topology, rank)
            net[entry["name"]].cmd("export", *(shlex.quote(f"{name}={value}") for name, value in own.items()))
        command_line(net)
        return 0
    finally:
        if controller:
            end(controller)
        net.stop()


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


def port_options(options: argparse.Namespace) -> str:
    """Return what follows every port of the soft switch."""
    rate = getattr(options, "rate", None)
    return f",rate={rate}" if rate else ""


def command_line(net: Mininet) -> None:
    """Let the user type commands: `nodes`, `pingall` and the like print what they find."""
    setLogLevel("output")
    CLI(net)


def prepare_hosts(net: Mininet, topology: dict) -> None:
    """Make the hosts' kernels send what the switch takes, and know its aggregation address."""
    leaf_of = {switch["name"]: switch["aggregation"] for switch in topology["switches"]}
    for entry in topology["hosts"]:
        host, own = net[entry["name"]], leaf_of[entry["switch"]]
        offloads_off(host, f"{host}-eth0")
        host.cmd("ip", "neigh", "replace", own["ip"], "lladdr", own["mac"], "dev", f"{host}-eth0")


def environment(folder: Path, topology: dict, rank: int) -> dict[str, str]:
    """Return what a rank's environment has besides this process's, as torchrun and docs/operations.md say."""
    name = topology["hosts"][rank]["name"]
    return {
        "PATH": f"{Path(weir()).parent}:{os.environ['PATH']}",
        "RANK": str(rank),
        "WORLD_SIZE": str(len(topology["hosts"])),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": topology["hosts"][0]["ip"],
        "MASTER_PORT": "29500",
        "WEIR_CONTROLLER": f"unix:{folder}/controller.sock",
        "WEIR_HOST": name,
        "WEIR_LINK": "udp",
        "GLOO_SOCKET_IFNAME": f"{name}-eth0",
    }


def run_on_hosts(net: Mininet, folder: Path, topology: dict, command: str) -> int:
    """Run the command on every host; show rank 0's output; the worst exit status."""
    processes = []
    for rank, entry in enumerate(topology["hosts"]):
        host, env = net[entry["name"]], environment(folder, topology, rank)
        if rank == 0:
            processes.append(
                host.popen(tied(shlex.split(command)), stdout=None, stderr=None, env={**os.environ, **env})
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
