# SPDX-License-Identifier: Apache-2.0
"""``python -m weir.controller``: the same as ``weir controller run``."""

import typer

from weir.controller.cli import controller

if __name__ == "__main__":
    typer.run(controller)
