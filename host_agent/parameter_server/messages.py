# SPDX-License-Identifier: Apache-2.0
"""Messages of parameter servers and their workers, as 32-bit words: the lanes of a flow.

A message has the worker that it is from or for, and that worker's incarnation: a process that was started
again is another one, of which nothing old is expected.
"""

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, Self

import numpy as np

from weir.host_agent.parameter_server.payload import Words
from weir.host_agent.parameter_server.routing import NO_MOVES, Integers
from weir.host_agent.parameter_server.value_filter import Bits

NOTHING: Final = np.empty(0, np.uint32)


class MessageError(ValueError):
    """Words are not a message of this version. Says what is wrong."""


class Kind(IntEnum):
    """The kind of a message."""

    UPDATE = 0x81
    REFUSAL = 0x82
    JOIN = 0x83
    PUSH = 0x84
    FLUSH = 0x85
    LEAVE = 0x86
    BEGIN = 0x87
    ALIVE = 0x88
    HANDOVER = 0x89
    HANDOVER_ACK = 0x8A
    TABLE = 0x8B


Run = tuple[int, int]
"""Words of a payload that were lost: the first, and how many."""

Lost = tuple[int, int, int]
"""The number of a push, and a run of its payload."""

_NUMBERS: Final = (
    *("member", "incarnation", "number", "acked", "known", "applied", "floor", "epoch", "made"),
    *("moves_epoch", "pushed", "wanted"),
)
_SECTIONS: Final = ("settings", "lost", "moves", "pushed_units", "wanted_units", "aside")
_WIDTHS: Final = {"lost": 3, "moves": 2}
_INCARNATION: Final = 1  # of _NUMBERS: two words
_FIELDS: Final = len(_NUMBERS) + 1 + len(_SECTIONS) + 2
"""Words of the numbers, sizes of the sections, and the learning rate; those that are 0 are left out."""

_KIND_BITS: Final = 8  # of the first word; its other bits say which fields there are

HEAD_WORDS: Final = 10
"""Words of a message's head, about, for predictions."""


@dataclass(frozen=True, eq=False)
class Message:
    """A message.

    Of workers: BEGIN gives a server that has none its parameters; JOIN, which also asks for what is lacking;
    PUSH; FLUSH, of a worker that is done and asks for all that is pending; ALIVE, which asks where the clocks
    are; LEAVE. Of servers: UPDATE, REFUSAL (whose payload is a sentence), and to each other HANDOVER of units
    to their new server, and HANDOVER_ACK, its answer. TABLE is a server's own record of moves that it heard
    of.

    Attributes:
        member: the worker that it is from or for; of a HANDOVER the rank of the server that gives, which is
            that of the answer, too. Ranks of servers come after the workers'.
        incarnation: of the worker, below 2^64.
        number: of a push or flush, from 1 for each worker and server; of an update likewise, where 0 says
            that only the clocks are news; of HANDOVER_ACK the index of the server.
        acked: number of the last update that the worker has taken; of an update the number of the last one
            that the server has made, if that is another.
        known: of how many of its pushes the worker knows what became of them.
        applied: how many of this worker's pushes are in; in a join as the worker knows it.
        floor: how many of every worker's pushes are, at least, in the model that the update leads to.
        epoch: of the sender's routing table.
        made: epoch in which an update was made.
        moves, moves_epoch: int64[n, 2], units and their new servers, and the epoch that they lead to: the
            sender's, where the receiver may be behind; or the next one, after this push.
        pushed, pushed_units: the units whose elements the payload is of: the number of a set, and the set
            as ``Units.encode`` writes it, unless this worker has said it in this epoch. 0: in no set.
        wanted, wanted_units: likewise the units whose values the worker wants; 0: of all that there are.
        lr: learning rate of a push.
        settings: text for the optimizer, from this push on; empty: as before.
        lost: parts of pushes that have not arrived, or were of units that had moved.
        aside: of an update to worker 0 what units have cost, see ``migration``; of a handover what readers
            have of the units.
        payload: values, see ``payload``; of a handover the optimizer's.
        droppable: words at the payload's end that may be lost; not sent.
    """

    kind: Kind
    member: int
    incarnation: int = 0
    number: int = 0
    acked: int = 0
    known: int = 0
    applied: int = 0
    floor: int = 0
    epoch: int = 0
    made: int = 0
    moves_epoch: int = 0
    pushed: int = 0
    wanted: int = 0
    lr: float = 0.0
    settings: str = ""
    lost: tuple[Lost, ...] = ()
    moves: Integers = field(default_factory=lambda: NO_MOVES)
    pushed_units: Words = field(default_factory=lambda: NOTHING)
    wanted_units: Words = field(default_factory=lambda: NOTHING)
    aside: Words = field(default_factory=lambda: NOTHING)
    payload: Words = field(default_factory=lambda: NOTHING)
    droppable: int = 0

    def encode(self) -> Words:
        """Return the message as words."""
        sections = [
            _words(self.settings),
            np.array(self.lost, np.uint32).reshape(-1),
            self.moves.astype(np.uint32).reshape(-1),
            self.pushed_units,
            self.wanted_units,
            self.aside,
        ]
        numbers = [getattr(self, name) for name in _NUMBERS]
        low, high = self.incarnation & 0xFFFFFFFF, self.incarnation >> 32
        numbers[_INCARNATION : _INCARNATION + 1] = [low, high]
        lr = np.array([self.lr], np.float64).view(np.uint32)
        sizes = [section.size for section in sections]
        fields = np.concatenate([np.array([*numbers, *sizes], np.uint32), lr])
        there = np.flatnonzero(fields)
        mask = int(np.sum(1 << there))
        head = np.concatenate([np.array([self.kind | mask << _KIND_BITS], np.uint32), fields[there]])
        return np.concatenate([head, *sections, self.payload])

    @classmethod
    def decode(cls, words: Words) -> Self:
        """Return the message of these words. Raises MessageError."""
        if not words.size:
            raise MessageError("an empty message")
        kind, mask = int(words[0]) & (1 << _KIND_BITS) - 1, int(words[0]) >> _KIND_BITS
        if kind not in set(Kind) or mask >> _FIELDS:
            raise MessageError(f"messages of kind {kind:#x} are not known: another version, or damage")
        there = [field for field in range(_FIELDS) if mask >> field & 1]
        if words.size < 1 + len(there):
            raise MessageError(f"a message of {words.size} words ends in its head")
        fields = np.zeros(_FIELDS, np.uint32)
        fields[there] = words[1 : 1 + len(there)]
        count = len(_NUMBERS) + 1
        numbers = fields[:count].tolist()
        numbers[_INCARNATION : _INCARNATION + 2] = [numbers[_INCARNATION] | numbers[_INCARNATION + 1] << 32]
        lr = float(fields[-2:].view(np.float64)[0])
        edges = 1 + len(there) + np.cumsum(fields[count:-2], dtype=np.int64)
        if edges[-1] > words.size or not 0.0 <= lr < np.inf:
            raise MessageError(f"a message of {words.size} words promises {edges[-1]}, or steps by {lr}")
        *parts, payload = np.split(words, [1 + len(there), *edges])[1:]
        found = dict(zip(_SECTIONS, parts, strict=True))
        for name, width in _WIDTHS.items():
            if found[name].size % width:
                raise MessageError(f"its {name} end in the middle of an entry")
        return cls(
            Kind(kind),
            **dict(zip(_NUMBERS, numbers, strict=True)),
            lr=lr,
            settings=_text(found["settings"]),
            lost=tuple((of, first, count) for of, first, count in found["lost"].reshape(-1, 3).tolist()),
            moves=found["moves"].reshape(-1, 2).astype(np.int64),
            pushed_units=found["pushed_units"],
            wanted_units=found["wanted_units"],
            aside=found["aside"],
            payload=payload,
        )

    @classmethod
    def received(cls, words: Words, came: Bits) -> Self:
        """Return the message of these words, of which some did not come and are zero.

        Raises MessageError, also when more is missing than a part of the payload.
        """
        message = cls.decode(words)
        head = words.size - message.payload.size
        if not came[:head].all():
            raise MessageError(f"the head of a message of worker {message.member} did not come")
        return replace(message, lost=tuple((message.number, *run) for run in runs_of(~came[head:])))

    def refused(self, sentence: str) -> "Message":
        """Return the answer to this message, of a server that does not take it."""
        return Message(Kind.REFUSAL, self.member, self.incarnation, payload=_words(sentence))

    @property
    def sentence(self) -> str:
        """Return what a refusal says."""
        return _text(self.payload)


def runs_of(chosen: Bits) -> list[Run]:
    """Return the runs of set bits."""
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    return list(zip(edges[::2].tolist(), (edges[1::2] - edges[::2]).tolist(), strict=True))


def _words(text: str) -> Words:
    data = text.encode()
    return np.frombuffer(data.ljust(-(-len(data) // 4) * 4), np.uint32)


def _text(words: Words) -> str:
    return words.tobytes().decode(errors="replace").rstrip()
