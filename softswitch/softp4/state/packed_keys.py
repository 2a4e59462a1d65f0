# SPDX-License-Identifier: Apache-2.0
"""Keys of table entries as bytes: what the native table takes, and what tells one entry from another."""

from collections.abc import Callable, Sequence
from typing import Final

from softp4.codegen.keys import Piece, key_layout
from softp4.errors import Code, ControlError
from softp4.program.types import MatchKind, Table, TableKey
from softp4.state.entry import Exact, Lpm, Match, Optional, Range, Ternary

_PRIORITIES: Final = (1 << 31) - 1
Put = Callable[[int, int], int]
"""Places one field's match, given as two numbers, among the bits of a packed key.

The numbers are the value and the mask (exact, ternary and optional fields), the value and the prefix length,
or the two ends of a range.
"""


class PackedKeys:
    """The packed keys of one table.

    A packed key is the words of the key; in a table with priorities the words of the mask; and, unless all
    fields are exact, the priority (that of the longest prefix is its length). Two entries are the same entry
    when these bytes are.

    Attributes:
        put: for each key field, what places its match.
        pieces: for each key field, where its value lies in the words of the key, and its mask in those of
            the mask.
        words: of the key.
        masked: whether there are words of the mask.
        size: of a packed key, in bytes.
    """

    def __init__(self, table: Table) -> None:
        layout = key_layout(table)
        self._table = table
        self.pieces: Final = layout.pieces
        self.words: Final = layout.words
        self.masked: Final = table.prioritised
        self._width: Final = 64 * layout.words
        self._top: Final = self._width * (2 if self.masked else 1)  # where the priority begins
        self.size: Final = self._top // 8 + (0 if table.kind is MatchKind.EXACT else 8)
        self.put: Final = tuple(
            self._put(key, pieces) for key, pieces in zip(table.keys, layout.pieces, strict=True)
        )

    def seal(self, bits: int, priority: int) -> bytes:
        """Return the packed key of an entry whose fields have been placed in ``bits``."""
        return (bits | priority << self._top).to_bytes(self.size, "little")

    def pack(self, key: Sequence[Match], priority: int) -> bytes:
        """Return the packed key for matches and a priority. Raises ControlError for what the table lacks."""
        fields = self._table.keys
        if len(key) != len(fields):
            raise ControlError(
                Code.INVALID_ARGUMENT, f"{self._table.name} has {len(fields)} key fields, not {len(key)}"
            )
        if not 0 <= priority <= (_PRIORITIES if self.masked else 0):
            raise ControlError(Code.NOT_FOUND, f"{self._table.name} has no entry {key}")
        bits = 0
        for match, field, put in zip(key, fields, self.put, strict=True):
            bits |= put(*_numbers(match, field, self._table.name))
        return self.seal(bits, priority)

    def unpack(self, packed: bytes) -> tuple[tuple[Match, ...], int]:
        """Return the matches and the priority of a packed key."""
        bits = int.from_bytes(packed, "little")
        check, priority = bits >> self._width, bits >> self._top
        key = tuple(
            _match(field, _taken(bits, pieces), _taken(check, pieces), None if self.masked else priority)
            for field, pieces in zip(self._table.keys, self.pieces, strict=True)
        )
        return key, priority if self.masked else 0

    def _put(self, field: TableKey, pieces: Sequence[Piece]) -> Put:
        place, full = _placer(pieces), (1 << field.bits) - 1
        kept = full if field.mask is None else field.mask
        width, top, bits = self._width, self._top, field.bits
        if field.kind is MatchKind.LPM:

            def put_prefix(value: int, length: int) -> int:
                mask = full >> (bits - length) << (bits - length)
                second = place(mask) << width if self.masked else length << top
                return place(value & mask & kept) | second

            return put_prefix
        if field.kind is MatchKind.RANGE:
            return lambda low, high: place(low) | place(high) << width
        if self.masked:
            return lambda value, mask: place(value & mask & kept) | place(mask) << width
        if len(pieces) == 1 and field.mask is None:
            shift = 64 * pieces[0].word + pieces[0].shift
            return lambda value, _: value << shift
        return lambda value, _: place(value & kept)


def _placer(pieces: Sequence[Piece]) -> Callable[[int], int]:
    """Return what moves a field's value to its place among the bits of a packed key."""
    if len(pieces) == 1:
        shift = 64 * pieces[0].word + pieces[0].shift
        return lambda value: value << shift

    def place(value: int) -> int:
        return sum((value >> p.low & (1 << p.bits) - 1) << 64 * p.word + p.shift for p in pieces)

    return place


def _taken(bits: int, pieces: Sequence[Piece]) -> int:
    return sum((bits >> 64 * p.word + p.shift & (1 << p.bits) - 1) << p.low for p in pieces)


def _match(field: TableKey, value: int, check: int, length: int | None) -> Match:
    """Return a field's match. ``length``: in a table of longest prefixes, which keeps no masks."""
    if field.kind is MatchKind.EXACT:
        return Exact(value)
    if field.kind is MatchKind.LPM:
        return Lpm(value, check.bit_count() if length is None else length)
    return Range(value, check) if field.kind is MatchKind.RANGE else Ternary(value, check)


def _numbers(match: Match, field: TableKey, table: str) -> tuple[int, int]:
    """Return a match as its two numbers. Raises ControlError for one that the field does not have."""
    full = (1 << field.bits) - 1
    where = f"{table}, key {field.name}"

    def fits(*values: int) -> None:
        for value in values:
            check_fits(value, field, table)

    match match, field.kind:
        case Exact(value), MatchKind.EXACT:
            fits(value)
            return value, full
        case Lpm(value, length), MatchKind.LPM:
            fits(value)
            if not 0 <= length <= field.bits:
                raise ControlError(Code.OUT_OF_RANGE, f"{where}: prefix length {length} of {field.bits} bits")
            return value, length
        case Ternary(value, mask), MatchKind.TERNARY:
            fits(value, mask)
            return value, mask
        case Optional(value), MatchKind.TERNARY:
            fits(value or 0)
            return (0, 0) if value is None else (value, full)
        case Range(low, high), MatchKind.RANGE:
            fits(low, high)
            if low > high:
                raise ControlError(Code.INVALID_ARGUMENT, f"{where}: empty range {low}..{high}")
            return low, high
    raise ControlError(Code.INVALID_ARGUMENT, f"{where} is {field.kind.value}, not {type(match).__name__}")


def check_fits(value: int, field: TableKey, table: str) -> None:
    """Raise ControlError OUT_OF_RANGE unless a value has no more bits than a key field."""
    if not 0 <= value < 1 << field.bits:
        raise ControlError(
            Code.OUT_OF_RANGE, f"{table}, key {field.name}: {value} does not fit {field.bits} bits"
        )
