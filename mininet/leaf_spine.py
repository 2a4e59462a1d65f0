#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Racks and spines in Mininet: run a command on every host, its gradients summed by leaves, then by spines.

    sudo python3 mininet/leaf_spine.py --racks 2 --spines 2 --hosts 2 --run "weir train --model cnn"

The command runs on every host as torchrun would start it (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and
finds the controller through WEIR_CONTROLLER; ranks are numbered rack by rack. Without --run: Mininet's
command line, where `h1 ping h3` crosses a spine and `h1 weir status` shows the switches.
"""

import argparse
import sys

from common import add_options, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--racks", type=int, default=2, help="number of leaves (default 2)")
    parser.add_argument("--spines", type=int, default=2, help="number of spines (default 2)")
    parser.add_argument("--hosts", type=int, default=2, help="hosts in each rack (default 2)")
    add_options(parser)
    options = parser.parse_args()
    if not 1 <= options.racks <= 32 or options.hosts < 1 or options.racks * options.hosts > 32:
        parser.error("--racks, --hosts: from 1 to 32 hosts in all")
    if not 1 <= options.spines <= 16:
        parser.error("--spines: from 1 to 16")
    sys.exit(run(parser, options, racks=options.racks, spines=options.spines))
