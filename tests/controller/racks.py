# SPDX-License-Identifier: Apache-2.0
"""Racks of real soft switches in this process, linked by UDP tunnels, workers on shared-memory ports."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from softp4.device import Device
from tests.harness.ports import free_port
from weir.agent_service.client import Membership
from weir.controller.topology import Topology, leaf_spine, leaf_spine_core
from weir.host_agent.torch.job_connection import transport_config
from weir.host_agent.transport.frames import Addresses, Endpoint
from weir.host_agent.transport.links import ShmLink
from weir.host_agent.transport.reducer import Reducer

LOOPBACK = "127.0.0.1"


class Racks:
    """Switches of ``topology``. ``kill`` ends one as a power cut would, ``start`` brings it back, empty.

    pods: of this many racks and spines each, joined by as many cores; one: there are none.
    """

    def __init__(
        self, folder: Path, *, pods: int = 1, racks: int = 2, spines: int = 2, hosts: int = 2
    ) -> None:
        self._folder = folder
        grpc, shm = f"unix:{folder}/{{}}.sock".format, f"{folder}/{{}}".format
        self.topology: Topology = (
            leaf_spine(racks, spines, hosts, grpc=grpc, shm=shm)
            if pods == 1
            else leaf_spine_core(pods, racks, spines, pods, hosts, grpc=grpc, shm=shm)
        )
        self._devices: dict[str, Device] = {}
        ends = [end for link in self.topology.links for end in link.ends]
        self._sockets = {str(end): free_port(socket.SOCK_DGRAM) for end in ends}

    def __enter__(self) -> "Racks":
        for switch in self.topology.switches:
            self.start(switch.name)
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._devices):
            self.kill(name)

    def start(self, name: str) -> None:
        """A switch without program or entries."""
        device = Device()
        for link in self.topology.links:
            for here, there in (link.ends, link.ends[::-1]):
                if here.switch == name:
                    own, peer = ((LOOPBACK, self._sockets[str(end)]) for end in (here, there))
                    device.loop.add_udp(here.port, own, peer)
        hosts = self.topology.hosts_of(name)
        if hosts:
            ports = self._folder / name
            ports.mkdir(exist_ok=True)
            device.open_shm(ports)
            for host in hosts:
                device.loop.add_shm(host.port, ports)
        device.serve(self.topology.switch(name).grpc)
        device.start()
        self._devices[name] = device

    def kill(self, name: str) -> None:
        """End a switch; what it holds is gone."""
        self._devices.pop(name).close()

    @contextlib.contextmanager
    def worker(self, member: Membership) -> Iterator[Reducer]:
        """Yield the real worker of a member, on its shared-memory port."""
        there, here = member.aggregation, member.host
        addresses = Addresses(Endpoint(here.mac, here.ip), Endpoint(there.mac, there.ip))
        assert member.shm_dir is not None
        config = transport_config(member, keep=False)
        with Reducer(ShmLink(member.shm_dir, member.switch_port, addresses), config) as reducer:
            yield reducer
