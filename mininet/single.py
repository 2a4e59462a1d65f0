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

from common import add_options, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workers", dest="hosts", type=int, default=4, help="number of hosts, 1 to 32 (default 4)"
    )
    add_options(parser)
    options = parser.parse_args()
    if not 1 <= options.hosts <= 32:
        parser.error("--workers: from 1 to 32")
    sys.exit(run(parser, options, racks=1, spines=0))
