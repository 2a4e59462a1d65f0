# SPDX-License-Identifier: Apache-2.0
"""The program `meters` on a switch that serves P4Runtime: a controller, and frames one by one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from softp4.device import Device
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from tests.harness.bmv2_stream import Bmv2Stream
from tests.p4rt.p4rt_client import TIMEOUT, Controller
from tests.programs import FOLDER

PROGRAM: Final = FOLDER / "meters.json"
P4INFO: Final = FOLDER / "meters.p4info.txtpb"
PORT: Final = 5  # where frames come in; they leave at port 1


@dataclass(frozen=True)
class Rig:
    """A switch with the program, where it serves, its primary controller, and what lets a frame through."""

    address: str
    controller: Controller
    send: Callable[[bytes], bytes]

    def flow(self, who: int, **fields: Any) -> Any:
        """Return an entry of the table `flows`."""
        match = {"hdr.order.who": ("exact", who)}
        return self.controller.entry("In.flows", match, "In.meet", **fields)

    def flow_key(self, who: int) -> Any:
        """Return the same with nothing but its key."""
        return self.controller.entry("In.flows", {"hdr.order.who": ("exact", who)})

    def meter(self, name: str, index: int | None = None, **fields: Any) -> Any:
        """Return a MeterEntry."""
        entry = p4rt.MeterEntry(meter_id=self.controller.names.id("meters", name), **fields)
        if index is not None:
            entry.index.index = index
        return entry

    def digest(self, name: str, **config: int) -> Any:
        """Return a DigestEntry."""
        entry = p4rt.DigestEntry(digest_id=self.controller.names.id("digests", name))
        entry.config.SetInParent()
        for key, value in config.items():
            setattr(entry.config, key, value)
        return entry


@contextmanager
def soft_rig() -> Iterator[Rig]:
    """Yield a soft switch."""
    with Device() as device:
        device.serve("127.0.0.1:0")
        for port in (1, PORT):
            device.loop.add_queue(port, str(port))
        device.start()
        assert device.address is not None
        controller = Controller(device.address)
        controller.push(PROGRAM, P4INFO)

        def send(frame: bytes) -> bytes:
            device.loop.inject(PORT, frame)
            answer = device.loop.receive(1, TIMEOUT)
            assert answer is not None
            return answer

        yield Rig(device.address, controller, send)
        controller.close()


@contextmanager
def bmv2_rig() -> Iterator[Rig]:
    """BMv2."""
    with Bmv2Stream(PROGRAM, P4INFO) as switch:
        controller = Controller(switch.address, election=2, device=switch.device)
        controller.learn()

        def send(frame: bytes) -> bytes:
            [[(port, answer)]] = switch.process([(PORT, frame)])
            assert port == 1
            return answer

        yield Rig(switch.address, controller, send)
        controller.close()
