# SPDX-License-Identifier: Apache-2.0
"""The example program: its controller fills the table of a soft switch, which then routes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from softp4.native.ring import ShmPort
from tests.harness.weir_needs import SYSTEM_PYTHON
from tests.programs import compiled
from tests.test_cli import serving

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "router"
_TIMEOUT_S = 30.0


def _packet(to: str) -> Ether:
    return Ether(dst="02:00:00:00:00:fe") / IP(src="10.0.0.1", dst=to) / UDP() / bytes(20)


def test_the_controller_fills_the_table_and_the_switch_routes(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    ports = [word for number in (1, 2, 3) for word in ("--port", f"{number}=shm")]
    with serving(tmp_path, "--grpc", "127.0.0.1:0", "--shm", shm, *ports, "--no-control") as (_, ready):
        done = subprocess.run(
            [sys.executable, str(FOLDER / "controller.py")],
            env={**os.environ, "P4RUNTIME": ready["grpc"], "DEVICE_ID": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"3 routes at {ready['grpc']}\n"
        with ShmPort(shm, 1) as one, ShmPort(shm, 2) as two, ShmPort(shm, 3) as three:
            for to, port, next_hop in (("10.0.0.2", two, 2), ("10.0.0.77", three, 3)):
                one.send(bytes(_packet(to)))
                expected = _packet(to)
                expected.src, expected.dst = expected.dst, f"02:00:00:00:00:{next_hop:02x}"
                expected[IP].ttl -= 1
                assert port.recv(_TIMEOUT_S) == bytes(expected)  # its checksum, too


@pytest.mark.p4c
@pytest.mark.parametrize("name", ["router.json", "router.p4info.txtpb"])
def test_what_is_checked_in_is_what_the_program_compiles_to(name: str) -> None:
    made, kept = compiled("router", FOLDER)[name], (FOLDER / name).read_text()
    assert (json.loads(made) == json.loads(kept)) if name.endswith(".json") else made == kept


@pytest.mark.root
@pytest.mark.mininet
def test_hosts_in_mininet_reach_one_another_through_it() -> None:
    """With the options that mininet/any_program.py shows, and something else than ping."""
    root = FOLDER.parents[1]
    control = f"{sys.executable} examples/router/controller.py"
    knock = f"{SYSTEM_PYTHON} {root / 'tests' / 'mininet' / 'knock.py'} 10.0.0.2"
    command = [SYSTEM_PYTHON, "mininet/any_program.py", "--program", "examples/router/router.json"]
    done = subprocess.run(
        [*command, "--control", control, "--run", knock],
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("refused\n")
