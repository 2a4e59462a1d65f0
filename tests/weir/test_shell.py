# SPDX-License-Identifier: Apache-2.0
"""`weir shell` opens p4runtime-shell on a switch of a topology, or says what to install."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from softp4.device import Device
from softp4.p4runtime.session import Session
from tests.harness.environments import environment
from tests.p4rt.p4rt_client import CONTROL, Controller

QUESTION = 'for entry in table_entry["stations"].read(): print("dst", entry.match["dst"].exact.value.hex())\n'


@pytest.fixture
def address() -> Iterator[str]:
    """Yield the address of a switch that runs the program `control`."""
    with Device() as device:
        device.load(CONTROL)
        yield device.serve("127.0.0.1:0")


def shell(*arguments: object, told: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weir", "shell", *map(str, arguments)]
    return subprocess.run(command, input=told, capture_output=True, text=True, check=False, timeout=120)


def topology(folder: Path, address: str) -> Path:
    path = folder / "topology.yaml"
    path.write_text(f"switches:\n  - name: s1\n    grpc: {address}\nhosts: []\n")
    return path


def test_a_switch_of_a_topology_is_read_while_its_controller_goes_on(address: str, tmp_path: Path) -> None:
    controller = Controller(address, election=1000)
    controller.learn()
    controller.write("INSERT", table_entry=controller.station(0xABCDEF))
    python = environment("p4runtime-shell==0.0.6")
    done = shell("s1", "--topology-file", topology(tmp_path, address), "--python", python, told=QUESTION)
    assert "dst abcdef" in done.stdout, done.stdout + done.stderr
    assert "read access" in done.stdout
    controller.write("INSERT", table_entry=controller.station(2))  # it is the primary as before
    controller.close()


def test_a_shell_that_is_to_write_takes_over_and_gives_back(address: str) -> None:
    python = environment("p4runtime-shell==0.0.6")
    with Session(address, election_id=1 << 90, follow=True) as controller:
        for station in ("07", "08"):  # also from a controller that has followed once
            told = f"""entry = table_entry["stations"](action="drop")
entry.match["dst"] = "0x{station}"
entry.insert()
"""
            done = shell("--grpc", address, "--write", "--python", python, told=told + QUESTION)
            assert f"dst {station}" in done.stdout, done.stdout + done.stderr
            while not controller.primary:
                time.sleep(0.02)


def test_without_p4runtime_shell_it_says_what_to_install_and_run(tmp_path: Path) -> None:
    done = shell("s1", "--topology-file", topology(tmp_path, "127.0.0.1:1"))
    assert done.returncode == 1
    assert "pip install p4runtime-shell==0.0.6" in done.stderr
    assert "python -m p4runtime_sh --grpc-addr 127.0.0.1:1 --device-id 1 --election-id 0,1" in done.stderr


def test_a_switch_that_the_topology_does_not_have_is_named(tmp_path: Path) -> None:
    done = shell("s2", "--topology-file", topology(tmp_path, "127.0.0.1:1"))
    assert (done.returncode, "has no switch 's2', but s1" in done.stderr) == (1, True)
