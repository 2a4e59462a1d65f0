# SPDX-License-Identifier: Apache-2.0
"""Background traffic is well-formed, as much as was asked for, and never more than fits."""

import itertools
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from softp4.native.ring import SWITCH, ShmPort
from weir.background import FLOWS, FRAME_BYTES, IncastSpec, Sender, Victim, frame, one_burst, open_outlets

VICTIMS = (
    Victim(ip="10.0.1.1", mac="02:00:00:00:01:01"),
    Victim(ip="10.0.2.1", mac="02:00:00:00:01:fe"),
)


def sender(folder: Path | None = None, port: int = 0) -> Sender:
    shm = None if folder is None else str(folder)
    return Sender(ip="10.0.1.3", mac="02:00:00:00:01:03", victims=VICTIMS, shm=shm, port=port)


@pytest.mark.parametrize("dscp", [0, 24])
def test_a_frame_is_a_full_udp_packet_that_says_its_class(dscp: int) -> None:
    found = Ether(frame(sender(), VICTIMS[1], dscp, flow=3))
    assert (found.src, found.dst, len(found)) == ("02:00:00:00:01:03", "02:00:00:00:01:fe", FRAME_BYTES)
    assert (found[IP].src, found[IP].dst, found[IP].len, found[IP].tos) == (
        "10.0.1.3",
        "10.0.2.1",
        1500,
        dscp << 2,
    )
    assert (found[UDP].dport, found[UDP].len) == (9, 1480)
    checksum = found[IP].chksum
    del found[IP].chksum
    assert Ether(bytes(found))[IP].chksum == checksum
    assert len({frame(sender(), VICTIMS[0], dscp, flow) for flow in range(FLOWS)}) == FLOWS


def test_the_mean_load_on_a_victims_link_is_what_was_asked_for() -> None:
    spec = IncastSpec(senders=(sender(),), hosts=4, rate_bps=10**8, load=0.25, burst=16)
    bits = spec.hosts * spec.burst * FRAME_BYTES * 8
    assert bits / spec.period_s == pytest.approx(0.25e8)


def test_a_host_sends_to_several_victims_over_its_kernel() -> None:
    victims = tuple(Victim(ip=f"127.0.0.{number}", mac="") for number in (2, 3))
    spec = IncastSpec(senders=(Sender(ip="127.0.0.1", mac="", victims=victims),), hosts=1, rate_bps=10**8)
    (own,) = open_outlets(spec)
    assert [outlet.send(flow) for outlet in own for flow in range(FLOWS)].count(True) > 0


def test_a_burst_comes_from_all_hosts_and_what_finds_no_room_is_lost(tmp_path: Path) -> None:
    ends = [ShmPort(tmp_path, number, SWITCH) for number in (1, 2)]
    senders = tuple(sender(tmp_path, number) for number in (1, 2))
    outlets = open_outlets(IncastSpec(senders=senders, hosts=2, rate_bps=10**8))
    flows = itertools.cycle(range(FLOWS))
    assert one_burst(outlets, 1, 3, flows) == 6
    for end in ends:
        for _ in range(3):
            got = end.recv(timeout=0)
            assert got is not None and Ether(got)[IP].dst == VICTIMS[1].ip
        assert end.recv(timeout=0) is None
    sent = sum(one_burst(outlets, 0, 512, flows) for _ in range(3))
    assert 2 * 512 < sent < 3 * 2 * 512  # what the rings hold, and no more
    for end in ends:
        while end.recv(timeout=0) is not None:
            sent -= 1
    assert sent == 0
    for end in ends:
        end.close()
