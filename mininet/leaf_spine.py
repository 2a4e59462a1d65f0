#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Racks and spines in Mininet: run a command on every host, its gradients summed by leaves, then by spines.

    sudo python3 mininet/leaf_spine.py --racks 2 --spines 2 --hosts 2 --run "weir train --model cnn"

The command runs on every host as torchrun would start it (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and
finds the controller through WEIR_CONTROLLER; ranks are numbered rack by rack. Without --run: Mininet's
command line, where `h1 ping h3` crosses a spine and `h1 weir status` shows the switches. --rate makes every
switch port that slow, both ways (soft switch only: BMv2 counts packets, over its Thrift service; see
docs/operations.md).
"""

import argparse
import sys

from common import entry, run
from mininet.net import Mininet
from mininet.topo import Topo


class LeafSpine(Topo):
    """Numbered and addressed as controller.topology.leaf_spine does."""

    def build(self, racks: int, spines: int, hosts: int) -> None:
        for s in range(1, spines + 1):
            self.addSwitch(f"spine{s}", inNamespace=True)
        for r in range(1, racks + 1):
            leaf = self.addSwitch(f"leaf{r}", inNamespace=True)
            for i in range(1, hosts + 1):
                mac, gateway = f"02:00:00:00:{r:02x}:{i:02x}", f"via 10.0.{r}.254"
                host = self.addHost(
                    f"h{(r - 1) * hosts + i}", ip=f"10.0.{r}.{i}/24", mac=mac, defaultRoute=gateway
                )
                self.addLink(host, leaf, port2=i)
            for s in range(1, spines + 1):
                self.addLink(leaf, f"spine{s}", port1=hosts + s, port2=r)


def make(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Topo:
    if not 1 <= options.racks <= 32 or options.hosts < 1 or options.racks * options.hosts > 32:
        parser.error("--racks, --hosts: from 1 to 32 hosts in all")
    if not 1 <= options.spines <= 16:
        parser.error("--spines: from 1 to 16")
    if options.rate and options.switch != "soft":
        parser.error("--rate is the soft switch's; BMv2's rates are in packets/s, set over Thrift")
    return LeafSpine(racks=options.racks, spines=options.spines, hosts=options.hosts)


def describe(net: Mininet, options: argparse.Namespace) -> dict:
    racks, spines, hosts = (range(1, n + 1) for n in (options.racks, options.spines, options.hosts))
    return {
        "switches": [
            *(entry(net[f"leaf{r}"], f"02:00:00:00:{r:02x}:fe", f"10.0.{r}.254") for r in racks),
            *(entry(net[f"spine{s}"], f"02:00:00:01:{s:02x}:fe", f"10.1.{s}.254") for s in spines),
        ],
        "hosts": [
            {
                "name": f"h{(r - 1) * options.hosts + i}",
                "switch": f"leaf{r}",
                "port": i,
                "mac": f"02:00:00:00:{r:02x}:{i:02x}",
                "ip": f"10.0.{r}.{i}",
            }
            for r in racks
            for i in hosts
        ],
        "links": [{"ends": [f"leaf{r}:{options.hosts + s}", f"spine{s}:{r}"]} for r in racks for s in spines],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--racks", type=int, default=2, help="number of leaves (default 2)")
    parser.add_argument("--spines", type=int, default=2, help="number of spines (default 2)")
    parser.add_argument("--hosts", type=int, default=2, help="hosts in each rack (default 2)")
    parser.add_argument("--rate", help="of every switch port, e.g. 100mbit (default: as fast as it goes)")
    sys.exit(run(parser, make, describe))
