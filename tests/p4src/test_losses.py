# SPDX-License-Identifier: Apache-2.0
"""The drop simulator: what is lost, where, and how much of it."""

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether

from tests.harness.keys import Ternary
from tests.harness.lab import Lab, group_of, mac_number
from tests.harness.target import Sent
from weir.wire.definition import Event, dscp

HERE, THERE = "02:00:00:00:01:01", "02:00:00:00:01:02"
ALWAYS = 0xFFFFFFFF
A = group_of(1)
ANY = Ternary(0, 0)


def lose(lab: Lab, pipeline: str, port: int, codes: Ternary, probability: int, priority: int = 1) -> None:
    """Install a fault."""
    action = f"Weir{pipeline}.losses.lose"
    lab.target.insert(f"Weir{pipeline}.losses.faults", (port, codes), action, (probability,), priority)


def test_what_comes_in_is_lost_by_port_and_class(lab: Lab) -> None:
    lab.target.insert(
        "WeirIngress.forwarding.l2", (mac_number(THERE),), "WeirIngress.forwarding.forward", (3,)
    )
    lose(lab, "Ingress", 1, Ternary(0b101000, 0b111000), ALWAYS)
    lose(lab, "Ingress", 2, ANY, ALWAYS)
    frames = [
        bytes(Ether(src=HERE, dst=THERE) / IP(dst="10.0.0.9", tos=code << 2) / UDP())
        for code in (0b101000, 0b101111, 0b100000, 0)
    ]
    through = [Sent(3, frame) for frame in frames]
    assert [lab.send(1, frame) for frame in frames] == [[], [], [through[2]], [through[3]]]
    assert [lab.send(2, frame) for frame in frames] == [[], [], [], []]
    assert [lab.send(4, frame) for frame in frames] == [[each] for each in through]
    assert lab.events() == {Event.DROP_SIMULATED: 6, Event.FORWARDED: 6}


def test_what_is_not_ip_is_of_class_0(lab: Lab) -> None:
    lab.target.insert(
        "WeirIngress.forwarding.l2", (mac_number(THERE),), "WeirIngress.forwarding.forward", (3,)
    )
    frame = bytes(Ether(src=HERE, dst=THERE) / ARP())
    lose(lab, "Ingress", 1, Ternary(8, 0x3F), ALWAYS)
    assert lab.send(1, frame) == [Sent(3, frame)]
    lose(lab, "Ingress", 1, Ternary(0, 0x3F), ALWAYS)
    assert lab.send(1, frame) == []


def test_the_greatest_priority_decides(lab: Lab) -> None:
    lab.target.insert(
        "WeirIngress.forwarding.l2", (mac_number(THERE),), "WeirIngress.forwarding.forward", (3,)
    )
    frame = bytes(Ether(src=HERE, dst=THERE) / IP(tos=0) / UDP())
    lose(lab, "Ingress", 1, ANY, ALWAYS, priority=1)
    lose(lab, "Ingress", 1, Ternary(0, 0x3F), 0, priority=2)
    assert lab.send(1, frame) == [Sent(3, frame)]


def test_a_replica_is_lost_by_the_port_it_leaves_by(lab: Lab) -> None:
    """The worker behind it asks again, and the others have their result."""
    job = lab.job(3, ports=[1, 2, 3])
    lose(lab, "Egress", 2, Ternary(dscp(0), 0x3F), ALWAYS)
    for worker in (0, 1):
        assert job.send(worker, lanes={0: A}) == []
    total = {"lanes": {0: [3 * lane for lane in A]}, "included": 0b111}
    assert job.send(2, lanes={0: A}) == [job.result(0, **total), job.result(2, **total)]
    for worker in (0, 1):
        assert job.send(worker, lanes={0: A}) == [job.result(worker, **total, again=True)]
    assert lab.events()[Event.DROP_SIMULATED] == 1


def test_a_lost_contribution_leaves_no_trace(lab: Lab) -> None:
    job = lab.job(2, ports=[1, 2])
    job.send(0, lanes={0: A})
    lose(lab, "Ingress", 2, ANY, ALWAYS)
    assert job.send(1, lanes={0: A}) == []
    assert lab.events() == {Event.CONTRIBUTION: 1, Event.DROP_SIMULATED: 1}


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_about_the_given_share_is_lost(lab: Lab, share: float) -> None:
    lab.target.insert(
        "WeirIngress.forwarding.l2", (mac_number(THERE),), "WeirIngress.forwarding.forward", (3,)
    )
    lose(lab, "Ingress", 1, ANY, round(share * 2**32))
    frame = bytes(Ether(src=HERE, dst=THERE) / IP(dst="10.0.0.9") / UDP())
    through = sum(len(lab.send(1, frame)) for _ in range(300))
    # 300 draws: five standard deviations are 40
    assert abs(through - 300 * (1 - share)) <= (40 if share else 0)
