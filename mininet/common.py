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
from functools import partial
from pathlib import Path

SYSTEM_PYTHON = "/usr/bin/python3"  # the one that Debian's and Ubuntu's `mininet` package is for

try:
    from mininet.cli import CLI
    from mininet.link import Link, TCLink
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

from p4switch import P4Switch, end, offloads_off, python, spawn, tied, weir  # noqa: E402 it needs Mininet, too

START_TIMEOUT_S = 120  # the first start compiles the program to native code
FULL_FRAME = 1102  # bytes of a contribution with all lanes, by which a rate becomes packets for BMv2
DEVICE_QUEUE = 1000  # packets; a host's sender waits for room there, where a shorter queue would drop
HERE = Path(__file__).resolve().parent


class Planned(Topo):
    """The switches, hosts and links of a plan (plan.py); all links shaped by tc where it has a rate."""

    def build(self, plan: dict) -> None:
        topology, shaped = plan["topology"], shaping(plan)
        gateways = {switch["name"]: switch["aggregation"]["ip"] for switch in topology["switches"]}
        for switch in topology["switches"]:
            self.addSwitch(switch["name"], inNamespace=True, device_id=switch["device_id"])
        for host in topology["hosts"]:
            beyond = {"defaultRoute": f"via {gateways[host['switch']]}"} if topology["links"] else {}
            self.addHost(host["name"], ip=f"{host['ip']}/24", mac=host["mac"], **beyond)
            self.addLink(host["name"], host["switch"], port2=host["port"], **shaped)
        for link in topology["links"]:
            (one, port1), (other, port2) = (end.split(":") for end in link["ends"])
            self.addLink(one, other, port1=int(port1), port2=int(port2), **shaped)


def shaping(plan: dict) -> dict:
    """Return the options of a TCLink: a token bucket at each end, whose queue is as long as a device's."""
    if not plan["rate_bps"]:
        return {}
    queue_ms = 1000 * DEVICE_QUEUE * 8 * FULL_FRAME / plan["rate_bps"]
    return {"bw": plan["rate_bps"] / 1e6, "use_tbf": True, "latency_ms": queue_ms}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what all networks of hosts have in common to a command line."""
    parser.add_argument(
        "--switch", choices=["soft", "bmv2"], default="soft", help="which switch (default soft)"
    )
    parser.add_argument(
        "--servers",
        type=int,
        default=0,
        metavar="N",
        help="the last N hosts are parameter servers: `weir server` runs there (default 0)",
    )
    parser.add_argument(
        "--rate",
        help="rate of every link, in both directions, and of every switch port's queues, e.g. 100mbit; at "
        "most 1gbit (default: no limit)",
    )
    parser.add_argument(
        "--loss",
        type=float,
        default=0.0,
        metavar="P",
        help="share of packets that every link loses, each way, by the switches' drop simulator (default 0)",
    )
    parser.add_argument(
        "--background-load",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="two more hosts in each rack burst together towards one host of each, and take that share of "
        "its link; needs --rate",
    )
    parser.add_argument(
        "--run", metavar="COMMAND", help="command to run on every host (default: Mininet's CLI)"
    )
    parser.add_argument(
        "--pcap", metavar="DIR", help="capture every port of every switch there: weir pcap audit DIR/*"
    )


def run(parser: argparse.ArgumentParser, options: argparse.Namespace, racks: int, spines: int) -> int:
    """Build racks of ``options.hosts`` hosts, run the command on them or Mininet's command line.

    Returns the worst exit status of a host.
    """
    if not 0 <= options.servers < options.hosts * racks:
        parser.error("--servers: fewer than there are hosts")
    if options.switch == "bmv2" and not shutil.which("simple_switch_grpc"):
        parser.error("simple_switch_grpc is not on PATH: install p4lang-bmv2 from p4lang's packages")
    folder = Path(P4Switch.scratch())
    plan = make_plan(parser, {**vars(options), "racks": racks, "spines": spines, "folder": str(folder)})
    if os.geteuid() != 0:
        parser.error("Mininet needs root: use sudo")
    setLogLevel("warning")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it cleans up, as after Ctrl-C
    pcap = Path(options.pcap).resolve() if options.pcap else None
    if pcap:
        pcap.mkdir(parents=True, exist_ok=True)
        os.environ["SOFTP4_BATCHES"] = "off"  # else a capture has a GSO batch as one packet
    switch = partial(P4Switch, kind=options.switch, port_options=plan["port_options"], pcap=pcap)
    link = TCLink if plan["rate_bps"] else Link
    net = Mininet(topo=Planned(plan=plan), switch=switch, link=link, controller=None)
    net.start()
    started = []
    try:
        net.waitConnected(START_TIMEOUT_S)
        started.append(start_controller(net, folder, plan["topology"]))
        if options.switch == "bmv2" and plan["rate_bps"]:
            limit_queues(net, plan)
        prepare_hosts(net, plan["topology"])
        for name, traffic in plan["background"].items():
            started.append(spawn(net[name], [python(), "-m", "weir.background", traffic], folder / name))
        if options.run:
            return run_on_hosts(net, folder, plan, options)
        for rank, host in enumerate(plan["workers"]):
            own = environment(folder, plan, options, rank)
            net[host["name"]].cmd("export", *(shlex.quote(f"{name}={value}") for name, value in own.items()))
        command_line(net)
        return 0
    finally:
        for process in reversed(started):
            end(process)
        net.stop()


def make_plan(parser: argparse.ArgumentParser, wish: dict) -> dict:
    """Return everything of the network by name."""
    command = [python(), str(HERE / "plan.py"), json.dumps(wish)]
    planned = subprocess.run(command, capture_output=True, text=True, check=False)
    if planned.returncode:
        parser.error(planned.stderr.strip())
    return json.loads(planned.stdout)


def limit_queues(net: Mininet, plan: dict) -> None:
    """Make the queues of BMv2 as slow as the links, so that packets wait where they are marked and trimmed.

    It counts packets, so these are full ones; links of tc see to it that smaller ones are no faster.
    """
    rate = max(1, plan["rate_bps"] // (8 * FULL_FRAME))
    for switch in net.switches:
        ports = [str(port) for port, interface in switch.intfs.items() if str(interface) != "lo"]
        command = [python(), str(HERE / "bmv2_queues.py"), str(rate), str(plan["depth"]), *ports]
        done = switch.popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said, _ = done.communicate()
        if done.returncode:
            raise SystemExit(f"{switch.name}: its queues could not be limited: {said}")


def start_controller(net: Mininet, folder: Path, topology: dict) -> subprocess.Popen:
    """Write the topology, start the controller, wait until it has programmed all switches."""
    (folder / "topology.json").write_text(json.dumps(topology, indent=1))
    address = f"unix:{folder}/controller.sock"
    command = [weir(), "controller", "run", str(folder / "topology.json"), "--listen", address]
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
    ended = process.poll()
    how = f"is not ready after {START_TIMEOUT_S} s" if ended is None else f"ended with {ended}"
    end(process)
    logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(folder.glob("*.log")))
    raise SystemExit(f"the controller {how}:\n{logs}")


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


def environment(folder: Path, plan: dict, options: argparse.Namespace, rank: int) -> dict[str, str]:
    """Return what a rank's environment has besides this process's, as torchrun and operations.md say."""
    hosts = plan["workers"]
    name, workers = hosts[rank]["name"], len(hosts) - options.servers
    rendezvous = {"MASTER_ADDR": hosts[0]["ip"], "MASTER_PORT": "29500"}
    ranks = {"RANK": str(rank), "WORLD_SIZE": str(workers), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return {
        "PATH": f"{Path(weir()).parent}:{os.environ['PATH']}",
        **rendezvous,
        **(ranks if rank < workers else {}),
        "WEIR_CONTROLLER": f"unix:{folder}/controller.sock",
        "WEIR_HOST": name,
        "WEIR_LINK": "udp",
        "GLOO_SOCKET_IFNAME": f"{name}-eth0",
    }


def run_on_hosts(net: Mininet, folder: Path, plan: dict, options: argparse.Namespace) -> int:
    """Run the command on every host, servers on the last ones; show rank 0's output.

    Returns the worst exit status.
    """
    workers = len(plan["workers"]) - options.servers
    processes = []
    for rank, entry in enumerate(plan["workers"]):
        host, env = net[entry["name"]], environment(folder, plan, options, rank)
        command = shlex.split(options.run)
        if rank >= workers:
            command = [weir(), "server", "--index", str(rank - workers)]
        if rank == 0:
            processes.append(host.popen(tied(command), stdout=None, stderr=None, env={**os.environ, **env}))
        else:
            processes.append(spawn(host, command, folder / f"{host}.log", **env))
    try:
        statuses = [process.wait() for process in processes]
    except KeyboardInterrupt:
        for process in processes:
            end(process)
        return 130
    for entry, status in list(zip(plan["workers"], statuses, strict=True))[1:]:
        if status:
            sys.stderr.write(f"{entry['name']} ended with {status}:\n")
            sys.stderr.write((folder / f"{entry['name']}.log").read_text(errors="replace")[-3000:])
    return max(abs(status) for status in statuses)
