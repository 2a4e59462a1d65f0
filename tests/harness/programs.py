# SPDX-License-Identifier: Apache-2.0
"""What ``forked_clusters`` forks: a process that has imported the programs of switches and of controllers."""

import runpy
import sys

import softp4.cli
import softp4.serving  # noqa: F401
import weir.controller.cli
import weir.controller.daemon  # noqa: F401


def main() -> None:
    """Run the program that the command line names."""
    program, sys.argv = sys.argv[1], sys.argv[1:]
    runpy.run_module(program, run_name="__main__", alter_sys=True)
