# SPDX-License-Identifier: Apache-2.0
"""Packing of a table's key into 64-bit words: the one definition that the generated lookup code and
the control plane (`softp4.state.table_store`) both follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from softp4.program.errors import UnsupportedConstruct
from softp4.program.types import Action, MatchKind, Program, Table

MAX_KEY_WORDS: Final = 64  # SW_MAX_KEY_WORDS in runtime/lookup.h


@dataclass(frozen=True)
class Piece:
    """`bits` bits of a key field or parameter, from bit `low` of it, at bit `shift` of word `word`."""

    word: int
    shift: int
    low: int
    bits: int


@dataclass(frozen=True)
class KeyLayout:
    """The words of a key: packed fields first, then an LPM field's or one word per range field.

    `pieces[i]` tells where field i lies.
    """

    pieces: tuple[tuple[Piece, ...], ...]
    words: int
    lpm_words: int = 0
    range_words: int = 0

    def pack(self, values: Sequence[int]) -> list[int]:
        """Pack one value per field into words."""
        words = [0] * self.words
        for value, pieces in zip(values, self.pieces, strict=True):
            for piece in pieces:
                words[piece.word] |= (value >> piece.low & (1 << piece.bits) - 1) << piece.shift
        return words

    def unpack(self, words: Sequence[int]) -> tuple[int, ...]:
        """Unpack words into one value per field."""
        return tuple(
            sum((words[p.word] >> p.shift & (1 << p.bits) - 1) << p.low for p in pieces)
            for pieces in self.pieces
        )


def key_layout(table: Table) -> KeyLayout:
    """Lay out a table's key as runtime/lookup.h wants it; refuses keys that do not fit."""
    last = {MatchKind.LPM: MatchKind.LPM, MatchKind.RANGE: MatchKind.RANGE}.get(table.kind)
    packer = _Packer(align=table.kind in (MatchKind.TERNARY, MatchKind.RANGE))
    placed = {index: packer.place(key.bits) for index, key in enumerate(table.keys) if key.kind is not last}
    words = first = len(packer.fill)
    for index, key in enumerate(table.keys):
        if index in placed:
            continue
        if last is MatchKind.LPM:
            placed[index] = _left_aligned(words, key.bits)
        elif key.bits > 64:
            raise UnsupportedConstruct("range match on more than 64 bits", f"table {table.name}")
        else:
            placed[index] = (Piece(words, 0, 0, key.bits),)
        words += len(placed[index])
    if words > MAX_KEY_WORDS:
        raise UnsupportedConstruct(f"a key of more than {64 * MAX_KEY_WORDS} bits", f"table {table.name}")
    return KeyLayout(
        pieces=tuple(placed[index] for index in range(len(table.keys))),
        words=words,
        lpm_words=words - first if last is MatchKind.LPM else 0,
        range_words=words - first if last is MatchKind.RANGE else 0,
    )


class _Packer:
    """Packs fields first-fit, wide ones by whole words.

    Args:
        align: fields of a byte and more begin at whole bytes, so that bytes of masks are bytes of fields.
    """

    def __init__(self, align: bool) -> None:
        self.fill: list[int] = []
        self._align = align

    def place(self, bits: int) -> tuple[Piece, ...]:
        return tuple(self._piece(low, min(64, bits - low)) for low in range(0, bits, 64))

    def _piece(self, low: int, bits: int) -> Piece:
        starts = [-(-used // 8) * 8 if self._align and bits >= 8 else used for used in self.fill]
        word = next((i for i, start in enumerate(starts) if start + bits <= 64), len(starts))
        if word == len(starts):
            starts.append(0)
            self.fill.append(0)
        self.fill[word] = starts[word] + bits
        return Piece(word, starts[word], low, bits)


def _left_aligned(first: int, bits: int) -> tuple[Piece, ...]:
    """Place a field from the top bit of word `first` on."""
    pieces = []
    for position, top in enumerate(range(bits, 0, -64)):
        count = min(64, top)
        pieces.append(Piece(first + position, 64 - count, top - count, count))
    return tuple(pieces)


def arg_words(action: Action) -> list[tuple[int, int]]:
    """Return where each parameter of an action lies in an entry's argument words: (first word, words)."""
    places = []
    at = 0
    for param in action.params:
        count = (param.bits + 63) // 64
        places.append((at, count))
        at += count
    return places


def arg_pieces(action: Action) -> tuple[tuple[Piece, ...], ...]:
    """Return the same as pieces: each word takes 64 bits of a parameter, the lowest first."""
    return tuple(
        tuple(
            Piece(first + number, 0, 64 * number, min(64, param.bits - 64 * number))
            for number in range(count)
        )
        for (first, count), param in zip(arg_words(action), action.params, strict=True)
    )


def arg_word_count(actions: Sequence[Action]) -> int:
    """Return argument words of the longest of some actions."""
    return max((sum(count for _, count in arg_words(action)) for action in actions), default=0)


def entry_words(program: Program, table: Table) -> int:
    """Return argument words of a table's entries: those of its longest action, or one for a handle."""
    words = arg_word_count(program.table_actions(table))
    return words if table.profile is None else max(words, 1)


def pack_args(action: Action, args: Sequence[int], words: int) -> bytes:
    """Pack arguments into `words` argument words."""
    packed = b"".join(
        value.to_bytes(8 * count, "little") for (_, count), value in zip(arg_words(action), args, strict=True)
    )
    return packed.ljust(8 * words, b"\0")


def unpack_args(action: Action, packed: bytes) -> tuple[int, ...]:
    """Unpack the arguments from argument words."""
    return tuple(
        int.from_bytes(packed[8 * word : 8 * (word + count)], "little") for word, count in arg_words(action)
    )
