# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's TableEntry (specification 9.1): checks and translation."""

from collections.abc import Iterator
from typing import Final

from p4.v1 import p4runtime_pb2

from softswitch.entry import Entry
from softswitch.errors import Code, ControlError
from softswitch.p4rt.counters import decode_count, encode_count
from softswitch.p4rt.keys import Message, check_priority, decode_key, encode_key, entries_with, invalid
from softswitch.p4rt.p4info import ActionInfo, TableInfo
from softswitch.p4rt.pipeline import EntryNotes, Pipeline
from softswitch.p4rt.values import decode, encode

INSERT: Final = p4runtime_pb2.Update.INSERT
MODIFY: Final = p4runtime_pb2.Update.MODIFY
DELETE: Final = p4runtime_pb2.Update.DELETE


def decode_action(pipeline: Pipeline, message: Message) -> tuple[ActionInfo, tuple[int, ...]]:
    """An action of P4Info and its arguments in order. Raises ControlError."""
    action = pipeline.info.action(message.action_id)
    given: dict[int, bytes] = {}
    for param in message.params:
        if param.param_id in given:
            raise invalid(f"action {action.name}: parameter {param.param_id} is given twice")
        given[param.param_id] = param.value
    args = []
    for wanted in action.params:
        where = f"action {action.name}, parameter {wanted.name}"
        if wanted.id not in given:
            raise invalid(f"{where} is missing")
        args.append(decode(given.pop(wanted.id), wanted.bits, where))
    if given:
        raise invalid(f"action {action.name} has no parameter with id {min(given)}")
    return action, tuple(args)


def _table_action(pipeline: Pipeline, table: TableInfo, entry: Message) -> tuple[str, tuple[int, ...]]:
    kind = entry.action.WhichOneof("type")
    if kind is None:
        raise invalid(f"table {table.name}: the entry has no action")
    if kind != "action":
        raise ControlError(
            Code.UNIMPLEMENTED, f"table {table.name}: {kind} (action profiles) is not supported"
        )
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


def _refuse_unsupported(table: TableInfo, entry: Message) -> None:
    for name in ("meter_config", "meter_counter_data"):
        if entry.HasField(name):
            raise ControlError(
                Code.UNIMPLEMENTED, f"table {table.name}: {name} (direct meters) is not supported"
            )
    if entry.idle_timeout_ns or entry.HasField("time_since_last_hit"):
        if not table.idle_timeout:
            raise invalid(f"table {table.name} has no idle timeout")
        raise ControlError(Code.UNIMPLEMENTED, f"table {table.name}: idle timeouts are not supported")
    if entry.HasField("counter_data") and not table.counted:
        raise invalid(f"table {table.name} has no direct counter")


# -- writing -------------------------------------------------------------------------------------------


def write_table_entry(pipeline: Pipeline, update: int, entry: Message) -> None:
    """INSERT, MODIFY or DELETE of a TableEntry. Raises ControlError; then nothing has changed."""
    table = pipeline.info.table(entry.table_id)
    if entry.is_const:
        raise invalid("is_const is the program's to set")
    if update != DELETE:
        _refuse_unsupported(table, entry)
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
    switch = pipeline.switch
    if update == DELETE:
        switch.delete_entry(table.name, key, entry.priority)
        pipeline.notes.pop(identity, None)
        return
    if update == MODIFY and not entry.HasField("action"):
        present = switch.entry(table.name, key, entry.priority)
        name, args = present.action, present.args
    else:
        name, args = _table_action(pipeline, table, entry)
    written = Entry(key, name, args, entry.priority)
    if update == INSERT:
        switch.insert_entry(table.name, written)
    else:
        switch.modify_entry(table.name, written)
    pipeline.notes[identity] = EntryNotes(entry.controller_metadata, entry.metadata)
    if entry.HasField("counter_data"):
        switch.write_entry_counter(table.name, key, decode_count(entry.counter_data), entry.priority)


def _write_default(pipeline: Pipeline, table: TableInfo, update: int, entry: Message) -> None:
    if update != MODIFY:
        raise invalid(f"table {table.name}: a default action is always there; only MODIFY changes it")
    if entry.match or entry.priority:
        raise invalid(f"table {table.name}: a default action has neither match nor priority")
    if table.const_default:
        raise ControlError(
            Code.PERMISSION_DENIED, f"table {table.name}: the program fixed the default action"
        )
    if entry.HasField("counter_data"):
        raise ControlError(
            Code.UNIMPLEMENTED, f"table {table.name}: counters of default actions are not supported"
        )
    if entry.HasField("action"):
        pipeline.switch.set_default(table.name, *_table_action(pipeline, table, entry))
        pipeline.default_notes[table.name] = EntryNotes(entry.controller_metadata, entry.metadata)
    else:
        pipeline.switch.reset_default(table.name)
        pipeline.default_notes.pop(table.name, None)


def _write_constant(pipeline: Pipeline, table: TableInfo, update: int, entry: Message) -> None:
    if update != MODIFY or entry.HasField("action"):
        raise ControlError(Code.PERMISSION_DENIED, f"table {table.name} is constant")
    key = decode_key(table, entry)
    pipeline.switch.entry(table.name, key, entry.priority)
    if entry.HasField("counter_data"):
        count = decode_count(entry.counter_data)
        pipeline.switch.write_entry_counter(table.name, key, count, entry.priority)


def _encode_action(pipeline: Pipeline, name: str, args: tuple[int, ...], message: Message) -> bool:
    action = pipeline.info.action_named(name)
    if action is None:
        return False
    message.action.action.action_id = action.id
    for param, value in zip(action.params, args, strict=True):
        message.action.action.params.add(param_id=param.id, value=encode(value))
    return True


def _note(message: Message, notes: EntryNotes | None) -> None:
    if notes is not None:
        message.controller_metadata, message.metadata = notes.controller_metadata, notes.metadata


def read_table_entries(pipeline: Pipeline, wanted: Message) -> Iterator[Message]:
    """The TableEntry messages that a read selects. Raises ControlError."""
    if wanted.HasField("meter_config") or wanted.HasField("meter_counter_data"):
        raise ControlError(Code.UNIMPLEMENTED, "direct meters are not supported")
    if wanted.HasField("time_since_last_hit"):
        raise ControlError(Code.UNIMPLEMENTED, "idle timeouts are not supported")
    if wanted.table_id == 0:
        tables = list(pipeline.info.tables.values())
    else:
        tables = [pipeline.info.table(wanted.table_id)]
    for table in tables:
        if wanted.is_default_action:
            yield from _read_default(pipeline, table)
        else:
            yield from _read_entries(pipeline, table, wanted)


def _read_default(pipeline: Pipeline, table: TableInfo) -> Iterator[Message]:
    default = pipeline.switch.default(table.name)
    message = p4runtime_pb2.TableEntry(table_id=table.id, is_default_action=True)
    if default is not None and _encode_action(pipeline, *default, message):
        _note(message, pipeline.default_notes.get(table.name))
        yield message


def _read_entries(pipeline: Pipeline, table: TableInfo, wanted: Message) -> Iterator[Message]:
    action_id = wanted.action.action.action_id
    for entry in entries_with(pipeline, table, wanted):
        message = _encode_entry(pipeline, table, entry, wanted)
        if action_id and message.action.action.action_id != action_id:
            continue
        if wanted.controller_metadata and message.controller_metadata != wanted.controller_metadata:
            continue
        if wanted.metadata and message.metadata != wanted.metadata:
            continue
        yield message


def read_one(pipeline: Pipeline, wanted: Message) -> Message:
    """The very entry that a TableEntry names, also where no match means a match with everything.

    Raises ControlError NOT_FOUND.
    """
    table = pipeline.info.table(wanted.table_id)
    entry = pipeline.switch.entry(table.name, decode_key(table, wanted), wanted.priority)
    return _encode_entry(pipeline, table, entry, wanted)


def _encode_entry(pipeline: Pipeline, table: TableInfo, entry: Entry, wanted: Message) -> Message:
    """An entry as a TableEntry, with the direct resources that a read wants."""
    message = encode_key(table, entry.key, entry.priority)
    _encode_action(pipeline, entry.action, entry.args, message)
    _note(message, pipeline.notes.get((table.name, entry.key, entry.priority)))
    message.is_const = table.constant
    if wanted.HasField("counter_data") and table.counted:
        count = pipeline.switch.entry_counter(table.name, entry.key, entry.priority)
        message.counter_data.CopyFrom(encode_count(count))
    return message
