# SPDX-License-Identifier: Apache-2.0
"""Entries as the controller has them, and as BfRuntime has them.

Numbers have all bytes of their field, first the most significant. Of entries that match, the one with the
*smallest* priority wins here, so the controller's are turned round.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from weir.controller.bfrt.messages import bfruntime_pb2
from weir.controller.bfrt.schema import PRIORITY, Field, Schema, Table
from weir.controller.codec import UnknownNameError
from weir.controller.entries import Lpm, Match, Param, TableEntry, Ternary
from weir.controller.tables.tofino import OWN_FIELDS

_LAST: Final = (1 << 24) - 1  # the priority that loses against all; hardware takes 24 bits


def key_message(table: Table, match: tuple[tuple[str, Match], ...], priority: int = 0) -> Any:
    """Return a BfRuntime ``TableKey``."""
    message = bfruntime_pb2.TableKey()
    for name, value in match:
        field = table.key(name)
        key = message.fields.add(field_id=field.id)
        if isinstance(value, Lpm):
            raise UnknownNameError(f"table {table.name} matches {name!r} as the controller never does")
        if isinstance(value, Ternary):
            key.ternary.value, key.ternary.mask = _number(field, value.value), _number(field, value.mask)
        else:
            key.exact.value = _number(field, value)
    if priority:
        message.fields.add(field_id=table.key(PRIORITY).id).exact.value = (_LAST - priority).to_bytes(
            4, "big"
        )
    return message


def set_datum(field: Field, value: Param | list[int] | list[bool], message: Any) -> None:
    """Put a value into a ``DataField``."""
    message.field_id = field.id
    if isinstance(value, list):
        kind = "bool_arr_val" if field.kind == "bool" else "int_arr_val"
        getattr(message, kind).SetInParent()  # an empty list is a value, too
        getattr(message, kind).val.extend(value)
    elif isinstance(value, str):
        message.str_val = value
    elif field.kind == "bool":
        message.bool_val = bool(value)
    else:
        message.stream = _number(field, value)


def datum(message: Any) -> Param | list[int]:
    """Return the value of a ``DataField``."""
    kind = message.WhichOneof("value")
    if kind == "stream":
        return int.from_bytes(message.stream, "big")
    if kind in ("int_arr_val", "bool_arr_val"):
        return [int(value) for value in getattr(message, kind).val]
    value: Param = getattr(message, kind) if kind else 0
    return value


def encode(schema: Schema, entry: TableEntry) -> Any:
    """Return a BfRuntime ``TableEntry``. Raises UnknownNameError for what the schema does not have."""
    table = schema.table(entry.table)
    message = bfruntime_pb2.TableEntry(table_id=table.id)
    message.key.CopyFrom(key_message(table, entry.match, entry.priority))
    message.data.action_id, _ = table.action(entry.action)
    fields = {field.name: field for field in table.fields(entry.action)}
    for name, value in entry.params:
        if name not in fields:
            raise UnknownNameError(f"action {entry.action!r} of table {entry.table} has no datum {name!r}")
        set_datum(fields[name], value, message.data.fields.add())
    return message


def decode(schema: Schema, message: Any) -> TableEntry:
    """Return the entry that a ``TableEntry`` read from a switch describes; of a table of the chip's own, with
    those data that Weir sets.
    """
    table = schema.with_id(message.table_id)
    action = table.action_with_id(message.data.action_id)
    names = {field.id: field.name for field in table.fields(action)}
    given = {names[field.field_id]: field for field in message.data.fields if field.field_id in names}
    own = OWN_FIELDS.get(table.name) or tuple(field.name for field in table.action(action)[1])
    keys = {key.field_id: key for key in message.key.fields}
    return TableEntry(
        table.name,
        tuple(_matches(table, keys)),
        action,
        tuple((name, _single(datum(given[name]))) for name in own if name in given),
        _priority(table, keys),
    )


def _matches(table: Table, keys: Mapping[int, Any]) -> Iterator[tuple[str, Match]]:
    for field in table.keys:
        if field.name == PRIORITY:
            continue
        key = keys.get(field.id)
        if field.match == "Ternary":
            parts = (b"", b"") if key is None else (key.ternary.value, key.ternary.mask)
            yield field.name, Ternary(*(int.from_bytes(part, "big") for part in parts))
        elif field.match == "Exact" and key is not None:
            yield field.name, int.from_bytes(key.exact.value, "big")
        else:
            raise UnknownNameError(
                f"an entry of {table.name} matches {field.name!r} as the controller never does"
            )


def _priority(table: Table, keys: Mapping[int, Any]) -> int:
    for field in table.keys:
        if field.name == PRIORITY:
            return _LAST - int.from_bytes(keys[field.id].exact.value, "big") if field.id in keys else _LAST
    return 0


def _single(value: Param | list[int]) -> Param:
    """Return a datum that is no list; one that a pipe each has said, as the first of them."""
    return value[0] if isinstance(value, list) else value


def _number(field: Field, value: int) -> bytes:
    if value >> field.width:
        raise UnknownNameError(f"{value} does not fit into {field.name!r} of {field.width} bits")
    return value.to_bytes(field.bytes, "big")
