# SPDX-License-Identifier: Apache-2.0
"""A controller as small as can be: sets the program that it is told, and an entry for each of two hosts."""

import os
from pathlib import Path

from tests.p4rt.p4rt_client import Controller


def main() -> None:
    """Find the switch through the environment, as mininet/any_program.py says it."""
    session = Controller(os.environ["P4RUNTIME"], device=int(os.environ["DEVICE_ID"]))
    session.push(Path(os.environ["PROGRAM"]), Path(os.environ["P4INFO"]))
    for host in (1, 2):
        session.write("INSERT", table_entry=session.station(0x020000000000 + host, args={"port": host}))
    session.close()


if __name__ == "__main__":
    main()
