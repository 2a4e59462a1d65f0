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


_UP: Final = frozenset({Kind.JOIN, Kind.PUSH, Kind.FLUSH, Kind.LEAVE})
_HEAD: Final = 8


@dataclass(frozen=True, eq=False)
class FromWorker:
    """A worker's message.

    kind: JOIN (and ask for what is lacking), PUSH, FLUSH (take part in this step with nothing, and get all
    that is pending), LEAVE. clock: number of the push or flush; in a join of how many the worker knows that
    they are applied. taken: number of the last update that the worker has taken. lr: of this step. payload:
    what is pushed, of float32.
    """

    kind: Kind
    worker: int
    incarnation: int
    clock: int = 0
    taken: int = 0
    lr: float = 0.0
    payload: Words = field(default_factory=lambda: NOTHING)

    def encode(self) -> Words:
        """Return the message as words."""
        lr = np.array([self.lr], np.float64).view(np.uint32)
        head = [self.kind, self.worker, *_halves(self.incarnation), self.clock, self.taken]
        return np.concatenate([np.array(head, np.uint32), lr, self.payload])

    @classmethod
    def decode(cls, words: Words) -> Self:
        """Return the message of these words. Raises MessageError."""
        _check(words, _UP)
        kind, worker, low, high, clock, taken = map(int, words[:6])
        lr = float(words[6:_HEAD].copy().view(np.float64)[0])
        if not 0.0 <= lr < np.inf:
            raise MessageError(f"worker {worker} steps with learning rate {lr}")
        return cls(Kind(kind), worker, low | high << 32, clock, taken, lr, words[_HEAD:])


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
        head = [
            self.kind, self.worker, *_halves(self.incarnation), self.number, self.applied, self.floor, 0
        ]  # fmt: skip
        return np.concatenate([np.array(head, np.uint32), self.payload])

    @classmethod
    def decode(cls, words: Words) -> Self:
        """Return the message of these words. Raises MessageError."""
        _check(words, {Kind.UPDATE, Kind.REFUSAL})
        kind, worker, low, high, number, applied, floor, _ = map(int, words[:_HEAD])
        return cls(Kind(kind), worker, low | high << 32, number, applied, floor, words[_HEAD:])

    @classmethod
    def refusing(cls, message: FromWorker, sentence: str) -> Self:
        """Return the answer to a message that the server does not take."""
        text = sentence.encode() + b" " * (-len(sentence.encode()) % 4)
        payload = np.frombuffer(text, np.uint32)
        return cls(Kind.REFUSAL, message.worker, message.incarnation, payload=payload)

    @property
    def sentence(self) -> str:
        """Return what a refusal says."""
        return self.payload.tobytes().decode(errors="replace").rstrip()


def _halves(number: int) -> tuple[int, int]:
    return number & 0xFFFFFFFF, number >> 32


def _check(words: Words, kinds: "frozenset[Kind] | set[Kind]") -> None:
    if words.size < _HEAD:
        raise MessageError(f"a message of {words.size} words is too short")
    if int(words[0]) not in kinds:
        raise MessageError(
            f"messages of kind {int(words[0]):#x} are not known here: versions differ, or damage"
        )
