# SPDX-License-Identifier: Apache-2.0
"""Carriers of packets of weights: to one, to all, and from whom."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from softp4.native.ring import SWITCH, ShmPort
from weir.agent_service.client import ClaimedPort, Endpoint, Membership
from weir.host_agent.flows.frames import Address
from weir.host_agent.torch.weights.carriers import (
    TRAFFIC_CLASS,
    Carrier,
    MemoryCarrier,
    SocketCarrier,
    choose_carrier,
    open_socket,
)
from weir.host_agent.weights.packets import Datagrams, DataWriter, Name, Packet
from weir.wire.definition import WEIGHTS_DATA, WEIGHTS_PORT, WeightsType

JOB, KEY = 7, b"k" * 16
GROUP = Endpoint("01:00:5e:77:00:10", "239.119.0.16", WEIGHTS_PORT)
SWITCH_MAC = "02:00:00:00:00:fe"
PAYLOAD = Packet(WeightsType.DATA, JOB, 2, 0, 1, data=b"weights").encode(KEY)
MANY = 130


def membership(host: Endpoint, shm: Path | None = None, claimed: ClaimedPort | None = None) -> Membership:
    return Membership(
        *(JOB, "policy", 0, 1, 2, Endpoint(SWITCH_MAC, "10.0.0.254", 9347), host, "h1", "s1", 1, shm, 10.0),
        fill=False,
        paths=(0,),
        key=KEY,
        claimed=claimed,
        group=GROUP,
        publisher=host,
    )


def heard(carrier: Carrier, packets: int = 1) -> list[tuple[bytes, tuple[str, int]]]:
    """Return packets that come, this many or fewer."""
    found: list[tuple[bytes, tuple[str, int]]] = []
    for _ in range(100):
        for batch in carrier.receive():
            found += [(batch.payload(at), batch.source) for at in range(batch.count)]
        if len(found) >= packets:
            break
        carrier.wait(0.02)
    return found


def run_of_packets() -> Datagrams:
    """Return many packets of one size, and a shorter one."""
    code = np.arange(MANY * WEIGHTS_DATA - 100, dtype=np.uint8)
    return DataWriter(JOB, KEY).write(Name(2, snapshot=False), MANY + 1, 0, code, None)


@pytest.fixture
def sockets() -> Iterator[list[SocketCarrier]]:
    """Yield carriers of a publisher and of two subscribers, on the loopback interface."""
    made = []
    for listens in (False, True, True):
        own = open_socket("udp")
        assert own is not None
        here = membership(Endpoint("02:00:00:00:00:01", "127.0.0.1", own.getsockname()[1]))
        made.append(SocketCarrier(own, here, listens=listens))
    yield made
    for carrier in made:
        carrier.close()


def address(carrier: SocketCarrier) -> Address:
    return Address("127.0.0.1", carrier._own.getsockname()[1])


def test_sockets_reach_all_and_one(sockets: list[SocketCarrier]) -> None:
    publisher, *subscribers = sockets
    publisher.send(Datagrams.single(PAYLOAD, None))
    assert publisher.flush()
    for each in subscribers:
        assert heard(each) == [(PAYLOAD, address(publisher))]
    subscribers[0].send(Datagrams.single(PAYLOAD, address(publisher)))
    assert subscribers[0].flush()
    assert heard(publisher) == [(PAYLOAD, address(subscribers[0]))]
    publisher.send(Datagrams.single(PAYLOAD, address(subscribers[1])))
    assert publisher.flush()
    assert heard(subscribers[1]) == [(PAYLOAD, address(publisher))]
    assert subscribers[0].receive() == []


@pytest.mark.parametrize("batches", ["on", "off"])
def test_sockets_carry_batches(
    batches: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("SOFTP4_BATCHES", batches)
    publisher, *subscribers = request.getfixturevalue("sockets")
    sent = run_of_packets()
    publisher.send(sent)
    assert publisher.flush()
    for each in subscribers:
        assert heard(each, MANY) == [(payload, address(publisher)) for payload in sent.split()]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[tuple[ShmPort, MemoryCarrier]]:
    """Yield a switch's end of a port, and a carrier at the host's end."""
    with ShmPort(tmp_path, 1, SWITCH) as switch:
        carrier = MemoryCarrier(membership(Endpoint("02:00:00:00:00:01", "10.0.0.1", 9347), tmp_path))
        yield switch, carrier
        carrier.close()


def test_frames_to_all_and_to_one(shared: tuple[ShmPort, MemoryCarrier]) -> None:
    switch, carrier = shared
    carrier.send(Datagrams.single(PAYLOAD, None))
    carrier.send(Datagrams.single(PAYLOAD, Address("10.0.0.2", 9000)))
    assert carrier.flush()
    for mac, ip, port in ((GROUP.mac, GROUP.ip, WEIGHTS_PORT), (SWITCH_MAC, "10.0.0.2", 9000)):
        frame = Ether(switch.recv())
        assert (frame.dst, frame.src, frame[IP].dst, frame[IP].src) == (
            mac,
            "02:00:00:00:00:01",
            ip,
            "10.0.0.1",
        )
        assert (frame[UDP].dport, frame[UDP].sport, frame[IP].tos) == (port, 9347, TRAFFIC_CLASS)
        assert bytes(frame[UDP].payload) == PAYLOAD


def test_frames_wait_until_there_is_room(shared: tuple[ShmPort, MemoryCarrier]) -> None:
    switch, carrier = shared
    sent = run_of_packets()
    for _ in range(20):
        carrier.send(sent)
    frames = []
    while not carrier.flush():
        while frame := switch.recv():
            frames.append(frame)
    while frame := switch.recv():
        frames.append(frame)
    assert [frame[42:] for frame in frames] == 20 * sent.split()


def test_frames_to_others_are_nobodys(shared: tuple[ShmPort, MemoryCarrier]) -> None:
    switch, carrier = shared
    other = Packet(WeightsType.DATA, JOB + 1, 2, 0, 1, data=b"weights").encode(KEY)
    frames = {
        "other job": Ether(dst=GROUP.mac) / IP(dst=GROUP.ip, flags="DF") / UDP(dport=WEIGHTS_PORT) / other,
        "other group": Ether(dst=GROUP.mac) / IP(dst="239.119.0.17", flags="DF") / UDP(dport=9349) / PAYLOAD,
        "short": Ether(dst=GROUP.mac) / IP(dst=GROUP.ip) / UDP(dport=WEIGHTS_PORT) / b"",
        "ours": Ether(dst=GROUP.mac)
        / IP(src="10.0.0.9", dst=GROUP.ip, flags="DF")
        / UDP(sport=1234, dport=WEIGHTS_PORT)
        / PAYLOAD,
    }
    for frame in frames.values():
        assert switch.send(bytes(frame))
    assert heard(carrier) == [(PAYLOAD, Address("10.0.0.9", 1234))]


def test_a_member_that_wants_shared_memory_hears_that_there_is_none() -> None:
    here = membership(Endpoint("02:00:00:00:00:01", "10.0.0.1", 9347), None, ClaimedPort("127.0.0.1", 1, KEY))
    with pytest.raises(ValueError, match="WEIR_LINK is shm, but host 'h1' has no shared-memory port"):
        choose_carrier(here, "shm", open_socket("shm"), listens=True)
