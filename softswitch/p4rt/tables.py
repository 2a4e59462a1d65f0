# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's TableEntry (specification 9.1): checks and translation."""

from collections.abc import Iterator
from typing import Final

from weir.p4runtime.schema import p4runtime_pb2
from weir.softswitch.errors import Code, ControlError
from weir.softswitch.p4rt.action_profiles import decode_via, encode_via
from weir.softswitch.p4rt.actions import decode_action, encode_action
from weir.softswitch.p4rt.counters import DIRECT_COUNTERS, decode_count, encode_count
from weir.softswitch.p4rt.idle import check_idle_fields
from weir.softswitch.p4rt.keys import Message, check_priority, decode_key, encode_key, entries_with, invalid
from weir.softswitch.p4rt.meters import check_zero, decode_config, direct_meter, encode_config, encode_marked
from weir.softswitch.p4rt.p4info import TableInfo
from weir.softswitch.p4rt.pipeline import EntryNotes, Pipeline
from weir.softswitch.state.entry import Entry, MeterConfig

INSERT: Final = p4runtime_pb2.Update.INSERT
MODIFY: Final = p4runtime_pb2.Update.MODIFY
DELETE: Final = p4runtime_pb2.Update.DELETE
_REFERENCES: Final = ("action_profile_member_id", "action_profile_group_id")


def _table_action(pipeline: Pipeline, table: TableInfo, entry: Message) -> tuple[str, tuple[int, ...]]:
    kind = entry.action.WhichOneof("type")
    if kind is None:
        raise invalid(f"table {table.name}: the entry has no action")
    if kind != "action":
        raise invalid(f"table {table.name} has no action profile for {kind}")
    action, args = decode_action(pipeline, entry.action.action)
    allowed = table.default_actions if entry.is_default_action else table.entry_actions
    if action.id not in allowed:
        if action.id in table.entry_actions | table.default_actions:
            place = "default action" if entry.is_default_action else "entry"
            raise ControlError(
                Code.PERMISSION_DENIED,
                f"table {table.name}: {action.name} may not be the action of a {place}",
            )
        raise invalid(f"table {table.name} has no action {action.name}")
    return action.name, args


def _check_resources(pipeline: Pipeline, table: TableInfo, entry: Message) -> None:
    """Raise ControlError unless the table has the direct resources that an entry to be written names."""
    check_idle_fields(table, entry)
    if entry.HasField("counter_data"):
        DIRECT_COUNTERS.check(pipeline.info, table)
        decode_count(entry.counter_data)
    if entry.HasField("meter_config") or entry.HasField("meter_counter_data"):
        meter = direct_meter(pipeline, table)
        decode_config(meter, entry.meter_config)
        check_zero(entry.meter_counter_data)


def _meter_config(pipeline: Pipeline, table: TableInfo, entry: Message) -> MeterConfig | None:
    if not entry.HasField("meter_config"):
        return None
    return decode_config(direct_meter(pipeline, table), entry.meter_config)


# -- writing -------------------------------------------------------------------------------------------


def write_table_entry(pipeline: Pipeline, update: int, entry: Message) -> None:
    """Apply an INSERT, MODIFY or DELETE of a TableEntry. Raises ControlError; then nothing has changed."""
    table = pipeline.info.table(entry.table_id)
    if entry.is_const:
        raise invalid("is_const is the program's to set")
    if update != DELETE:
        _check_resources(pipeline, table, entry)
    if entry.is_default_action:
        _write_default(pipeline, table, update, entry)
    elif table.constant:
        _write_constant(pipeline, table, update, entry)
    else:
        _write_entry(pipeline, table, update, entry)


def _write_entry(pipeline: Pipeline, table: TableInfo, update: int, entry: Message) -> None:
    if not table.fields:
        raise invalid(f"table {table.name} has no key: it has a default action only")
    check_priority(table, entry.priority)
    key = decode_key(table, entry)
    identity = (table.name, key, entry.priority)
    stored = pipeline.switch.table(table.name)
    if update == DELETE:
        stored.delete(key, entry.priority)
        if pipeline.notes:
            pipeline.notes.pop(identity, None)
        return
    if update == MODIFY and not entry.HasField("action"):
        present = stored.entry(key, entry.priority)
        action, args, via = present.action, present.args, present.via
    elif table.profile:
        action, args, via = "", (), decode_via(pipeline, table, entry.action)
    else:
        (action, args), via = _table_action(pipeline, table, entry), None
    meter = _meter_config(pipeline, table, entry)
    written = Entry(key, action, args, entry.priority, entry.idle_timeout_ns, meter, via)
    if update == INSERT:
        stored.insert(written)
    else:
        stored.modify(written)
    if entry.controller_metadata or entry.metadata:
        pipeline.notes[identity] = EntryNotes(entry.controller_metadata, entry.metadata)
    elif pipeline.notes:
        pipeline.notes.pop(identity, None)
    if entry.HasField("counter_data"):
        stored.set_count(key, decode_count(entry.counter_data), entry.priority)
    if entry.HasField("meter_counter_data"):
        stored.clear_marked(key, entry.priority)


def _write_default(pipeline: Pipeline, table: TableInfo, update: int, entry: Message) -> None:
    if update != MODIFY:
        raise invalid(f"table {table.name}: a default action is always there; only MODIFY changes it")
    if entry.match or entry.priority:
        raise invalid(f"table {table.name}: a default action has neither match nor priority")
    if table.profile:
        raise invalid(f"table {table.name} has an action profile: its default action cannot change")
    if table.const_default:
        raise ControlError(
            Code.PERMISSION_DENIED, f"table {table.name}: the program fixed the default action"
        )
    for resource in ("counter_data", "meter_config", "meter_counter_data"):
        if entry.HasField(resource):
            raise ControlError(
                Code.UNIMPLEMENTED, f"table {table.name}: {resource} of a default action is not supported"
            )
    if entry.HasField("action"):
        pipeline.switch.table(table.name).set_default(*_table_action(pipeline, table, entry))
        pipeline.default_notes[table.name] = EntryNotes(entry.controller_metadata, entry.metadata)
    else:
        pipeline.switch.table(table.name).reset_default()
        pipeline.default_notes.pop(table.name, None)


def _write_constant(pipeline: Pipeline, table: TableInfo, update: int, entry: Message) -> None:
    if update != MODIFY or entry.HasField("action") or entry.idle_timeout_ns:
        raise ControlError(Code.PERMISSION_DENIED, f"table {table.name} is constant")
    key = decode_key(table, entry)
    pipeline.switch.table(table.name).entry(key, entry.priority)
    if table.id in pipeline.info.direct_meters:
        config = _meter_config(pipeline, table, entry)
        pipeline.switch.table(table.name).set_meter(key, config, entry.priority)
        if entry.HasField("meter_counter_data"):
            pipeline.switch.table(table.name).clear_marked(key, entry.priority)
    if entry.HasField("counter_data"):
        count = decode_count(entry.counter_data)
        pipeline.switch.table(table.name).set_count(key, count, entry.priority)


def _note(message: Message, notes: EntryNotes | None) -> None:
    if notes is not None:
        message.controller_metadata, message.metadata = notes.controller_metadata, notes.metadata


def read_table_entries(pipeline: Pipeline, wanted: Message) -> Iterator[Message]:
    """Yield the TableEntry messages that a read selects. Raises ControlError."""
    if wanted.table_id == 0:
        for name in ("match", "action", "priority", "controller_metadata", "metadata"):
            if name in {field.name for field, _ in wanted.ListFields()}:
                raise invalid(f"a read of all tables cannot be filtered by {name}")
        tables = list(pipeline.info.tables.values())
    else:
        tables = [pipeline.info.table(wanted.table_id)]
        if wanted.HasField("time_since_last_hit") and (
            wanted.is_default_action or not tables[0].idle_timeout
        ):
            raise invalid(f"table {tables[0].name}: nothing here has an idle timeout")
    for table in tables:
        if wanted.is_default_action:
            yield from _read_default(pipeline, table)
        else:
            yield from _read_entries(pipeline, table, wanted)


def _read_default(pipeline: Pipeline, table: TableInfo) -> Iterator[Message]:
    default = pipeline.switch.table(table.name).default()
    message = p4runtime_pb2.TableEntry(table_id=table.id, is_default_action=True)
    if default is not None and encode_action(pipeline, *default, message.action.action):
        _note(message, pipeline.default_notes.get(table.name))
        yield message


def _read_entries(pipeline: Pipeline, table: TableInfo, wanted: Message) -> Iterator[Message]:
    selected, action_id = wanted.action, wanted.action.action.action_id
    for entry in entries_with(pipeline, table, wanted):
        message = _encode_entry(pipeline, table, entry, wanted)
        if selected.WhichOneof("type") in _REFERENCES and message.action != selected:
            continue
        if action_id and message.action.action.action_id != action_id:
            continue
        if wanted.controller_metadata and message.controller_metadata != wanted.controller_metadata:
            continue
        if wanted.metadata and message.metadata != wanted.metadata:
            continue
        yield message


def read_one(pipeline: Pipeline, wanted: Message) -> Message:
    """Return the very entry that a TableEntry names, also where no match means a match with everything.

    Raises ControlError NOT_FOUND.
    """
    table = pipeline.info.table(wanted.table_id)
    entry = pipeline.switch.table(table.name).entry(decode_key(table, wanted), wanted.priority)
    return _encode_entry(pipeline, table, entry, wanted)


def _encode_entry(pipeline: Pipeline, table: TableInfo, entry: Entry, wanted: Message) -> Message:
    """Return an entry as a TableEntry, with the direct resources that a read wants."""
    message = encode_key(table, entry.key, entry.priority)
    if entry.via is not None:
        encode_via(pipeline, entry.via, message.action)
    else:
        encode_action(pipeline, entry.action, entry.args, message.action.action)
    if pipeline.notes:
        _note(message, pipeline.notes.get((table.name, entry.key, entry.priority)))
    if table.constant:
        message.is_const = True
    if wanted.HasField("counter_data") and table.counted:
        count = pipeline.switch.table(table.name).count(entry.key, entry.priority)
        message.counter_data.CopyFrom(encode_count(count))
    if wanted.HasField("meter_config") and entry.meter is not None:
        message.meter_config.CopyFrom(encode_config(entry.meter))
    if wanted.HasField("meter_counter_data") and table.id in pipeline.info.direct_meters:
        marked = pipeline.switch.table(table.name).marked(entry.key, entry.priority)
        message.meter_counter_data.CopyFrom(encode_marked(marked))
    if entry.timeout_ns:
        message.idle_timeout_ns = entry.timeout_ns
    if wanted.HasField("time_since_last_hit") and table.idle_timeout:
        elapsed = pipeline.switch.table(table.name).idle_time(entry.key, entry.priority)
        message.time_since_last_hit.elapsed_ns = elapsed
        message.time_since_last_hit.SetInParent()
    return message
