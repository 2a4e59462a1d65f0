# SPDX-License-Identifier: Apache-2.0
"""What the controller installs makes packets flow: members get sums, all else is dropped and counted."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether

from softp4.native.ring import ShmPort
from tests.controller.helpers import until
from weir.agent_service import PUBLISHER_SLOTS
from weir.agent_service.client import AgentClient, Membership
from weir.controller.server import Settings, running
from weir.controller.topology import single_switch
from weir.controller.wiring import Host
from weir.host_agent.transport.codec import Column, Packet
from weir.host_agent.weights.packets import Packet as WeightsPacket
from weir.wire.definition import Op, PacketType, WeightsType

WORKERS = 3
PUBLISHES: Final[dict[str, Any]] = {"size": 1, "rank": 0, "slots": PUBLISHER_SLOTS, "publishes": True}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Yield a soft switch's P4Runtime address and the directory of its shared-memory ports."""
    folder = tmp_path_factory.mktemp("shm")
    ready = folder / "ready.json"
    command = [sys.executable, "-m", "softp4", "run", "--grpc", "127.0.0.1:0", "--ready-file", str(ready)]
    command += ["--shm", str(folder)]
    for port in range(1, WORKERS + 1):
        command += ["--port", f"{port}=shm"]
    with (folder / "log").open("wb") as log:
        switch = subprocess.Popen(command, stdout=log, stderr=log)
    until(lambda: ready.exists() or switch.poll() is not None)
    assert ready.exists(), (folder / "log").read_text()
    yield json.loads(ready.read_text())["grpc"], folder
    switch.terminate()
    switch.wait()


def contribution(member: Membership, value: int, *, number: int = 1) -> bytes:
    """Return a round-``number`` packet of slot 0: one block of 32 lanes, all ``value``."""
    columns = (Column(block=0), *(Column() for _ in range(7)))
    packet = Packet(
        PacketType.CONTRIBUTION, Op.ADD, 5, member.job_id, member.rank, 0, number, columns, {0: (value,) * 32}
    )
    there, here = member.aggregation, member.host
    frame = (
        Ether(src=here.mac, dst=there.mac)
        / IP(src=here.ip, dst=there.ip, id=0)
        / UDP(sport=here.udp_port, dport=there.udp_port, chksum=0)
    )
    return bytes(frame / packet.encode())


def test_a_job_sums_and_nobody_else_may(ports: tuple[str, Path]) -> None:
    address, folder = ports
    with (
        running(single_switch(WORKERS, address, str(folder)), Settings(lease_s=5.0)) as controller,
        AgentClient(controller.address) as first,
        AgentClient(controller.address) as second,
        AgentClient(controller.address) as alone,
        ShmPort(folder, 1) as port1,
        ShmPort(folder, 2) as port2,
        ShmPort(folder, 3) as port3,
    ):
        bystander = alone.join(job="alone", size=1, rank=0, host="h3", udp_port=7777)
        members = _join_both(first, second)
        assert members[0].shm_dir == folder

        port1.send(contribution(members[0], 20))
        port2.send(contribution(members[1], 22))
        for member, port in zip(members, (port1, port2), strict=True):
            frame = port.recv(timeout=10)
            assert frame is not None
            told = Ether(frame)
            assert (told.src, told.dst) == (member.aggregation.mac, member.host.mac)
            assert (told[IP].src, told[IP].dst) == (member.aggregation.ip, member.host.ip)
            assert (told[UDP].sport, told[UDP].dport) == (9347, 9347)
            result = Packet.decode(bytes(told[UDP].payload))
            assert (result.type, result.worker, result.included) == (PacketType.RESULT, member.rank, 0b11)
            assert result.groups == {0: (42,) * 32}

        port3.send(contribution(bystander, 7))
        frame = port3.recv(timeout=10)
        assert frame is not None
        assert Ether(frame)[UDP].dport == 7777

        port3.send(contribution(members[0], 1, number=2))  # right job and worker, wrong port
        _drops(first, "not_admitted", 1)
        status = first.status()
        by_rank = {
            m.rank: (m.up.packets, m.down.packets) for j in status.jobs if j.name == "pair" for m in j.members
        }
        assert by_rank == {0: (1, 1), 1: (1, 1)}
        by_port = {p.port: (p.up.packets, p.down.packets) for p in status.switches[0].ports}
        assert by_port == {1: (1, 1), 2: (1, 1), 3: (1, 1)}

        second.close()  # lost: its job is closed to everybody, the other one goes on
        until(lambda: first.stopped is not None)
        until(lambda: [j.name for j in alone.status().jobs] == ["alone"])
        port1.send(contribution(members[0], 1, number=2))
        _drops(alone, "not_admitted", 2)
        port3.send(contribution(bystander, 8, number=2))
        frame = port3.recv(timeout=10)
        assert frame is not None
        assert Packet.decode(bytes(Ether(frame)[UDP].payload)).groups == {0: (8,) * 32}


def test_hosts_find_the_switch_and_each_other(ports: tuple[str, Path]) -> None:
    address, folder = ports
    with (
        running(single_switch(WORKERS, address, str(folder))) as controller,
        AgentClient(controller.address) as observer,
        ShmPort(folder, 1) as port1,
        ShmPort(folder, 2) as port2,
        ShmPort(folder, 3) as port3,
    ):
        until(lambda: observer.status().switches[0].state == "ready")
        mac1, mac2 = "02:00:00:00:00:01", "02:00:00:00:00:02"
        ask = Ether(src=mac1, dst="ff:ff:ff:ff:ff:ff") / ARP(hwsrc=mac1, psrc="10.0.0.1", pdst="10.0.0.254")
        port1.send(bytes(ask))
        answer = Ether(port1.recv(timeout=10))
        assert (answer[ARP].op, answer[ARP].hwsrc, answer[ARP].pdst) == (2, "02:00:00:00:00:fe", "10.0.0.1")

        ask[ARP].pdst = "10.0.0.2"
        port1.send(bytes(ask))
        for port in (port2, port3):
            assert port.recv(timeout=10) == bytes(ask)

        hello = bytes(
            Ether(src=mac2, dst=mac1) / IP(src="10.0.0.2", dst="10.0.0.1") / UDP(dport=9347) / b"hello"
        )
        port2.send(hello)
        assert port1.recv(timeout=10) == hello  # and not its own question, flooded back

        routed = (
            Ether(src=mac2, dst="02:00:00:00:00:fe") / IP(src="10.0.0.2", dst="10.0.0.1") / UDP() / b"hello"
        )
        port2.send(bytes(routed))
        arrived = Ether(port1.recv(timeout=10))
        assert (arrived.dst, arrived[IP].ttl) == (mac1, 63)


def test_only_the_publisher_reaches_its_subscribers(ports: tuple[str, Path]) -> None:
    """Not one of them, which has the key, nor a member of another job; then the publisher has a successor."""
    address, folder = ports
    with contextlib.ExitStack() as stack:
        topology = single_switch(WORKERS, address, str(folder))
        controller = stack.enter_context(running(topology, Settings(lease_s=5.0)))
        links = [stack.enter_context(ShmPort(folder, port)) for port in range(1, WORKERS + 1)]
        agents = [stack.enter_context(AgentClient(controller.address)) for _ in links]
        for publisher, subscriber, stranger in ((0, 1, 2), (1, 2, 0)):
            member = agents[publisher].join(job="policy", **PUBLISHES, host=f"h{publisher + 1}")
            reader = agents[subscriber].subscribe(job="policy", host=f"h{subscriber + 1}")
            agents[stranger].join(job="other", size=1, rank=0, host=f"h{stranger + 1}")
            before = _dropped(agents[0], "not_publisher")
            for number, link in enumerate(links):
                if number != publisher:
                    link.send(_weights(member, topology.hosts[number]))
            _drops(agents[0], "not_publisher", before + 2)
            genuine = _weights(member, topology.hosts[publisher])
            links[publisher].send(genuine)
            assert links[subscriber].recv(timeout=10) == genuine
            assert reader.publisher is not None and reader.publisher.mac == Ether(genuine).src
            assert [link.recv(timeout=0.1) for link in links] == [None] * WORKERS
            for number in (subscriber, stranger, publisher):
                agents[number].leave()


def _weights(member: Membership, host: Host) -> bytes:
    """Return a packet of a publication to its subscribers, in the name of a host."""
    assert member.group is not None
    payload = WeightsPacket(WeightsType.DATA, member.job_id, 2, 0, 1, data=b"weights").encode(member.key)
    ip = IP(src=host.ip, dst=member.group.ip, flags="DF")
    udp = UDP(sport=member.host.udp_port, dport=member.group.udp_port)
    return bytes(Ether(src=host.mac, dst=member.group.mac) / ip / udp / payload)


def _join_both(first: AgentClient, second: AgentClient) -> list[Membership]:
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(agent.join, job="pair", size=2, rank=rank, host=f"h{rank + 1}")
            for rank, agent in enumerate((first, second))
        ]
        return [call.result() for call in calls]


def _drops(agent: AgentClient, reason: str, wanted: int) -> None:
    """Wait until the switch has counted this many packets that it dropped for this reason."""
    until(lambda: _dropped(agent, reason) == wanted)


def _dropped(agent: AgentClient, reason: str) -> int:
    (event,) = [e for e in agent.status().switches[0].events if e.name == f"drop_{reason}"]
    return int(event.count.packets)
