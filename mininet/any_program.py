#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Any P4 program in Mininet: one switch, hosts h1..hN on its ports 1..N.

    sudo python3 mininet/any_program.py --program examples/router/router.json \
        --control ".venv/bin/python examples/router/controller.py" --run "ping -c 3 10.0.0.2"

--control runs first, where the switch's P4Runtime is, and is to fill the tables; it finds P4RUNTIME (the
address), DEVICE_ID, PROGRAM and P4INFO in its environment. --run runs on h1; without it: Mininet's command
line.
Host i has address 10.0.0.i and 02:00:00:00:00:<i>, and knows all others' (static ARP).
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from common import command_line
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.topo import Topo
from p4switch import P4Switch, offloads_off, tied


class Single(Topo):
    """Hosts h1..hN, each on the switch port of its number."""

    def build(self, hosts: int) -> None:
        switch = self.addSwitch("s1", inNamespace=True)
        for i in range(1, hosts + 1):
            host = self.addHost(f"h{i}", ip=f"10.0.0.{i}/24", mac=f"02:00:00:00:00:{i:02x}")
            self.addLink(host, switch, port2=i)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", type=Path, required=True, help="BMv2 JSON, as p4c-bm2-ss makes it")
    parser.add_argument("--p4info", type=Path, help="its P4Info (default: NAME.p4info.txtpb beside it)")
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (default 2)")
    parser.add_argument(
        "--switch", choices=["soft", "bmv2"], default="soft", help="which switch (default soft)"
    )
    parser.add_argument("--grpc-port", type=int, default=50051, help="of P4Runtime (default 50051)")
    parser.add_argument("--cpu-port", type=int, default=510, help="port of the controller (default 510)")
    parser.add_argument("--control", metavar="COMMAND", help="script that fills the tables")
    parser.add_argument("--run", metavar="COMMAND", help="command to run on h1")
    options = parser.parse_args()
    if not options.program.exists():
        parser.error(f"--program: there is no file {options.program}")
    if not 1 <= options.hosts <= 250:
        parser.error("--hosts: from 1 to 250")
    if os.geteuid() != 0:
        parser.error("Mininet needs root: use sudo")
    if options.switch == "bmv2" and not shutil.which("simple_switch_grpc"):
        parser.error("simple_switch_grpc is not on PATH: install p4lang-bmv2 from p4lang's packages")
    setLogLevel("warning")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it cleans up, as after Ctrl-C
    switch = partial(
        P4Switch,
        program=options.program.absolute(),
        p4info=options.p4info and options.p4info.absolute(),
        kind=options.switch,
        grpc_port=options.grpc_port,
        cpu_port=options.cpu_port,
    )
    net = Mininet(
        topo=Single(hosts=options.hosts),
        switch=switch,
        controller=None,
        autoStaticArp=True,
        waitConnected=True,
    )
    try:
        net.start()
        return work(net, options)
    finally:
        net.stop()


def work(net: Mininet, options: argparse.Namespace) -> int:
    """Return what the options say, in a running network; the exit status."""
    for host in net.hosts:
        offloads_off(host, f"{host}-eth0")
    p4info = options.p4info or options.program.with_suffix(".p4info.txtpb")
    found = {"P4RUNTIME": net["s1"].grpc, "DEVICE_ID": str(net["s1"].device_id)}
    found |= {"PROGRAM": str(options.program), "P4INFO": str(p4info)}
    if options.control:
        control = net["s1"].popen(
            tied(shlex.split(options.control)), stdout=None, stderr=None, env={**os.environ, **found}
        )
        if status := control.wait():
            return status
    if options.run:
        return net["h1"].popen(tied(shlex.split(options.run)), stdout=None, stderr=None).wait()
    print("; ".join(f"{name}={value}" for name, value in found.items()))
    command_line(net)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.SubprocessError as error:
        sys.exit(str(error))
