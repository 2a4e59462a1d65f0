# SPDX-License-Identifier: Apache-2.0
"""Other people's controllers drive both switches: p4runtime-shell and finsy, in environments of their own."""

import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from softp4.device import Device
from tests.harness.bmv2_ports import Bmv2WithPorts
from tests.harness.environments import environment, for_another_python
from tests.harness.ports import free_port
from tests.programs import FOLDER

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = Path(__file__).parent / "clients"
SHELL = "p4runtime-shell==0.0.6"
FINSY = "finsy==0.30.0"
CONTROLLER = (
    "numpy",
    "pydantic",
    "pyyaml",
    "rich",
    "typer",
)  # what Weir's controller needs beside finsy's


@pytest.fixture
def soft() -> Iterator[list[str]]:
    """Yield a soft switch with three ports that are UDP tunnels: its address, and the tunnels' ends."""
    ends = [(free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_DGRAM)) for _ in range(3)]
    with Device() as device:
        for number, (here, there) in enumerate(ends, start=1):
            device.loop.add_udp(number, ("127.0.0.1", here), ("127.0.0.1", there))
        address = device.serve("127.0.0.1:0")
        device.start()
        yield [address, *(f"{here}:{there}" for here, there in ends)]


def _run(
    python: Path, script: str, program: str, lab: list[str], prefix: Sequence[str] = (), path: str = ""
) -> None:
    """Run a client script to its end, behind ``prefix``, with ``path`` as PYTHONPATH."""
    variables = for_another_python() | ({"PYTHONPATH": path} if path else {})
    address, *ends = lab
    files = [str(FOLDER / f"{program}.p4info.txtpb"), str(FOLDER / f"{program}.json")]
    command = [*prefix, str(python), str(SCRIPTS / script), address, *files, *ends]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stdout + done.stderr


def test_p4runtime_shell(soft: list[str]) -> None:
    _run(environment(SHELL), "shell.py", "control", soft)


@pytest.mark.parametrize(
    ("script", "program"),
    [
        ("finsy_controller.py", "control"),
        ("finsy_meters.py", "meters"),
        ("finsy_profiles.py", "profiles"),
    ],
)
def test_finsy(soft: list[str], script: str, program: str) -> None:
    _run(environment(FINSY), script, program, soft)


@pytest.mark.root
@pytest.mark.bmv2
@pytest.mark.parametrize(("client", "script"), [(SHELL, "shell.py"), (FINSY, "finsy_controller.py")])
def test_either_drives_bmv2(client: str, script: str) -> None:
    python = environment(client)
    with Bmv2WithPorts(3) as bmv2:
        _run(python, script, "control", [bmv2.address, *bmv2.hosts], bmv2.inside)


def test_finsy_and_weirs_controller_in_one_process(soft: list[str]) -> None:
    """finsy programs a switch of its own beside the one that the controller has a job on."""
    _run(
        environment(FINSY, *CONTROLLER),
        "finsy_beside_weir.py",
        "control",
        soft,
        path=f"{ROOT}:{ROOT / 'softswitch'}",
    )
