# SPDX-License-Identifier: Apache-2.0
"""A worker of parameter servers as a state machine without I/O.

Example::

    worker = WorkerMachine(3, time.time_ns(), words, table, WorkerRules(), Residual(words.size))
    for server in range(table.servers):
        send(server, worker.hello(server))
    while training:
        wait_for(worker.may_step)             # meanwhile: worker.on_message(server, Message.decode(words))
        ...                                   # forward and backward
        for server, push in enumerate(worker.push(gradient, lr)):
            send(server, push)
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.parameter_server.clocks import Consistency
from weir.host_agent.parameter_server.messages import NOTHING, Kind, Message
from weir.host_agent.parameter_server.migration import plan_moves
from weir.host_agent.parameter_server.payload import Patch, PayloadError, Words, decode, encode, plan
from weir.host_agent.parameter_server.residual import ALL, Held, Where
from weir.host_agent.parameter_server.routing import NO_MOVES, Integers, Table
from weir.host_agent.parameter_server.value_filter import Bits, FilterRule, Floats, above


class RefusedError(RuntimeError):
    """A server does not take part any more. The message says why."""


@dataclass(frozen=True)
class WorkerRules:
    """The rules of a worker.

    Attributes:
        consistency: when a step may begin.
        filter: of what is pushed, in units of the parameters: it is compared with gradient x learning rate.
        peak_lr: the learning rate to which the schedule "lr" relates.
        choose: a sparsifier, which chooses of what is due at some elements, instead of the filter.
        words_each: words that an element takes when it moves, of the worker that plans migrations; 0 of
            others.
        workers, together: as of ``ServerRules``, for these plans.
    """

    consistency: Consistency = field(default_factory=lambda: Consistency(None))
    filter: FilterRule = field(default_factory=FilterRule)
    peak_lr: float = 1.0
    choose: Callable[[Floats, Where], Bits] | None = None
    words_each: int = 0
    workers: int = 1
    together: bool = False


@dataclass(frozen=True, eq=False)
class UnitSet:
    """Units that are pushed or wanted together. number: under which servers remember them; 0: not."""

    number: int
    units: Integers


EVERYTHING: Final = 1
"""The number of the set of all units."""

NO_UNITS: Final = UnitSet(0, np.zeros(0, np.int64))


@dataclass(frozen=True, eq=False)
class _Part:
    """The part of a set that one server has: these units, and their elements by their places in the set."""

    units: Integers
    places: Where


@dataclass
class _Session:
    """A worker's knowledge of a server.

    Attributes:
        made: pushes made, by number; None before the server's first word, which says where to begin.
        floor: the model here contains this many pushes of every worker, of the server's units (but for what
            filters hold).
        acked: number of the last update that was taken. made_in: the epoch in which it was made.
        newest: number of the last update that the server is known to have made. Word of it may overtake it.
        epoch: of the server's routing table.
    """

    made: int | None = None
    applied: int = 0
    floor: int = 0
    acked: int = 0
    newest: int = 0
    made_in: int = 0
    epoch: int = 0
    report: Words | None = None
    early: dict[int, tuple[Message, Integers, Patch]] = field(default_factory=dict)
    unapplied: dict[int, tuple[Message, Integers]] = field(default_factory=dict)


class WorkerMachine:
    """One worker's side of all servers. For one thread at a time.

    Args:
        worker: its rank.
        incarnation: a number below 2^64, greater than that of any process that was this worker before, such
            as the time in nanoseconds.
        words: the model, which updates are written into; zeros at first.
        table: where units are at first.

    Attributes:
        pushed, refunded: values pushed so far, and those of them that did not arrive, or came to a server
            that did not have their units any more: they are held again.
        owes: something was refunded since the last push.
        moved, moved_elements: units that have moved, and their elements.
    """

    def __init__(
        self, worker: int, incarnation: int, words: Words, table: Table, rules: WorkerRules, held: Held
    ) -> None:
        words[:] = 0
        self.worker, self.incarnation, self.words = worker, incarnation, words
        self.table, self.rules, self.held = table, rules, held
        self.sessions = [_Session() for _ in range(table.servers)]
        self.everything = UnitSet(EVERYTHING, table.units.all)
        self.pushed = self.refunded = self.moved = self.moved_elements = 0
        self.owes = False
        self._parts: dict[tuple[int, int], list[_Part]] = {}
        self._said: set[tuple[int, int]] = set()
        self._planned = NO_MOVES
        self._stamps: npt.NDArray[np.int16] | None = None  # the epoch of what an element took last

    @property
    def ready(self) -> bool:
        """Return whether the model has come."""
        return all(session.acked for session in self.sessions)

    @property
    def may_step(self) -> bool:
        """Return whether the next step may begin with the model as it is here."""
        return all(self.allows(server) for server in range(len(self.sessions)))

    @property
    def settled(self) -> bool:
        """Return whether every push is known to be applied, and what was made of it has come."""
        return not any(session.unapplied or session.acked < session.newest for session in self.sessions)

    @property
    def staleness(self) -> int:
        """Return by how many steps the model here may be behind this worker's."""
        return max((session.made or 0) - session.floor for session in self.sessions)

    def allows(self, server: int) -> bool:
        """Return whether the next step may begin as far as a server is concerned."""
        session = self.sessions[server]
        return session.acked > 0 and self.rules.consistency.allows(session.made or 0, session.floor)

    def waits(self, server: int) -> bool:
        """Return whether a word of a server is due."""
        session = self.sessions[server]
        return bool(session.unapplied) or session.acked < session.newest or not self.allows(server)

    def hello(self, server: int) -> Message:
        """Return what joins, and what asks for everything that is lacking, at any time."""
        session = self.sessions[server]
        return Message(
            Kind.JOIN,
            self.worker,
            self.incarnation,
            acked=session.acked,
            known=session.applied,
            applied=session.applied,
            epoch=self.table.epoch,
        )

    def alive(self, server: int) -> Message:
        """Return what asks where the clocks are, and says that this worker is there."""
        session = self.sessions[server]
        moves, epoch = self._news(session)
        return Message(
            Kind.ALIVE,
            self.worker,
            self.incarnation,
            acked=session.acked,
            known=session.applied,
            epoch=self.table.epoch,
            moves=moves,
            moves_epoch=epoch,
        )

    def unapplied(self, server: int) -> list[Message]:
        """Return the pushes that a server may not have, to be sent again."""
        return [message for message, _ in self.sessions[server].unapplied.values()]

    def beginning(self, server: int, parameters: Floats) -> Message:
        """Return what gives a server that has none its part of these parameters."""
        units = self.table.of(server)
        words = parameters.view(np.uint32)[self.table.units.elements(units)]
        payload = encode(plan(np.ones(words.size, np.bool_)), words) if words.size else NOTHING
        listed = self.table.units.encode(units)
        return Message(Kind.BEGIN, self.worker, self.incarnation, pushed_units=listed, payload=payload)

    def push(
        self,
        gradient: Floats,
        lr: float,
        settings: str = "",
        units: UnitSet | None = None,
        wanted: UnitSet | None = None,
    ) -> list[Message]:
        """Make a step's pushes, one to each server: what the filter or the sparsifier passes of the gradient
        and of what was held before.

        Args:
            gradient: of the units, one after another.
            settings: for the servers' optimizers, from now on; empty: as before.
            units: that have a gradient; None: all.
            wanted: units whose values are needed for the next step; None: all.

        Raises:
            ValueError: the gradient is not finite; nothing was pushed.
        """
        if not np.isfinite(gradient).all():
            raise ValueError(f"worker {self.worker}: the gradient of this step has infinities or NaN")
        units, self.owes = units or self.everything, False
        parts = self._split(units)
        wanted_parts = None if wanted is None else self._split(wanted)
        where = ALL if units is self.everything else self.table.units.elements(units.units)
        due = self.held.add(where, gradient)
        chosen = self._chosen(due, where, lr)
        found = []
        for server, (session, part) in enumerate(zip(self.sessions, parts, strict=True)):
            mine, payload, values = chosen[part.places], NOTHING, 0
            if mine.size:
                planned = plan(mine)
                place = part.places if isinstance(where, slice) else where[part.places]
                taken = self.held.take(place, planned.covered)
                payload, values = encode(planned, taken.view(np.uint32)), int(planned.covered.sum())
            message = replace(
                self._next_step(Kind.PUSH, session),
                lr=lr,
                settings=settings,
                pushed=units.number,
                pushed_units=self._listed(units, part),
                wanted=wanted.number if wanted is not None else 0,
                wanted_units=NOTHING
                if wanted is None or wanted_parts is None
                else self._listed(wanted, wanted_parts[server]),
                payload=payload,
                droppable=values,
            )
            if self._planned.size:
                message = replace(message, moves=self._planned, moves_epoch=self.table.epoch + 1)
            self.pushed += values
            found.append(self._keep(session, message, part.units))
        self._planned = NO_MOVES
        self._said |= {(self.table.epoch, one.number) for one in (units, wanted) if one and one.number}
        return found

    def flush(self) -> list[Message]:
        """Make a step without a push, whose answer is all that is pending. From then on nobody waits for this
        worker's steps.
        """
        return [
            self._keep(session, self._next_step(Kind.FLUSH, session), NO_UNITS.units)
            for session in self.sessions
        ]

    def _next_step(self, kind: Kind, session: _Session) -> Message:
        """Return the head of a push or a flush to a server."""
        moves, epoch = self._news(session)
        return Message(
            kind,
            self.worker,
            self.incarnation,
            (session.made or 0) + 1,
            acked=session.acked,
            known=session.applied,
            epoch=self.table.epoch,
            moves=moves,
            moves_epoch=epoch,
        )

    def leave(self) -> Message:
        """Return what says farewell."""
        return Message(Kind.LEAVE, self.worker, self.incarnation)

    def on_message(self, server: int, message: Message) -> bool:
        """Take a server's message; return whether it was news. Raises RefusedError or PayloadError."""
        if message.incarnation != self.incarnation or message.kind not in (Kind.UPDATE, Kind.REFUSAL):
            return False
        if message.kind is Kind.REFUSAL:
            raise RefusedError(message.sentence)
        session = self.sessions[server]
        if message.epoch > self.table.epoch:
            self._adopt(message)
        session.epoch = max(session.epoch, message.epoch)
        if session.made is None:
            session.made = message.applied
        news = message.applied > session.applied
        session.applied = max(session.applied, message.applied)
        session.newest = max(session.newest, message.number, message.acked)
        for number in [number for number in session.unapplied if number <= session.applied]:
            lost = [(first, count) for of, first, count in message.lost if of == number]
            self._refund(*session.unapplied.pop(number), lost)
        if message.number > session.acked:
            self._remember(server, session, message)
            while (found := session.early.pop(session.acked + 1, None)) is not None:
                self._take(session, *found)
                news = True
            self._plan()
        return news

    # ----------------------------------------------------------------------------------------------- pushes

    def _chosen(self, due: Floats, where: Where, lr: float) -> Bits:
        if self.rules.choose is not None:
            return self.rules.choose(due, where)
        rule, step = self.rules.filter, max(session.made or 0 for session in self.sessions) + 1
        bound = rule.at(step, lr / self.rules.peak_lr)
        return above(due, bound / lr if lr else np.inf, rule.block)

    def _split(self, units: UnitSet) -> list[_Part]:
        """Return a set's units by server, by the table that is in force."""
        key = self.table.epoch, units.number
        found = self._parts.get(key) if units.number else None
        if found is None:
            owner, sizes = self.table.owner[units.units], self.table.units.sizes[units.units]
            found = []
            for server in range(self.table.servers):
                mine = owner == server
                places = np.flatnonzero(np.repeat(mine, sizes))
                found.append(_Part(units.units[mine], _run(places)))
            if units.number:
                self._parts[key] = found
        return found

    def _listed(self, units: UnitSet, part: _Part) -> Words:
        """Return which units a set has, unless the servers know."""
        said = units.number and (self.table.epoch, units.number) in self._said
        return NOTHING if said else self.table.units.encode(part.units)

    def _news(self, session: _Session) -> tuple[Integers, int]:
        """Return moves that a server may not have heard of, and the epoch that they lead to."""
        if session.epoch >= self.table.epoch:
            return NO_MOVES, 0
        return self.table.since(session.epoch), self.table.epoch

    def _keep(self, session: _Session, message: Message, units: Integers) -> Message:
        assert session.made is not None, "push before the model has come"
        session.made = message.number
        session.unapplied[message.number] = message, units
        return message

    def _refund(self, push: Message, units: Integers, lost: list[tuple[int, int]]) -> None:
        """Hold again what a server has not got of a push, for the next one. Raises PayloadError."""
        if not lost:
            return
        elements = self.table.units.elements(units)
        patch = decode(push.payload, elements.size)
        start = push.payload.size - patch.values.size
        missing = np.zeros(push.payload.size, np.bool_)
        for first, count in lost:
            if not start <= first < first + count <= missing.size:
                raise PayloadError(f"words {first} to {first + count} of a push are not values")
            missing[first : first + count] = True
        places = elements[patch.places][missing[start:]]
        self.held.put_back(places, patch.values[missing[start:]].view(np.float32))
        self.refunded += places.size
        self.owes = True

    # ---------------------------------------------------------------------------------------------- updates

    def _remember(self, server: int, session: _Session, message: Message) -> None:
        """Keep an update until it is its turn. Raises PayloadError, and then nothing has changed."""
        if message.number in session.early:
            known, elements, patch = session.early[message.number]
            if message.floor > known.floor:
                session.early[message.number] = message, elements, patch
            return
        if message.pushed_units.size:
            units = self.table.units.decode(message.pushed_units)
        elif (found := self._parts.get((message.made, message.pushed))) is not None:
            units = found[server].units
        else:
            raise PayloadError(f"an update names set {message.pushed}, which was never defined")
        elements = self.table.units.elements(units)
        if elements.size:
            patch = decode(message.payload, elements.size)
        else:
            patch = Patch(0, np.zeros(0, np.bool_), NOTHING)
        session.early[message.number] = message, elements, patch

    def _take(self, session: _Session, message: Message, elements: Integers, patch: Patch) -> None:
        """Take an update whose turn it is."""
        session.acked, session.made_in = message.number, message.made
        session.floor = max(session.floor, message.floor)
        session.report = message.aside if message.aside.size and message.made == self.table.epoch else None
        places, values = elements[patch.places], patch.values
        if min(one.made_in for one in self.sessions) == max(one.made_in for one in self.sessions):
            self._stamps = None
        elif self._stamps is None:
            self._stamps = np.zeros(self.words.size, np.int16)
        if self._stamps is not None:
            current = self._stamps[places] <= message.made
            places, values = places[current], values[current]
            self._stamps[places] = message.made
        self.words[places] = values

    def _adopt(self, message: Message) -> None:
        """Go over to the table that a server has. Raises PayloadError for moves that make no sense."""
        try:
            table = self.table.moved(message.moves, message.epoch)
        except ValueError as error:
            raise PayloadError(str(error)) from None
        moved = table.owner != self.table.owner
        self.moved += int(np.count_nonzero(moved))
        self.moved_elements += int(self.table.units.sizes[moved].sum())
        self.table = table
        oldest = min(session.made_in for session in self.sessions)
        self._parts = {key: parts for key, parts in self._parts.items() if key[0] >= oldest}

    def _plan(self) -> None:
        """Plan moves when all servers have reported by the table that is in force."""
        reports = [session.report for session in self.sessions if session.report is not None]
        if self.rules.words_each and len(reports) == len(self.sessions):
            for session in self.sessions:
                session.report = None
            self._planned = plan_moves(
                reports,
                self.table.owner.astype(np.int64),
                self.table.units.sizes,
                self.rules.workers,
                self.rules.words_each,
                self.rules.together,
            )


def _run(places: Integers) -> Where:
    """Return places as a slice where they are a run."""
    if places.size and int(places[-1]) - int(places[0]) + 1 == places.size:
        return slice(int(places[0]), int(places[-1]) + 1)
    return places
