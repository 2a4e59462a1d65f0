# SPDX-License-Identifier: Apache-2.0
"""Two racks of real soft switches in this process: P4Runtime over sockets, links between switches by hand."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from controller.client import Membership
from controller.topology import End, Topology, leaf_spine
from host_agent.frames import Addresses, Endpoint
from host_agent.links import ShmLink
from host_agent.reducer import Reducer
from host_agent.transport import TransportConfig
from softswitch.device import Device
from softswitch.ports import PortError

POLL_S = 0.1


class Racks:
    """Switches of ``topology``. ``kill`` ends one as a power cut would, ``start`` brings it back, empty."""

    def __init__(self, folder: Path, *, racks: int = 2, spines: int = 2, hosts: int = 1) -> None:
        self._folder = folder
        self.topology: Topology = leaf_spine(
            racks,
            spines,
            hosts,
            grpc=lambda name: f"unix:{folder}/{name}.sock",
            shm=lambda leaf: f"{folder}/{leaf}",
        )
        self.devices: dict[str, Device] = {}
        self._stopping = threading.Event()
        ends = [pair for link in self.topology.links for pair in (link.ends, link.ends[::-1])]
        self._busy = [threading.Lock() for _ in ends]  # held by a wire while it uses switches
        self._wires = [
            threading.Thread(target=self._carry, args=(*pair, busy))
            for pair, busy in zip(ends, self._busy, strict=True)
        ]

    def __enter__(self) -> "Racks":
        for switch in self.topology.switches:
            self.start(switch.name)
        for wire in self._wires:
            wire.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for wire in self._wires:
            wire.join()
        for name in list(self.devices):
            self.kill(name)

    def start(self, name: str) -> None:
        """A switch without program or entries."""
        device = Device()
        for port, _other in self.topology.neighbours(name):
            device.loop.add_queue(port, "link")
        hosts = self.topology.hosts_of(name)
        if hosts:
            ports = self._folder / name
            ports.mkdir(exist_ok=True)
            device.open_shm(ports)
            for host in hosts:
                device.loop.add_shm(host.port, ports)
        device.serve(self.topology.switch(name).grpc)
        device.start()
        self.devices[name] = device

    def kill(self, name: str) -> None:
        """End a switch; what it holds is gone."""
        device = self.devices.pop(name)
        for busy in self._busy:
            with busy:
                pass
        device.close()

    @contextlib.contextmanager
    def worker(self, member: Membership) -> Iterator[Reducer]:
        """The real worker of a member, on its shared-memory port."""
        there, here = member.aggregation, member.host
        addresses = Addresses(Endpoint(here.mac, here.ip), Endpoint(there.mac, there.ip))
        assert member.shm_dir is not None
        config = TransportConfig(
            member.job_id, member.rank, member.size, slots=member.slot_count, fill=member.fill
        )
        with Reducer(ShmLink(member.shm_dir, member.switch_port, addresses), config) as reducer:
            yield reducer

    def _carry(self, here: End, there: End, busy: threading.Lock) -> None:
        """One direction of a link. Frames to or from a switch that is off are lost."""
        while not self._stopping.is_set():
            with busy:
                source, sink = self.devices.get(here.switch), self.devices.get(there.switch)
                if source is not None:
                    with contextlib.suppress(PortError):
                        frame = source.loop.receive(here.port, POLL_S)
                        if frame is not None and sink is not None:
                            sink.loop.inject(there.port, frame)
            if source is None:
                self._stopping.wait(POLL_S)
