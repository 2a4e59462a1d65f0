# SPDX-License-Identifier: Apache-2.0
"""BfRuntime to a service that refuses whatever a Tofino's tables do not allow."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.controller.helpers import job, until
from tests.harness import certificates
from tests.harness.bfrt import CHIP_TABLES, PROGRAM_TABLES, FakeTofino
from tests.harness.effort import examples
from weir.agent_service.tls import TlsFiles
from weir.controller.bfrt import session
from weir.controller.bfrt.client import BfrtClient
from weir.controller.bfrt.codec import decode, encode
from weir.controller.bfrt.program import load_tofino_program
from weir.controller.bfrt.schema import PRIORITY, Schema
from weir.controller.desired import desired_state
from weir.controller.entries import Replica, SwitchState, TableEntry, Ternary
from weir.controller.jobs import Job
from weir.controller.reconciler import SwitchReconciler
from weir.controller.server import Settings, running
from weir.controller.switch_client import Count, SwitchError
from weir.controller.sync import EntryUpdate, Verb, plan
from weir.controller.tables import admission, arp, events, queueing, results, tofino, tree
from weir.controller.tofino import tofino_queues, tofino_state
from weir.controller.topology import (
    Topology,
    TopologyError,
    leaf_spine,
    leaf_spine_core,
    load_topology,
    single_switch,
)
from weir.controller.wiring import PortSettings, Switch, SwitchTls
from weir.wire.definition import MAX_CHILDREN, RELIABLE_DSCP, V1MODEL_EVENTS, Event

PROGRAM = load_tofino_program()
SCHEMA = Schema.parse(PROGRAM_TABLES, CHIP_TABLES)


def tofinos(topology: Topology, address: str) -> Topology:
    """Return the topology with every switch a Tofino at one address, by one number each."""
    switches = tuple(
        switch.model_copy(
            update={
                "target": "tofino",
                "program": "weir_tna",
                "grpc": address,
                "device_id": number,
                "ports": PortSettings(speed="25G", fec="reed-solomon"),
            }
        )
        for number, switch in enumerate(topology.switches)
    )
    return topology.model_copy(update={"switches": switches})


def wanted(topology: Topology, name: str, *jobs: Job) -> SwitchState:
    switch = topology.switch(name)
    lanes = {job.id: topology.max_lanes(job.switches) for job in jobs}
    return tofino_state(topology, switch, desired_state(topology, switch, jobs), lanes)


@pytest.fixture
def fake() -> Iterator[FakeTofino]:
    made = FakeTofino()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def client(fake: FakeTofino) -> Iterator[BfrtClient]:
    made = BfrtClient(Switch(name="s1", grpc=fake.address, device_id=0, program="weir_tna", target="tofino"))
    made.ensure_program(PROGRAM)
    yield made
    made.close()


def sync(client: BfrtClient, state: SwitchState) -> int:
    batches = plan(client.read(), state)
    client.write(batches)
    assert client.read() == state
    return sum(map(len, batches))


def test_a_full_job_is_read_back_as_written_and_removed_again(client: BfrtClient, fake: FakeTofino) -> None:
    topology = tofinos(single_switch(MAX_CHILDREN, fake.address), fake.address)
    big = job("big", topology, size=MAX_CHILDREN, job_id=1 << 31, slot_base=64)
    state = wanted(topology, "s1", big)
    assert sync(client, state)
    assert sync(client, state) == 0
    standing = wanted(topology, "s1")
    sync(client, standing)
    client.write(plan(client.read(), SwitchState()))
    assert {entry.table for entry in client.read().entries} == {tofino.PORTS}  # ports stay
    assert client.read().groups == {}
    assert fake.entries("$pre.node") == []


def test_leaves_and_spines_are_read_back_as_written_whatever_changes(
    client: BfrtClient, fake: FakeTofino
) -> None:
    racks = tofinos(leaf_spine(2, 3, 2), fake.address)
    steps: list[list[Job]] = [
        [job("wide", racks, size=4)],
        [job("wide", racks, size=4, slot_base=128), job("narrow", racks, size=2, job_id=2)],
        [job("wide", racks, size=3, slot_base=128)],
    ]
    for name in ("leaf1", "spine3"):
        fake.forget(tofino.PORTS)  # those of the other switch
        for jobs in steps:
            sync(client, wanted(racks, name, *jobs))
    tables = {entry.table for entry in client.read().entries}
    assert {tree.UPLINKS, tofino.UPLINK_ADDRESSES} <= {
        e.table for e in wanted(racks, "leaf1", *steps[0]).entries
    }
    assert {admission.WORKERS, tofino.RANGES, tofino.AUDIENCES, results.RECEIVERS} <= tables


def test_what_drifts_is_repaired_and_nothing_else_is_touched(client: BfrtClient, fake: FakeTofino) -> None:
    topology = tofinos(single_switch(4, fake.address), fake.address)
    state = wanted(topology, "s1", job("one", topology, size=4))
    sync(client, state)
    someone = TableEntry(tofino.MIRRORS, (("$sid", 5),), "$normal", (("$session_enable", 1),))
    client.write([(EntryUpdate(Verb.INSERT, someone),)])
    fake.forget(arp.ADDRESSES)
    fake.forget("$pre.mgid")
    (mine,) = (entry for entry in state.entries if entry.match == (("$sid", 513),))
    off = replace(mine, params=(("$session_enable", 0), *mine.params[1:]))
    client.write([(EntryUpdate(Verb.MODIFY, off),)])
    fake.writes.clear()
    sync(client, state)
    assert {table.name for _, table, _ in fake.writes} == {arp.ADDRESSES, tofino.MIRRORS, "$pre.mgid"}
    assert len(fake.entries(tofino.MIRRORS)) == 4 + 1


def test_cells_are_zeroed_before_slots_have_a_new_owner(client: BfrtClient, fake: FakeTofino) -> None:
    topology = tofinos(single_switch(2, fake.address), fake.address)
    for number, base in ((1, 0), (2, 0), (2, 64)):
        fake.writes.clear()
        running_job = job("one", topology, size=2, job_id=number, slot_base=base, slot_count=32)
        sync(client, wanted(topology, "s1", running_job))
        names = [table.name for _, table, _ in fake.writes]
        opened = names.index(admission.WORKERS, names.index(tofino.RANGES))
        for name in tofino.STAMPS:
            zeroed = [
                int.from_bytes(entry.key.fields[0].exact.value, "big")
                for _, table, entry in fake.writes[:opened]
                if table.name == name and not any(any(datum.stream) for datum in entry.data.fields)
            ]
            assert zeroed == [*range(base, base + 32), *range(8192 + base, 8192 + base + 32)]
    fake.writes.clear()
    sync(client, wanted(topology, "s1", running_job))
    assert fake.writes == []


def test_counters_are_read_by_index_and_by_entry(client: BfrtClient, fake: FakeTofino) -> None:
    topology = tofinos(single_switch(3, fake.address), fake.address)
    state = wanted(topology, "s1", job("one", topology, size=3))
    sync(client, state)
    stale = TableEntry(events.INGRESS, (("$COUNTER_INDEX", int(Event.DROP_STALE_ROUND)),), "")
    counted = replace(stale, params=(("$COUNTER_SPEC_PKTS", 7), ("$COUNTER_SPEC_BYTES", 700)))
    client.write([(EntryUpdate(Verb.MODIFY, counted),)])
    cells = client.read_counter(events.INGRESS)
    assert len(cells) == len(Event) - len(V1MODEL_EVENTS)
    assert [cell for cell in cells if cell != Count()] == [cells[Event.DROP_STALE_ROUND]] == [Count(7, 700)]
    assert client.read_counter(events.EGRESS) == []
    for table in (admission.WORKERS, results.RECEIVERS):
        assert set(client.read_table_counts(table)) == {e for e in state.entries if e.table == table}
    assert client.read_table_counts(queueing.CLASSES) == {}


def test_a_refused_write_names_what_was_refused_and_why(client: BfrtClient, fake: FakeTofino) -> None:
    topology = tofinos(single_switch(2, fake.address), fake.address)
    batches = plan(SwitchState(), wanted(topology, "s1"))
    client.write(batches)
    with pytest.raises(SwitchError) as caught:
        client.write(
            [tuple(u for u in batches[-1] if isinstance(u, EntryUpdate) and u.entry.table == arp.ADDRESSES)]
        )
    start = f"switch s1 at {fake.address} refuses a write: insert WeirIngress.arp.addresses [address="
    assert str(caught.value).startswith(start)
    assert "ALREADY_EXISTS" in str(caught.value)
    wide = TableEntry(admission.WORKERS, (("port", 512), ("job", 1), ("worker", 0)), admission.ADMIT)
    with pytest.raises(SwitchError, match="512 does not fit into 'port' of 9 bits"):
        client.write([(EntryUpdate(Verb.INSERT, wide),)])


def test_a_second_controller_is_refused_until_the_first_is_gone(client: BfrtClient, fake: FakeTofino) -> None:
    with pytest.raises(SwitchError, match="two clients with the same client id"):
        BfrtClient(client.switch)
    client.close()
    second = BfrtClient(client.switch)
    second.ensure_program(PROGRAM)
    second.close()


def test_a_program_that_somebody_else_holds(
    fake: FakeTofino, client: BfrtClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CLIENT_ID", 1)
    other = BfrtClient(client.switch)
    with pytest.raises(SwitchError, match="does not let itself be bound: ALREADY_EXISTS"):
        other.ensure_program(PROGRAM)
    with pytest.raises(SwitchError, match="was not asked for its program yet"):
        other.read()
    other.close()


def _with(change: str) -> bytes:
    """Return the program's tables with one of them changed."""
    tables = json.loads(PROGRAM_TABLES)
    for table in tables["tables"]:
        if table["name"] == f"pipe.{admission.WORKERS}":
            if change == "width":
                table["key"][0]["type"]["width"] = 8
            elif change == "action":
                table["action_specs"][0]["data"].pop()
            elif change == "size":
                table["size"] = 2
            else:
                table["name"] = "pipe.other"
    return json.dumps(tables).encode()


@pytest.mark.parametrize(
    ("programs", "message"),
    [
        ({}, "does not run program weir_tna, but nothing: load it with bf_switchd"),
        ({"switch": PROGRAM_TABLES}, "does not run program weir_tna, but switch: "),
        ({"weir_tna": _with("width")}, f"another version .* table {admission.WORKERS} has other keys"),
        ({"weir_tna": _with("action")}, f"another version .* table {admission.WORKERS} has other keys"),
        (
            {"weir_tna": _with("size")},
            f"another version .* table {admission.WORKERS} has 2 entries, not 1024",
        ),
        ({"weir_tna": _with("name")}, f"another version .* table {admission.WORKERS} is missing"),
        ({"weir_tna": b'{"tables": [{}]}'}, "describes its tables in other words"),
    ],
)
def test_another_program_is_named(programs: dict[str, bytes], message: str) -> None:
    fake = FakeTofino(programs)
    fake.start()
    client = BfrtClient(
        Switch(name="s1", grpc=fake.address, device_id=0, program="weir_tna", target="tofino")
    )
    try:
        with pytest.raises(SwitchError, match=message):
            client.ensure_program(PROGRAM)
    finally:
        client.close()
        fake.stop()


def test_ids_are_the_switchs_own(fake: FakeTofino) -> None:
    """Another compiler numbers tables, actions and fields otherwise."""

    def renumbered(value: object) -> object:
        if isinstance(value, dict):
            return {k: v + 100 if k == "id" else renumbered(v) for k, v in value.items()}
        return [renumbered(one) for one in value] if isinstance(value, list) else value

    fake.programs["weir_tna"] = json.dumps(renumbered(json.loads(PROGRAM_TABLES))).encode()
    client = BfrtClient(
        Switch(name="s1", grpc=fake.address, device_id=0, program="weir_tna", target="tofino")
    )
    client.ensure_program(PROGRAM)
    topology = tofinos(single_switch(3, fake.address), fake.address)
    sync(client, wanted(topology, "s1", job("one", topology, size=3)))
    client.close()


def test_a_switch_that_restarts_gets_back_what_it_had(fake: FakeTofino) -> None:
    topology = tofinos(single_switch(3, fake.address), fake.address)

    def held() -> tuple[list[bytes], ...]:
        names = (*tofino.TABLES, "$pre.node", "$pre.mgid")
        return tuple(sorted(e.SerializeToString(deterministic=True) for e in fake.entries(n)) for n in names)

    with running(topology, Settings()) as controller:
        (reconciler,) = controller._fabric.reconcilers.values()
        assert isinstance(reconciler, SwitchReconciler)
        until(lambda: reconciler.current)
        before = held()
        assert before[0]
        fake.stop()
        until(lambda: not reconciler.current)
        fake.start()
        until(lambda: reconciler.current)
        assert held() == before


def test_nobody_there_and_nobody_who_speaks_it(fake: FakeTofino) -> None:
    fake.stop()
    with pytest.raises(SwitchError, match=f"switch s1 at {fake.address} cannot be reached: UNAVAILABLE"):
        BfrtClient(Switch(name="s1", grpc=fake.address, device_id=0))


def test_a_session_that_ends_is_noticed(fake: FakeTofino, client: BfrtClient) -> None:
    client.probe()
    assert client.alive
    fake.stop()
    until(lambda: not client.alive)
    with pytest.raises(SwitchError, match="does not answer"):
        client.probe()


def test_tls_on_both_sides(tmp_path: Path) -> None:
    certificates.make(tmp_path)
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "server", "client", "stranger")}
    keys = {name: tmp_path / f"{name}.key" for name in ("server", "client", "stranger")}
    fake = FakeTofino(credentials=TlsFiles(files["server"], keys["server"], files["ca"]).server_credentials())
    fake.start()
    own = Switch(name="s1", grpc=fake.address, device_id=0, program="weir_tna", target="tofino")
    try:
        tls = SwitchTls(ca=files["ca"], cert=files["client"], key=keys["client"])
        client = BfrtClient(own.model_copy(update={"tls": tls}))
        client.ensure_program(PROGRAM)
        client.close()
        strangers = SwitchTls(ca=files["ca"], cert=files["stranger"], key=keys["stranger"])
        for refused in (None, SwitchTls(ca=files["ca"]), strangers):
            with pytest.raises(SwitchError, match="cannot be reached"):
                BfrtClient(own.model_copy(update={"tls": refused}))
    finally:
        fake.stop()


_CONTROLLED = sorted(name for name in tofino.TABLES if name not in (tofino.MIRRORS, tofino.PORTS))


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), name=st.sampled_from(_CONTROLLED))
def test_every_entry_is_decoded_as_it_was_encoded(data: st.DataObject, name: str) -> None:
    table = SCHEMA.table(name)

    def number(width: int) -> int:
        return data.draw(st.integers(0, (1 << width) - 1))

    match = []
    for field in table.keys:
        if field.name != PRIORITY:
            mask = number(field.width)
            value = number(field.width)
            match.append((field.name, Ternary(value & mask, mask) if field.match == "Ternary" else value))
    action = data.draw(st.sampled_from(sorted(table.actions)))
    params = tuple((field.name, number(field.width)) for field in table.action(action)[1])
    ranked = any(field.name == PRIORITY for field in table.keys)
    priority = data.draw(st.integers(1, 1 << 20)) if ranked else 0
    entry = TableEntry(name, tuple(match), action, params, priority)
    assert decode(SCHEMA, encode(SCHEMA, entry)) == entry


def test_the_greater_priority_is_the_smaller_number_at_the_switch() -> None:
    first, second = (
        TableEntry(
            tofino.AUDIENCES, (("job", Ternary(1, 1)), ("audience", Ternary(0, 0))), tofino.NOBODY, (), p
        )
        for p in (2, 1)
    )
    low, high = (encode(SCHEMA, entry).key.fields[-1].exact.value for entry in (first, second))
    assert low < high


def test_the_replicas_of_a_group_are_nodes_with_one_replication_id_each(
    client: BfrtClient, fake: FakeTofino
) -> None:
    groups = ({9: frozenset({Replica(1, 0), Replica(2, 0), Replica(2, 3)})}, {9: frozenset({Replica(2, 3)})})
    for own in groups:
        client.write(plan(client.read(), SwitchState(frozenset(), own)))
        assert client.read().groups == own
    assert len(fake.entries("$pre.node")) == 1


def test_slots_are_not_given_away_when_their_cells_cannot_be_zeroed(
    client: BfrtClient, fake: FakeTofino, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = tofinos(single_switch(2, fake.address), fake.address)
    state = wanted(topology, "s1", job("one", topology, size=2))
    with monkeypatch.context() as broken:
        broken.setattr("tests.harness.bfrt.INDEXED", ())  # cells are entries like others, which are not there
        with pytest.raises(SwitchError, match=r"insert WeirIngress\.admission\.ranges"):
            sync(client, state)
    assert fake.entries(tofino.RANGES) == fake.entries(admission.WORKERS) == []
    sync(client, state)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("target: tofino", "target: soft", "program weir_tna is for target tofino, not soft"),
        ("program: weir_tna", "program: weir_v1model", "ports can be set up where the program is weir_tna"),
        ("speed: 25G", "speed: 26G", "s1, switches[0].ports.speed: '26G' is not one of 10G"),
        (
            "hosts:",
            "qos: {losses: [{switch: s1, port: 1, probability: 1}]}\nhosts:",
            "qos.losses: switch s1 is a Tofino, and its program has no drop simulator",
        ),
    ],
)
def test_a_mistake_about_a_tofino_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    text = """
switches:
  - {name: s1, grpc: "10.1.1.1:50052", device_id: 0, target: tofino, program: weir_tna, ports: {speed: 25G}}
hosts:
  - {name: h1, switch: s1, port: 1, mac: "02:00:00:00:00:01", ip: 10.0.0.1}
"""
    file = tmp_path / "topology.yaml"
    file.write_text(text)
    assert load_topology(file).switches[0].bfrt
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(TopologyError) as caught:
        load_topology(file)
    assert says in str(caught.value)


def test_a_core_cannot_be_a_tofino() -> None:
    made = leaf_spine_core(2, 1, 1, 1, 1)
    cores = {core.name for core in made.cores}
    switches = [
        switch.model_copy(update={"target": "tofino", "program": "weir_tna"})
        if switch.name in cores
        else switch
        for switch in made.switches
    ]
    with pytest.raises(ValueError, match="is a core, which program weir_tna cannot be"):
        Topology.model_validate(
            {**made.model_dump(), "switches": [switch.model_dump() for switch in switches]}
        )


def test_queues_get_their_order_and_what_they_drop(client: BfrtClient, fake: FakeTofino) -> None:
    topology = tofinos(single_switch(2, fake.address), fake.address)
    ports = (132, 265)
    hosts = tuple(h.model_copy(update={"port": p}) for h, p in zip(topology.hosts, ports, strict=True))
    topology = topology.model_copy(update={"hosts": hosts})
    limits = tofino_queues(topology, topology.switches[0])
    client.set_queues(limits)
    assert {place[:2] for place in fake.queues} == {(1, 1), (2, 2)}  # pipe and group of both ports
    first = {number: queue for (pipe, _, number), queue in fake.queues.items() if pipe == 1}
    assert set(first) == {limit.queue for limit in limits}
    assert all(queue["min_priority"] == queue["max_priority"] == str(n) for n, queue in first.items())
    assert first[RELIABLE_DSCP >> 3]["drop_enable"] is False
    shed = first[1]
    assert (shed["drop_enable"], shed["drop_limit_red"], shed["drop_limit_yellow"]) == (True, "12.5%", "50%")
    second = {number for pipe, _, number in fake.queues if pipe == 2}
    assert second == {number + 8 for number in first}
    both = topology.switches[0].model_copy(update={"lanes": 64})
    again = {limit.port for limit in tofino_queues(topology, both)} - {132, 265}
    assert again == {128 + 68, 256 + 68}  # those for recirculation, of both pipes


def test_the_port_for_recirculation_is_nobodys() -> None:
    made = tofinos(single_switch(2, "127.0.0.1:1"), "127.0.0.1:1")
    for lanes, port, allowed in ((32, 196, True), (64, 197, True), (64, 196, False)):
        (switch,), (first, second) = made.switches, made.hosts
        changed = {
            "switches": [switch.model_copy(update={"lanes": lanes}).model_dump()],
            "hosts": [first.model_dump(), second.model_copy(update={"port": port}).model_dump()],
        }
        if allowed:
            Topology.model_validate(made.model_dump() | changed)
        else:
            with pytest.raises(ValueError, match="s1 has lanes: 64, for which it needs port 196 itself"):
                Topology.model_validate(made.model_dump() | changed)


def test_packets_have_64_lanes_where_all_switches_of_a_job_take_them(
    client: BfrtClient, fake: FakeTofino
) -> None:
    made = tofinos(leaf_spine(2, 1, 2), fake.address)
    switches = [
        switch.model_copy(update={"lanes": 32 if switch.name == "leaf2" else 64}) for switch in made.switches
    ]
    topology = made.model_copy(update={"switches": tuple(switches)})
    home = job("home", topology, size=2, slot_base=64)
    wide = job("wide", topology, size=4, job_id=2, slot_base=128)
    state = wanted(topology, "leaf1", home, wide)
    sync(client, state)
    rows = [(dict(e.match), dict(e.params)) for e in state.entries if e.table == tofino.RANGES]
    groups = {(match["job"].value, match["op"].mask, params["groups"]) for match, params in rows}
    assert groups == {(1, 0, 1), (1, 0xF, 3), (2, 0, 1)}


def test_a_chip_with_another_traffic_manager_is_left_as_it_is(
    client: BfrtClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = tofinos(single_switch(2, "127.0.0.1:1"), "127.0.0.1:1")
    known = client._schema
    assert known is not None
    monkeypatch.setattr(
        client, "_schema", Schema(t for t in known.tables.values() if not t.name.startswith("tf1"))
    )
    with pytest.raises(SwitchError, match=r"has another traffic manager: there is no table tf1\.tm"):
        client.set_queues(tofino_queues(topology, topology.switches[0]))
