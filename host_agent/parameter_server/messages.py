# SPDX-License-Identifier: Apache-2.0
"""Messages of an update-centric server and its workers, as 32-bit words: the lanes of a flow.

A message begins with its kind, the worker it is from or for, and that worker's incarnation (two words): a
process that was started anew is another one, of which nothing old is expected.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, Self

import numpy as np

from weir.host_agent.parameter_server.payload import Words
from weir.host_agent.parameter_server.value_filter import Bits

NOTHING: Final = np.empty(0, np.uint32)


class MessageError(ValueError):
    """Words are not a message of this version. Says what is wrong."""


class Kind(IntEnum):
    """The kind of a message; the first two are the server's."""

    UPDATE = 1
    REFUSAL = 2
    JOIN = 3
    PUSH = 4
    FLUSH = 5
    LEAVE = 6
    BEGIN = 7
    ALIVE = 8


_DOWN: Final = frozenset({Kind.UPDATE, Kind.REFUSAL})
_UP: Final = frozenset(Kind) - _DOWN
_HEAD: Final = 12

Run = tuple[int, int]
"""Words of a payload that were lost: the first, and how many."""


@dataclass(frozen=True, eq=False)
class FromWorker:
    """A worker's message.

    kind: BEGIN (with these parameters, unless there are some), JOIN (and ask for what is lacking), PUSH,
    FLUSH (be done, and get all that is pending), ALIVE (and ask where the clocks
    are), LEAVE. clock: number of the push or flush; in a join of how many the worker knows that they are
    applied. taken: number of the last update that the worker has taken. lr: of this step. settings: text for
    the optimizer, for this push and those after it; empty: as before. payload: float32, what is pushed or to
    begin with. known: of how many of its pushes the worker knows what became of them. lost: what did not
    arrive of the payload, zero there. droppable: words at the payload's end that may be lost; not sent.
    """

    kind: Kind
    worker: int
    incarnation: int
    clock: int = 0
    taken: int = 0
    lr: float = 0.0
    payload: Words = field(default_factory=lambda: NOTHING)
    settings: str = ""
    known: int = 0
    lost: tuple[Run, ...] = ()
    droppable: int = 0

    def encode(self) -> Words:
        """Return the message as words."""
        lr, text = np.array([self.lr], np.float64).view(np.uint32), _words(self.settings)
        head = [self.kind, self.worker, *_halves(self.incarnation), self.clock, self.taken, text.size]
        more = [self.known, len(self.lost), 0]
        return np.concatenate([np.array([*head, *more], np.uint32), lr, text, _flat(self.lost), self.payload])

    @classmethod
    def decode(cls, words: Words) -> Self:
        """Return the message of these words. Raises MessageError."""
        _check(words, _UP)
        kind, worker, low, high, clock, taken, size, known, count, _ = map(int, words[:10])
        lr = float(words[10:_HEAD].copy().view(np.float64)[0])
        if not 0.0 <= lr < np.inf:
            raise MessageError(f"worker {worker} steps with learning rate {lr}")
        if size > words.size - _HEAD:
            raise MessageError(f"worker {worker}'s settings end after {words.size - _HEAD} of {size} words")
        text, rest = words[_HEAD : _HEAD + size], words[_HEAD + size :]
        lost, payload = _runs(rest, count, 2)
        runs = tuple((first, length) for first, length in lost)
        return cls(Kind(kind), worker, low | high << 32, clock, taken, lr, payload, _text(text), known, runs)

    @classmethod
    def received(cls, words: Words, came: Bits) -> Self:
        """Return the message of these words, of which some did not come and are zero.

        Raises MessageError, also when more is missing than a part of the payload.
        """
        message = cls.decode(words)
        head = words.size - message.payload.size
        if not came[:head].all():
            raise MessageError(f"the head of a message of worker {message.worker} did not come")
        edges = np.flatnonzero(np.diff(~came[head:], prepend=False, append=False))
        runs = zip(edges[::2].tolist(), (edges[1::2] - edges[::2]).tolist(), strict=True)
        return replace(message, lost=tuple(runs))


@dataclass(frozen=True, eq=False)
class FromServer:
    """A server's message.

    kind: UPDATE or REFUSAL, whose payload is a sentence. number: of the update, from 1 for each worker; 0:
    only the clocks are news. applied: how many of this worker's pushes are in. floor: how many of every
    worker's are, at least, in the model that the update leads to.
    """

    kind: Kind
    worker: int
    incarnation: int
    number: int = 0
    applied: int = 0
    floor: int = 0
    payload: Words = field(default_factory=lambda: NOTHING)
    lost: tuple[tuple[int, int, int], ...] = ()

    def encode(self) -> Words:
        """Return the message as words."""
        head = [self.kind, self.worker, *_halves(self.incarnation), self.number, self.applied, self.floor]
        words = np.array([*head, len(self.lost), 0, 0, 0, 0], np.uint32)
        return np.concatenate([words, _flat(self.lost), self.payload])

    @classmethod
    def decode(cls, words: Words) -> Self:
        """Return the message of these words. Raises MessageError."""
        _check(words, _DOWN)
        kind, worker, low, high, number, applied, floor, count = map(int, words[:8])
        runs, payload = _runs(words[_HEAD:], count, 3)
        lost = tuple((clock, first, length) for clock, first, length in runs)
        return cls(Kind(kind), worker, low | high << 32, number, applied, floor, payload, lost)

    @classmethod
    def refusing(cls, message: FromWorker, sentence: str) -> Self:
        """Return the answer to a message that the server does not take."""
        return cls(Kind.REFUSAL, message.worker, message.incarnation, payload=_words(sentence))

    @property
    def sentence(self) -> str:
        """Return what a refusal says."""
        return _text(self.payload)


def _words(text: str) -> Words:
    data = text.encode()
    return np.frombuffer(data.ljust(-(-len(data) // 4) * 4), np.uint32)


def _text(words: Words) -> str:
    return words.tobytes().decode(errors="replace").rstrip()


def _flat(rows: Iterable[tuple[int, ...]]) -> Words:
    return np.array([number for row in rows for number in row], np.uint32)


def _runs(words: Words, count: int, width: int) -> tuple[list[list[int]], Words]:
    """Return so many rows of numbers, and the words behind them. Raises MessageError."""
    size = count * width
    if size > words.size:
        raise MessageError(f"a list of {count} lost parts ends after {words.size} words")
    rows: list[list[int]] = words[:size].reshape(count, width).tolist()
    return rows, words[size:]


def _halves(number: int) -> tuple[int, int]:
    return number & 0xFFFFFFFF, number >> 32


def _check(words: Words, kinds: frozenset[Kind]) -> None:
    if words.size < _HEAD:
        raise MessageError(f"a message of {words.size} words is too short")
    if int(words[0]) not in kinds:
        raise MessageError(
            f"messages of kind {int(words[0]):#x} are not known here: versions differ, or damage"
        )
