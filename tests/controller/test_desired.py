# SPDX-License-Identifier: Apache-2.0
"""What a switch must hold, entry by entry; and that the compiled program has all of it by these names."""

from controller.codec import Codec
from controller.desired import desired_state
from controller.entries import Lpm, Replica, TableEntry
from controller.program import load_program
from controller.sync import EntryUpdate, GroupUpdate, Verb
from controller.tables import TABLES
from controller.tables.events import COUNTERS
from controller.topology import Host, single_switch
from tests.controller.helpers import job

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
FLOOD = {1: frozenset({Replica(1, 0), Replica(2, 0)})}


def test_without_jobs_a_switch_forwards_and_knows_its_own_address() -> None:
    state = desired_state(TOPOLOGY, SWITCH, [])
    assert state.entries == STANDING
    assert state.groups == FLOOD


def test_a_job_of_two() -> None:
    running = job("digits", TOPOLOGY, size=2, job_id=0xABCD, slot_base=128, slot_count=64)
    state = desired_state(TOPOLOGY, SWITCH, [running])
    assert state.entries - STANDING == {
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
    assert len(desired_state(wider, other, [running]).entries) == 4 + 2


def test_every_name_is_the_compiled_programs_and_every_entry_survives_the_wire() -> None:
    codec = Codec(load_program("weir_v1model").p4info)
    state = desired_state(TOPOLOGY, SWITCH, [job("digits", TOPOLOGY, size=2, job_id=0xFFFFFFFF)])
    assert {entry.table for entry in state.entries} == set(TABLES)
    for entry in state.entries:
        message = codec.update(EntryUpdate(Verb.INSERT, entry))
        assert codec.decode(message.entity.table_entry) == entry
    for group, replicas in state.groups.items():
        message = codec.update(GroupUpdate(Verb.INSERT, group, replicas))
        wire = message.entity.packet_replication_engine_entry.multicast_group_entry
        assert codec.decode_group(wire) == (group, replicas)
    for counter in COUNTERS:
        assert codec.counter_id(counter)
