# SPDX-License-Identifier: Apache-2.0
"""Messages of placed servers and their workers, as 32-bit words: the lanes of a flow.

A *turn* of a worker says what it pushes, and which values it wants once the pushes of all workers are in.
Which units a set has is said once; afterwards its number is enough, and values alone travel.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Self

import numpy as np

from weir.host_agent.parameter_server.messages import NOTHING, MessageError
from weir.host_agent.parameter_server.payload import Words
from weir.host_agent.parameter_server.units import Integers, Units

NEWS: Final = 0xFFFFFFFF
"""The set of all units that some worker has pushed in this turn."""

_NO_MOVES: Final = np.zeros((0, 2), np.int64)


class Kind(IntEnum):
    """The kind of a message; the first two are workers'."""

    TURN = 0x71
    LEAVE = 0x72
    VALUES = 0x73
    HANDOVER = 0x74
    TAKEN = 0x75
    REFUSAL = 0x76


@dataclass(frozen=True, eq=False)
class Message:
    """A message.

    Attributes:
        kind: TURN and LEAVE of workers; VALUES, the answer to a turn; HANDOVER, of units to their new server,
            and TAKEN, its answer; REFUSAL, whose values are a sentence.
        sender: rank: workers first, then servers.
        step: of the turn, from 0.
        epoch: of the routing table; it grows by one with each migration.
        lr: learning rate of the step.
        pushed_set, wanted_set: numbers of the sender's sets, from 1; 0: none; NEWS.
        pushed, wanted: their units, ascending; None: as the number was explained before. Of VALUES ``pushed``
            are the units of NEWS; of HANDOVER, those handed over.
        moves: int64[n, 2], units and their new servers, after this turn.
        report: of servers to worker 0: what units have cost, see ``migration``.
        values: of the units, one after another.
    """

    kind: Kind
    sender: int
    step: int = 0
    epoch: int = 0
    lr: float = 0.0
    pushed_set: int = 0
    wanted_set: int = 0
    pushed: Integers | None = None
    wanted: Integers | None = None
    moves: Integers = field(default_factory=lambda: _NO_MOVES)
    report: Words = field(default_factory=lambda: NOTHING)
    values: Words = field(default_factory=lambda: NOTHING)

    def encode(self, units: Units) -> Words:
        """Return the message as words."""
        lists = [NOTHING if one is None else units.encode(one) for one in (self.pushed, self.wanted)]
        sections = [*lists, self.moves.astype(np.uint32).reshape(-1), self.report]
        lr = np.array([self.lr], np.float64).view(np.uint32)
        head = [self.kind, self.sender, self.step, self.epoch, self.pushed_set, self.wanted_set]
        sizes = [section.size for section in sections]
        return np.concatenate([np.array([*head, *lr, *sizes], np.uint32), *sections, self.values])

    @classmethod
    def decode(cls, words: Words, units: Units) -> Self:
        """Return the message of these words. Raises MessageError, PayloadError."""
        if words.size < HEAD_WORDS:
            raise MessageError(f"a message of {words.size} words is too short")
        kind, sender, step, epoch, pushed_set, wanted_set = map(int, words[:6])
        if kind not in set(Kind):
            raise MessageError(f"messages of kind {kind:#x} are not known here: versions differ, or damage")
        lr = float(words[6:8].copy().view(np.float64)[0])
        edges = HEAD_WORDS + np.cumsum(words[8:HEAD_WORDS], dtype=np.int64)
        if edges[-1] > words.size or (edges[2] - edges[1]) % 2 or not 0.0 <= lr < np.inf:
            raise MessageError(f"a message of {words.size} words promises {edges[-1]}, or makes no sense")
        pushed, wanted, moves, report, values = np.split(words, [HEAD_WORDS, *edges])[1:]
        return cls(
            Kind(kind),
            sender,
            step,
            epoch,
            lr,
            pushed_set,
            wanted_set,
            units.decode(pushed) if pushed.size else None,
            units.decode(wanted) if wanted.size else None,
            moves.reshape(-1, 2).astype(np.int64),
            report,
            values,
        )

    @property
    def sentence(self) -> str:
        """Return what a refusal says."""
        return self.values.tobytes().decode(errors="replace").rstrip()


HEAD_WORDS: Final = 12


def refusal(sender: int, message: Message, sentence: str) -> Message:
    """Return the answer to a message that is not taken."""
    text = sentence.encode()
    values = np.frombuffer(text.ljust(-(-len(text) // 4) * 4), np.uint32)
    return Message(Kind.REFUSAL, sender, message.step, message.epoch, values=values)
