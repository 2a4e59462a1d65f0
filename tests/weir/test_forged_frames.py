# SPDX-License-Identifier: Apache-2.0
"""Forged frames on real links: of a host that is in no job, and of another user of a worker's host."""

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Dot1Q, Ether

from tests.controller.helpers import until
from weir.agent_service.client import AgentClient, Membership
from weir.host_agent.torch.job_connection import transport_config
from weir.host_agent.transport.codec import Column, Packet
from weir.host_agent.transport.links import UdpLink
from weir.host_agent.transport.reducer import Reducer
from weir.netns.cluster import NetworkCluster, network_cluster
from weir.wire.definition import UDP_PORT, Event, Flag, Op, PacketType

pytestmark = pytest.mark.root

TIMEOUT_S = 60.0
FORGED = 256  # packets
NOBODY = 65534
LANES = np.arange(20_000, dtype=np.uint32)

# Another user's program: takes the worker's UDP port if it can be had, and sends the payloads.
OTHER_USER = f"""
import json, os, socket, sys
os.setgid({NOBODY}); os.setuid({NOBODY})
asked = json.load(sys.stdin)
mine = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    mine.setsockopt(socket.SOL_SOCKET, option, 1)
try:
    mine.bind((asked["ip"], asked["port"]))
    print("bound")
except OSError as error:
    print(error.strerror)
    mine = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for payload in asked["payloads"]:
    mine.sendto(bytes.fromhex(payload), (asked["to"], {UDP_PORT}))
"""


class Pair:
    """A job of two workers on hosts h1 and h2, over kernel sockets."""

    def __init__(self, cluster: NetworkCluster, stack: contextlib.ExitStack) -> None:
        self._cluster = cluster
        self._pool = stack.enter_context(ThreadPoolExecutor(2))
        spaces = cluster.lab.namespaces
        links = [spaces[rank].call(partial(UdpLink, ("0.0.0.0", 0))) for rank in range(2)]
        agents = [stack.enter_context(AgentClient(cluster.controller)) for _ in links]
        self.members: list[Membership] = list(
            self._pool.map(
                lambda rank: agents[rank].join(
                    job="pair", size=2, rank=rank, host=f"h{rank + 1}", udp_port=links[rank].port, slots=16
                ),
                range(2),
            )
        )
        for link, member in zip(links, self.members, strict=True):
            link.connect((member.aggregation.ip, member.aggregation.udp_port))
        self._reducers = [
            stack.enter_context(Reducer(link, transport_config(member, keep=False), timeout_s=TIMEOUT_S))
            for link, member in zip(links, self.members, strict=True)
        ]

    def sums(self) -> None:
        """Reduce, and see that the sums are right."""
        vectors = [LANES.copy() * (rank + 1) for rank in range(2)]
        reports = list(self._pool.map(lambda r, v: r.reduce_blocks(v, Op.ADD), self._reducers, vectors))
        for vector, report in zip(vectors, reports, strict=True):
            np.testing.assert_array_equal(vector, LANES * 3)
            assert not report.refused

    def forged(self, kind: PacketType, round: int, slot: int = 0) -> bytes:
        """Return the payload of a packet of this job's, from the second worker or to the first."""
        return Packet(
            type=kind,
            op=Op.ADD,
            block_log2=8,
            job=self.members[0].job_id,
            worker=int(kind == PacketType.CONTRIBUTION),
            slot=slot,
            round=round,
            columns=(Column(0),),
            groups=dict.fromkeys(range(8), (7,) * 32),
            included=0b11 if kind == PacketType.RESULT else 0,
            flags=Flag.PROTECTED,
            count=2,
        ).encode()

    def counted(self, event: Event) -> int:
        """Return how many packets the switch has so decided about."""
        (switch,) = self._cluster.status().switches
        return int(switch.events[event].count.packets)


@pytest.fixture(scope="module")
def cluster() -> Iterator[NetworkCluster]:
    """Yield three hosts on one switch."""
    with network_cluster(3) as made:
        yield made


@pytest.fixture
def pair(cluster: NetworkCluster) -> Iterator[Pair]:
    """Yield a job of the first two hosts, which has summed something already."""
    with contextlib.ExitStack() as stack:
        made = Pair(cluster, stack)
        made.sums()
        yield made


def raw() -> socket.socket:
    """Return a socket for whole frames."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    made.bind(("eth0", 0))
    return made


def test_a_host_in_no_job_cannot_send_in_the_name_of_the_switch(cluster: NetworkCluster, pair: Pair) -> None:
    victim, own = pair.members[0], cluster.lab.hosts[2]
    here, there = victim.host, victim.aggregation
    udp = UDP(sport=there.udp_port, dport=here.udp_port) / pair.forged(PacketType.RESULT, 1)
    frames = [
        Ether(src=own.mac, dst=here.mac) / IP(src=there.ip, dst=here.ip) / udp,
        Ether(src=there.mac, dst=here.mac) / IP(src=there.ip, dst=here.ip) / udp,
        Ether(src=own.mac, dst=here.mac) / Dot1Q(vlan=0) / IP(src=there.ip, dst=here.ip) / udp,
        Ether(src=own.mac, dst=here.mac)
        / ARP(op=2, hwsrc=own.mac, psrc=there.ip, hwdst=here.mac, pdst=here.ip),
    ]
    before = pair.counted(Event.DROP_FORGED_SOURCE)
    with cluster.lab.namespaces[2].call(raw) as sender:
        for frame in frames:
            sender.send(bytes(frame))
    until(lambda: pair.counted(Event.DROP_FORGED_SOURCE) == before + len(frames))
    pair.sums()


def test_another_user_of_a_workers_host_cannot_stop_its_job(cluster: NetworkCluster, pair: Pair) -> None:
    """It knows the job's id, slots and rounds; the worker's UDP port it cannot have."""
    victim = pair.members[1]
    payloads = [
        pair.forged(PacketType.CONTRIBUTION, 1_000_000 + number, number % 16).hex()
        for number in range(FORGED)
    ]
    asked = {
        "ip": victim.host.ip,
        "port": victim.host.udp_port,
        "to": victim.aggregation.ip,
        "payloads": payloads,
    }
    before = pair.counted(Event.DROP_WRONG_SENDER)
    done = subprocess.run(
        [*cluster.lab.namespaces[1].prefix, sys.executable, "-c", OTHER_USER],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "Address already in use\n"
    until(lambda: pair.counted(Event.DROP_WRONG_SENDER) == before + FORGED)
    pair.sums()


def test_not_even_the_worker_itself_can_send_its_slots_far_ahead(cluster: NetworkCluster, pair: Pair) -> None:
    """Root of its host sends frames with all that is the worker's; the switch refuses the rounds."""
    victim = pair.members[1]
    header = (
        Ether(src=victim.host.mac, dst=victim.aggregation.mac)
        / IP(src=victim.host.ip, dst=victim.aggregation.ip)
        / UDP(sport=victim.host.udp_port, dport=UDP_PORT, chksum=0)
    )
    before = pair.counted(Event.DROP_FAR_ROUND)
    with cluster.lab.namespaces[1].call(raw) as sender:
        for number in range(FORGED):
            sender.send(
                bytes(header / pair.forged(PacketType.CONTRIBUTION, 1_000_000 + 2 * number, number % 16))
            )
    until(lambda: pair.counted(Event.DROP_FAR_ROUND) == before + FORGED)
    pair.sums()
