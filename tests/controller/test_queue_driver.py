# SPDX-License-Identifier: Apache-2.0
"""BMv2's Thrift service takes what the driver says; any other service that answers is named."""

import socket
import threading
from pathlib import Path

import pytest

from tests.controller.helpers import until
from tests.harness.switch_process import SwitchProcess
from weir.agent_service.client import AgentClient
from weir.controller.qos import Qos, QueueSpec
from weir.controller.queue_driver import QueueDriverError, set_queues
from weir.controller.server import Settings, running
from weir.controller.topology import single_switch

SPECS = (
    QueueSpec(switch="s1", port=1, rate_pps=1000, depth=20),
    QueueSpec(switch="s1", port=2, depth=5),
    QueueSpec(switch="s1", port=3, rate_pps=1 << 40),
)


@pytest.mark.bmv2
def test_bmv2_takes_rates_and_depths(tmp_path: Path) -> None:
    switch = SwitchProcess("bmv2", tmp_path)
    switch.start()
    try:
        set_queues(switch.thrift, SPECS)
    finally:
        switch.stop()


@pytest.mark.bmv2
def test_a_controller_sets_them_when_the_switch_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    switch = SwitchProcess("bmv2", tmp_path)
    switch.start()
    plain = single_switch(3, switch.address)
    managed = plain.switches[0].model_copy(update={"thrift": switch.thrift})
    topology = plain.model_copy(update={"switches": (managed,), "qos": Qos(queues=SPECS)})
    try:
        with running(topology, Settings()) as controller, AgentClient(controller.address) as agent:
            until(lambda: agent.status().switches[0].state == "ready")
    finally:
        switch.stop()
    assert "cannot set queues" not in caplog.text


def _answer(reply: bytes) -> str:
    """Return the address of a service that answers anything with ``reply`` and hangs up."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection, server:
            connection.recv(1024)
            connection.sendall(reply)

    threading.Thread(target=serve).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


_NAME = b"simple_switch:set_egress_queue_depth"
_HEAD = b"\x80\x01\x00%c" + len(_NAME).to_bytes(4, "big") + _NAME + bytes(4)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (_HEAD % 2 + b"\x08\0\0\xff\xff\xff\xff\0", "set_egress_queue_depth failed with -1"),
        (_HEAD % 3 + b"\0", "set_egress_queue_depth is refused: is it a simple_switch"),
        (_HEAD % 2 + b"\x0b\0\0\0", "got an answer that is not a number"),
        (b"HTTP/1.1 400 Bad Request\r\n", "got an answer that is not Thrift: is this a simple_switch"),
        (b"", "the connection was closed"),
    ],
)
def test_what_is_no_such_service_is_named(reply: bytes, says: str) -> None:
    address = _answer(reply)
    with pytest.raises(QueueDriverError, match=says):
        set_queues(address, SPECS[1:2])


def test_nobody_there() -> None:
    with pytest.raises(QueueDriverError, match=r"Thrift service at 127.0.0.1:1: .*refused"):
        set_queues("127.0.0.1:1", SPECS)
