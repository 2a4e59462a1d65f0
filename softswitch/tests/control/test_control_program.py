# SPDX-License-Identifier: Apache-2.0
"""Control of what P4Runtime does not cover of a program: its custom CRCs, its assertions."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from softp4.control.address import own_socket
from softp4.control.client import CallFailedError, call
from softp4.control.operations import Operations
from softp4.control.server import ControlServer
from softp4.device import Device
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from softp4.program.calculations import CrcParameters
from tests.control.test_control import ctl, refused, rows
from tests.p4rt.p4rt_client import FOLDER, TIMEOUT, Controller
from tests.programs import unpack
from tests.test_externs import ASSERT, CUSTOM, FIELDS, bitwise, order

PROGRAM = FOLDER / "externs.json"
PORT = 1  # where the program answers
OWN = ["calc_0", "16", "0x8005", "0x0", "0x0", "data, remainder"]
OWN_32 = ["calc_1", "32", "0x4c11db7", "0xffffffff", "0xffffffff", "data, remainder"]
ARC = CrcParameters(0x8005, reflect_data=True, reflect_remainder=True)  # the program's own
CCITT = CrcParameters(0x1021, initial=0xFFFF)


@pytest.fixture
def path(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the control socket of a device without a program."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    device.loop.add_queue(PORT, "asks")
    server = ControlServer(own_socket(), Operations(device).calls())
    try:
        yield server.path
    finally:
        server.close()


@pytest.fixture
def no_info(tmp_path: Path) -> Path:
    """Return a P4Info without anything in it."""
    info = tmp_path / "empty.p4info.txtpb"
    info.touch()
    return info


@pytest.fixture
def controller(path: Path, empty: Controller, no_info: Path) -> Controller:
    """Return a controller that has brought the program."""
    empty.push(PROGRAM, no_info)
    return empty


def hashed(device: Device, value: int) -> int:
    """Return what the program's 16-bit custom CRC makes of a value."""
    device.loop.inject(PORT, order(CUSTOM, 7, value))
    answer = device.loop.receive(PORT, TIMEOUT)
    assert answer is not None
    return unpack(answer, FIELDS)[3]


def expected(value: int, crc: CrcParameters) -> int:
    """Return the same by the CRC's definition."""
    return bitwise(value.to_bytes(32, "big") + (7).to_bytes(4, "big"), 16, crc)


@pytest.mark.usefixtures("controller")
def test_a_custom_crc_is_shown_and_changed(device: Device) -> None:
    assert rows(ctl("crc", "list")) == [OWN, OWN_32]
    assert hashed(device, 1 << 77) == expected(1 << 77, ARC)
    ctl("crc", "set", "calc_0", "--polynomial", "4129", "--initial", "0xffff")
    assert rows(ctl("crc", "list")) == [["calc_0", "16", "0x1021", "0xffff", "0x0", "-"], OWN_32]
    assert hashed(device, 1 << 77) == expected(1 << 77, CCITT)
    ctl(
        "crc",
        "set",
        "calc_1",
        "--polynomial",
        7,
        "--final-xor",
        9,
        "--no-reflect-data",
        "--reflect-remainder",
    )
    assert json.loads(ctl("--json", "crc", "list"))[1] == {
        "calculation": "calc_1",
        "bits": 32,
        "polynomial": 7,
        "initial": 0,
        "final_xor": 9,
        "reflect_data": False,
        "reflect_remainder": True,
    }


def test_failures_of_assertions_are_shown(device: Device, controller: Controller) -> None:
    for _ in range(3):
        device.loop.inject(PORT, order(ASSERT, 7))
    hashed(device, 0)  # and so they are through
    assert rows(ctl("assertions"))[0] == ["action In.failing, assert", "3"]
    assert all(failures == "0" for _, failures in rows(ctl("assertions"))[1:])


@pytest.mark.usefixtures("controller")
def test_crcs_that_cannot_be_are_refused(path: Path) -> None:
    for words, arguments in {
        "the program has no calculation calc_9": ("calc_9", "--polynomial", 1),
        "calc is no custom CRC": ("calc", "--polynomial", 1),
        "calc_0: 0x10000 does not fit 16 bits": ("calc_0", "--polynomial", "0x10000"),
        "calc_0: -0x1 does not fit 16 bits": ("calc_0", "--polynomial", 1, "--initial", -1),
        "Invalid value for '--final-xor'": ("calc_0", "--polynomial", 1, "--final-xor", "x"),
        "Missing option '--polynomial'": ("calc_0",),
    }.items():
        assert words in " ".join(refused("crc", "set", *arguments).replace("│", " ").split()), arguments
    for words, changes in {
        "polynomial: a whole number": {"polynomial": "0x1"},
        "initial: a whole number": {"initial": True},
        "reflect_data: true or false": {"reflect_data": 1},
        "calculation: a text": {"calculation": 0},
    }.items():
        with pytest.raises(CallFailedError, match=words):
            call(path, "crc_set", **{"calculation": "calc_0", "polynomial": 1} | changes)
    assert rows(ctl("crc", "list")) == [OWN, OWN_32]


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    "command", [("crc", "list"), ("crc", "set", "calc_0", "--polynomial", 1), ("assertions",)]
)
def test_without_a_program_there_is_nothing_to_show(command: tuple[str, ...]) -> None:
    assert refused(*command) == "softp4 ctl: no program is loaded\n"


def test_a_program_stays_while_it_is_looked_at(device: Device, controller: Controller, no_info: Path) -> None:
    """A controller that brings another waits; then calls are for that one."""
    push = threading.Thread(target=controller.push, args=(PROGRAM, no_info))
    with device.running_switch() as switch:
        push.start()
        push.join(0.5)  # time enough to close the switch, if it could
        assert set(switch.assertion_failures().values()) == {0}
        switch.crcs.set("calc_0", CCITT)
    push.join(TIMEOUT)
    assert rows(ctl("crc", "list")) == [OWN, OWN_32]


# -- under another program --------------------------------------------------------------------------


def reconcile(controller: Controller, program: bytes, info: Path) -> None:
    """Bring a program and keep the state."""
    action = p4rt.SetForwardingPipelineConfigRequest.RECONCILE_AND_COMMIT
    controller.set_config(action, program, info)


def with_algorithm(algorithm: str) -> bytes:
    """Return the program, with another algorithm for calc_0."""
    root = json.loads(PROGRAM.read_bytes())
    next(each for each in root["calculations"] if each["name"] == "calc_0")["algo"] = algorithm
    return json.dumps(root).encode()


def test_changed_crcs_are_kept_under_another_program(
    device: Device, controller: Controller, no_info: Path
) -> None:
    ctl("crc", "set", "calc_0", "--polynomial", "0x1021", "--initial", "0xffff")
    reconcile(controller, PROGRAM.read_bytes() + b"\n", no_info)
    assert hashed(device, 5) == expected(5, CCITT)
    assert rows(ctl("crc", "list")) == [["calc_0", "16", "0x1021", "0xffff", "0x0", "-"], OWN_32]


def test_crcs_that_nobody_changed_are_the_new_programs(controller: Controller, no_info: Path) -> None:
    reconcile(controller, with_algorithm("crc32_custom"), no_info)
    assert rows(ctl("crc", "list")) == [["calc_0", *OWN_32[1:]], OWN_32]


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("crc32_custom", "calc_0 has 32 bits, not 16 as the CRC that was changed"),
        ("crc16", "calc_0 is no custom CRC"),
    ],
)
def test_a_changed_crc_that_cannot_be_kept_is_named(
    device: Device, controller: Controller, no_info: Path, algorithm: str, words: str
) -> None:
    ctl("crc", "set", "calc_0", "--polynomial", "0x1021", "--initial", "0xffff")
    with pytest.raises(grpc.RpcError) as caught:
        reconcile(controller, with_algorithm(algorithm), no_info)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert words in str(caught.value.details())
    assert hashed(device, 5) == expected(5, CCITT), "the old one runs on"
