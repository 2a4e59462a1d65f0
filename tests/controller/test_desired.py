# SPDX-License-Identifier: Apache-2.0
"""What a switch must hold, entry by entry; and that the compiled program has all of it by these names."""

from hypothesis import given
from hypothesis import strategies as st

from tests.controller.helpers import job
from weir.controller.addresses import ip_number, mac_number
from weir.controller.codec import Codec
from weir.controller.desired import desired_state
from weir.controller.entries import Lpm, Replica, SwitchState, TableEntry, Ternary
from weir.controller.program import load_program
from weir.controller.qos import ClassSpec, Loss, Qos
from weir.controller.sync import EntryUpdate, GroupUpdate, Verb
from weir.controller.tables import TABLES, admission, forwarding, losses, queueing, spraying, tree
from weir.controller.tables.events import COUNTERS
from weir.controller.topology import leaf_spine, single_switch
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
}
CLASSES = {queueing.traffic_class(dscp, treatment) for dscp, treatment in Qos().treatments().items()}
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
                    ("slot_base", 128),
                    ("slot_count", 64),
                    ("worker_bit", 1 << rank),
                    ("all_workers", 0b11),
                    ("group", 130),
                    ("rack", 0),
                ),
            )
            for rank in range(2)
        ),
        *(
            TableEntry(
                "WeirEgress.results.receivers",
                (("job", 0xABCD), ("worker", rank)),
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


def test_two_workers_on_one_port_have_an_entry_and_a_replica_each() -> None:
    running = job("shared", TOPOLOGY, size=2)
    running.members[1].host = TOPOLOGY.hosts[0]
    running.members[1].udp_port = 10000
    state = desired_state(TOPOLOGY, SWITCH, [running])
    admitted = {e.match for e in state.entries if e.table == "WeirIngress.admission.workers"}
    assert admitted == {(("port", 1), ("job", 1), ("worker", 0)), (("port", 1), ("job", 1), ("worker", 1))}
    assert state.groups[2] == {Replica(1, 1), Replica(1, 2)}


def test_jobs_and_hosts_of_other_switches_are_not_this_ones() -> None:
    other = SWITCH.model_copy(update={"name": "s2", "grpc": "127.0.0.1:9560"})
    stranger = Host(name="h9", switch="s2", port=1, mac="02:00:00:00:00:09", ip="10.0.0.9")
    wider = TOPOLOGY.model_copy(update={"switches": (SWITCH, other), "hosts": (*TOPOLOGY.hosts, stranger)})
    running = job("digits", TOPOLOGY, size=2)
    assert desired_state(wider, SWITCH, [running]) == desired_state(TOPOLOGY, SWITCH, [running])
    assert len(desired_state(wider, other, [running]).entries - CLASSES) == 4 + 2


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


def test_a_leaf_sums_its_own_workers_and_goes_up_to_the_spine_of_the_slots_class() -> None:
    state = desired_state(RACKS, LEAF2, [job("wide", RACKS, size=4, job_id=9, slot_base=32, slot_count=16)])
    slots = {"slot_base": 32, "slot_count": 16, "all_workers": 0b1100, "group": 34}
    assert params(state, admission.WORKERS) == {
        (1, 9, 2): {**slots, "worker_bit": 0b0100, "rack": 0},
        (2, 9, 3): {**slots, "worker_bit": 0b1000, "rack": 0},
    }
    assert params(state, admission.PARENTS) == {(3, 9): slots, (4, 9): slots}
    assert state.groups[34] == {Replica(1, 3), Replica(2, 4)}
    ups = params(state, tree.UPLINKS)
    assert len(ups) == 16
    for spine_class in range(16):
        spine = ("spine1", "spine2")[spine_class % 2]
        assert ups[9, spine_class] == {
            "port": 3 + spine_class % 2,
            "member": 1,
            "src_mac": OWN["leaf2"][0],
            "src_ip": OWN["leaf2"][1],
            "dst_mac": OWN[spine][0],
            "dst_ip": OWN[spine][1],
        }


def test_a_spine_waits_for_racks() -> None:
    state = desired_state(RACKS, SPINE1, [job("wide", RACKS, size=4, job_id=9, slot_base=32, slot_count=16)])
    slots = {"slot_base": 32, "slot_count": 16, "all_workers": 0b11, "group": 34, "rack": 1}
    assert params(state, admission.WORKERS) == {
        (1, 9, 0): {**slots, "worker_bit": 0b01},
        (2, 9, 1): {**slots, "worker_bit": 0b10},
    }
    assert state.groups == {34: {Replica(1, 1), Replica(2, 2)}}
    assert params(state, "WeirEgress.results.receivers")[9, 1] == {
        "src_mac": OWN["spine1"][0],
        "src_ip": OWN["spine1"][1],
        "dst_mac": OWN["leaf2"][0],
        "dst_ip": OWN["leaf2"][1],
        "dst_port": 9347,
        "mask": 0,
        "path": 0,
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
    assert params(desired_state(RACKS, LEAF1, [running]), tree.UPLINKS)[1, 0]["member"] == 1


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
    for counter in (*COUNTERS, *queueing.TREATMENTS):
        assert codec.counter_id(counter)
