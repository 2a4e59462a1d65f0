# SPDX-License-Identifier: Apache-2.0
"""Ordinary updates of a WriteRequest, decoded from its bytes natively (csrc/updates.c)."""

import ctypes
import functools
import struct
from collections.abc import Iterable, Iterator, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_uint32, c_uint64
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from softp4 import native
from softp4.p4rt.p4info_objects import FieldInfo
from softp4.p4rt.table_codec import TableCodec
from softp4.p4runtime.schema import p4info_pb2

_HERE: Final = Path(__file__).resolve().parent
_ROOM: Final = 64 << 20  # bytes of a request's records; one with more updates is left to Python
_KIND_AND_TABLE, _ACTION, _WIRE_BEGIN, _WIRE_END, _KEY = range(5)  # words of a record, as in C
_LOW: Final = (1 << 32) - 1
_TYPES: Final = p4info_pb2.MatchField
_PARTS: Final = {_TYPES.EXACT: 2, _TYPES.TERNARY: 3, _TYPES.LPM: 4, _TYPES.RANGE: 6, _TYPES.OPTIONAL: 7}


class Piece(Structure):
    """C ``p4rt_piece``."""

    _fields_ = tuple((name, c_uint32) for name in ("word", "shift", "low", "bits"))


class Field(Structure):
    """C ``p4rt_field``."""

    _fields_ = tuple((name, c_uint32) for name in ("id", "bits", "match", "first_piece", "pieces"))


class Action(Structure):
    """C ``p4rt_action``."""

    _fields_ = tuple((name, c_uint32) for name in ("id", "number", "first_param", "params"))


class Table(Structure):
    """C ``p4rt_table``."""

    _fields_ = tuple(
        (name, c_uint32)
        for name in (
            "id",
            "first_field",
            "fields",
            "first_action",
            "actions",
            "key_words",
            "masked",
        )
    )


class Tables(Structure):
    """C ``p4rt_tables``."""

    _fields_ = (
        ("table", POINTER(Table)),
        ("action", POINTER(Action)),
        ("field", POINTER(Field)),
        ("piece", POINTER(Piece)),
        ("tables", c_uint32),
        ("most_key_words", c_uint32),
        ("record_words", c_uint32),
    )


SIGNATURES: Final[native.Signatures] = {
    "p4rt_find": (c_int, [c_char_p, c_uint64, POINTER(c_uint64)]),
    "p4rt_decode": (c_int, [POINTER(Tables), c_char_p, c_uint64, c_uint64, POINTER(c_uint64)]),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the compiled decoder."""
    return native.load_library("p4runtime", [_HERE / "csrc" / "updates.c"], signatures=SIGNATURES)


@dataclass(frozen=True)
class Run:
    """Updates of one type, of entries of one table, that follow each other.

    Attributes:
        type: the Update.Type.
        codec: the table's.
        keys: packed.
        actions, args: the program's numbers and the argument words; of a deletion nobody looks at them.
        wires: the serialized TableEntry of each, None unless a read gives the same bytes.
    """

    type: int
    codec: TableCodec
    keys: Sequence[bytes]
    actions: Sequence[int]
    args: Sequence[bytes]
    wires: Sequence[bytes | None]


@dataclass(frozen=True)
class Updates:
    """A WriteRequest, all of whose updates are ordinary.

    Attributes:
        head: the request without its updates, serialized.
        runs: the updates in their order.
    """

    head: bytes
    runs: Sequence[Run]


class UpdateDecoder:
    """Decodes the requests that write entries of some tables, as far as they need no second look."""

    def __init__(self, codecs: Iterable[TableCodec]) -> None:
        self._codecs: Final = [codec for codec in codecs if _is_described(codec)]
        self._described: Final = _Description(self._codecs)
        self._record: Final = 8 * self._described.tables.record_words
        self._layouts: Final = [self._layout(codec) for codec in self._codecs]
        self._library: Final = library()

    def _layout(self, codec: TableCodec) -> struct.Struct:
        """Return how packed key and arguments lie in a record."""
        size, length, most = (
            codec.store.keys.size,
            8 * codec.store.words,
            self._described.tables.most_key_words,
        )
        behind = self._record - 8 * (_KEY + most) - length
        return struct.Struct(f"{8 * _KEY}x{size}s{8 * most - size}x{length}s{behind}x")

    def decode(self, request: bytes) -> Updates | None:
        """Return the updates of a serialized WriteRequest; None when one of them is not ordinary.

        An ordinary update inserts, modifies or deletes an entry by its match, its priority and its action,
        in the encoding that protobuf gives it, and its values are as the table wants them. Whether there is
        such an entry has not been asked.
        """
        found = (c_uint64 * 3)()
        if self._library.p4rt_find(request, len(request), found):
            return None
        begin, end, count = found
        if not 0 < count <= _ROOM // self._record:
            return None
        records = (c_uint64 * (count * self._record // 8))()
        updates = request[begin:end]
        if self._library.p4rt_decode(self._described.tables, updates, len(updates), count, records):
            return None
        return Updates(request[:begin] + request[end:], list(self._runs(updates, records)))

    def _runs(self, updates: bytes, records: Any) -> Iterator[Run]:
        data = memoryview(records).cast("B")
        words, step = data.cast("Q"), self._record // 8
        kinds, actions = words[_KIND_AND_TABLE::step].tolist(), words[_ACTION::step].tolist()
        begins, ends = words[_WIRE_BEGIN::step].tolist(), words[_WIRE_END::step].tolist()
        wires = [updates[begin:end] or None for begin, end in zip(begins, ends, strict=True)]
        first = 0
        for kind, same in groupby(kinds):
            end = first + len(list(same))
            table = kind & _LOW
            packed = self._layouts[table].iter_unpack(data[first * self._record : end * self._record])
            keys, args = zip(*packed, strict=True)
            yield Run(kind >> 32, self._codecs[table], keys, actions[first:end], args, wires[first:end])
            first = end


def _is_described(codec: TableCodec) -> bool:
    """Return whether nothing but match, priority and action makes an entry of a table what it is."""
    table, store = codec.table, codec.store
    return (
        store.plain
        and not table.constant
        and table.prioritised == store.keys.masked
        and all(
            field.match_type in _PARTS and field.bits == key.bits and key.mask is None
            for field, key in zip(table.fields, codec.keys, strict=True)
        )
    )


class _Description:
    """The form in which C knows some tables: it points into arrays that are kept here.

    Attributes:
        tables: C ``p4rt_tables``.
    """

    def __init__(self, codecs: Sequence[TableCodec]) -> None:
        self._tables: list[Table] = []
        self._actions: list[Action] = []
        self._fields: list[Field] = []
        self._pieces: list[Piece] = []
        for codec in codecs:
            self._describe(codec)
        keys = max((codec.store.keys.size // 8 for codec in codecs), default=0)
        args = max((codec.store.words for codec in codecs), default=0)
        self._arrays = (
            (Table * len(self._tables))(*self._tables),
            (Action * len(self._actions))(*self._actions),
            (Field * len(self._fields))(*self._fields),
            (Piece * len(self._pieces))(*self._pieces),
        )
        self.tables = Tables(*self._arrays, len(codecs), keys, _KEY + keys + args)

    def _describe(self, codec: TableCodec) -> None:
        table, store = codec.table, codec.store
        first_field = len(self._fields)
        for field, pieces in zip(table.fields, store.keys.pieces, strict=True):
            self._add_field(field, _PARTS[field.match_type], pieces)
        first_action = len(self._actions)
        for action in map(codec.info.action, sorted(table.entry_actions)):
            number, places = store.layout(action.name)
            widths = [sum(piece.bits for piece in pieces) for pieces in places]
            if widths != [param.bits for param in action.params]:
                continue  # translated
            self._actions.append(Action(action.id, number, len(self._fields), len(action.params)))
            for param, pieces in zip(action.params, places, strict=True):
                self._add_field(param, 0, pieces)
        self._tables.append(
            Table(
                table.id,
                first_field,
                len(table.fields),
                first_action,
                len(self._actions) - first_action,
                store.keys.words,
                store.keys.masked,
            )
        )

    def _add_field(self, field: FieldInfo, match: int, pieces: Iterable[Any]) -> None:
        places = [Piece(each.word, each.shift, each.low, each.bits) for each in pieces]
        self._fields.append(Field(field.id, field.bits, match, len(self._pieces), len(places)))
        self._pieces += places
