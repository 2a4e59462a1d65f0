# SPDX-License-Identifier: Apache-2.0
"""Messages of an update-centric server and its workers, as 32-bit words: the lanes of a flow.

A message begins with its kind, the worker it is from or for, and that worker's incarnation (two words): a
process that was started anew is another one, of which nothing old is expected.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Self

import numpy as np

from weir.host_agent.parameter_server.payload import Words

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
_HEAD: Final = 10


@dataclass(frozen=True, eq=False)
class FromWorker:
    """A worker's message.

    kind: BEGIN (with these parameters, unless there are some), JOIN (and ask for what is lacking), PUSH,
    FLUSH (be done, and get all that is pending), ALIVE (and ask where the clocks
    are), LEAVE. clock: number of the push or flush; in a join of how many the worker knows that they are
    applied. taken: number of the last update that the worker has taken. lr: of this step. settings: text for
    the optimizer, for this push and those after it; empty: as before. payload: float32, what is pushed or to
    begin with.
    """

    kind: Kind
    worker: int
    incarnation: int
    clock: int = 0
    taken: int = 0
    lr: float = 0.0
    payload: Words = field(default_factory=lambda: NOTHING)
    settings: str = ""

    def encode(self) -> Words:
        """Return the message as words."""
        lr, text = np.array([self.lr], np.float64).view(np.uint32), _words(self.settings)
        head = [self.kind, self.worker, *_halves(self.incarnation), self.clock, self.taken, text.size, 0]
        return np.concatenate([np.array(head, np.uint32), lr, text, self.payload])

    @classmethod
    def decode(cls, words: Words) -> Self:
        """Return the message of these words. Raises MessageError."""
        _check(words, _UP)
        kind, worker, low, high, clock, taken, size, _ = map(int, words[:8])
        lr = float(words[8:_HEAD].copy().view(np.float64)[0])
        if not 0.0 <= lr < np.inf:
            raise MessageError(f"worker {worker} steps with learning rate {lr}")
        if size > words.size - _HEAD:
            raise MessageError(f"worker {worker}'s settings end after {words.size - _HEAD} of {size} words")
        text, payload = words[_HEAD : _HEAD + size], words[_HEAD + size :]
        return cls(Kind(kind), worker, low | high << 32, clock, taken, lr, payload, _text(text))


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

    def encode(self) -> Words:
        """Return the message as words."""
        head = [self.kind, self.worker, *_halves(self.incarnation), self.number, self.applied, self.floor]
        return np.concatenate([np.array([*head, 0, 0, 0], np.uint32), self.payload])

    @classmethod
    def decode(cls, words: Words) -> Self:
        """Return the message of these words. Raises MessageError."""
        _check(words, _DOWN)
        kind, worker, low, high, number, applied, floor = map(int, words[:7])
        return cls(Kind(kind), worker, low | high << 32, number, applied, floor, words[_HEAD:])

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


def _halves(number: int) -> tuple[int, int]:
    return number & 0xFFFFFFFF, number >> 32


def _check(words: Words, kinds: frozenset[Kind]) -> None:
    if words.size < _HEAD:
        raise MessageError(f"a message of {words.size} words is too short")
    if int(words[0]) not in kinds:
        raise MessageError(
            f"messages of kind {int(words[0]):#x} are not known here: versions differ, or damage"
        )
