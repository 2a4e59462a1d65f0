# SPDX-License-Identifier: Apache-2.0
"""Keys of table entries: P4Runtime's FieldMatch to and from the switch's matches (specification 9.1.1)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from weir.p4runtime.schema import p4info_pb2, p4runtime_pb2
from weir.softswitch.errors import Code, ControlError
from weir.softswitch.p4rt.p4info import FieldInfo, TableInfo
from weir.softswitch.p4rt.values import decode, encode
from weir.softswitch.state.entry import Exact, Lpm, Match, Optional, Range, Ternary
from weir.softswitch.state.table_store import PackedEntry

if TYPE_CHECKING:
    from weir.softswitch.p4rt.pipeline import Pipeline

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


def _where(what: str, field: FieldInfo) -> str:
    return what + field.place


def _number(data: bytes, field: FieldInfo, message: Message, what: str) -> int:
    """Return a byte string of a match. Raises ControlError, first of all for a match of another kind."""
    value = int.from_bytes(data, "big")
    if not data or value >> field.bits:
        kind, wanted = message.WhichOneof("field_match_type"), _ONEOF.get(field.match_type)
        if kind != wanted:
            raise invalid(f"{_where(what, field)} is matched as {kind}, but is {wanted}")
        decode(data, field.bits, what, field.place)
    return value


def _exact(field: FieldInfo, message: Message, what: str) -> tuple[int, int]:
    part = message.exact
    data = part.value
    value = _number(data, field, message, what)
    if not data[0]:
        part.value = encode(value)
    return value, (1 << field.bits) - 1


def _optional(field: FieldInfo, message: Message, what: str) -> tuple[int, int]:
    part = message.optional
    data = part.value
    value = _number(data, field, message, what)
    if not data[0]:
        part.value = encode(value)
    return value, (1 << field.bits) - 1


def _lpm(field: FieldInfo, message: Message, what: str) -> tuple[int, int]:
    part = message.lpm
    data, length, bits = part.value, part.prefix_len, field.bits
    value = _number(data, field, message, what)
    if not 0 < length <= bits:
        raise invalid(f"{_where(what, field)}: prefix length {length} is not in 1..{bits} (leave 0 out)")
    if value & ((1 << bits - length) - 1):
        raise invalid(f"{_where(what, field)}: bits beyond the prefix are not zero")
    if not data[0]:
        part.value = encode(value)
    return value, length


def _ternary(field: FieldInfo, message: Message, what: str) -> tuple[int, int]:
    part = message.ternary
    value, mask = _number(part.value, field, message, what), _number(part.mask, field, message, what)
    if mask == 0:
        raise invalid(f"{_where(what, field)}: mask 0 matches everything; leave the field out instead")
    if value & ~mask:
        raise invalid(f"{_where(what, field)}: bits outside the mask are not zero")
    if not (part.value[0] and part.mask[0]):
        part.value, part.mask = encode(value), encode(mask)
    return value, mask


def _range(field: FieldInfo, message: Message, what: str) -> tuple[int, int]:
    part = message.range
    low, high = _number(part.low, field, message, what), _number(part.high, field, message, what)
    if low > high:
        raise invalid(f"{_where(what, field)}: low {low} is above high {high}")
    if low == 0 and high == (1 << field.bits) - 1:
        raise invalid(f"{_where(what, field)}: the range is everything; leave the field out instead")
    if not (part.low[0] and part.high[0]):
        part.low, part.high = encode(low), encode(high)
    return low, high


Reader = Callable[[FieldInfo, Message, str], tuple[int, int]]
"""Returns a FieldMatch as two numbers, and shortens its byte strings to what they are when read.

The numbers are value and mask, value and prefix length, or the ends of a range. Raises ControlError
INVALID_ARGUMENT, naming the field behind what has it.
"""

_READERS: Final[dict[int, Reader]] = {
    _TYPES.EXACT: _exact,
    _TYPES.LPM: _lpm,
    _TYPES.TERNARY: _ternary,
    _TYPES.RANGE: _range,
    _TYPES.OPTIONAL: _optional,
}
_MATCHES: Final[dict[int, Callable[[int, int], Match]]] = {
    _TYPES.EXACT: lambda value, _: Exact(value),
    _TYPES.LPM: Lpm,
    _TYPES.TERNARY: Ternary,
    _TYPES.RANGE: Range,
    _TYPES.OPTIONAL: lambda value, mask: Optional(value if mask else None),
}


def _unserved(field: FieldInfo, message: Message, what: str) -> tuple[int, int]:
    kind = message.WhichOneof("field_match_type")
    raise invalid(f"{_where(what, field)} is matched as {kind}, but is of another kind")


def reader(field: FieldInfo) -> Reader:
    """Return what reads the matches of a key field."""
    return _READERS.get(field.match_type, _unserved)


def wildcard(field: FieldInfo) -> tuple[int, int] | None:
    """Return the match of a field that is left out; None for a field that cannot be."""
    if field.match_type == _TYPES.RANGE:
        return 0, (1 << field.bits) - 1
    return (0, 0) if field.match_type in (_TYPES.LPM, _TYPES.TERNARY, _TYPES.OPTIONAL) else None


def missing(field: FieldInfo, what: str) -> ControlError:
    """Return the error for a field that is left out and cannot be."""
    return invalid(f"{_where(what, field)} is missing: an exact field has no wildcard")


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
        numbers = wildcard(field) if found is None else reader(field)(field, found, what)
        if numbers is None:
            raise missing(field, what)
        key.append(_MATCHES[field.match_type](*numbers))
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


def stored_with(pipeline: "Pipeline", table: TableInfo, wanted: Message) -> Iterator[PackedEntry]:
    """Yield the entries with the match and the priority of a TableEntry, as far as it has them.

    Raises ControlError INVALID_ARGUMENT for a match that is none of the table's.
    """
    store = pipeline.switch.table(table.name)
    key = decode_key(table, wanted) if wanted.match else None
    if key is not None and (wanted.priority or not table.prioritised):
        try:
            yield store.packed_entry(store.keys.pack(key, wanted.priority))
        except ControlError as error:
            if error.code != Code.NOT_FOUND:
                raise
        return
    for stored in store.packed_entries():
        entry = store.unpacked(stored)
        if key is not None and store.keys.pack(key, entry.priority) != stored.key:
            continue
        if wanted.priority and entry.priority != wanted.priority:
            continue
        yield stored
