# SPDX-License-Identifier: Apache-2.0
"""``softp4``: BMv2's command line, and commands that BMv2 lacks by their names."""

import sys


def main() -> None:
    """Run the process's command: ``run``, ``ctl``, or a switch as simple_switch_grpc would be."""
    match sys.argv[1:]:
        case ["run", *rest]:
            from softp4.cli import app

            app(rest, prog_name="softp4 run")
        case ["ctl", *rest]:
            from softp4.control.cli import app as control

            control(rest, prog_name="softp4 ctl")
        case rest:
            from softp4.simple_switch import main as simple_switch

            simple_switch(rest)


if __name__ == "__main__":
    main()
