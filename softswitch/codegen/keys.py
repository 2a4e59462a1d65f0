# SPDX-License-Identifier: Apache-2.0
"""How a table's key is packed into 64-bit words: the one definition that the generated lookup code and
the control plane (`softswitch.table_store`) both follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from softswitch.errors import UnsupportedConstruct
from softswitch.program_types import Action, MatchKind, Table

MAX_KEY_WORDS: Final = 16  # of masked[] in runtime/state.h


@dataclass(frozen=True)
class Piece:
    """`bits` bits of a key field, from bit `low` of it, at bit `shift` of word `word`."""

    word: int
    shift: int
    low: int
    bits: int


@dataclass(frozen=True)
class KeyLayout:
    """The words of a key: packed fields first, then one word per range field.

    `pieces[i]` tells where field i lies.
    """

    pieces: tuple[tuple[Piece, ...], ...]
    words: int
    range_words: int

    def pack(self, values: Sequence[int]) -> list[int]:
        """One value per field to words."""
        words = [0] * self.words
        for value, pieces in zip(values, self.pieces, strict=True):
            for piece in pieces:
                words[piece.word] |= (value >> piece.low & (1 << piece.bits) - 1) << piece.shift
        return words


def key_layout(table: Table) -> KeyLayout:
    """Packs fields first-fit, wide ones by whole words; refuses keys that do not fit."""
    fill: list[int] = []
    placed: dict[int, tuple[Piece, ...]] = {}
    for index, key in enumerate(table.keys):
        if key.kind is MatchKind.RANGE:
            if key.bits > 64:
                raise UnsupportedConstruct("range match on more than 64 bits", f"table {table.name}")
            continue
        pieces = []
        for low in range(0, key.bits, 64):
            bits = min(64, key.bits - low)
            word = next((i for i, used in enumerate(fill) if used + bits <= 64), len(fill))
            if word == len(fill):
                fill.append(0)
            pieces.append(Piece(word, fill[word], low, bits))
            fill[word] += bits
        placed[index] = tuple(pieces)
    ranges = [index for index, key in enumerate(table.keys) if key.kind is MatchKind.RANGE]
    for position, index in enumerate(ranges):
        placed[index] = (Piece(len(fill) + position, 0, 0, table.keys[index].bits),)
    words = len(fill) + len(ranges)
    if words > MAX_KEY_WORDS:
        raise UnsupportedConstruct(f"a key of more than {64 * MAX_KEY_WORDS} bits", f"table {table.name}")
    return KeyLayout(tuple(placed[index] for index in range(len(table.keys))), words, len(ranges))


def arg_words(action: Action) -> list[tuple[int, int]]:
    """Where each parameter of an action lies in an entry's argument words: (first word, words)."""
    places = []
    at = 0
    for param in action.params:
        count = 1 if param.bits <= 64 else 2
        places.append((at, count))
        at += count
    return places


def arg_word_count(actions: Sequence[Action]) -> int:
    """Argument words of a table's entries: those of its longest action."""
    return max((sum(count for _, count in arg_words(action)) for action in actions), default=0)


def pack_args(action: Action, args: Sequence[int], words: int) -> list[int]:
    """Arguments to `words` argument words."""
    packed = [0] * words
    for (word, count), value in zip(arg_words(action), args, strict=True):
        for i in range(count):
            packed[word + i] = value >> 64 * i & (1 << 64) - 1
    return packed
