# SPDX-License-Identifier: Apache-2.0
"""A placed server as a state machine without I/O: units of a model, wherever a placement has put them.

Workers take turns together. When all workers' turns of a number are in, the server makes a step with the sum
of what they pushed, and gives each the values that it wants. A turn may say that units move. Then the server
answers it as ever, by the old table, and hands the units that leave it to their new servers, values and
optimizer state; who gets some makes the next step when they have come. So every push goes to the one server
that has the unit at that step: none is lost, none applied twice.

The state follows from the messages that were taken, in their order. So a journal of them is enough to be
after a crash where one was: what was not answered or taken by then is sent again by those who wait for it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from weir.host_agent.parameter_server.journal import Arrays, Journal
from weir.host_agent.parameter_server.migration import report_of
from weir.host_agent.parameter_server.rows import Rows
from weir.host_agent.parameter_server.turns import NEWS, Kind, Message, refusal
from weir.host_agent.parameter_server.units import Integers, Units
from weir.host_agent.parameter_server.update_server import named

Sent = list[tuple[int, Message]]
"""Messages and the ranks that they are for."""

_NOBODY: Final = np.zeros(0, np.int64)


class PlacedServer:
    """One server's units. For one thread at a time.

    Args:
        index: of the server.
        workers: how many there are; ranks below that are theirs, rank ``workers + s`` is server s.
        units: of the model.
        owner: int16[units], the server of each at first.
        rows: the optimizer, over a flat model of which only this server's units count.
        report_every: turns after which worker 0 hears what units have cost; 0: never.
        together: server m is on the machine of worker m.
        journal: where messages are kept before anybody sees an effect of them.
        journal_limit: bytes after which a checkpoint is made.
    """

    def __init__(
        self,
        index: int,
        workers: int,
        units: Units,
        owner: Integers,
        rows: Rows,
        *,
        report_every: int = 0,
        together: bool = False,
        journal: Journal | None = None,
        journal_limit: int = 64 << 20,
    ) -> None:
        self.index, self.workers, self.units, self.rows = index, workers, units, rows
        self.rank = workers + index
        self.owner = owner.astype(np.int16)
        self.turn, self.epoch = -1, 0
        self.left: set[int] = set()
        self.refusals: Counter[str] = Counter()
        self.handed_over = 0
        """Words of the units that were handed to other servers."""
        self._report_every, self._together, self._journal_limit = report_every, together, journal_limit
        self._use = np.zeros((workers, len(units) if report_every else 0), np.float32)
        self._sets: dict[tuple[int, int], Integers] = {}
        self._pending: dict[int, Message] = {}
        self._answers: dict[int, Message] = {}
        self._outgoing: dict[tuple[int, int], Message] = {}  # by epoch and rank
        self._expected: set[int] = set()
        self._handed: dict[tuple[int, int], Message] = {}  # by epoch and rank
        self._journal: Journal | None = None
        if journal is not None:
            journal.replay(
                self._load, lambda record: self._take(Message.decode(np.frombuffer(record, np.uint32), units))
            )
            self._journal = journal

    @property
    def over(self) -> bool:
        """Return whether all workers have left, and nothing waits for another server."""
        return len(self.left) == self.workers and not self._outgoing

    def handle(self, message: Message) -> Sent:
        """Take a message, and return what is to be sent because of it; taken before, its answer again."""
        if message.kind is Kind.TURN:
            if message.step == self.turn and message.sender in self._answers:
                return [(message.sender, self._answers[message.sender])]
            if message.step <= self.turn or message.sender in self._pending:
                return []
            if problem := self._problem(message):
                self.refusals[problem] += 1
                return [(message.sender, refusal(self.rank, message, f"server {self.index}: {problem}"))]
        elif message.kind is Kind.HANDOVER:
            if not self._awaits(message):
                return [self._taken(message)]
        elif message.kind is Kind.TAKEN:
            if (message.epoch, message.sender) not in self._outgoing:
                return []
        elif message.kind is not Kind.LEAVE or message.sender in self.left:
            return []
        if self._journal is not None:
            self._journal.append(message.encode(self.units).tobytes())
        sent = self._take(message)
        if self._journal is not None and self._journal.size > self._journal_limit:
            self._journal.save(self._arrays())
        return sent

    def outstanding(self) -> Sent:
        """Return what other servers have not taken, to be sent again."""
        return [(rank, message) for (_, rank), message in self._outgoing.items()]

    def awaited(self) -> str:
        """Return words for what this server waits for, and cannot go on without; "" for nothing."""
        if missing := [rank for rank in sorted(self._expected) if (self.epoch, rank) not in self._handed]:
            return f"{self._servers(missing)} to hand over units that have moved"
        workers = range(self.workers)
        if self._pending or self.turn < 0:
            late = [worker for worker in workers if worker not in self._pending and worker not in self.left]
            gone = f"; {named(sorted(self.left))} left before" if self.left else ""
            return f"{named(late)} to take step {self.turn + 1}{gone}" if late else ""
        if self.left and len(self.left) < self.workers:
            return f"{named([worker for worker in workers if worker not in self.left])} to leave"
        if self._outgoing:
            return f"{self._servers([rank for _, rank in self._outgoing])} to take units that have moved"
        return ""

    def _servers(self, ranks: Sequence[int]) -> str:
        return f"parameter server {', '.join(str(rank - self.workers) for rank in ranks)}"

    def _awaits(self, message: Message) -> bool:
        """Return whether a handover is news: of this migration, or of one that is still to be heard of."""
        if (message.epoch, message.sender) in self._handed:
            return False
        return message.epoch > self.epoch or (
            message.epoch == self.epoch and message.sender in self._expected
        )

    def _problem(self, message: Message) -> str | None:
        if not 0 <= message.sender < self.workers:
            return f"rank {message.sender} is no worker"
        if message.step > self.turn + 1:
            return (
                f"a turn of step {message.step} came, and {self.turn} was the last one here: its state is "
                "an older one, or lost"
            )
        if message.epoch != self.epoch:
            return f"a turn of routing epoch {message.epoch} came in epoch {self.epoch}"
        for units, number in ((message.pushed, message.pushed_set), (message.wanted, message.wanted_set)):
            if units is None and number not in (0, NEWS) and (message.sender, number) not in self._sets:
                return f"worker {message.sender} has never said what its set {number} is"
            if units is not None and not (self.owner[units] == self.index).all():
                return f"worker {message.sender} names units that other servers have"
        pushed = message.pushed if message.pushed is not None else self._units(message, message.pushed_set)
        if message.values.size != int(self.units.sizes[pushed].sum()):
            return f"worker {message.sender} pushes {message.values.size} values for other units"
        if not np.isfinite(message.values.view(np.float32)).all():
            return f"worker {message.sender} pushed infinities or NaN in step {message.step}"
        return None

    def _units(self, message: Message, number: int) -> Integers:
        return self._sets.get((message.sender, number), _NOBODY)

    # ------------------------------------------------------------- the state, which follows from the journal

    def _take(self, message: Message) -> Sent:
        sent: Sent = []
        if message.kind is Kind.LEAVE:
            self.left.add(message.sender)
        elif message.kind is Kind.TAKEN:
            del self._outgoing[message.epoch, message.sender]
        elif message.kind is Kind.HANDOVER:
            self._handed[message.epoch, message.sender] = message
            sent.append(self._taken(message))
        else:
            self._pending[message.sender] = message
        complete = all((self.epoch, rank) in self._handed for rank in self._expected)
        if complete:
            for rank in sorted(self._expected):
                handed = self._handed.pop((self.epoch, rank))
                assert handed.pushed is not None
                self.rows.take(self.units.elements(handed.pushed), handed.values)
            self._expected = set()
        if complete and len(self._pending) == self.workers:
            sent += self._step()
        return sent

    def _taken(self, message: Message) -> tuple[int, Message]:
        return message.sender, Message(Kind.TAKEN, self.rank, epoch=message.epoch)

    def _step(self) -> Sent:
        """Make a step with all workers' turns, and answer them."""
        turns = [self._pending[worker] for worker in range(self.workers)]
        self._pending = {}
        self.turn += 1
        pushed = []
        for turn in turns:
            for units, number in ((turn.pushed, turn.pushed_set), (turn.wanted, turn.wanted_set)):
                if units is not None and number not in (0, NEWS):
                    self._sets[turn.sender, number] = units
            pushed.append(turn.pushed if turn.pushed is not None else self._units(turn, turn.pushed_set))
        changed = np.unique(np.concatenate(pushed))
        places = [self.units.elements(units) for units in pushed]
        values = [turn.values.view(np.float32) for turn in turns]
        if self.turn == 0:
            self.rows.values[places[0]] = values[0]
        else:
            self.rows.step(self.units.elements(changed), places, values, turns[0].lr)
        sent: Sent = []
        for turn, units in zip(turns, pushed, strict=True):
            wanted = self._units(turn, turn.wanted_set) if turn.wanted is None else turn.wanted
            if turn.wanted_set == NEWS:
                wanted = changed
            self._count(turn.sender, units, wanted)
            self._answers[turn.sender] = answer = self._answer(turn, wanted, turns[0].moves)
            sent.append((turn.sender, answer))
        if self._reports(self.turn):
            self._use[:] = 0
        if turns[0].moves.size:
            sent += self._move(turns[0].moves)
        return sent

    def _count(self, worker: int, *units: Integers) -> None:
        if self._report_every and self.turn > 0:
            for some in units:
                self._use[worker, some] += self.units.sizes[some]

    def _reports(self, turn: int) -> bool:
        return bool(self._report_every) and turn > 0 and turn % self._report_every == 0

    def _answer(self, turn: Message, wanted: Integers, moves: Integers) -> Message:
        """Return the answer to a turn: server 0 tells of migrations; all tell worker 0 of their units."""
        reports = turn.sender == 0 and self._reports(self.turn)
        more: dict[str, Any] = {"pushed": wanted} if turn.wanted_set == NEWS else {}
        if self.index == 0:
            more["moves"] = moves
        if reports:
            more["report"] = report_of(self._use, self.owner == self.index, self.index, self._together)
        values = self.rows.values[self.units.elements(wanted)].view(np.uint32)
        return Message(Kind.VALUES, self.rank, turn.step, self.epoch, values=values, **more)

    def _move(self, moves: Integers) -> Sent:
        """Begin a routing epoch: hand over what leaves, and expect what comes."""
        self.epoch += 1
        self._sets.clear()
        units, there = moves[:, 0], moves[:, 1]
        here = self.owner[units].astype(np.int64)
        elsewhere = here != there
        for other in np.unique(there[(here == self.index) & elsewhere]):
            leaving = np.sort(units[(here == self.index) & (there == other)])
            values = self.rows.give(self.units.elements(leaving))
            self.handed_over += values.size
            rank = self.workers + int(other)
            self._outgoing[self.epoch, rank] = Message(
                Kind.HANDOVER, self.rank, self.turn, self.epoch, pushed=leaving, values=values
            )
        self._expected = {
            self.workers + int(other) for other in np.unique(here[(there == self.index) & elsewhere])
        }
        self.owner[units] = there
        return [
            (rank, self._outgoing[self.epoch, rank]) for epoch, rank in self._outgoing if epoch == self.epoch
        ]

    def _arrays(self) -> Arrays:
        """Return the whole state, by name."""
        kept: dict[str, Message] = {
            **{f"pending-{rank}": message for rank, message in self._pending.items()},
            **{f"answer-{rank}": message for rank, message in self._answers.items()},
            **{f"outgoing-{epoch}-{rank}": message for (epoch, rank), message in self._outgoing.items()},
            **{f"handed-{epoch}-{rank}": message for (epoch, rank), message in self._handed.items()},
        }
        return {
            "turn": np.array([self.turn, self.epoch, self.handed_over]),
            "owner": self.owner,
            "use": self._use,
            "left": np.array(sorted(self.left), np.int64),
            "expected": np.array(sorted(self._expected), np.int64),
            **{f"rows-{name}": array for name, array in self.rows.arrays().items()},
            **{f"set-{worker}-{number}": units for (worker, number), units in self._sets.items()},
            **{name: message.encode(self.units) for name, message in kept.items()},
        }

    def _load(self, arrays: Arrays) -> None:
        if arrays["owner"].shape != self.owner.shape:
            raise ValueError(
                f"the checkpoint is of {arrays['owner'].size} units, the model has {self.owner.size}: give "
                "this run a folder of its own"
            )
        self.turn, self.epoch, self.handed_over = map(int, arrays["turn"])
        self.owner, self._use = arrays["owner"], arrays["use"]
        self.left, self._expected = set(arrays["left"].tolist()), set(arrays["expected"].tolist())
        self.rows.load({name[5:]: array for name, array in arrays.items() if name.startswith("rows-")})
        for name, array in arrays.items():
            what, *numbers = name.split("-")
            key = tuple(int(number) for number in numbers if number.isdecimal())
            if what == "set":
                self._sets[key[0], key[1]] = array
            elif what in ("pending", "answer"):
                kept = self._pending if what == "pending" else self._answers
                kept[key[0]] = Message.decode(array, self.units)
            elif what in ("outgoing", "handed"):
                moved = self._outgoing if what == "outgoing" else self._handed
                moved[key[0], key[1]] = Message.decode(array, self.units)
