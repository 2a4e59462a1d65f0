# SPDX-License-Identifier: Apache-2.0
"""Keys of table entries: P4Runtime's FieldMatch to and from the switch's matches (specification 9.1.1)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar

from softp4.errors import Code, ControlError
from softp4.p4rt.p4info_objects import FieldInfo, TableInfo
from softp4.p4rt.values import decode, encode
from softp4.p4runtime.schema import p4info_pb2, p4runtime_pb2
from softp4.state.entry import Exact, Lpm, Match, Optional, Range, Ternary
from softp4.state.table_store import PackedEntry, TableStore

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


_T = TypeVar("_T")
Maker = Callable[[int, int], _T]
"""Makes something of a match: of value and mask, value and prefix length, or the two ends of a range."""
Reader = Callable[[Message], _T]
"""Makes something of a FieldMatch, and shortens its byte strings to what they are when read.

Raises ControlError INVALID_ARGUMENT, naming the field behind what has it.
"""


def invalid(message: str) -> ControlError:
    """Return the error for a malformed entity."""
    return ControlError(Code.INVALID_ARGUMENT, message)


def _where(what: str, field: FieldInfo) -> str:
    return what + field.place


def _refuse(data: bytes, field: FieldInfo, message: Message, what: str) -> None:
    """Raise the ControlError for a wrong byte string, which that of a match of another kind is, too."""
    kind, wanted = message.WhichOneof("field_match_type"), _ONEOF.get(field.match_type)
    if kind != wanted:
        raise invalid(f"{_where(what, field)} is matched as {kind}, but is {wanted}")
    decode(data, field.bits, what, field.place)


def _single(field: FieldInfo, what: str, make: Maker[_T]) -> Reader[_T]:
    """Read an exact or optional match: one value."""
    name, bits, full = _ONEOF[field.match_type], field.bits, (1 << field.bits) - 1
    part_of, number = attrgetter(name), int.from_bytes

    def read(message: Message) -> _T:
        part = part_of(message)
        data = part.value
        value = number(data, "big")
        if value >> bits or not data:
            _refuse(data, field, message, what)
        if not data[0]:
            part.value = encode(value)
        return make(value, full)

    return read


def _pair(field: FieldInfo, what: str, first: str, second: str) -> Reader[tuple[int, int]]:
    """Read a match that is two byte strings: a value and a mask, or the ends of a range."""
    name, bits = _ONEOF[field.match_type], field.bits

    def read(message: Message) -> tuple[int, int]:
        part = getattr(message, name)
        data = getattr(part, first), getattr(part, second)
        numbers = int.from_bytes(data[0], "big"), int.from_bytes(data[1], "big")
        for string, value in zip(data, numbers, strict=True):
            if value >> bits or not string:
                _refuse(string, field, message, what)
        if not (data[0][0] and data[1][0]):
            setattr(part, first, encode(numbers[0]))
            setattr(part, second, encode(numbers[1]))
        return numbers

    return read


def _lpm(field: FieldInfo, what: str, make: Maker[_T]) -> Reader[_T]:
    bits, number = field.bits, int.from_bytes

    def read(message: Message) -> _T:
        part = message.lpm
        data, length = part.value, part.prefix_len
        value = number(data, "big")
        if value >> bits or not data:
            _refuse(data, field, message, what)
        if not 0 < length <= bits:
            raise invalid(f"{_where(what, field)}: prefix length {length} is not in 1..{bits} (leave 0 out)")
        if value & ((1 << bits - length) - 1):
            raise invalid(f"{_where(what, field)}: bits beyond the prefix are not zero")
        if not data[0]:
            part.value = encode(value)
        return make(value, length)

    return read


def _ternary(field: FieldInfo, what: str, make: Maker[_T]) -> Reader[_T]:
    pair = _pair(field, what, "value", "mask")

    def read(message: Message) -> _T:
        value, mask = pair(message)
        if mask == 0:
            raise invalid(f"{_where(what, field)}: mask 0 matches everything; leave the field out instead")
        if value & ~mask:
            raise invalid(f"{_where(what, field)}: bits outside the mask are not zero")
        return make(value, mask)

    return read


def _range(field: FieldInfo, what: str, make: Maker[_T]) -> Reader[_T]:
    pair = _pair(field, what, "low", "high")

    def read(message: Message) -> _T:
        low, high = pair(message)
        if low > high:
            raise invalid(f"{_where(what, field)}: low {low} is above high {high}")
        if low == 0 and high == (1 << field.bits) - 1:
            raise invalid(f"{_where(what, field)}: the range is everything; leave the field out instead")
        return make(low, high)

    return read


_READERS: Final[dict[int, Callable[[FieldInfo, str, Maker[Any]], Reader[Any]]]] = {
    _TYPES.EXACT: _single,
    _TYPES.LPM: _lpm,
    _TYPES.TERNARY: _ternary,
    _TYPES.RANGE: _range,
    _TYPES.OPTIONAL: _single,
}
_MATCHES: Final[dict[int, Callable[[int, int], Match]]] = {
    _TYPES.EXACT: lambda value, _: Exact(value),
    _TYPES.LPM: Lpm,
    _TYPES.TERNARY: Ternary,
    _TYPES.RANGE: Range,
    _TYPES.OPTIONAL: lambda value, mask: Optional(value if mask else None),
}


def _unserved(field: FieldInfo, what: str, _: Maker[_T]) -> Reader[_T]:
    def read(message: Message) -> _T:
        kind = message.WhichOneof("field_match_type")
        raise invalid(f"{_where(what, field)} is matched as {kind}, but is of another kind")

    return read


def reader(field: FieldInfo, what: str, make: Maker[_T]) -> Reader[_T]:
    """Return what reads the matches of a key field of ``what``, and makes something of each."""
    return _READERS.get(field.match_type, _unserved)(field, what, make)


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
    found, extra = by_field(what, [field.id for field in fields], list(messages))
    key: list[Match] = []
    for field, message in zip(fields, found, strict=True):
        make, without = _MATCHES.get(field.match_type, Ternary), wildcard(field)
        if message is not None:
            key.append(reader(field, what, make)(message))
        elif without is not None:
            key.append(make(*without))
        else:
            raise missing(field, what)
    if extra is not None:
        raise extra
    return tuple(key)


def by_field(
    what: str, order: Sequence[int], messages: Iterable[Message]
) -> tuple[list[Message | None], ControlError | None]:
    """Return one FieldMatch, or None, for each field id, and the error if there is one for another field.

    Raises ControlError for two for one field.
    """
    given: dict[int, Message] = {}
    for message in messages:
        number = message.field_id
        if number in given:
            raise invalid(f"{what}: field {number} is given twice")
        given[number] = message
    found = [given.pop(number, None) for number in order]
    return found, invalid(f"{what} has no field with id {min(given)}") if given else None


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


def stored_with(store: TableStore, table: TableInfo, wanted: Message) -> Iterator[PackedEntry]:
    """Yield the entries with the match and the priority of a TableEntry, as far as it has them.

    Raises ControlError INVALID_ARGUMENT for a match that is none of the table's.
    """
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
