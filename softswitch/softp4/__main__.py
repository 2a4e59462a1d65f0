# SPDX-License-Identifier: Apache-2.0
"""``softp4``: BMv2's command line, and commands that BMv2 lacks by their names."""

import importlib
import sys
from typing import Final

_COMMANDS: Final = {"run": "softp4.cli", "ctl": "softp4.control.cli"}


def main() -> None:
    """Run the process's command: ``run``, ``ctl``, or a switch as simple_switch_grpc would be."""
    match sys.argv[1:]:
        case [("run" | "ctl") as name, *rest]:
            try:
                app = importlib.import_module(_COMMANDS[name]).app
            except ModuleNotFoundError as error:
                if error.name != "typer":
                    raise
                sys.exit(f"softp4 {name} needs typer: pip install 'softp4[ctl]'")
            app(rest, prog_name=f"softp4 {name}")
        case rest:
            from softp4.simple_switch import main as simple_switch

            simple_switch(rest)


if __name__ == "__main__":
    main()
