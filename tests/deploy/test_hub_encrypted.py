# SPDX-License-Identifier: Apache-2.0
"""The part of docs/guides/hub.md on WireGuard, typed on machines that two routers separate from the hub."""

import re
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.deploy.machines import NEEDS_MACHINES, Machine, until
from tests.deploy.routed import Routed, routed
from tests.deploy.test_hub import BIN, PAGE
from tests.harness.typed import blocks
from weir.host_agent.transport.bindings import USUAL_PAYLOAD
from weir.host_agent.transport.report import FRAME_OVERHEAD

WIREGUARD = 51820
INSIDE = "cd /tmp\n"  # a folder of the machine's own
_ETH_P_ALL, _SO_RCVBUFFORCE = 3, 33
_ETHERNET, _IPV4, _UDP, _WIREGUARD = 14, 20, 8, 32

pytestmark = [*NEEDS_MACHINES, pytest.mark.wireguard]


class Wire:
    """What the router and the hub say to each other."""

    def __init__(self, place: Routed) -> None:
        self._tap = place.router.call(self._open)

    @staticmethod
    def _open() -> socket.socket:
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        tap.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 24)
        tap.bind(("hub", 0))
        tap.setblocking(False)
        return tap

    def packets(self) -> Iterator[bytes]:
        """Yield the IPv4 packets since the last call."""
        while True:
            try:
                frame = self._tap.recv(1 << 17)
            except BlockingIOError:
                return
            if frame[12:14] == b"\x08\0":
                yield frame[_ETHERNET:]

    def close(self) -> None:
        self._tap.close()


def is_wireguards(packet: bytes) -> bool:
    ports = [int.from_bytes(packet[at : at + 2], "big") for at in (_IPV4, _IPV4 + 2)]
    return packet[9] == socket.IPPROTO_UDP and WIREGUARD in ports


def public_key(machine: Machine, block: str) -> str:
    *_, key = machine.types(INSIDE + block).split()
    assert re.fullmatch(r"[\w+/]{43}=", key)
    return key


def reaches(one: Machine, other: Machine, address: str) -> bool:
    """Return whether one worker can talk to another at an address inside."""
    with other.network.call(lambda: socket.create_server((address, 0))) as server:
        there = address, server.getsockname()[1]
        one.network.call(lambda: socket.create_connection(there, 10)).close()
        return True


def test_the_hub_sums_inside_wireguard_as_typed() -> None:
    keys, on_hub, on_worker = blocks(PAGE)[5:]
    with routed() as place:
        hub, workers = place.hub, place.workers
        own, *others = (public_key(machine, keys) for machine in (hub, *workers))
        wire = Wire(place)
        named = f"FIRST={others[0]} SECOND={others[1]}\n"
        hub.types(f"{INSIDE}{BIN}{named}({on_hub.strip()}) > hub.log 2>&1 &")
        log = lambda: hub.types("cat /tmp/hub.log")  # noqa: E731
        until(lambda: "export" in log(), log)
        for number, worker in enumerate(workers, 1):
            said = worker.types(f"{INSIDE}{BIN}HUB={own} NUMBER={number}\n{on_worker}")
            assert "h1" in said and "no answer" not in said
        assert reaches(workers[0], workers[1], "10.77.0.2")
        before = [packet for packet in wire.packets() if not is_wireguards(packet)]
        assert not before, before[0][: _IPV4 + _UDP].hex()
        program = f"{sys.executable} -m tests.deploy.hub_worker 10.77.0.254:9600"
        with ThreadPoolExecutor() as pool:
            said = list(pool.map(lambda rank: workers[rank].types(f"{program} {rank} 2"), range(2)))
        assert said == ["sums 11\n"] * 2
        seen = list(wire.packets())
        assert all(map(is_wireguards, seen))
        longest = FRAME_OVERHEAD + USUAL_PAYLOAD + _IPV4 + _UDP
        sizes = {int.from_bytes(packet[2:4], "big") for packet in seen}
        assert -(-longest // 16) * 16 + _WIREGUARD + _UDP + _IPV4 == max(sizes), sizes  # as the page says
        small = workers[0].types(f"ip link set wg0 mtu {longest - 1}\n{program} 0 1 2>&1 || true")
        assert f"has an MTU of {longest - 1}, but packets have up to {longest} bytes" in small
        wire.close()
