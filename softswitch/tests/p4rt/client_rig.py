# SPDX-License-Identifier: Apache-2.0
"""Client scripts of other people's controllers (``clients/``), run in environments of their own."""

import contextlib
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from softp4.device import Device
from tests.harness.environments import for_another_python
from tests.harness.ports import free_port
from tests.programs import FOLDER

SCRIPTS: Final = Path(__file__).parent / "clients"
SHELL: Final = "p4runtime-shell==0.0.6"
FINSY: Final = "finsy==0.30.0"


@contextlib.contextmanager
def soft_lab() -> Iterator[list[str]]:
    """Yield a soft switch with three ports that are UDP tunnels: its address, and the tunnels' ends."""
    ends = [(free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_DGRAM)) for _ in range(3)]
    with Device() as device:
        for number, (here, there) in enumerate(ends, start=1):
            device.loop.add_udp(number, ("127.0.0.1", here), ("127.0.0.1", there))
        address = device.serve("127.0.0.1:0")
        device.start()
        yield [address, *(f"{here}:{there}" for here, there in ends)]


def run(
    python: Path, script: Path, program: str, lab: Sequence[str], prefix: Sequence[str] = (), path: str = ""
) -> None:
    """Run a client script to its end, behind ``prefix``, with ``path`` as PYTHONPATH."""
    variables = for_another_python() | ({"PYTHONPATH": path} if path else {})
    address, *ends = lab
    files = [str(FOLDER / f"{program}.p4info.txtpb"), str(FOLDER / f"{program}.json")]
    command = [*prefix, str(python), str(script), address, *files, *ends]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stdout + done.stderr
