# SPDX-License-Identifier: Apache-2.0
"""Fields that the switch does not know, or does not serve, are refused wherever they are, and by name."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import text_format
from google.protobuf.message import Message

from softp4.device import Device
from softp4.p4rt.unknown import has_unknown
from softp4.p4runtime.schema import p4info_pb2
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from tests.p4rt.p4rt_client import FOLDER, Controller, all_entries
from tests.p4rt.p4rt_stream import Connection, write_errors
from tests.p4rt.test_p4rt_action_profiles import entry, one_shot

_NEWER = b"\xc8\x3e\x01"  # field 1001, the number 1


def _messages(root: Any) -> Iterator[Any]:
    """Yield a message and all that are in it."""
    yield root
    for field, value in root.ListFields():
        if field.message_type is not None:
            for each in (value,) if isinstance(value, Message) else value:
                yield from _messages(each)


def _entities() -> dict[str, Any]:
    table = p4rt.TableEntry(table_id=1, priority=3)
    for number, kind in enumerate(("exact", "ternary", "lpm", "range", "optional", "other")):
        getattr(table.match.add(field_id=number), kind).SetInParent()
    table.action.action.params.add(param_id=1, value=b"\1")
    for name in ("meter_config", "counter_data", "time_since_last_hit"):
        getattr(table, name).SetInParent()
    one_shot = p4rt.TableEntry()
    member = one_shot.action.action_profile_action_set.action_profile_actions.add(weight=1)
    member.action.params.add(param_id=1)
    group = p4rt.PacketReplicationEngineEntry()
    group.multicast_group_entry.replicas.add(egress_port=1)
    value_set = p4rt.ValueSetEntry()
    value_set.members.add().match.add().exact.value = b"\1"
    register = p4rt.RegisterEntry()
    register.index.index = 3
    register.data.struct.members.add().bitstring = b"\1"
    return {
        "table": table,
        "one shot": one_shot,
        "group": group,
        "value set": value_set,
        "register": register,
    }


@pytest.mark.parametrize("name", _entities())
def test_a_field_of_any_message_in_an_entity_is_found(name: str) -> None:
    count = len(list(_messages(_entities()[name])))
    assert count > 2
    for number in range(count):
        entity = _entities()[name]
        assert not has_unknown(entity)
        list(_messages(entity))[number].MergeFromString(_NEWER)
        assert has_unknown(entity), f"message {number}"


def test_a_newer_field_is_refused_and_the_rest_of_the_batch_is_not(switch: Controller) -> None:
    newer, known = (p4rt.Update(type=p4rt.Update.INSERT) for _ in range(2))
    for number, update in enumerate((newer, known)):
        update.entity.table_entry.CopyFrom(switch.station(number))
    newer.entity.table_entry.action.MergeFromString(_NEWER)
    with pytest.raises(grpc.RpcError) as refused:
        switch.session.write([newer, known])
    [(code, message), (second, _)] = write_errors(refused.value)
    assert (code, second) == ("UNIMPLEMENTED", "OK")
    assert message == "the table_entry has a field that is newer than P4Runtime 1.5.0"
    assert all_entries(switch, "stations") == [switch.station(1)]


def test_backup_replicas_are_refused_by_name(switch: Controller) -> None:
    group = switch.group(3, [(1, 0)])
    group.multicast_group_entry.replicas[0].backup_replicas.add(port=b"\2")
    refused = switch.refused("INSERT", packet_replication_engine_entry=group)
    assert refused == ("UNIMPLEMENTED", "multicast group 3: backup_replicas are not supported")


@pytest.mark.parametrize("field", ["action_selection_mode", "size_semantics"])
def test_how_a_one_shot_chooses_is_refused_by_name(empty: Controller, field: str) -> None:
    empty.push(FOLDER / "profiles.json", FOLDER / "profiles.p4info.txtpb")
    chosen = entry("INSERT", "chosen", 0, action_profile_action_set=one_shot([(1, 1)]))
    setattr(chosen.entity.table_entry.action.action_profile_action_set, field, 2)
    with pytest.raises(grpc.RpcError) as refused:
        empty.session.write([chosen])
    [(code, message)] = write_errors(refused.value)
    assert code == "UNIMPLEMENTED" and f"{field} of a one-shot is not supported" in message


@pytest.mark.parametrize(
    ("program", "message", "change"),
    [
        (
            "profiles",
            "weights_disallowed is not supported",
            lambda i: setattr(i.action_profiles[0], "weights_disallowed", True),
        ),
        (
            "control",
            "scope 3, which is newer than",
            lambda i: setattr(i.tables[0].action_refs[0], "scope", 3),
        ),
    ],
)
def test_a_p4info_with_what_is_not_served_is_refused_by_name(
    empty: Controller, program: str, message: str, change: Callable[[Any], None]
) -> None:
    info = text_format.Parse((FOLDER / f"{program}.p4info.txtpb").read_text(), p4info_pb2.P4Info())
    change(info)
    with pytest.raises(grpc.RpcError, match=message):
        empty.session.push(info, (FOLDER / f"{program}.json").read_bytes())


def test_capabilities_of_another_device_are_not_found(device: Device) -> None:
    assert device.address is not None
    with Connection(device.address) as other:
        answer = other.stub.Capabilities(p4rt.CapabilitiesRequest(device_id=1))
        assert answer.p4runtime_api_version == "1.5.0"
        with pytest.raises(grpc.RpcError) as refused:
            other.stub.Capabilities(p4rt.CapabilitiesRequest(device_id=2))
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND
