# SPDX-License-Identifier: Apache-2.0
"""A worker of placed servers as a state machine without I/O.

Example::

    worker = PlacedWorker(rank, workers, servers, units, owner, words)
    for server, message in worker.turn(pushed, gradient, lr, wanted=worker.set_of(batch_units)):
        send(server, message)
    while not worker.answered:
        worker.on_message(Message.decode(receive(), units))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from weir.host_agent.parameter_server.migration import plan_moves
from weir.host_agent.parameter_server.payload import Words
from weir.host_agent.parameter_server.turns import NEWS, Kind, Message
from weir.host_agent.parameter_server.units import Integers, Units
from weir.host_agent.parameter_server.update_worker import RefusedError


@dataclass(frozen=True, eq=False)
class UnitSet:
    """Units that are pushed or wanted together. number: under which servers remember them; NEWS."""

    number: int
    units: Integers


ALL_NEWS: Final = UnitSet(NEWS, np.zeros(0, np.int64))
NO_UNITS: Final = UnitSet(0, np.zeros(0, np.int64))


class PlacedWorker:
    """One worker's side of all servers. For one thread at a time.

    Args:
        rank: of the worker.
        workers, servers: how many there are.
        units: of the model.
        owner: int[units], the server of each at first.
        words: the flat model, which values are written into.
        words_each: of an element that moves; 0: worker 0 is to plan no migrations.
        together: server m is on the machine of worker m.
    """

    def __init__(
        self,
        rank: int,
        workers: int,
        servers: int,
        units: Units,
        owner: Integers,
        words: Words,
        words_each: int = 0,
        together: bool = False,
    ) -> None:
        self.rank, self.workers, self.servers, self.units = rank, workers, servers, units
        self.owner = owner.astype(np.int64)
        self.words, self.epoch, self.turns = words, 0, 0
        self.moved = 0
        """Units that have moved."""
        self.moved_elements = 0
        """Elements of these."""
        self._words_each, self._together = words_each, together
        self._planned = np.zeros((0, 2), np.int64)
        self._known: set[int] = set()
        self._parts: dict[int, list[Integers]] = {}
        self._wanted = NO_UNITS
        self._sent: dict[int, Message] = {}
        self._answers: dict[int, Message] = {}

    @property
    def answered(self) -> bool:
        """Return whether the last turn's values have come, from all servers."""
        return not self._sent

    def unanswered(self) -> list[tuple[int, Message]]:
        """Return the servers that still owe an answer, and what they were sent."""
        return list(self._sent.items())

    def turn(self, pushed: UnitSet, gradient: Words, lr: float, wanted: UnitSet) -> list[tuple[int, Message]]:
        """Begin a turn: what to send to each server.

        gradient: of the pushed units, one after another.
        """
        assert self.answered, "one turn at a time"
        edges = np.concatenate([[0], np.cumsum(self.units.sizes[pushed.units])])
        mine = self.owner[pushed.units]
        moves, self._planned = self._planned, self._planned[:0]
        pushed_parts, wanted_parts = self._split(pushed), self._split(wanted)
        for server in range(self.servers):
            chosen = np.repeat(mine == server, np.diff(edges))
            self._sent[server] = Message(
                Kind.TURN,
                self.rank,
                self.turns,
                self.epoch,
                lr,
                pushed.number,
                wanted.number,
                None if pushed.number in self._known else pushed_parts[server],
                None if wanted.number in self._known or wanted.number == NEWS else wanted_parts[server],
                moves,
                values=gradient[chosen],
            )
        self._known |= {pushed.number, wanted.number} - {0, NEWS}
        self._wanted, self._answers = wanted, {}
        self.turns += 1
        return self.unanswered()

    def leave(self) -> Message:
        """Return what says farewell."""
        return Message(Kind.LEAVE, self.rank)

    def on_message(self, message: Message) -> None:
        """Take a server's answer; the last one of a turn writes its values. Raises RefusedError."""
        if message.kind is Kind.REFUSAL:
            raise RefusedError(message.sentence)
        server = message.sender - self.workers
        if message.kind is not Kind.VALUES or message.step != self.turns - 1 or server not in self._sent:
            return
        del self._sent[server]
        self._answers[server] = message
        if self.answered:
            self._finish([self._answers[server] for server in range(self.servers)])

    def _finish(self, answers: Sequence[Message]) -> None:
        parts = self._split(self._wanted)
        for answer, part in zip(answers, parts, strict=True):
            units = part if answer.pushed is None else answer.pushed
            self.words[self.units.elements(units)] = answer.values
        if (moves := answers[0].moves).size:
            self.owner[moves[:, 0]] = moves[:, 1]
            self.moved += len(moves)
            self.moved_elements += int(self.units.sizes[moves[:, 0]].sum())
            self.epoch += 1
            self._known.clear()
            self._parts.clear()
        if self._words_each and answers[0].report.size:
            self._planned = plan_moves(
                [answer.report for answer in answers],
                self.owner,
                self.units.sizes,
                self.workers,
                self._words_each,
                self._together,
            )

    def _split(self, units: UnitSet) -> list[Integers]:
        """Return a set's units by server."""
        found = self._parts.get(units.number) if units.number not in (0, NEWS) else None
        if found is None:
            where = self.owner[units.units]
            found = [units.units[where == server] for server in range(self.servers)]
            if units.number not in (0, NEWS):
                self._parts[units.number] = found
        return found
