# SPDX-License-Identifier: Apache-2.0
"""Keys of table entries: P4Runtime's FieldMatch to and from the switch's matches (specification 9.1.1)."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from weir.p4runtime.schema import p4info_pb2, p4runtime_pb2
from weir.softswitch.errors import Code, ControlError
from weir.softswitch.p4rt.p4info import FieldInfo, TableInfo
from weir.softswitch.p4rt.pipeline import Pipeline
from weir.softswitch.p4rt.values import decode, encode
from weir.softswitch.state.entry import Entry, Exact, Lpm, Match, Optional, Range, Ternary

Message = Any
"""A P4Runtime message; the stubs carry no types."""

_TYPES: Final = p4info_pb2.MatchField
_ONEOF: Final = {
    _TYPES.EXACT: "exact",
    _TYPES.LPM: "lpm",
    _TYPES.TERNARY: "ternary",
    _TYPES.RANGE: "range",
    _TYPES.OPTIONAL: "optional",
}


def invalid(message: str) -> ControlError:
    """Return the error for a malformed entity."""
    return ControlError(Code.INVALID_ARGUMENT, message)


def _wildcard(field: FieldInfo, what: str) -> Match:
    if field.match_type == _TYPES.LPM:
        return Lpm(0, 0)
    if field.match_type == _TYPES.TERNARY:
        return Ternary(0, 0)
    if field.match_type == _TYPES.RANGE:
        return Range(0, (1 << field.bits) - 1)
    if field.match_type == _TYPES.OPTIONAL:
        return Optional(None)
    raise invalid(f"{_where(what, field)} is missing: an exact field has no wildcard")


def _where(what: str, field: FieldInfo) -> str:
    return what + field.place


def _exact(field: FieldInfo, part: Message, what: str) -> Match:
    return Exact(decode(part.value, field.bits, what, field.place))


def _optional(field: FieldInfo, part: Message, what: str) -> Match:
    return Optional(decode(part.value, field.bits, what, field.place))


def _lpm(field: FieldInfo, part: Message, what: str) -> Match:
    value, length = decode(part.value, field.bits, what, field.place), part.prefix_len
    if not 0 < length <= field.bits:
        raise invalid(
            f"{_where(what, field)}: prefix length {length} is not in 1..{field.bits} (leave 0 out)"
        )
    if value & ((1 << field.bits - length) - 1):
        raise invalid(f"{_where(what, field)}: bits beyond the prefix are not zero")
    return Lpm(value, length)


def _ternary(field: FieldInfo, part: Message, what: str) -> Match:
    value, mask = (decode(v, field.bits, what, field.place) for v in (part.value, part.mask))
    if mask == 0:
        raise invalid(f"{_where(what, field)}: mask 0 matches everything; leave the field out instead")
    if value & ~mask:
        raise invalid(f"{_where(what, field)}: bits outside the mask are not zero")
    return Ternary(value, mask)


def _range(field: FieldInfo, part: Message, what: str) -> Match:
    low, high = (decode(v, field.bits, what, field.place) for v in (part.low, part.high))
    if low > high:
        raise invalid(f"{_where(what, field)}: low {low} is above high {high}")
    if low == 0 and high == (1 << field.bits) - 1:
        raise invalid(f"{_where(what, field)}: the range is everything; leave the field out instead")
    return Range(low, high)


_DECODERS: Final = {"exact": _exact, "optional": _optional, "lpm": _lpm, "ternary": _ternary, "range": _range}


def _match(field: FieldInfo, message: Message, what: str) -> Match:
    kind = message.WhichOneof("field_match_type")
    if kind != _ONEOF.get(field.match_type):
        raise invalid(
            f"{_where(what, field)} is matched as {kind}, "
            f"but is {_ONEOF.get(field.match_type, 'of another kind')}"
        )
    return _DECODERS[kind](field, getattr(message, kind), what)


def decode_key(table: TableInfo, entry: Message) -> tuple[Match, ...]:
    """Return the entry's key, one match per field in the table's order. Raises ControlError
    INVALID_ARGUMENT.
    """
    return decode_matches(table.title, table.fields, entry.match)


def decode_matches(what: str, fields: Sequence[FieldInfo], messages: Iterable[Message]) -> tuple[Match, ...]:
    """FieldMatch messages as one match per field, in order. Raises ControlError INVALID_ARGUMENT."""
    given: dict[int, Message] = {}
    for message in messages:
        number = message.field_id
        if number in given:
            raise invalid(f"{what}: field {number} is given twice")
        given[number] = message
    key: list[Match] = []
    for field in fields:
        found = given.pop(field.id, None)
        key.append(_wildcard(field, what) if found is None else _match(field, found, what))
    if given:
        raise invalid(f"{what} has no field with id {min(given)}")
    return tuple(key)


def check_priority(table: TableInfo, priority: int) -> None:
    """Raise ControlError INVALID_ARGUMENT unless a priority is there exactly when the table needs one."""
    if priority < 0 or (priority == 0) == table.prioritised:
        wanted = "positive, for it has a ternary, range or optional field" if table.prioritised else "0"
        raise invalid(f"table {table.name}: priority is {priority}, must be {wanted}")


def encode_match(field: FieldInfo, match: Match, message: Message) -> None:
    """Append the match to a TableEntry or ValueSetMember, as the specification has it: no wildcards."""
    if isinstance(match, Exact):
        message.match.add(field_id=field.id).exact.value = encode(match.value)
    elif isinstance(match, Lpm):
        if match.prefix_len != 0:
            lpm = message.match.add(field_id=field.id).lpm
            lpm.value, lpm.prefix_len = encode(match.value), match.prefix_len
    elif isinstance(match, Range):
        if match != Range(0, (1 << field.bits) - 1):
            found = message.match.add(field_id=field.id).range
            found.low, found.high = encode(match.low), encode(match.high)
    elif field.match_type == _TYPES.OPTIONAL:  # BMv2 writes P4's optional as ternary
        value = match.value if isinstance(match, Optional) or match.mask else None
        if value is not None:
            message.match.add(field_id=field.id).optional.value = encode(value)
    elif isinstance(match, Ternary) and match.mask != 0:
        ternary = message.match.add(field_id=field.id).ternary
        ternary.value, ternary.mask = encode(match.value), encode(match.mask)


def encode_key(table: TableInfo, key: tuple[Match, ...], priority: int) -> Message:
    """Return a TableEntry with nothing but what identifies it."""
    message = p4runtime_pb2.TableEntry(table_id=table.id, priority=priority)
    for field, match in zip(table.fields, key, strict=True):
        encode_match(field, match, message)
    return message


def entries_with(pipeline: Pipeline, table: TableInfo, wanted: Message) -> Iterator[Entry]:
    """Yield the entries with the match and the priority of a TableEntry, as far as it has them.

    Raises ControlError INVALID_ARGUMENT for a match that is none of the table's.
    """
    key = decode_key(table, wanted) if wanted.match else None
    if key is not None and (wanted.priority or not table.prioritised):
        try:
            yield pipeline.switch.table(table.name).entry(key, wanted.priority)
        except ControlError as error:
            if error.code != Code.NOT_FOUND:
                raise
        return
    for entry in pipeline.switch.table(table.name).entries():
        if key is not None and entry.key != key:
            continue
        if wanted.priority and entry.priority != wanted.priority:
            continue
        yield entry
