#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One switch, N hosts, in Mininet: run a command on every host, its gradients summed by the switch.

    sudo python3 mininet/single.py --workers 4 --switch soft --run "weir train --model cnn --no-reference"

The command runs on every host as torchrun would start it (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and
finds the controller through WEIR_CONTROLLER. Without --run: Mininet's command line, whose hosts have the same
variables: `h1 weir status`.
"""

import argparse
import sys

from common import Single, entry, run
from mininet.net import Mininet
from mininet.topo import Topo


def make(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Topo:
    if not 1 <= options.workers <= 32:
        parser.error("--workers: from 1 to 32")
    return Single(workers=options.workers)


def describe(net: Mininet, options: argparse.Namespace) -> dict:
    hosts = [
        {"name": f"h{i}", "switch": "s1", "port": i, "mac": f"02:00:00:00:00:{i:02x}", "ip": f"10.0.0.{i}"}
        for i in range(1, options.workers + 1)
    ]
    return {"switches": [entry(net["s1"], "02:00:00:00:00:fe", "10.0.0.254")], "hosts": hosts}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4, help="number of hosts, 1 to 32 (default 4)")
    sys.exit(run(parser, make, describe))
