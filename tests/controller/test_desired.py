# SPDX-License-Identifier: Apache-2.0
"""What a switch must hold, entry by entry; and that the compiled program has all of it by these names."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from tests.controller.helpers import job
from weir.controller.addresses import ip_number, mac_number
from weir.controller.codec import Codec
from weir.controller.desired import desired_state
from weir.controller.entries import Lpm, Replica, SwitchState, TableEntry, Ternary
from weir.controller.job_tree import paths
from weir.controller.jobs import FIRST_SUBSCRIBER, Member
from weir.controller.program import load_program
from weir.controller.qos import ClassSpec, Loss, Qos
from weir.controller.sync import EntryUpdate, GroupUpdate, Verb
from weir.controller.tables import TABLES, admission, forwarding, losses, queueing, sources, spraying, tree
from weir.controller.tables.events import COUNTERS
from weir.controller.topology import leaf_spine, leaf_spine_core, single_switch
from weir.controller.wiring import Host

TOPOLOGY = single_switch(2, "127.0.0.1:9559")
SWITCH = TOPOLOGY.switches[0]
OWN_MAC, OWN_IP = 0x0200000000FE, 0x0A0000FE
MACS, IPS = (0x020000000001, 0x020000000002), (0x0A000001, 0x0A000002)
STANDING = {
    TableEntry(
        "WeirIngress.arp.addresses",
        (("address", OWN_IP),),
        "WeirIngress.arp.answer",
        (("mac", OWN_MAC),),
    ),
    TableEntry(
        "WeirIngress.aggregator.addresses",
        (("address", OWN_IP),),
        "WeirIngress.aggregator.aggregate",
        (("headroom", 512),),
    ),
    TableEntry("WeirIngress.forwarding.l2", (("dst_mac", OWN_MAC),), "WeirIngress.forwarding.local"),
    TableEntry(
        "WeirIngress.forwarding.l2",
        (("dst_mac", 0xFFFFFFFFFFFF),),
        "WeirIngress.forwarding.flood",
        (("group", 1),),
    ),
    *(
        TableEntry(
            "WeirIngress.forwarding.l2",
            (("dst_mac", mac),),
            "WeirIngress.forwarding.forward",
            (("port", port),),
        )
        for port, mac in enumerate(MACS, 1)
    ),
    *(
        TableEntry(
            "WeirIngress.forwarding.ipv4",
            (("dst", Lpm(ip, 32)),),
            "WeirIngress.forwarding.route",
            (("port", port), ("dst_mac", mac)),
        )
        for port, (ip, mac) in enumerate(zip(IPS, MACS, strict=True), 1)
    ),
    *(
        TableEntry(
            "WeirIngress.sources.stations",
            (("port", port), ("src_mac", mac)),
            "WeirIngress.sources.host",
            (("ip", ip),),
        )
        for port, (ip, mac) in enumerate(zip(IPS, MACS, strict=True), 1)
    ),
    *(
        TableEntry("WeirIngress.sources.addresses", (("src", Lpm(ip, 32)),), "WeirIngress.sources.forged")
        for ip in (OWN_IP, *IPS)
    ),
}
CLASSES = {queueing.traffic_class(dscp, behaviour) for dscp, behaviour in Qos().per_hop_behaviours().items()}
FLOOD = {1: frozenset({Replica(1, 0), Replica(2, 0)})}


def test_without_jobs_a_switch_forwards_and_knows_its_own_address() -> None:
    state = desired_state(TOPOLOGY, SWITCH, [])
    assert state.entries == STANDING | CLASSES
    assert state.groups == FLOOD


def test_a_job_of_two() -> None:
    running = job("digits", TOPOLOGY, size=2, job_id=0xABCD, slot_base=128, slot_count=64)
    state = desired_state(TOPOLOGY, SWITCH, [running])
    assert state.entries - STANDING - CLASSES == {
        *(
            TableEntry(
                "WeirIngress.admission.workers",
                (("port", rank + 1), ("job", 0xABCD), ("worker", rank)),
                "WeirIngress.admission.admit",
                (
                    ("sender_ip", IPS[rank]),
                    ("sender_port", 9347),
                    ("slot_base", 128),
                    ("slot_count", 64),
                    ("worker_bit", 1 << rank),
                    ("all_workers", 0b11),
                    ("group", 130),
                    ("spread", 0),
                    ("rack", 0),
                ),
            )
            for rank in range(2)
        ),
        *(
            TableEntry(
                "WeirEgress.results.receivers",
                (("job", 0xABCD), ("worker", rank), ("port", rank + 1)),
                "WeirEgress.results.deliver",
                (
                    ("src_mac", OWN_MAC),
                    ("src_ip", OWN_IP),
                    ("dst_mac", MACS[rank]),
                    ("dst_ip", IPS[rank]),
                    ("dst_port", 9347),
                    ("mask", 0x7FFF),
                    ("path", rank),
                ),
            )
            for rank in range(2)
        ),
    }
    assert state.groups == {**FLOOD, 130: frozenset({Replica(1, 1), Replica(2, 2)})}


def senders(state: SwitchState) -> Iterator[tuple[int, int, int]]:
    """Yield number, address and UDP port of each worker that is admitted."""
    for entry in state.entries:
        if entry.table == admission.WORKERS:
            given = dict(entry.params)
            number = dict(entry.match)["worker"]
            assert isinstance(number, int)
            yield number, int(given["sender_ip"]), int(given["sender_port"])


def test_two_workers_on_one_port_have_an_entry_and_a_replica_each() -> None:
    running = job("shared", TOPOLOGY, size=2)
    running.members[1].host = TOPOLOGY.hosts[0]
    running.members[1].udp_port = 10000
    state = desired_state(TOPOLOGY, SWITCH, [running])
    admitted = {e.match for e in state.entries if e.table == "WeirIngress.admission.workers"}
    assert admitted == {(("port", 1), ("job", 1), ("worker", 0)), (("port", 1), ("job", 1), ("worker", 1))}
    assert {number: (ip, port) for number, ip, port in senders(state)} == {
        0: (IPS[0], 9347),
        1: (IPS[0], 10000),
    }
    assert state.groups[2] == {Replica(1, 1), Replica(1, 2)}


def test_jobs_and_hosts_of_other_switches_are_not_this_ones() -> None:
    other = SWITCH.model_copy(update={"name": "s2", "grpc": "127.0.0.1:9560"})
    stranger = Host(name="h9", switch="s2", port=1, mac="02:00:00:00:00:09", ip="10.0.0.9")
    wider = TOPOLOGY.model_copy(update={"switches": (SWITCH, other), "hosts": (*TOPOLOGY.hosts, stranger)})
    running = job("digits", TOPOLOGY, size=2)
    assert desired_state(wider, SWITCH, [running]) == desired_state(TOPOLOGY, SWITCH, [running])
    assert len(desired_state(wider, other, [running]).entries - CLASSES) == 4 + 2 + 3


# ---- several racks

LOSSES = (
    Loss(switch="leaf1", port=3, probability=0.25),
    Loss(switch="leaf1", port=3, dscp=8, probability=1),
    Loss(switch="leaf1", port=1, direction="ingress", probability=0.5),
)
RACKS = leaf_spine(2, 2, 2, qos=Qos(losses=LOSSES))
LEAF1, LEAF2, SPINE1, SPINE2 = RACKS.switches
OWN = {
    switch.name: (mac_number(switch.aggregation.mac), ip_number(switch.aggregation.ip))
    for switch in RACKS.switches
}


def sender(ip: int, port: int = 9347) -> dict[str, int]:
    """Return the addresses that a child or parent sends from, as entries have them."""
    return {"sender_ip": ip, "sender_port": port}


def params(state: SwitchState, table: str) -> dict[tuple[object, ...], dict[str, int]]:
    """Parameters of a table's entries by the values of their keys."""
    return {
        tuple(value for _name, value in entry.match): dict(entry.params)
        for entry in state.entries
        if entry.table == table
    }


def test_a_leaf_routes_to_other_racks_over_all_spines_and_a_spine_to_the_racks() -> None:
    leaf, spine = desired_state(RACKS, LEAF1, []), desired_state(RACKS, SPINE2, [])
    routes = params(leaf, forwarding.IPV4)
    assert routes.pop((Lpm(0x0A000200, 24),)) == {"group": 1}
    assert set(routes) == {(Lpm(0x0A000101, 32),), (Lpm(0x0A000102, 32),)}
    assert params(leaf, spraying.GROUPS) == {
        (1,): {"mode": 1, "base": 0, "count": 2, "port0": 3, "port1": 4, "port2": 0, "port3": 0}
    }
    assert params(leaf, spraying.PATHS) == {
        (index,): {"port": port, "src_mac": OWN["leaf1"][0], "dst_mac": OWN[spine][0]}
        for index, (port, spine) in enumerate([(3, "spine1"), (4, "spine2")])
    }
    assert leaf.groups == {1: {Replica(1, 0), Replica(2, 0)}}
    assert params(spine, forwarding.IPV4) == {
        (Lpm(0x0A000100, 24),): {"port": 1, "dst_mac": OWN["leaf1"][0]},
        (Lpm(0x0A000200, 24),): {"port": 2, "dst_mac": OWN["leaf2"][0]},
    }
    assert spine.groups == {}


def test_a_leaf_knows_the_addresses_of_its_ports_and_what_is_nobodys_on_them() -> None:
    leaf = desired_state(RACKS, LEAF1, [])
    assert params(leaf, sources.STATIONS) == {
        (1, 0x020000000101): {"ip": 0x0A000101},
        (2, 0x020000000102): {"ip": 0x0A000102},
        (3, OWN["spine1"][0]): {},
        (4, OWN["spine2"][0]): {},
    }
    own = [0x0A000101, 0x0A000102, *(OWN[name][1] for name in ("leaf1", "spine1", "spine2"))]
    assert set(params(leaf, sources.ADDRESSES)) == {
        *((Lpm(ip, 32),) for ip in own),
        (Lpm(0x0A000200, 24),),  # all of the other rack
    }


def test_who_is_outside_its_racks_subnet_is_named() -> None:
    stray = RACKS.hosts[3].model_copy(update={"ip": "192.168.7.1"})
    topology = RACKS.model_copy(update={"hosts": (*RACKS.hosts[:3], stray)})
    taken = params(desired_state(topology, LEAF1, []), sources.ADDRESSES)
    assert {(Lpm(0xC0A80701, 32),), (Lpm(0x0A000200, 24),)} <= taken.keys()


def test_racks_in_one_subnet_are_named_host_by_host() -> None:
    """Otherwise, a host's second address could not be used there."""
    wide = tuple(switch.model_copy(update={"subnet": "10.0.0.0/16"}) for switch in RACKS.switches)
    taken = params(desired_state(RACKS.model_copy(update={"switches": wide}), wide[0], []), sources.ADDRESSES)
    assert {key[0].length for key in taken} == {32}
    assert len(taken) == len(RACKS.hosts) + len(RACKS.switches)


def test_a_spine_hears_its_neighbours_alone() -> None:
    spine = desired_state(RACKS, SPINE2, [])
    assert params(spine, sources.STATIONS) == {(1, OWN["leaf1"][0]): {}, (2, OWN["leaf2"][0]): {}}
    assert params(spine, sources.ADDRESSES) == {}


def test_a_leaf_sums_its_own_workers_and_goes_up_to_the_spine_of_the_slots_class() -> None:
    state = desired_state(RACKS, LEAF2, [job("wide", RACKS, size=4, job_id=9, slot_base=32, slot_count=16)])
    slots = {"slot_base": 32, "slot_count": 16, "all_workers": 0b11, "group": 34, "spread": 0}
    assert params(state, admission.WORKERS) == {
        (1, 9, 0): {**slots, **sender(0x0A000201), "worker_bit": 0b01, "rack": 0},
        (2, 9, 1): {**slots, **sender(0x0A000202), "worker_bit": 0b10, "rack": 0},
    }
    assert params(state, admission.PARENTS) == {
        (port, 9): {**slots, **sender(OWN[spine][1]), "own_bit": 2}
        for port, spine in ((3, "spine1"), (4, "spine2"))
    }
    assert state.groups[34] == {Replica(1, 1), Replica(2, 2)}
    ups = params(state, tree.UPLINKS)
    assert len(ups) == 16
    for spine_class in range(16):
        spine = ("spine1", "spine2")[spine_class % 2]
        assert ups[9, spine_class] == {
            "port": 3 + spine_class % 2,
            "number": 1,
            "whole": 0,
            "src_mac": OWN["leaf2"][0],
            "src_ip": OWN["leaf2"][1],
            "dst_mac": OWN[spine][0],
            "dst_ip": OWN[spine][1],
        }


def test_a_spine_waits_for_racks() -> None:
    state = desired_state(RACKS, SPINE1, [job("wide", RACKS, size=4, job_id=9, slot_base=32, slot_count=16)])
    slots = {"slot_base": 32, "slot_count": 16, "all_workers": 0b11, "group": 34, "spread": 0, "rack": 1}
    assert params(state, admission.WORKERS) == {
        (1, 9, 0): {**slots, **sender(OWN["leaf1"][1]), "worker_bit": 0b01},
        (2, 9, 1): {**slots, **sender(OWN["leaf2"][1]), "worker_bit": 0b10},
    }
    assert state.groups == {34: {Replica(1, 1), Replica(2, 2)}}
    assert params(state, "WeirEgress.results.receivers")[9, 1, 2] == {
        "src_mac": OWN["spine1"][0],
        "src_ip": OWN["spine1"][1],
        "dst_mac": OWN["leaf2"][0],
        "dst_ip": OWN["leaf2"][1],
        "dst_port": 9347,
        "mask": 0x7FE0,
        "path": 1 << 5,
    }
    assert params(state, tree.UPLINKS) == params(state, admission.PARENTS) == {}


def test_a_job_within_a_rack_is_no_business_of_the_others() -> None:
    running = job("home", RACKS, size=2)
    for switch in (LEAF2, SPINE1, SPINE2):
        assert desired_state(RACKS, switch, [running]) == desired_state(RACKS, switch, [])
    state = desired_state(RACKS, LEAF1, [running])
    assert params(state, tree.UPLINKS) == params(state, admission.PARENTS) == {}
    assert len(params(state, admission.WORKERS)) == 2


def test_racks_are_numbered_by_their_lowest_ranks() -> None:
    running = job("wide", RACKS, size=2)
    running.members[0].host, running.members[1].host = RACKS.hosts[3], RACKS.hosts[0]
    assert running.leaves == ("leaf2", "leaf1")
    spine = params(desired_state(RACKS, SPINE1, [running]), admission.WORKERS)
    assert {key: entry["worker_bit"] for key, entry in spine.items()} == {(2, 1, 0): 1, (1, 1, 1): 2}
    assert params(desired_state(RACKS, LEAF1, [running]), tree.UPLINKS)[1, 0]["number"] == 1


def test_a_spine_that_is_given_up_is_nobodys_way() -> None:
    running = [job("wide", RACKS, size=4)]
    whole, less = (desired_state(RACKS, LEAF1, running, alive) for alive in (None, ["spine2"]))
    assert {entry["port"] for entry in params(less, tree.UPLINKS).values()} == {4}
    assert {entry["port"] for entry in params(less, spraying.PATHS).values()} == {4}
    assert params(less, spraying.GROUPS)[1,]["count"] == 1
    gone = {entry.key for entry in whole.entries} - {entry.key for entry in less.entries}
    assert gone == {(admission.PARENTS, (("port", 3), ("job", 1)), 0)}
    assert desired_state(RACKS, SPINE1, running, ["spine2"]) == desired_state(RACKS, SPINE1, running)
    assert desired_state(RACKS, LEAF1, running, []) == whole


def test_a_job_that_says_which_spines_it_uses_is_summed_by_no_other() -> None:
    running = job("wide", RACKS, size=4)
    running.parents, running.uplinks = frozenset({"spine2"}), frozenset({"spine1", "spine2"})
    state = desired_state(RACKS, LEAF1, [running], ["spine1"])
    assert set(params(state, admission.PARENTS)) == {(4, 1)}
    assert {entry["port"] for entry in params(state, tree.UPLINKS).values()} == {3, 4}
    assert {entry["port"] for entry in params(state, spraying.PATHS).values()} == {3}
    assert desired_state(RACKS, SPINE1, [running]) == desired_state(RACKS, SPINE1, [])
    assert len(params(desired_state(RACKS, SPINE2, [running]), admission.WORKERS)) == 2


@given(st.integers(1, 16), st.data())
def test_a_spine_that_goes_takes_no_other_spines_classes_along(spines: int, data: st.DataObject) -> None:
    alive = data.draw(st.sets(st.integers(0, spines - 1), min_size=1))
    gone = data.draw(st.sampled_from(sorted(alive)))
    assert [tree.spine_of(c, spines, range(spines)) for c in range(16)] == [c % spines for c in range(16)]
    if len(alive) > 1:
        for spine_class in range(16):
            before = tree.spine_of(spine_class, spines, alive)
            after = tree.spine_of(spine_class, spines, alive - {gone})
            assert before in (after, gone)
            assert after in alive - {gone}


def test_the_classes_of_a_lost_spine_are_spread_over_the_others() -> None:
    for spines in range(2, 9):
        owners = [tree.spine_of(c, spines, range(1, spines)) for c in range(0, 16, spines)]
        most = max(owners.count(spine) for spine in range(1, spines))
        assert most <= -(-len(owners) // (spines - 1))


# ---- three tiers

PODS = leaf_spine_core(2, 2, 2, 2, 2)


def test_other_pods_are_reached_over_all_spines_and_cores() -> None:
    leaf, spine, core = (desired_state(PODS, PODS.switch(name), []) for name in ("leaf2", "spine1", "core1"))

    def by_rack(state: SwitchState) -> dict[int, dict[str, int]]:
        routes = {str(key[0]): way for key, way in params(state, forwarding.IPV4).items()}
        return {r: way for r in range(1, 5) if (way := routes.get(str(Lpm(0x0A000000 | r << 8, 24))))}

    assert by_rack(leaf) == {key: {"group": 1} for key in (1, 3, 4)}
    assert [by_rack(spine)[rack].get("port") for rack in (1, 2)] == [1, 2]
    assert by_rack(spine)[3] == by_rack(spine)[4] == {"group": 1}
    assert {path["port"] for path in params(spine, spraying.PATHS).values()} == {3, 4}
    assert {rack: way["group"] for rack, way in by_rack(core).items()} == {1: 1, 2: 1, 3: 2, 4: 2}
    groups = {key[0]: way for key, way in params(core, spraying.GROUPS).items()}
    ports = {key[0]: way["port"] for key, way in params(core, spraying.PATHS).items()}
    for group, expected in ((1, {1, 2}), (2, {3, 4})):
        first, count = groups[group]["base"], groups[group]["count"]
        assert {ports[index] for index in range(first, first + count)} == expected
    less = desired_state(PODS, PODS.switch("core1"), [], {"spine1", "spine3", "spine4", "core1"})
    assert {path["port"] for path in params(less, spraying.PATHS).values()} == {1, 3, 4}


def test_a_job_of_two_pods_is_a_tree_of_three_tiers() -> None:
    running = job("wide", PODS, size=8, job_id=9, slot_base=32, slot_count=16)
    leaf, spine, core = (desired_state(PODS, PODS.switch(n), [running]) for n in ("leaf4", "spine3", "core2"))
    slots = {"slot_base": 32, "slot_count": 16, "all_workers": 0b11, "group": 34}
    assert {(w["number"], w["whole"]) for w in params(leaf, tree.UPLINKS).values()} == {(1, 1)}
    own = {switch.name: sender(ip_number(switch.aggregation.ip)) for switch in PODS.switches}
    assert params(spine, admission.WORKERS) == {
        (1, 9, 0): {**slots, **own["leaf3"], "spread": 0, "worker_bit": 1, "rack": 1},
        (2, 9, 1): {**slots, **own["leaf4"], "spread": 0, "worker_bit": 2, "rack": 1},
    }
    assert params(spine, admission.PARENTS) == {
        (port, 9): {**slots, **own[core], "spread": 0, "own_bit": 2}
        for port, core in ((3, "core1"), (4, "core2"))
    }
    ups = params(spine, tree.UPLINKS)
    assert [(ups[9, c]["port"], ups[9, c]["number"], ups[9, c]["whole"]) for c in range(2)] == [
        (3, 1, 0),
        (4, 1, 0),
    ]
    assert params(core, admission.WORKERS) == {
        (port, 9, pod): {**slots, **own[f"spine{port}"], "spread": 15, "worker_bit": 1 << pod, "rack": 1}
        for port, pod in ((1, 0), (2, 0), (3, 1), (4, 1))
    }
    assert set(params(core, "WeirEgress.results.receivers")) == {(9, 0, 1), (9, 0, 2), (9, 1, 3), (9, 1, 4)}
    assert core.groups == {34 + c: {Replica(1 + c % 2, 1), Replica(3 + c % 2, 2)} for c in range(16)}
    assert params(core, tree.UPLINKS) == params(core, admission.PARENTS) == {}


def test_a_job_of_few_slots_has_no_more_groups_than_these() -> None:
    core = desired_state(PODS, PODS.switch("core1"), [job("small", PODS, size=8, slot_base=5, slot_count=3)])
    assert set(core.groups) == {7, 8, 9}


def test_a_core_follows_the_classes_of_a_spine_that_is_given_up() -> None:
    running = job("wide", PODS, size=8, slot_count=16)
    running.parents = running.uplinks = frozenset({"spine2", "spine3", "spine4", "core1", "core2"})
    core = desired_state(PODS, PODS.switch("core1"), [running])
    assert all(Replica(2, 1) in replicas and len(replicas) == 2 for replicas in core.groups.values())
    assert {key[0] for key in params(core, admission.WORKERS)} == {2, 3, 4}
    gone = PODS.switch("spine1")
    assert desired_state(PODS, gone, [running]) == desired_state(PODS, gone, [])


def test_a_job_within_a_pod_ends_at_its_spines() -> None:
    running = job("pod", PODS, size=4)
    assert params(desired_state(PODS, PODS.switch("spine1"), [running]), tree.UPLINKS) == {}
    for other in ("core1", "spine3", "leaf3"):
        switch = PODS.switch(other)
        assert desired_state(PODS, switch, [running]) == desired_state(PODS, switch, [])
    assert {w["whole"] for w in params(desired_state(PODS, LEAF1, [running]), tree.UPLINKS).values()} == {0}


def test_paths_number_a_worker_at_every_tier() -> None:
    running = job("wide", PODS, size=8)
    places = [(worker, leaf, pod) for pod in (0, 1) for leaf in (0, 1) for worker in (0, 1)]
    assert paths(PODS, running) == [worker | leaf << 5 | pod << 10 for worker, leaf, pod in places]
    running.members[0].host, running.members[7].host = running.members[7].host, running.members[0].host
    assert paths(PODS, running)[:3] == [0, 1 << 10, 1 << 5 | 1 << 10]


def test_qos_is_written_to_every_switch_and_losses_to_their_own() -> None:
    changed = RACKS.model_copy(update={"qos": Qos(classes={38: ClassSpec(trim_at=3)}, losses=LOSSES)})
    for switch in RACKS.switches:
        classes = params(desired_state(changed, switch, []), queueing.CLASSES)
        assert classes[38,] == {"queue": 4, "trim_at": 3, "mark_at": 12, "drop_at": 65535}
        assert set(classes) == {(dscp,) for dscp in (0, 10, 12, 14, 18, 20, 22, 26, 28, 30, 34, 36, 38, 56)}
    leaf = desired_state(changed, LEAF1, [])
    assert params(leaf, losses.FAULTS["egress"]) == {
        (3, Ternary(0, 0)): {"probability": 1 << 30},
        (3, Ternary(8, 0x3F)): {"probability": (1 << 32) - 1},
    }
    assert params(leaf, losses.FAULTS["ingress"]) == {(1, Ternary(0, 0)): {"probability": 1 << 31}}
    priorities = {
        entry.match[1][1]: entry.priority for entry in leaf.entries if entry.table in losses.FAULTS.values()
    }
    assert priorities == {Ternary(0, 0): 1, Ternary(8, 0x3F): 2}
    assert not params(desired_state(changed, LEAF2, []), losses.FAULTS["egress"])


def test_every_name_is_the_compiled_programs_and_every_entry_survives_the_wire() -> None:
    codec = Codec(load_program("weir_v1model").p4info)
    spanning = [job("wide", RACKS, size=4, job_id=0xFFFFFFFF)]
    states = [desired_state(RACKS, switch, spanning) for switch in RACKS.switches]
    assert {entry.table for state in states for entry in state.entries} == set(TABLES)
    for state in states:
        for entry in state.entries:
            message = codec.update(EntryUpdate(Verb.INSERT, entry))
            assert codec.decode(message.entity.table_entry) == entry
        for group, replicas in state.groups.items():
            message = codec.update(GroupUpdate(Verb.INSERT, group, replicas))
            wire = message.entity.packet_replication_engine_entry.multicast_group_entry
            assert codec.decode_group(wire) == (group, replicas)
    for counter in (*COUNTERS, *queueing.PER_HOP_BEHAVIOURS):
        assert codec.counter_id(counter)


def test_a_publishers_packets_go_to_its_subscribers_alone() -> None:
    racks = single_switch(4, "127.0.0.1:9559")
    switch = racks.switches[0]
    publisher = job("policy", racks, size=1, slot_base=16, slot_count=2)
    alone = desired_state(racks, switch, [publisher])
    publisher.subscribers = {
        FIRST_SUBSCRIBER + number: Member(FIRST_SUBSCRIBER + number, host, 9349)
        for number, host in enumerate(racks.hosts[1:3])
    }
    state = desired_state(racks, switch, [publisher])
    assert state.entries - alone.entries == {
        TableEntry(
            "WeirIngress.forwarding.l2",
            (("dst_mac", 0x01005E770010),),
            "WeirIngress.forwarding.publish",
            (("group", 19), ("publisher", racks.hosts[0].port)),
        )
    }
    ports = {Replica(host.port, 0) for host in racks.hosts[1:3]}
    assert {number: group for number, group in state.groups.items() if number not in alone.groups} == {
        19: ports
    }
