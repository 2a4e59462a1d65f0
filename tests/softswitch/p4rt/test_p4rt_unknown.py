# SPDX-License-Identifier: Apache-2.0
"""Fields of newer versions are found wherever they are."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import Message

from weir.p4runtime.schema import p4runtime_pb2 as p4rt
from weir.softswitch.p4rt.unknown import has_unknown

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
