# SPDX-License-Identifier: Apache-2.0
"""A network has the shape that was asked for, and everything in it one name and one place."""

import pytest

from weir.network import (
    NetworkPlan,
    NetworkSpec,
    Shape,
    incast,
    make_plan,
    parse_shape,
    switch_ports,
    udp_tunnels,
)

TWO_BY_TWO = NetworkSpec(parse_shape("leaf-spine-2x2"), rate_bps=10**8, loss=0.01, background="incast")


def plan(spec: NetworkSpec, workers: int = 4) -> NetworkPlan:
    return make_plan(spec, workers, grpc=lambda name: f"unix:/run/{name}", shm=lambda leaf: f"/shm/{leaf}")


def test_shapes_are_read_and_written() -> None:
    assert parse_shape("single") == Shape() and str(Shape()) == "single"
    assert parse_shape("leaf-spine-3x2") == Shape(3, 2) and str(Shape(3, 2)) == "leaf-spine-3x2"


@pytest.mark.parametrize(
    "text", ["", "leaf-spine", "leaf-spine-2", "leaf-spine-0x2", "leaf-spine-2x0", "fat"]
)
def test_what_is_no_shape_is_told_one(text: str) -> None:
    with pytest.raises(ValueError, match="for example leaf-spine-2x2"):
        parse_shape(text)


def test_more_switches_than_a_machine_should_run_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 8 racks and 8 spines"):
        parse_shape("leaf-spine-9x2")


@pytest.mark.parametrize(("workers", "racks"), [(4, [2, 2]), (5, [2, 3]), (2, [1, 1]), (7, [3, 4])])
def test_workers_are_spread_over_the_racks_in_order_of_rank(workers: int, racks: list[int]) -> None:
    made = plan(TWO_BY_TWO, workers)
    assert [[host.switch for host in made.workers].count(leaf) for leaf in made.leaves] == racks
    assert [host.switch for host in made.workers] == sorted(host.switch for host in made.workers)


def test_background_hosts_are_nobodys_workers_and_have_a_victim_in_each_rack() -> None:
    made = plan(TWO_BY_TWO)
    assert not set(made.background) & set(made.workers)
    assert [host.switch for host in made.background] == ["leaf1", "leaf1", "leaf2", "leaf2"]
    assert made.victims == (made.workers[0], made.workers[2])
    spec = incast(made)
    assert spec is not None and spec.hosts == len(spec.senders) == 4
    near, far = spec.senders[0].victims
    assert near.mac == made.victims[0].mac  # in the same rack: straight to the host
    assert far.mac == made.topology.switch("leaf1").aggregation.mac and far.ip == made.victims[1].ip
    one = incast(made, only=made.background[2].name)
    assert one is not None and [sender.ip for sender in one.senders] == [made.background[2].ip]
    assert one.hosts == 4


def test_every_link_loses_packets_once_in_each_direction() -> None:
    made = plan(TWO_BY_TWO)
    losses = made.topology.qos.losses
    assert {loss.probability for loss in losses} == {0.01}
    at_hosts = {
        (host.switch, host.port, way) for host in made.topology.hosts for way in ("ingress", "egress")
    }
    between = {(end.switch, end.port, "egress") for link in made.topology.links for end in link.ends}
    assert {(loss.switch, loss.port, loss.direction) for loss in losses} == at_hosts | between
    assert len(losses) == len(at_hosts) + len(between)
    assert plan(NetworkSpec()).topology.qos.losses == ()


def test_both_ends_of_a_cable_name_each_other() -> None:
    made = plan(TWO_BY_TWO)
    ports = switch_ports(made, lambda _host: "shm", udp_tunnels(iter(range(5001, 5009))))
    assert ports["leaf1"][0] == "1=shm,rate=100000000bit,depth=64"
    assert ports["leaf1"][-2] == "5=udp:127.0.0.1:5001:127.0.0.1:5002,rate=100000000bit,depth=64"
    assert ports["spine1"][0] == "1=udp:127.0.0.1:5002:127.0.0.1:5001,rate=100000000bit,depth=64"
    for cable in made.cables:
        ends = {str(end) for end in (f"{cable.leaf}:{cable.leaf_port}", f"{cable.spine}:{cable.spine_port}")}
        assert ends in [{str(end) for end in link.ends} for link in made.topology.links]
    assert plan(NetworkSpec()).topology.links == ()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"loss": 1.0}, "loss is 1.0"),
        ({"load": 0.0}, "load is 0.0"),
        ({"background": "incast"}, "set a rate for the links"),
    ],
)
def test_a_wrong_network_is_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        NetworkSpec(**wrong)


def test_fewer_workers_than_racks_are_refused() -> None:
    with pytest.raises(ValueError, match="1 workers cannot be spread over 2 racks"):
        plan(TWO_BY_TWO, 1)
