# SPDX-License-Identifier: Apache-2.0
"""Equal-cost paths: which packets choose by themselves, which follow their flow, and how."""

from collections import Counter
from typing import Any

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import Ether

from tests.harness.keys import Lpm
from tests.harness.lab import AGGREGATION_MAC, Job, Lab, ip_number, mac_number
from tests.harness.target import Sent
from weir.wire.definition import FLOW_PORT, Event, FlowType, SprayMode
from weir.wire.scapy_layer import WeirFlow

GROUP, BASE, PATHS = 5, 40, (2, 3, 4)
HERE = "02:00:00:00:01:01"


def neighbour(port: int) -> str:
    """Return address of the next hop behind a port."""
    return f"02:00:00:00:02:{port:02x}"


def own(port: int) -> str:
    """Return the switch's address on that link."""
    return f"02:00:00:00:03:{port:02x}"


def spread(lab: Lab, mode: SprayMode, *, ports: tuple[int, ...] = PATHS, count: int | None = None) -> None:
    """Route 10.7.0.0/16 over several ports."""
    target = lab.target
    target.insert("WeirIngress.forwarding.l2", (mac_number(AGGREGATION_MAC),), "WeirIngress.forwarding.local")
    route = (Lpm(ip_number("10.7.0.0"), 16),)
    target.insert("WeirIngress.forwarding.ipv4", route, "WeirIngress.forwarding.spray", (GROUP,))
    first = (*ports, 0, 0, 0, 0)[:4]
    args = (mode, BASE, len(ports) if count is None else count, *first)
    target.insert("WeirIngress.spraying.groups", (GROUP,), "WeirIngress.spraying.choose", args)
    for index, port in enumerate(ports):
        hop = (port, mac_number(own(port)), mac_number(neighbour(port)))
        target.insert("WeirIngress.spraying.paths", (BASE + index,), "WeirIngress.spraying.take", hop)


def routed(frame: Any, port: int) -> Sent:
    """Return a frame as it must leave by a port."""
    made = Ether(bytes(frame))
    made.src, made.dst = own(port), neighbour(port)
    made[IP].ttl -= 1
    del made[IP].chksum
    return Sent(port, bytes(made))


def to_remote(job: Job) -> Any:
    """Return a contribution to an aggregation address beyond those paths."""
    frame = job.contribution(0, lanes={0: range(32)})
    frame[IP].dst = "10.7.0.254"
    return Ether(bytes(frame))


def chunk(index: int = 0) -> Any:
    """Return a chunk of a flow to a server beyond those paths."""
    return Ether(
        bytes(
            Ether(src=HERE, dst=AGGREGATION_MAC)
            / IP(src="10.0.0.1", dst="10.7.0.1")
            / UDP(sport=40000, dport=FLOW_PORT)
            / WeirFlow(type=FlowType.CHUNK, index=index, count=100)
            / b"data"
        )
    )


def other(layer: Any) -> Any:
    """Return a packet of somebody else."""
    return Ether(bytes(Ether(src=HERE, dst=AGGREGATION_MAC) / IP(src="10.0.0.1", dst="10.7.0.1") / layer))


def ports_of(lab: Lab, frame: Any, times: int) -> list[int]:
    """By which port each repetition of a frame leaves; its content is checked."""
    chosen = []
    for _ in range(times):
        [sent] = lab.send(1, frame)
        assert sent == routed(frame, sent.port)
        chosen.append(sent.port)
    return chosen


@pytest.mark.parametrize("mode", [SprayMode.ROUND_ROBIN, SprayMode.LEAST_LOADED])
@pytest.mark.parametrize("ports", [(2,), (2, 3), (4, 2, 3)])
def test_every_path_has_one_turn_in_a_round_in_order(
    lab: Lab, mode: SprayMode, ports: tuple[int, ...]
) -> None:
    spread(lab, mode, ports=ports)
    chosen = ports_of(lab, chunk(), 12)
    for first in range(0, 12, len(ports)):
        start = ports.index(chosen[first])
        assert chosen[first : first + len(ports)] == [*ports[start:], *ports[:start]]
    for index, port in enumerate(ports):
        counted = lab.target.entry_counter("WeirIngress.spraying.paths", (BASE + index,))
        assert counted.packets == chosen.count(port)


def test_rounds_begin_with_different_paths(lab: Lab) -> None:
    """Otherwise, senders that alternate paths themselves would each get one and the same path."""
    spread(lab, SprayMode.ROUND_ROBIN)
    assert set(ports_of(lab, chunk(), 3 * 30)[::3]) == set(PATHS)


def test_contributions_and_flows_take_turns_together(lab: Lab) -> None:
    spread(lab, SprayMode.ROUND_ROBIN)
    job = lab.job(1, ports=[1])
    [first], [second] = ports_of(lab, to_remote(job), 1), ports_of(lab, chunk(), 1)
    assert PATHS.index(second) == (PATHS.index(first) + 1) % 3


def test_random_uses_every_path(lab: Lab) -> None:
    spread(lab, SprayMode.RANDOM)
    chosen = Counter(ports_of(lab, chunk(), 90))
    assert set(chosen) == set(PATHS)
    assert min(chosen.values()) >= 10


@pytest.mark.parametrize("mode", SprayMode)
def test_others_keep_to_their_flows_path(lab: Lab, mode: SprayMode) -> None:
    spread(lab, mode)
    seen = set()
    for source in range(40):
        for layer in (TCP(sport=1000 + source), UDP(sport=1000 + source)):
            chosen = set(ports_of(lab, other(layer), 3))
            assert len(chosen) == 1
            seen |= chosen
    assert seen == set(PATHS)
    assert len(set(ports_of(lab, other(ICMP()), 5))) == 1


def test_hash_keeps_weirs_flows_together_too(lab: Lab) -> None:
    spread(lab, SprayMode.HASH)
    assert len({port for index in range(10) for port in ports_of(lab, chunk(index), 1)}) == 1


def test_the_mode_can_change_at_any_time(lab: Lab) -> None:
    spread(lab, SprayMode.HASH)
    [usual] = set(ports_of(lab, chunk(), 4))
    for mode, paths in ((SprayMode.ROUND_ROBIN, set(PATHS)), (SprayMode.HASH, {usual})):
        args = (mode, BASE, 3, *PATHS, 0)
        lab.target.modify("WeirIngress.spraying.groups", (GROUP,), "WeirIngress.spraying.choose", args)
        assert set(ports_of(lab, chunk(), 6)) == paths


def test_without_a_path_the_packet_is_dropped(lab: Lab) -> None:
    spread(lab, SprayMode.ROUND_ROBIN, ports=(), count=0)
    assert lab.send(1, chunk()) == []
    lab.target.modify(
        "WeirIngress.spraying.groups",
        (GROUP,),
        "WeirIngress.spraying.choose",
        (SprayMode.ROUND_ROBIN, BASE, 2, 0, 0, 0, 0),
    )
    assert lab.send(1, chunk()) == []
    assert lab.events() == {Event.DROP_NO_PATH: 2}
