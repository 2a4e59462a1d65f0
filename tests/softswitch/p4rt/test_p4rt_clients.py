# SPDX-License-Identifier: Apache-2.0
"""Other people's controllers drive the switch: p4runtime-shell, and finsy in an environment of its own."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.ports import free_port
from tests.softswitch.programs import FOLDER
from weir.native.build import cache_dir
from weir.softswitch.device import Device

SCRIPTS = Path(__file__).parent / "clients"
FINSY = "finsy==0.30.0"


@pytest.fixture
def lab() -> Iterator[list[str]]:
    """Yield a switch with three ports that are UDP tunnels: its address, and the tunnels' ends for a
    script.
    """
    ends = [free_port(socket.SOCK_DGRAM) for _ in range(6)]
    with Device() as device:
        for number, (here, there) in enumerate((ends[:2], ends[2:4], ends[4:]), start=1):
            device.loop.add_udp(number, ("127.0.0.1", here), ("127.0.0.1", there))
        address = device.serve("127.0.0.1:0")
        device.start()
        yield [address, *map(str, ends)]


@pytest.fixture(scope="session")
def finsy() -> Path:
    """Return the Python of an environment with finsy, which needs a protobuf that p4runtime-shell cannot use.

    It is made once, in Weir's cache; without a package index it is not, and the tests are skipped.
    """
    folder = (
        cache_dir() / f"venv-{FINSY.replace('==', '-')}-python{sys.version_info[0]}.{sys.version_info[1]}"
    )
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            options = ["--quiet", "--disable-pip-version-check", "--retries", "0", "--timeout", "15"]
            done = subprocess.run(
                [python, "-m", "pip", "install", *options, FINSY], capture_output=True, text=True, check=False
            )
            if done.returncode:
                pytest.skip(f"{FINSY} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
            (folder / "complete").touch()
    return python


def _run(python: str | Path, script: str, program: str, lab: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    address, *ends = lab
    files = [str(FOLDER / f"{program}.p4info.txtpb"), str(FOLDER / f"{program}.json")]
    command = [str(python), str(SCRIPTS / script), address, *files, *ends]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stdout + done.stderr


def test_p4runtime_shell(lab: list[str]) -> None:
    _run(sys.executable, "shell.py", "control", lab)


@pytest.mark.parametrize(
    ("script", "program"),
    [
        ("finsy_controller.py", "control"),
        ("finsy_meters.py", "meters"),
        ("finsy_profiles.py", "profiles"),
    ],
)
def test_finsy(lab: list[str], finsy: Path, script: str, program: str) -> None:
    _run(finsy, script, program, lab)
