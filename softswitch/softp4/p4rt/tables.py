# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's TableEntry (specification 9.1): checks and translation."""

from collections.abc import Iterator
from typing import Final

from softp4.errors import Code, ControlError
from softp4.p4rt.action_profiles import decode_via, encode_via
from softp4.p4rt.actions import encode_action
from softp4.p4rt.counters import DIRECT_COUNTERS, decode_count, encode_count
from softp4.p4rt.idle import check_idle_fields
from softp4.p4rt.keys import Message, check_priority, decode_key, encode_key, invalid, stored_with
from softp4.p4rt.meters import check_zero, decode_config, direct_meter, encode_config, encode_marked
from softp4.p4rt.p4info_objects import TableInfo
from softp4.p4rt.pipeline import EntryNotes, Pipeline
from softp4.p4rt.table_codec import TableCodec
from softp4.p4runtime.schema import p4runtime_pb2
from softp4.state.entry import MeterConfig
from softp4.state.table_store import PackedEntry, TableStore

INSERT: Final = p4runtime_pb2.Update.INSERT
MODIFY: Final = p4runtime_pb2.Update.MODIFY
DELETE: Final = p4runtime_pb2.Update.DELETE
_REFERENCES: Final = ("action_profile_member_id", "action_profile_group_id")


def _action_of(table: TableInfo, entry: Message) -> Message:
    """Return the Action of an entry to be written. Raises ControlError for none."""
    action = entry.action
    if action.HasField("action"):
        return action.action
    kind = action.WhichOneof("type")
    if kind is None:
        raise invalid(f"table {table.name}: the entry has no action")
    raise invalid(f"table {table.name} has no action profile for {kind}")


def _check_resources(pipeline: Pipeline, table: TableInfo, entry: Message) -> bool:
    """Return whether an entry to be written names direct resources. Raises ControlError for one that its
    table does not have.
    """
    check_idle_fields(table, entry)
    counted: bool = entry.HasField("counter_data")
    metered: bool = entry.HasField("meter_config") or entry.HasField("meter_counter_data")
    if counted:
        DIRECT_COUNTERS.check(pipeline.info, table)
        decode_count(entry.counter_data)
    if metered:
        meter = direct_meter(pipeline, table)
        decode_config(meter, entry.meter_config)
        check_zero(entry.meter_counter_data)
    return counted or metered


def _meter_config(pipeline: Pipeline, table: TableInfo, entry: Message) -> MeterConfig | None:
    if not entry.HasField("meter_config"):
        return None
    return decode_config(direct_meter(pipeline, table), entry.meter_config)


# -- writing -------------------------------------------------------------------------------------------


def write_table_entry(pipeline: Pipeline, update: int, entry: Message) -> None:
    """Apply an INSERT, MODIFY or DELETE of a TableEntry. Raises ControlError; then nothing has changed."""
    codec = pipeline.codec(entry.table_id)
    table = codec.table
    if entry.is_const:
        raise invalid("is_const is the program's to set")
    dressed = update != DELETE and _check_resources(pipeline, table, entry)
    if entry.is_default_action:
        _write_default(pipeline, codec, update, entry)
    elif table.constant:
        _write_constant(pipeline, table, update, entry)
    else:
        _write_entry(pipeline, codec, update, entry, dressed=dressed)


def _write_entry(
    pipeline: Pipeline, codec: TableCodec, update: int, entry: Message, *, dressed: bool
) -> None:
    """Write an entry of a table that is not constant. ``dressed``: it names direct resources."""
    table, store = codec.table, codec.store
    if not table.fields:
        raise invalid(f"table {table.name} has no key: it has a default action only")
    priority = entry.priority
    check_priority(table, priority)
    key, canonical = codec.pack_key(entry.match, priority)
    if update == DELETE:
        store.delete_packed(key)
        if pipeline.notes:
            pipeline.notes.pop((table.name, key), None)
        return
    made = PackedEntry(key, 0, b"")
    if update == MODIFY and not entry.HasField("action"):
        present = store.packed_entry(key)
        made.action, made.args, made.via = present.action, present.args, present.via
    elif table.profile:
        made.via = decode_via(pipeline, table, entry.action)
    else:
        action = codec.action(_action_of(table, entry).SerializeToString())
        made.action, made.args = action.number, action.args
        if canonical and action.canonical and not dressed:
            made.wire = entry.SerializeToString()
    made.timeout_ns = entry.idle_timeout_ns
    if dressed:
        made.meter = _meter_config(pipeline, table, entry)
    if update == INSERT:
        store.insert_packed(made)
    else:
        store.modify_packed(made)
    if entry.controller_metadata or entry.metadata:
        pipeline.notes[table.name, key] = EntryNotes(entry.controller_metadata, entry.metadata)
    elif pipeline.notes:
        pipeline.notes.pop((table.name, key), None)
    if dressed:
        _write_resources(store, key, entry)


def _write_resources(store: TableStore, key: bytes, entry: Message) -> None:
    matches, priority = store.keys.unpack(key)
    if entry.HasField("counter_data"):
        store.set_count(matches, decode_count(entry.counter_data), priority)
    if entry.HasField("meter_counter_data"):
        store.clear_marked(matches, priority)


def _write_default(pipeline: Pipeline, codec: TableCodec, update: int, entry: Message) -> None:
    table = codec.table
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
        codec.store.set_default(*codec.check_action(_action_of(table, entry), default=True))
        pipeline.default_notes[table.name] = EntryNotes(entry.controller_metadata, entry.metadata)
    else:
        codec.store.reset_default()
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


# -- reading -------------------------------------------------------------------------------------------


def read_table_entries(pipeline: Pipeline, wanted: Message) -> Iterator[Message]:
    """Yield the TableEntry messages that a read selects. Raises ControlError."""
    yield from map(p4runtime_pb2.TableEntry.FromString, read_serialized(pipeline, wanted))


def read_serialized(pipeline: Pipeline, wanted: Message) -> Iterator[bytes]:
    """Yield the same, each serialized."""
    named = {field.name for field, _ in wanted.ListFields()}
    if wanted.table_id == 0:
        for name in ("match", "action", "priority", "controller_metadata", "metadata"):
            if name in named:
                raise invalid(f"a read of all tables cannot be filtered by {name}")
        codecs = list(pipeline.codecs.values())
    else:
        codecs = [pipeline.codec(wanted.table_id)]
        table = codecs[0].table
        if "time_since_last_hit" in named and (wanted.is_default_action or not table.idle_timeout):
            raise invalid(f"table {table.name}: nothing here has an idle timeout")
    for codec in codecs:
        if wanted.is_default_action:
            yield from _read_default(pipeline, codec)
        elif named <= {"table_id"}:
            for stored in codec.store.packed_entries():
                yield stored.wire or _wire(pipeline, codec, stored)
        else:
            for message in _read_entries(pipeline, codec, wanted):
                yield message.SerializeToString()


def _read_default(pipeline: Pipeline, codec: TableCodec) -> Iterator[bytes]:
    default, table = codec.store.default(), codec.table
    message = p4runtime_pb2.TableEntry(table_id=table.id, is_default_action=True)
    if default is not None and encode_action(pipeline.info, *default, message.action.action):
        _note(message, pipeline.default_notes.get(table.name))
        yield message.SerializeToString()


def _read_entries(pipeline: Pipeline, codec: TableCodec, wanted: Message) -> Iterator[Message]:
    selected, action_id = wanted.action, wanted.action.action.action_id
    for stored in stored_with(pipeline.switch.table(codec.table.name), codec.table, wanted):
        message = _encode_entry(pipeline, codec, stored, wanted)
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
    codec = pipeline.codec(wanted.table_id)
    key = codec.store.keys.pack(decode_key(codec.table, wanted), wanted.priority)
    return _encode_entry(pipeline, codec, codec.store.packed_entry(key), wanted)


def _wire(pipeline: Pipeline, codec: TableCodec, stored: PackedEntry) -> bytes:
    """Return an entry as a serialized TableEntry, without direct resources, and keep it with the entry."""
    table, entry = codec.table, codec.store.unpacked(stored)
    message = encode_key(table, entry.key, entry.priority)
    if entry.via is not None:
        encode_via(pipeline, entry.via, message.action)
    else:
        encode_action(pipeline.info, entry.action, entry.args, message.action.action)
    if pipeline.notes:
        _note(message, pipeline.notes.get((table.name, stored.key)))
    if table.constant:
        message.is_const = True
    if entry.timeout_ns:
        message.idle_timeout_ns = entry.timeout_ns
    stored.wire = message.SerializeToString()
    return stored.wire


def _encode_entry(pipeline: Pipeline, codec: TableCodec, stored: PackedEntry, wanted: Message) -> Message:
    """Return an entry as a TableEntry, with the direct resources that a read wants."""
    table, store = codec.table, codec.store
    message = p4runtime_pb2.TableEntry.FromString(stored.wire or _wire(pipeline, codec, stored))
    entry = store.unpacked(stored)
    if wanted.HasField("counter_data") and table.counted:
        message.counter_data.CopyFrom(encode_count(store.count(entry.key, entry.priority)))
    if wanted.HasField("meter_config") and entry.meter is not None:
        message.meter_config.CopyFrom(encode_config(entry.meter))
    if wanted.HasField("meter_counter_data") and table.id in pipeline.info.direct_meters:
        message.meter_counter_data.CopyFrom(encode_marked(store.marked(entry.key, entry.priority)))
    if wanted.HasField("time_since_last_hit") and table.idle_timeout:
        message.time_since_last_hit.elapsed_ns = store.idle_time(entry.key, entry.priority)
        message.time_since_last_hit.SetInParent()
    return message
