# SPDX-License-Identifier: Apache-2.0
"""A parameter server as a state machine without I/O: pushes in, filtered updates out, units that move.

Nobody ever pulls a model: a worker that joins has zeros, and its first update is everything. Each push that
the server applies is answered by an update of what the worker lacks (``feed``), in all units or in those that
it wants. Pushes are applied in each worker's order, once each, in whatever order they come and however often.

Consistency is who is waited for. Where workers make all steps together, a round's pushes are kept until all
are there, and applied as one; otherwise each is applied when it comes, and workers are answered when the
floor of the clocks lets them go on.

A push may bring moves, which are in force after it: the server answers it, hands the units that leave it to
their new servers, with the optimizer's state and what readers have of them, and applies no more pushes before
it has the units that come. What a push has of units that are not here any more goes back to its worker, as
what a flow has lost does. Workers tell a server that is behind of moves that they have heard of elsewhere.

The state follows from the messages that were applied, in their order, and from nothing else: no clock, no
random number. So a journal of them, on top of a checkpoint, is enough to be after a crash exactly where one
was, with the same numbers on the same updates (given the same machine and libraries, as the optimizer must
round alike).

Example::

    server = ServerMachine(0, table, optimizer, ServerRules(), Journal(folder))
    for message in server.handle(words):
        send(message.member, message.encode())
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from weir.host_agent.parameter_server.clocks import Clocks
from weir.host_agent.parameter_server.feed import UNKNOWN, Feed, Update
from weir.host_agent.parameter_server.holdings import Holdings
from weir.host_agent.parameter_server.journal import Arrays, Journal, under
from weir.host_agent.parameter_server.messages import NOTHING, Kind, Lost, Message, runs_of
from weir.host_agent.parameter_server.migration import Costs
from weir.host_agent.parameter_server.payload import Patch, PayloadError, decode
from weir.host_agent.parameter_server.reader import Reader
from weir.host_agent.parameter_server.routing import Integers, Table
from weir.host_agent.parameter_server.server_rules import Optimizer, ServerRules
from weir.host_agent.parameter_server.value_filter import Bits, Floats

MOST_EARLY: Final = 64
"""Pushes of a worker that may wait for one before them. A worker sends them again, so none is lost."""


class ServerMachine:
    """One server. For one thread at a time.

    The staleness of a push is the number of pushes, anybody's, that were applied since the model that its
    gradient is of. It is workers - 1 where all alternate, and then each makes its part of a step, 1 /
    workers. A push that is staler makes 1 / (staleness + 1): delayed gradients of full size make training
    oscillate where it would converge without a delay (Zhang et al., "Staleness-aware Async-SGD", IJCAI 2016,
    who divide by the staleness). Where workers make all steps together, a step is that of their average.

    Args:
        index: of the server.
        table: where units are at first.
        optimizer: over the server's units; its parameters are those to begin with.
        journal: the server goes on where it ends.
        begun: there are parameters; otherwise a BEGIN brings them, and until then who joins must wait.
    """

    def __init__(
        self,
        index: int,
        table: Table,
        optimizer: Optimizer,
        rules: ServerRules,
        journal: Journal | None = None,
        *,
        begun: bool = True,
    ) -> None:
        self.index, self.optimizer = index, optimizer
        self.holdings = Holdings(index, table, optimizer, rules.workers)
        self.rules, self.begun = rules, begun
        self.clocks = Clocks()
        self.readers: dict[int, Reader] = {}
        self.refusals: Counter[str] = Counter()
        self._waiting: dict[int, Message] = {}  # who joins once there are parameters
        self._newest: dict[int, int] = {}  # the greatest incarnation so far, also of who has left
        self._pushes = 0  # applied, of all workers
        self._pending: dict[int, Message] = {}  # of a round
        self._early: dict[int, dict[int, Message]] = {}
        self._costs = Costs(rules.workers, table.units.sizes, rules.report_every)
        self._journal: Journal | None = None
        if journal is not None:
            journal.replay(
                self._load, lambda record: self._apply(Message.decode(np.frombuffer(record, np.uint32)))
            )
            self._journal = journal

    @property
    def table(self) -> Table:
        """Routing table that is in force."""
        return self.holdings.table

    @property
    def workers(self) -> tuple[int, ...]:
        """Return who has joined."""
        return tuple(sorted(self.clocks.of))

    @property
    def known(self) -> int:
        """Return how many workers have ever joined."""
        return len(self._newest)

    @property
    def is_over(self) -> bool:
        """Return whether all workers have come and left."""
        return not self.readers and self.known >= self.rules.workers

    @property
    def _together(self) -> bool:
        return self.rules.consistency.bound == 0

    def awaited(self) -> str:
        """Return words for what this server waits for, and cannot go on without; "" for nothing."""
        if not self.begun:
            return "worker 0 to give it the model"
        if missing := [worker for worker in range(self.rules.workers) if worker not in self._newest]:
            return f"{named(missing)} to join"
        if missing := self.holdings.missing:
            return f"parameter server {', '.join(map(str, missing))} to hand over units that have moved"
        made, floor = self.clocks.of, self.clocks.floor
        running = self.clocks.running
        if self._together:
            late = [worker for worker in running if worker not in self._pending]
            return f"{named(late)} to make step {floor + 1}" if late and self._pending else ""
        held = [worker for worker in running if not self.rules.consistency.allows(made[worker], floor)]
        slowest = [worker for worker in running if made[worker] == floor]
        words = f"{named(slowest)} to make step {floor + 1}, before which {named(held)} may not go on"
        return words if held else ""

    def incarnation(self, worker: int) -> int | None:
        """Return which process of this worker has joined; None: none has."""
        reader = self.readers.get(worker)
        return None if reader is None else reader.incarnation

    def handle(self, message: Message) -> list[Message]:
        """Take a message, and return what must be sent because of it.

        What cannot be taken is answered by a refusal, and changes nothing.
        """
        kind = message.kind
        if kind is Kind.BEGIN:
            return [] if self.begun else self._check(message) or self._begin(message)
        if kind is Kind.JOIN:
            return self._join(message) if self.begun else self._wait_for_begin(message)
        if kind is Kind.LEAVE and not self.begun:
            self._waiting.pop(message.member, None)
            return []
        if kind is Kind.HANDOVER:
            if not self.holdings.can_read(message):
                return []
            if not self.holdings.is_news(message):
                return [self.holdings.thanks(message)]
            return self._record(message) + self._go_on()
        if kind is Kind.HANDOVER_ACK:
            return self._record(message) if (message.epoch, message.number) in self.holdings.outgoing else []
        if self.incarnation(message.member) != message.incarnation or kind not in _OF_WORKERS:
            return self._refuse(message, "stranger", "has not joined, or was removed: it must join again")
        sent: list[Message] = []
        if kind is not Kind.LEAVE:
            if message.acked > self.readers[message.member].feed.last:
                return self._refuse(message, "time", "has taken updates that were never sent")
            if message.epoch > self.table.epoch:
                if refusal := self._check_moves(message):
                    return refusal
                learnt = Message(Kind.TABLE, self.index, moves=message.moves, moves_epoch=message.moves_epoch)
                sent += self._record(learnt)
            self._acknowledge(message)
            if kind is Kind.ALIVE:
                return [*sent, self._message(message.member)]
            if self._waits(message):
                return sent
            if refusal := self._check(message):
                return [*sent, *refusal]
        sent += self._record(message)
        return sent + self._go_on()

    def _waits(self, message: Message) -> bool:
        """Return whether a push was taken before, or waits for one before it, or for units."""
        worker, applied = message.member, self.clocks.of[message.member]
        if message.number <= applied or worker in self._pending:
            return True
        if message.number == applied + 1 and not self.holdings.expected:
            return False
        early = self._early.setdefault(worker, {})
        if len(early) < MOST_EARLY:
            early[message.number] = message
        return True

    def _go_on(self) -> list[Message]:
        """Take the pushes that have waited for what is here now."""
        sent: list[Message] = []
        found = not self.holdings.expected
        while found:
            found = False
            for worker, early in list(self._early.items()):
                if worker in self._pending or worker not in self.clocks.of or self.holdings.expected:
                    continue
                following = early.pop(self.clocks.of[worker] + 1, None)
                if following is not None:
                    sent += self._check(following) or self._record(following)
                    found = True
        return sent

    def lacking(self, worker: int) -> list[Message]:
        """Return what a worker has not acknowledged, to be sent again; at least where the clocks are."""
        feed = self.readers[worker].feed
        return [self._message(worker, number) for number in feed.under_way] or [self._message(worker)]

    def outstanding(self) -> list[tuple[int, Message]]:
        """Return servers, and what they have not taken of units that have moved to them."""
        return [(server, message) for (_, server), message in self.holdings.outgoing.items()]

    def dismiss(self, worker: int) -> list[Message]:
        """Take a worker out that is known to be dead, and return what the others are to know."""
        sent = self._record(Message(Kind.LEAVE, worker, self.readers[worker].incarnation))
        return sent + self._go_on()

    def save(self) -> None:
        """Make a checkpoint now."""
        if self._journal is not None:
            self._journal.save(self._arrays())

    # ----------------------------------------------------------------------- messages that are taken, and not

    def _refuse(self, message: Message, reason: str, sentence: str) -> list[Message]:
        self.refusals[reason] += 1
        return [message.refused(f"worker {message.member} {sentence}")]

    def _wait_for_begin(self, join: Message) -> list[Message]:
        if join.acked:
            return self._refuse(join, "stranger", "is ahead of the server, and the server has no state")
        self._waiting[join.member] = join
        return []

    def _begin(self, message: Message) -> list[Message]:
        """Begin with parameters, and let those join who have asked before."""
        sent = self._record(message)
        for join in self._waiting.values():
            sent += self._join(join)
        self._waiting.clear()
        return sent

    def _join(self, message: Message) -> list[Message]:
        worker = message.member
        if self.incarnation(worker) != message.incarnation:
            if message.incarnation <= self._newest.get(worker, -1):
                return self._refuse(message, "stranger", "has left, or was restarted after it joined")
            if message.acked:
                return self._refuse(
                    message, "stranger", "was removed, or the server has lost its state: it must join again"
                )
            return self._record(message) + self._go_on()
        if message.acked > self.readers[worker].feed.last or message.applied > self.clocks.of[worker]:
            return self._refuse(
                message,
                "time",
                "is ahead of the server, because the server's state is old: restore the newest state",
            )
        self._acknowledge(message)
        return self.lacking(worker)

    def _check(self, message: Message) -> list[Message]:
        """Refuse a push that cannot be applied."""
        if message.kind is Kind.FLUSH:
            return []
        reader = self.readers.get(message.member) or Reader(0, Feed(NOTHING))
        try:
            units = reader.set_of(self.table, message.epoch, message.pushed, message.pushed_units)
            values = self._patch(message, units).values.view(np.float32)
            reader.set_of(self.table, message.epoch, message.wanted, message.wanted_units)
        except PayloadError as error:
            return self._refuse(message, "payload", f"pushed a payload that cannot be decoded: {error}")
        if message.kind is Kind.BEGIN and not np.array_equal(units, self.holdings.units):
            return self._refuse(message, "payload", "gives the model of other units than this server has")
        if not np.isfinite(values).all():
            return self._refuse(message, "not finite", f"pushed infinities or NaN in step {message.number}")
        if message.moves_epoch > self.table.epoch:
            return self._check_moves(message)
        return []

    def _check_moves(self, message: Message) -> list[Message]:
        """Refuse moves that do not lead to the next table."""
        if message.moves_epoch != self.table.epoch + 1 or self.holdings.expected:
            return self._refuse(
                message,
                "time",
                f"has routing epoch {max(message.epoch, message.moves_epoch)}, and the server "
                f"{self.table.epoch}: its state is an older one, restore it",
            )
        try:
            self.table.moved(message.moves, message.moves_epoch)
        except ValueError as error:
            return self._refuse(message, "payload", f"names a routing table that makes no sense: {error}")
        return []

    def _patch(self, message: Message, units: Integers) -> Patch:
        """Return what a push says of its units. Raises PayloadError."""
        size = int(self.table.units.sizes[units].sum())
        if size or message.payload.size:
            return decode(message.payload, size)
        return Patch(0, np.zeros(0, np.bool_), NOTHING)

    def _record(self, message: Message) -> list[Message]:
        """Apply a message once it is in the journal."""
        if self._journal is not None:
            self._journal.append(message.encode().tobytes())
        sent = self._apply(message)
        if self._journal is not None and self._journal.size > self.rules.journal_limit:
            self.save()
        return sent

    # ------------------------------------------------------------- the state, which follows from the journal

    def _apply(self, message: Message) -> list[Message]:
        kind, worker = message.kind, message.member
        if kind is Kind.BEGIN:
            self.optimizer.parameters[:] = self._patch(message, self.holdings.units).dense().view(np.float32)
            self.begun = True
            return []
        if kind is Kind.TABLE:
            self._adopt(message.moves, message.moves_epoch)
            return []
        if kind is Kind.HANDOVER:
            self.holdings.take(message, self.readers)
            return [self.holdings.thanks(message)]
        if kind is Kind.HANDOVER_ACK:
            del self.holdings.outgoing[message.epoch, message.number]
            return []
        if kind in (Kind.JOIN, Kind.LEAVE):
            return self._come_or_go(message)
        reader = self.readers[worker]
        reader.remember(self.table, message.epoch, message.pushed, message.pushed_units)
        reader.remember(self.table, message.epoch, message.wanted, message.wanted_units)
        self._acknowledge(message)
        if kind is Kind.FLUSH:
            self.clocks.tick(worker)
            self.clocks.finish(worker)
            reader.wanted = (0, 0)
            mine = self._message(worker, self._update(worker, 0.0))
            return [mine, *self._wake(message), *self._round(message)]
        reader.settings = message.settings or reader.settings
        reader.wanted = (message.epoch, message.wanted)
        self._pending[worker] = message
        if self._together:
            return self._round(message)
        return self._make([message])

    def _come_or_go(self, message: Message) -> list[Message]:
        worker = message.member
        if worker in self.readers:
            self.clocks.leave(worker)
            del self.readers[worker]
            self._pending.pop(worker, None)
            self._early.pop(worker, None)
        sent = self._wake(message) + self._round(message)
        if message.kind is Kind.JOIN:
            self._newest[worker] = message.incarnation
            self.clocks.join(worker)
            # Of units that came from elsewhere the worker may have other values than zeros.
            view = np.zeros(self.optimizer.parameters.size, np.uint32)
            view[self.holdings.places(self.holdings.units[self.table.changed[self.holdings.units] > 0])] = (
                UNKNOWN
            )
            self.readers[worker] = Reader(message.incarnation, Feed(view), epoch=message.epoch)
            sent += [self._message(worker), self._message(worker, self._update(worker, 0.0))]
        return sent

    def _acknowledge(self, message: Message) -> None:
        """Forget what a worker says that it has, or knows."""
        reader = self.readers[message.member]
        reader.feed.acknowledge(message.acked)
        reader.epoch = max(reader.epoch, min(message.epoch, self.table.epoch))
        for number in [number for number in reader.lost if number <= message.known]:
            del reader.lost[number]

    def _round(self, message: Message) -> list[Message]:
        """Apply a round's pushes as one when all are there."""
        if not self._together or not self._pending or set(self.clocks.running) - self._pending.keys():
            return []
        return self._make([self._pending[worker] for worker in sorted(self._pending)])

    def _make(self, pushes: Sequence[Message]) -> list[Message]:
        """Make a step of the optimizer with some pushes, and answer them."""
        self._pending = {}
        total = np.zeros(self.optimizer.parameters.size, np.float32)
        touched: list[Integers] | None = []
        for push in pushes:
            places = self._add(push, total)
            if places is None:
                touched = None
            elif touched is not None:
                touched.append(places)
        first = pushes[0]
        some = None if touched is None else np.unique(np.concatenate(touched))
        if some is None or some.size:
            share = 1.0
            if self._together:
                self._average(total, some, len(pushes))
            else:
                share = self._share(first)
            self.optimizer.step(total, some, first.lr, share, self.readers[first.member].settings)
        self._pushes += len(pushes)
        for push in pushes:
            self.clocks.tick(push.member)
        updates = self._updates(first, None if self._together else first.member)
        for push in pushes:
            if push.moves_epoch == self.table.epoch + 1:
                self._adopt(push.moves, push.moves_epoch)
        return [self._message(*one) for one in updates]

    def _average(self, total: Floats, touched: Integers | None, pushes: int) -> None:
        """Make the average of a sum of pushes."""
        total[slice(None) if touched is None else touched] /= np.float32(pushes)

    def _add(self, push: Message, total: Floats) -> Integers | None:
        """Add a push to a gradient of all of this server's elements, and return which it has changed; None:
        it is of all. What is not here is lost, and so it is told.
        """
        reader = self.readers[push.member]
        units = reader.set_of(self.table, push.epoch, push.pushed, push.pushed_units)
        patch, lost = self._patch(push, units), push.lost
        self._costs.count(push.member, units, patch.places)
        touched: Integers | None = None
        if np.array_equal(units, self.holdings.units):
            total += patch.dense().view(np.float32)
        else:
            mine = self.table.owner[units] == self.index
            here = np.repeat(mine, self.table.units.sizes[units])
            if not mine.all():
                lost += self._gone(push, patch, here)
            space = np.zeros(here.size, np.int64)
            space[here] = self.holdings.places(units[mine])
            touched = space[patch.places & here]
            total[touched] += patch.values.view(np.float32)[here[patch.places]]
        if lost:
            reader.lost[push.number] = lost
        return touched

    def _gone(self, push: Message, patch: Patch, here: Bits) -> tuple[Lost, ...]:
        """Return the values of units that have moved, as parts of a push that were lost."""
        missing = np.zeros(push.payload.size, np.bool_)
        missing[push.payload.size - patch.values.size :] = ~here[patch.places]
        for _, first, count in push.lost:
            missing[first : first + count] = False
        return tuple((push.number, *run) for run in runs_of(missing))

    def _share(self, push: Message) -> float:
        """Return the share of its learning rate with which a push moves the model."""
        contained = self.readers[push.member].contained
        for number in [number for number in contained if number < push.acked]:
            del contained[number]
        staleness = self._pushes - contained.get(push.acked, 0) if self.rules.tempered else 0
        return 1.0 / max(len(self.readers), staleness + 1)

    def _wake(self, message: Message, pusher: int | None = None) -> list[Message]:
        return [self._message(*one) for one in self._updates(message, pusher)]

    def _updates(self, message: Message, pusher: int | None) -> list[tuple[int, int]]:
        """Make an update for who has pushed, and for who waited, if the floor lets them go on; return these
        workers, and the numbers of their updates.
        """
        allows, floor = self.rules.consistency.allows, self.clocks.floor
        threshold = self.rules.filter.at(max(message.number, 1), message.lr / self.rules.peak_lr)
        return [
            (worker, self._update(worker, threshold))
            for worker, made in sorted(self.clocks.of.items())
            if allows(made, floor) and (worker == pusher or not allows(made, self.readers[worker].floor_sent))
        ]

    def _update(self, worker: int, threshold: float) -> int:
        """Make an update of what a worker lacks of the units that it wants, and return its number."""
        reader, units = self.readers[worker], self.holdings.units
        epoch, number = reader.wanted
        places = None
        if number:
            wanted = reader.sets[epoch, number]
            units = wanted[self.table.owner[wanted] == self.index]
            places = self.holdings.places(units)
            number = number if units.size == wanted.size and epoch == self.table.epoch else 0
        else:
            known = (key for key, value in reader.sets.items() if np.array_equal(value, units))
            epoch, number = next((key for key in known if key[0] == self.table.epoch), (0, 0))
        filtered = self.rules.filter
        payload, covered = reader.feed.make(self.optimizer.parameters, threshold, filtered.block, places)
        told = NOTHING if number else self.table.units.encode(units)
        sent = reader.feed.sent(Update(payload, number, told, self.table.epoch))
        reader.floor_sent = self.clocks.floor
        reader.contained[sent] = self._pushes
        self._costs.count(worker, units, covered)
        self._tell(worker, sent)
        return sent

    def _message(self, worker: int, number: int = 0) -> Message:
        """Return an update as it is told now. Told again, it must not promise what came after it."""
        reader = self.readers[worker]
        update, moves = reader.feed.under_way.get(number, Update(NOTHING)), self.table.since(reader.epoch)
        return Message(
            Kind.UPDATE,
            worker,
            reader.incarnation,
            number,
            acked=0 if number == reader.feed.last else reader.feed.last,
            applied=self.clocks.of[worker],
            floor=reader.floor_sent if number in (0, reader.feed.last) else 0,
            epoch=self.table.epoch,
            made=update.made,
            moves=moves,
            moves_epoch=self.table.epoch if moves.size else 0,
            pushed=update.pushed,
            pushed_units=update.units,
            lost=tuple(run for runs in reader.lost.values() for run in runs),
            aside=self._costs.report_in(number) if worker == 0 else NOTHING,
            payload=update.payload,
        )

    def _adopt(self, moves: Integers, epoch: int) -> None:
        """Go over to the next table."""
        self.holdings.adopt(moves, epoch, self.readers)
        self._costs.forget()

    def _tell(self, worker: int, number: int) -> None:
        """Report to worker 0 with its update when it is time."""
        if worker == 0 and self._costs.due(self.clocks.of.get(worker, 0)) and self.holdings.settled:
            mine = self.table.owner == self.index
            self._costs.report(number, mine, self.index, self.rules.together)

    # -------------------------------------------------------------------------------------- checkpoints

    def _arrays(self) -> Arrays:
        """Return the whole state, by name."""
        found: Arrays = {
            **self.holdings.arrays(),
            **self._costs.arrays(),
            "newest": np.array(list(self._newest.items()), np.uint64),
            "numbers": np.array([self.clocks.floor, self.begun, self._pushes], np.int64),
            "clocks": np.array(
                [(w, made, w in self.clocks.finished) for w, made in self.clocks.of.items()], np.int64
            ),
            **{f"pending-{worker}": message.encode() for worker, message in self._pending.items()},
        }
        for worker, reader in self.readers.items():
            found |= {f"reader-{worker}/{name}": array for name, array in reader.arrays().items()}
        return found

    def _load(self, arrays: Arrays) -> None:
        self.holdings.load(arrays)
        self._costs.load(arrays)
        floor, begun, self._pushes = map(int, arrays["numbers"])
        self.begun = bool(begun)
        rows = arrays["clocks"].reshape(-1, 3).tolist()
        finished = {worker for worker, _, done in rows if done}
        self.clocks = Clocks({worker: made for worker, made, _ in rows}, finished, floor)
        self._newest = {int(worker): int(number) for worker, number in arrays["newest"].reshape(-1, 2)}
        self.readers = {
            worker: Reader.restored(under(f"reader-{worker}/", arrays)) for worker in self.clocks.of
        }
        self._pending = {
            int(worker): Message.decode(words) for worker, words in under("pending-", arrays).items()
        }


_OF_WORKERS: Final = (Kind.PUSH, Kind.FLUSH, Kind.ALIVE, Kind.LEAVE)


def named(workers: Sequence[int]) -> str:
    """Return words for some workers."""
    return f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))}"
