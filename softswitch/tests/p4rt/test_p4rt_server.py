# SPDX-License-Identifier: Apache-2.0
"""P4Runtime over real gRPC, driven by p4runtime-shell's client; where BMv2 agrees, the same tests on BMv2."""

import os
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from softp4.device import Device
from softp4.p4rt.service import P4RuntimeService
from softp4.p4runtime.codes import Code
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from tests.p4rt.p4rt_client import CONTROL, TIMEOUT, Controller, all_entries

_PIPELINE = p4rt.SetForwardingPipelineConfigRequest
_MAC = 0x020000000001


# -- table entries -------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(any_switch: Controller) -> None:
    entries = {
        "stations": any_switch.entry("stations", {"dst": ("exact", _MAC)}, "forward", {"port": 2}),
        "prefixes": any_switch.entry(
            "prefixes", {"src": ("lpm", 0x020000000000, 40)}, "forward", {"port": 3}
        ),
        "filters": any_switch.entry(
            "filters",
            {"dst": ("ternary", 0x10, 0xF0), "port": ("optional", 4), "type": ("range", 5, 600)},
            "drop",
            priority=9,
        ),
    }
    any_switch.write_all("INSERT", list(entries.values()))
    for table, entry in entries.items():
        assert all_entries(any_switch, table) == [entry]
    everything = any_switch.read(table_entry=p4rt.TableEntry())
    assert all(entry in everything for entry in entries.values())


def test_wildcards_are_left_out_when_read(any_switch: Controller) -> None:
    some = any_switch.entry("filters", {"type": ("range", 5, 600)}, "drop", priority=9)
    nothing = any_switch.entry("filters", {}, "drop", priority=1)
    default_route = any_switch.entry("prefixes", {}, "drop")
    any_switch.write_all("INSERT", [some, nothing, default_route])
    assert sorted(all_entries(any_switch, "filters"), key=str) == sorted([some, nothing], key=str)
    assert all_entries(any_switch, "prefixes") == [default_route]


def test_modify_and_delete(any_switch: Controller) -> None:
    any_switch.write("INSERT", table_entry=any_switch.station(_MAC))
    changed = any_switch.station(_MAC, "flood", {"group": 7})
    any_switch.write("MODIFY", table_entry=changed)
    assert all_entries(any_switch, "stations") == [changed]
    any_switch.write("DELETE", table_entry=any_switch.entry("stations", {"dst": ("exact", _MAC)}))
    assert all_entries(any_switch, "stations") == []


def test_reads_filter_by_key_priority_and_default(any_switch: Controller) -> None:
    low = any_switch.entry("filters", {"type": ("range", 5, 600)}, "drop", priority=1)
    high = any_switch.entry("filters", {"type": ("range", 5, 600)}, "NoAction", priority=2)
    any_switch.write_all("INSERT", [low, high])
    wanted = any_switch.entry("filters", {"type": ("range", 5, 600)}, priority=2)
    assert any_switch.read(table_entry=wanted) == [high]
    assert any_switch.read(table_entry=any_switch.entry("stations", is_default_action=True)) == [
        any_switch.entry("stations", None, "NoAction", is_default_action=True)
    ]


def test_a_read_of_all_tables_has_no_other_filter(switch: Controller) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        switch.read(table_entry=p4rt.TableEntry(priority=3))
    assert "cannot be filtered by priority" in str(refused.value.trailing_metadata())
    every_default = switch.read(table_entry=p4rt.TableEntry(is_default_action=True))
    assert len(every_default) == 4


def test_default_action_is_set_and_put_back(any_switch: Controller) -> None:
    default = any_switch.entry("stations", None, "forward", {"port": 5}, is_default_action=True)
    any_switch.write("MODIFY", table_entry=default)
    question = any_switch.entry("stations", is_default_action=True)
    assert any_switch.read(table_entry=question) == [default]
    any_switch.write("MODIFY", table_entry=question)
    assert any_switch.read(table_entry=question) == [
        any_switch.entry("stations", None, "NoAction", is_default_action=True)
    ]


def test_constant_entries_can_be_read(any_switch: Controller) -> None:
    keys = [entry.match[0].exact.value for entry in all_entries(any_switch, "fixed")]  # type: ignore[attr-defined]
    assert sorted(keys) == [b"\x88\x09", b"\x88\xcc"]


_REFUSED = {
    "there already": ("INSERT", "stations", {"dst": ("exact", _MAC)}, "drop", {}, {}, "ALREADY_EXISTS"),
    "not there": ("MODIFY", "stations", {"dst": ("exact", 9)}, "drop", {}, {}, "NOT_FOUND"),
    "nothing to delete": ("DELETE", "stations", {"dst": ("exact", 9)}, None, {}, {}, "NOT_FOUND"),
    "no type": ("UNSPECIFIED", "stations", {"dst": ("exact", 9)}, "drop", {}, {}, "INVALID_ARGUMENT"),
    "exact key missing": ("INSERT", "stations", {}, "drop", {}, {}, "INVALID_ARGUMENT"),
    "wrong kind": ("INSERT", "stations", {"dst": ("lpm", 0, 8)}, "drop", {}, {}, "INVALID_ARGUMENT"),
    "key too large": ("INSERT", "stations", {"dst": ("exact", 1 << 48)}, "drop", {}, {}, "INVALID_ARGUMENT"),
    "no action": ("INSERT", "stations", {"dst": ("exact", 9)}, None, {}, {}, "INVALID_ARGUMENT"),
    "argument missing": ("INSERT", "stations", {"dst": ("exact", 9)}, "forward", {}, {}, "INVALID_ARGUMENT"),
    "argument too large": (
        "INSERT",
        "stations",
        {"dst": ("exact", 9)},
        "forward",
        {"port": 512},
        {},
        "INVALID_ARGUMENT",
    ),
    "foreign action": ("INSERT", "prefixes", {}, "mirror", {"port": 1}, {}, "INVALID_ARGUMENT"),
    "default-only action": (
        "INSERT",
        "stations",
        {"dst": ("exact", 9)},
        "NoAction",
        {},
        {},
        "PERMISSION_DENIED",
    ),
    "needless priority": (
        "INSERT",
        "stations",
        {"dst": ("exact", 9)},
        "drop",
        {},
        {"priority": 1},
        "INVALID_ARGUMENT",
    ),
    "no priority": ("INSERT", "filters", {}, "drop", {}, {}, "INVALID_ARGUMENT"),
    "value outside mask": (
        "INSERT",
        "filters",
        {"dst": ("ternary", 1, 2)},
        "drop",
        {},
        {"priority": 1},
        "INVALID_ARGUMENT",
    ),
    "mask zero": (
        "INSERT",
        "filters",
        {"dst": ("ternary", 0, 0)},
        "drop",
        {},
        {"priority": 1},
        "INVALID_ARGUMENT",
    ),
    "range upside down": (
        "INSERT",
        "filters",
        {"type": ("range", 5, 2)},
        "drop",
        {},
        {"priority": 1},
        "INVALID_ARGUMENT",
    ),
    "prefix zero": ("INSERT", "prefixes", {"src": ("lpm", 0, 0)}, "drop", {}, {}, "INVALID_ARGUMENT"),
    "prefix too long": ("INSERT", "prefixes", {"src": ("lpm", 0, 49)}, "drop", {}, {}, "INVALID_ARGUMENT"),
    "bits beyond prefix": ("INSERT", "prefixes", {"src": ("lpm", 1, 8)}, "drop", {}, {}, "INVALID_ARGUMENT"),
    "insert of default": (
        "INSERT",
        "stations",
        None,
        "drop",
        {},
        {"is_default_action": True},
        "INVALID_ARGUMENT",
    ),
    "default with key": (
        "MODIFY",
        "stations",
        {"dst": ("exact", 9)},
        "drop",
        {},
        {"is_default_action": True},
        "INVALID_ARGUMENT",
    ),
    "constant default": (
        "MODIFY",
        "filters",
        None,
        "drop",
        {},
        {"is_default_action": True},
        "PERMISSION_DENIED",
    ),
}


@pytest.mark.parametrize("case", _REFUSED, ids=lambda case: case.replace(" ", "-"))
def test_bad_entries_are_refused(any_switch: Controller, case: str) -> None:
    kind, table, match, action, args, fields, code = _REFUSED[case]
    any_switch.write("INSERT", table_entry=any_switch.station(_MAC))
    before = any_switch.read(table_entry=p4rt.TableEntry())
    entry = any_switch.entry(table, match, action, args, **fields)
    assert any_switch.refused(kind, table_entry=entry)[0] == code
    assert any_switch.read(table_entry=p4rt.TableEntry()) == before


def test_constant_tables_cannot_be_written(switch: Controller) -> None:
    for kind in ("INSERT", "MODIFY", "DELETE"):
        entry = switch.entry("fixed", {"type": ("exact", 0x88CC)}, "drop")
        assert switch.refused(kind, table_entry=entry) == (
            "PERMISSION_DENIED",
            "table ControlIngress.fixed is constant",
        )


def test_full_table(switch: Controller) -> None:
    size = 16
    switch.write_all("INSERT", [switch.station(mac) for mac in range(size)])
    code, message = switch.refused("INSERT", table_entry=switch.station(size))
    assert code == "RESOURCE_EXHAUSTED"
    assert "stations" in message


def test_the_rest_of_a_batch_is_done_and_each_failure_is_told(any_switch: Controller) -> None:
    good, bad = any_switch.station(1), any_switch.station(2, args={"port": 512})
    codes = any_switch.batch_codes("INSERT", [good, bad, good, any_switch.station(3)])
    assert codes == ["OK", "INVALID_ARGUMENT", "ALREADY_EXISTS", "OK"]
    assert len(all_entries(any_switch, "stations")) == 2


def test_values_with_leading_zeros_are_taken_and_read_back_short(any_switch: Controller) -> None:
    entry = any_switch.station(_MAC)
    padded = p4rt.TableEntry()
    padded.CopyFrom(entry)
    padded.match[0].exact.value = bytes(4) + entry.match[0].exact.value
    padded.action.action.params[0].value = b"\0\0\2"
    any_switch.write("INSERT", table_entry=padded)
    assert all_entries(any_switch, "stations") == [entry]


def test_fields_are_taken_in_any_order_and_read_back_in_the_tables(any_switch: Controller) -> None:
    key = {"dst": ("ternary", _MAC, _MAC), "port": ("optional", 3), "type": ("range", 5, 600)}
    entry = any_switch.entry("filters", key, "drop", priority=9)
    other = p4rt.TableEntry()
    other.CopyFrom(entry)
    del other.match[:]
    other.match.extend(reversed(entry.match))
    for part, names in ((other.match[0].range, ("low", "high")), (other.match[2].ternary, ("value", "mask"))):
        for name in names:
            setattr(part, name, b"\0" + getattr(part, name))
    any_switch.write("INSERT", table_entry=other)
    assert all_entries(any_switch, "filters") == [entry]
    any_switch.write("MODIFY", table_entry=other)
    assert all_entries(any_switch, "filters") == [entry]


def test_metadata_stays_with_its_entry(switch: Controller) -> None:
    entry = switch.entry("stations", {"dst": ("exact", 1)}, "drop", metadata=b"mine", controller_metadata=77)
    switch.write("INSERT", table_entry=entry)
    assert all_entries(switch, "stations") == [entry]
    switch.write("INSERT", table_entry=switch.station(2))
    assert switch.read(table_entry=switch.entry("stations", metadata=b"mine")) == [entry]
    assert switch.read(table_entry=switch.entry("stations", controller_metadata=78)) == []
    switch.write("DELETE", table_entry=entry)
    switch.write("INSERT", table_entry=switch.station(1))
    assert switch.station(1) in all_entries(switch, "stations")


def test_optional_is_optional(switch: Controller) -> None:
    exact = switch.entry("filters", {"port": ("optional", 0)}, "drop", priority=3)
    switch.write("INSERT", table_entry=exact)
    assert all_entries(switch, "filters") == [exact]


# -- counters, registers, replication --------------------------------------------------------------------


def test_counters_are_read_and_written(any_switch: Controller) -> None:
    entry = p4rt.CounterEntry(counter_id=any_switch.names.id("counters", "frames"))
    assert len(any_switch.read(counter_entry=entry)) == 16
    entry.index.index = 3
    entry.data.packet_count, entry.data.byte_count = 5, 300
    any_switch.write("MODIFY", counter_entry=entry)
    question = p4rt.CounterEntry(counter_id=entry.counter_id)
    question.index.index = 3
    assert any_switch.read(counter_entry=question) == [entry]


def test_counter_errors(switch: Controller) -> None:
    entry = p4rt.CounterEntry(counter_id=switch.names.id("counters", "frames"))
    entry.index.index = 16
    assert switch.refused("MODIFY", counter_entry=entry)[0] == "OUT_OF_RANGE"
    entry.index.index = -1
    assert switch.refused("MODIFY", counter_entry=entry)[0] == "INVALID_ARGUMENT"
    entry.index.index = 0
    assert switch.refused("INSERT", counter_entry=entry)[0] == "INVALID_ARGUMENT"
    entry.data.packet_count = -1
    assert switch.refused("MODIFY", counter_entry=entry)[0] == "INVALID_ARGUMENT"


def test_direct_counters(any_switch: Controller) -> None:
    any_switch.write("INSERT", table_entry=any_switch.station(_MAC))
    direct = p4rt.DirectCounterEntry(table_entry=any_switch.entry("stations", {"dst": ("exact", _MAC)}))
    direct.data.packet_count, direct.data.byte_count = 4, 240
    any_switch.write("MODIFY", direct_counter_entry=direct)
    question = p4rt.DirectCounterEntry(table_entry=direct.table_entry)
    [found] = any_switch.read(direct_counter_entry=question)
    assert found.data == direct.data
    with_data = any_switch.entry("stations", {"dst": ("exact", _MAC)})
    with_data.counter_data.SetInParent()
    [entry] = any_switch.read(table_entry=with_data)
    assert entry.counter_data == direct.data


def test_direct_counters_can_start_with_a_value_and_survive_a_modify(switch: Controller) -> None:
    entry = switch.station(_MAC)
    entry.counter_data.packet_count = 8
    switch.write("INSERT", table_entry=entry)
    switch.write("MODIFY", table_entry=switch.station(_MAC, "flood", {"group": 1}))
    question = switch.entry("stations")
    question.counter_data.SetInParent()
    [found] = switch.read(table_entry=question)
    assert found.counter_data.packet_count == 8
    missing = p4rt.DirectCounterEntry(table_entry=switch.entry("stations", {"dst": ("exact", 9)}))
    assert switch.refused("MODIFY", direct_counter_entry=missing)[0] == "NOT_FOUND"
    uncounted = p4rt.DirectCounterEntry(table_entry=switch.entry("prefixes"))
    assert switch.refused("MODIFY", direct_counter_entry=uncounted)[0] == "INVALID_ARGUMENT"


def test_registers(switch: Controller) -> None:
    info = {r.preamble.alias: r.preamble.id for r in switch.session.p4info().registers}
    entry = p4rt.RegisterEntry(register_id=info["cells"])
    entry.index.index = 2
    entry.data.bitstring = b"\x12\x34"
    switch.write("MODIFY", register_entry=entry)
    cells = switch.read(register_entry=p4rt.RegisterEntry(register_id=info["cells"]))
    assert [cell.data.bitstring for cell in cells] == [b"\0", b"\0", b"\x12\x34", *[b"\0"] * 5]
    signed = p4rt.RegisterEntry(register_id=info["signed_cells"])
    signed.data.bitstring = b"\xff"  # -1, in all cells
    switch.write("MODIFY", register_entry=signed)
    assert [
        c.data.bitstring
        for c in switch.read(register_entry=p4rt.RegisterEntry(register_id=info["signed_cells"]))
    ] == [b"\xff"] * 4
    entry.data.bitstring = bytes.fromhex("0100000000")
    assert switch.refused("MODIFY", register_entry=entry)[0] == "INVALID_ARGUMENT"
    entry.index.index = 8
    assert switch.refused("MODIFY", register_entry=entry)[0] == "OUT_OF_RANGE"


def test_multicast_groups(any_switch: Controller) -> None:
    group, other = any_switch.group(3, [(1, 1), (2, 1), (2, 2)]), any_switch.group(4, [])
    for entry in (group, other):
        any_switch.write("INSERT", packet_replication_engine_entry=entry)
    every = any_switch.group(0, [])
    found = any_switch.read(packet_replication_engine_entry=every)
    assert {_group(entry) for entry in found} == {_group(group), _group(other)}
    changed = any_switch.group(3, [(5, 9)])
    any_switch.write("MODIFY", packet_replication_engine_entry=changed)
    any_switch.write("DELETE", packet_replication_engine_entry=other)
    assert any_switch.read(packet_replication_engine_entry=every) == [changed]


def _group(message: p4rt.PacketReplicationEngineEntry) -> tuple[int, frozenset[tuple[int, int]]]:
    """Return number and replicas, in no order: BMv2 has its own."""
    entry = message.multicast_group_entry
    return entry.multicast_group_id, frozenset((r.egress_port, r.instance) for r in entry.replicas)


@pytest.mark.parametrize(
    ("kind", "group", "replicas", "code"),
    [
        ("INSERT", 0, [(1, 1)], "INVALID_ARGUMENT"),
        ("INSERT", 3, [(1, 1)], "ALREADY_EXISTS"),
        ("MODIFY", 4, [(1, 1)], "NOT_FOUND"),
        ("DELETE", 4, [], "NOT_FOUND"),
    ],
)
def test_bad_multicast_groups(
    any_switch: Controller, kind: str, group: int, replicas: list[tuple[int, int]], code: str
) -> None:
    any_switch.write("INSERT", packet_replication_engine_entry=any_switch.group(3, []))
    assert (
        any_switch.refused(kind, packet_replication_engine_entry=any_switch.group(group, replicas))[0] == code
    )


def test_bad_replicas(switch: Controller) -> None:
    for replicas in ([(512, 1)], [(1, 1 << 16)], [(1, 1), (1, 1)]):
        entry = switch.group(5, replicas)
        assert switch.refused("INSERT", packet_replication_engine_entry=entry)[0] == "INVALID_ARGUMENT"


def test_clone_sessions(switch: Controller) -> None:
    entry = p4rt.PacketReplicationEngineEntry()
    session = entry.clone_session_entry
    session.session_id, session.packet_length_bytes = 7, 100
    session.replicas.add(egress_port=4, instance=1)
    switch.write("INSERT", packet_replication_engine_entry=entry)
    every = p4rt.PacketReplicationEngineEntry()
    every.clone_session_entry.session_id = 0
    assert switch.read(packet_replication_engine_entry=every) == [entry]
    switch.write("DELETE", packet_replication_engine_entry=entry)
    assert switch.read(packet_replication_engine_entry=every) == []


def test_clone_sessions_may_have_several_replicas(switch: Controller) -> None:
    entry = p4rt.PacketReplicationEngineEntry()
    session = entry.clone_session_entry
    session.session_id, session.packet_length_bytes = 8, 100
    for port, instance in ((4, 1), (5, 1), (4, 2)):
        session.replicas.add(egress_port=port, instance=instance)
    switch.write("INSERT", packet_replication_engine_entry=entry)
    session.packet_length_bytes = 0
    session.replicas.add(egress_port=6)
    switch.write("MODIFY", packet_replication_engine_entry=entry)
    assert switch.read(packet_replication_engine_entry=entry) == [entry]
    switch.write("DELETE", packet_replication_engine_entry=entry)


_REFUSED_SESSIONS = {
    "number zero": ("INSERT", {"session_id": 0}, "INVALID_ARGUMENT"),
    "number too large": ("INSERT", {"session_id": 1 << 20}, "INVALID_ARGUMENT"),
    "class of service": ("INSERT", {"session_id": 9, "class_of_service": 1}, "UNIMPLEMENTED"),
    "there already": ("INSERT", {"session_id": 8}, "ALREADY_EXISTS"),
    "not there": ("MODIFY", {"session_id": 9}, "NOT_FOUND"),
    "nothing to delete": ("DELETE", {"session_id": 9}, "NOT_FOUND"),
}


@pytest.mark.parametrize("case", _REFUSED_SESSIONS, ids=lambda case: case.replace(" ", "-"))
def test_bad_clone_sessions(any_switch: Controller, case: str) -> None:
    verb, fields, code = _REFUSED_SESSIONS[case]
    good = p4rt.PacketReplicationEngineEntry()
    good.clone_session_entry.session_id = 8
    any_switch.write("INSERT", packet_replication_engine_entry=good)
    bad = p4rt.PacketReplicationEngineEntry(clone_session_entry=p4rt.CloneSessionEntry(**fields))
    assert any_switch.refused(verb, packet_replication_engine_entry=bad)[0] == code


def test_a_clone_has_no_negative_length(switch: Controller) -> None:
    session = p4rt.CloneSessionEntry(session_id=9, packet_length_bytes=-1)
    bad = p4rt.PacketReplicationEngineEntry(clone_session_entry=session)
    assert switch.refused("INSERT", packet_replication_engine_entry=bad)[0] == "INVALID_ARGUMENT"


def test_groups_keep_their_metadata_and_form_of_port(switch: Controller) -> None:
    entry = switch.group(3, [], metadata=b"mine")
    entry.multicast_group_entry.replicas.add(port=b"\1", instance=4)
    entry.multicast_group_entry.replicas.add(egress_port=2, instance=4)
    entry.multicast_group_entry.replicas.add(port=b"\1", instance=5)
    switch.write("INSERT", packet_replication_engine_entry=entry)
    assert switch.read(packet_replication_engine_entry=switch.group(3, [])) == [entry]


def test_what_is_not_there_is_refused_by_name(switch: Controller) -> None:
    entity = {"extern_entry": p4rt.ExternEntry(extern_type_id=1)}
    assert switch.refused("MODIFY", **entity) == (
        "UNIMPLEMENTED",
        "extern_entry is not supported by this switch",
    )
    with pytest.raises(grpc.RpcError) as unread:
        switch.read(**entity)
    assert "extern_entry" in str(unread.value.trailing_metadata())


def test_all_there_is_can_be_read_of_every_kind(switch: Controller) -> None:
    """The specification's read of everything, which names what this switch or program may not have, too."""
    switch.write("INSERT", table_entry=switch.station(_MAC))
    request = p4rt.ReadRequest(device_id=1)
    for field in p4rt.Entity.DESCRIPTOR.fields:
        getattr(request.entities.add(), field.name).SetInParent()
    found = [entity for answer in switch.session.stub.Read(request) for entity in answer.entities]
    kinds = {entity.WhichOneof("entity") for entity in found}
    assert kinds == {"table_entry", "direct_counter_entry", "counter_entry", "register_entry"}


def test_unknown_ids_are_not_found(switch: Controller) -> None:
    assert switch.refused("INSERT", table_entry=p4rt.TableEntry(table_id=1)) == (
        "NOT_FOUND",
        "P4Info has no table with id 1",
    )
    assert switch.refused("MODIFY", counter_entry=p4rt.CounterEntry(counter_id=1))[0] == "NOT_FOUND"
    assert switch.refused("MODIFY", meter_entry=p4rt.MeterEntry(meter_id=1))[0] == "NOT_FOUND"
    assert switch.refused("INSERT", digest_entry=p4rt.DigestEntry(digest_id=1))[0] == "NOT_FOUND"


# -- pipelines -------------------------------------------------------------------------------------------


def test_without_a_pipeline_nothing_can_be_written_or_read(empty: Controller) -> None:
    with pytest.raises(grpc.RpcError, match="no forwarding pipeline config is set") as refused:
        empty.write("INSERT", table_entry=p4rt.TableEntry(table_id=1))
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    with pytest.raises(grpc.RpcError) as unread:
        empty.read(table_entry=p4rt.TableEntry())
    assert unread.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    request = p4rt.GetForwardingPipelineConfigRequest(device_id=1)
    assert not empty.session.stub.GetForwardingPipelineConfig(request).HasField("config")


def test_the_config_is_read_back_as_far_as_asked(empty: Controller) -> None:
    empty.set_config(_PIPELINE.VERIFY_AND_COMMIT, CONTROL.read_bytes(), cookie=42)
    kinds = p4rt.GetForwardingPipelineConfigRequest
    expected = {
        kinds.ALL: (True, True),
        kinds.COOKIE_ONLY: (False, False),
        kinds.P4INFO_AND_COOKIE: (True, False),
        kinds.DEVICE_CONFIG_AND_COOKIE: (False, True),
    }
    for kind, (info, program) in expected.items():
        config = empty.session.stub.GetForwardingPipelineConfig(kinds(device_id=1, response_type=kind)).config
        assert config.cookie.cookie == 42
        assert config.HasField("p4info") == info
        assert config.p4_device_config == (CONTROL.read_bytes() if program else b"")


def test_a_new_pipeline_starts_empty_and_reconciling_keeps_everything(switch: Controller) -> None:
    program = CONTROL.read_bytes()
    group = switch.group(3, [(1, 1)], metadata=b"mine")
    switch.write("INSERT", table_entry=switch.station(_MAC))
    switch.write("INSERT", packet_replication_engine_entry=group)
    switch.set_config(_PIPELINE.RECONCILE_AND_COMMIT, program, cookie=9)
    assert all_entries(switch, "stations") == [switch.station(_MAC)]
    switch.set_config(_PIPELINE.RECONCILE_AND_COMMIT, program + b"\n")  # another text: a program of its own
    assert all_entries(switch, "stations") == [switch.station(_MAC)]
    assert switch.read(packet_replication_engine_entry=switch.group(0, [])) == [group]
    switch.set_config(_PIPELINE.VERIFY_AND_COMMIT, program)
    assert all_entries(switch, "stations") == []
    assert switch.read(packet_replication_engine_entry=switch.group(0, [])) == []


def test_a_saved_pipeline_takes_writes_and_runs_once_committed(switch: Controller, device: Device) -> None:
    device.loop.add_queue(1, "one")
    device.loop.add_queue(2, "two")
    frame = _MAC.to_bytes(6, "big") + bytes(6) + b"\x12\x34" + bytes(46)
    switch.write("INSERT", table_entry=switch.station(_MAC, args={"port": 1}))
    switch.set_config(_PIPELINE.VERIFY_AND_SAVE, CONTROL.read_bytes())
    assert all_entries(switch, "stations") == []
    switch.write("INSERT", table_entry=switch.station(_MAC, args={"port": 2}))
    device.loop.inject(1, frame)
    assert device.loop.receive(1, TIMEOUT) == frame
    switch.set_config(_PIPELINE.COMMIT, None)
    device.loop.inject(1, frame)
    assert device.loop.receive(2, TIMEOUT) == frame


def test_verify_changes_nothing(switch: Controller) -> None:
    switch.write("INSERT", table_entry=switch.station(_MAC))
    switch.set_config(_PIPELINE.VERIFY, CONTROL.read_bytes())
    assert all_entries(switch, "stations") == [switch.station(_MAC)]


def test_bad_pipelines_are_refused_and_the_old_one_stays(switch: Controller) -> None:
    switch.write("INSERT", table_entry=switch.station(_MAC))
    good = CONTROL.read_bytes()
    foreign = good.replace(b"ControlIngress.stations", b"ControlIngress.elsewhere")
    stub, action = switch.set_config, _PIPELINE
    cases = [
        (action.VERIFY_AND_COMMIT, b"no JSON", "INVALID_ARGUMENT"),
        (action.VERIFY_AND_COMMIT, b"{}", "INVALID_ARGUMENT"),
        (action.VERIFY_AND_COMMIT, foreign, "INVALID_ARGUMENT"),
        (action.VERIFY, None, "INVALID_ARGUMENT"),
        (action.COMMIT, good, "INVALID_ARGUMENT"),
        (action.COMMIT, None, "NOT_FOUND"),
        (action.UNSPECIFIED, good, "INVALID_ARGUMENT"),
    ]
    for kind, program, code in cases:
        with pytest.raises(grpc.RpcError) as refused:
            stub(kind, program)
        assert refused.value.code().name == code, refused.value.details()
    assert all_entries(switch, "stations") == [switch.station(_MAC)]


_DIFFERENCES = {
    "another key": (
        '"match_type":"lpm"',
        '"match_type":"exact"',
        "prefixes is in P4Info, but its key is another",
    ),
    "another size": ('"size":8,', '"size":9,', "cells is in P4Info, but its size is 9, not 8"),
    "another action": (
        "ControlIngress.flood",
        "ControlIngress.flow",
        "it has no action ControlIngress.flood",
    ),
    "another counter": (
        "ControlIngress.frames",
        "ControlIngress.packets",
        "frames is in P4Info, but the program",
    ),
}


@pytest.mark.parametrize("case", _DIFFERENCES)
def test_a_p4info_of_another_compilation_is_refused(empty: Controller, case: str) -> None:
    old, new, message = _DIFFERENCES[case]
    program = CONTROL.read_text()
    assert old in program
    with pytest.raises(grpc.RpcError) as refused:
        empty.set_config(_PIPELINE.VERIFY_AND_COMMIT, program.replace(old, new).encode())
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert message in refused.value.details()


def test_unsupported_constructs_are_named(empty: Controller) -> None:
    program = CONTROL.read_bytes().replace(b'"mark_to_drop"', b'"teleport"')
    with pytest.raises(grpc.RpcError, match="teleport"):
        empty.set_config(_PIPELINE.VERIFY_AND_COMMIT, program)


# -- controller packets ----------------------------------------------------------------------------------


def test_packets_from_and_to_the_controller(switch: Controller, device: Device) -> None:
    device.loop.add_queue(5, "five")
    frame = _MAC.to_bytes(6, "big") + bytes(6) + b"\x12\x34" + os.urandom(60)
    switch.packet_out(frame, {1: 5, 2: 0x55})
    assert device.loop.receive(5, TIMEOUT) == frame
    switch.write("INSERT", table_entry=switch.station(_MAC, "to_controller", {"reason": 0x33}))
    device.loop.inject(5, frame)
    packet = switch.stream("packet").packet
    assert packet.payload == frame
    assert {m.metadata_id: m.value for m in packet.metadata} == {1: b"\x05", 2: b"\x33"}


def test_a_packet_in_that_goes_wrong_is_the_only_one_that_is_lost(
    switch: Controller,
    device: Device,
    fail_once: Callable[[type, str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fail_once(P4RuntimeService, "packet_in")
    device.loop.add_queue(5, "five")
    switch.write("INSERT", table_entry=switch.station(_MAC, "to_controller", {"reason": 0x33}))
    frames = [_MAC.to_bytes(6, "big") + bytes(6) + b"\x12\x34" + bytes([i]) * 60 for i in range(2)]
    for frame in frames:
        device.loop.inject(5, frame)
    assert switch.stream("packet").packet.payload == frames[1]
    assert "a packet-in was lost (1 so far)" in caplog.text


def test_bad_packet_outs_are_answered_on_the_stream(switch: Controller, device: Device) -> None:
    cases = {
        "metadata egress_port is missing": {2: 1},
        "does not fit into bit<9>": {1: 512, 2: 1},
        "no metadata with id 7": {1: 5, 2: 1, 7: 1},
    }
    for message, metadata in cases.items():
        switch.packet_out(b"payload", metadata)
        error = switch.stream("error").error
        assert message in error.message
        assert error.canonical_code == Code.INVALID_ARGUMENT
        assert error.packet_out.packet_out.payload == b"payload"
    switch.packet_out(bytes(4217), {1: 5, 2: 0})
    error = switch.stream("error").error
    assert "4219 bytes is longer than 4216" in error.message
    assert error.canonical_code == Code.INVALID_ARGUMENT
    assert device.address is not None
    backup = Controller(device.address, election=0)
    backup.packet_out(b"payload", {1: 5, 2: 0})
    assert backup.stream("error").error.canonical_code == Code.PERMISSION_DENIED
    backup.close()


def test_unix_sockets_serve_too(tmp_path: Path) -> None:
    with Device() as device:
        address = device.serve(f"unix:{tmp_path}/grpc")
        controller = Controller(address)
        assert controller.session.api_version() == "1.5.0"
        controller.close()
