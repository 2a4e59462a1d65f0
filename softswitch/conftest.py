# SPDX-License-Identifier: Apache-2.0
"""Switches that serve P4Runtime, their controllers, and what all tests share (``tests.harness.session``).

It lies above ``tests``, because the repository's other ``tests`` has a ``tests.conftest`` of its own.
"""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from softp4.device import Device
from tests.harness.ports import free_port
from tests.harness.session import *  # noqa: F403
from tests.p4rt.p4rt_client import TIMEOUT, Controller

# Programs that tests start find the switch and its tests here, too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
)


@pytest.fixture
def fail_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str], None]:
    """Make the next call of a method of a class go wrong as nobody has thought of."""

    def fail(kind: type, name: str) -> None:
        method = getattr(kind, name)

        def fault(*_: Any) -> NoReturn:
            monkeypatch.setattr(kind, name, method)
            raise KeyError("a fault of ours")

        monkeypatch.setattr(kind, name, fault)

    return fail


@pytest.fixture
def device() -> Iterator[Device]:
    """Yield a soft switch without a program."""
    with Device() as made:
        made.serve("127.0.0.1:0")
        made.start()
        yield made


@pytest.fixture
def empty(device: Device) -> Iterator[Controller]:
    """Yield a primary controller of a soft switch without a program."""
    assert device.address is not None
    controller = Controller(device.address)
    yield controller
    controller.close()


@pytest.fixture(scope="module")
def bmv2() -> Iterator[str]:
    """Yield the address of a running simple_switch_grpc."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/grpc"
        command = [
            "simple_switch_grpc",
            "--no-p4",
            "--device-id",
            "1",
            "--thrift-port",
            str(free_port()),
            "--",
            "--grpc-server-addr",
            f"unix:{address}",
        ]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as process:
            deadline = time.monotonic() + TIMEOUT
            while not _accepts(address):
                assert process.poll() is None, "simple_switch_grpc ended"
                assert time.monotonic() < deadline, "simple_switch_grpc does not serve"
                time.sleep(0.05)
            yield f"unix:{address}"
            process.kill()


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


@pytest.fixture(params=["soft", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def any_switch(request: pytest.FixtureRequest) -> Iterator[Controller]:
    """Yield a primary controller with the program `control` freshly pushed, of either switch."""
    if request.param == "soft":
        address = request.getfixturevalue("device").address
    else:
        address = request.getfixturevalue("bmv2")
    controller = Controller(address)
    controller.push()
    yield controller
    controller.close()


@pytest.fixture
def switch(empty: Controller) -> Controller:
    """Return a primary controller of a soft switch with the program `control` freshly pushed."""
    empty.push()
    return empty
