# SPDX-License-Identifier: Apache-2.0
"""A worker of an update-centric parameter server as a state machine without I/O.

Example::

    worker = UpdateWorker(3, time.time_ns(), words, WorkerRules(), Residual(words.size))
    send(worker.hello())
    while training:
        wait_for(worker.may_step)                 # meanwhile: worker.on_message(FromServer.decode(words))
        ...                                       # forward and backward
        send(worker.push(gradient, lr))
"""

from dataclasses import dataclass, field

import numpy as np

from weir.host_agent.parameter_server.clocks import Consistency
from weir.host_agent.parameter_server.feed import Replica
from weir.host_agent.parameter_server.messages import FromServer, FromWorker, Kind, Run
from weir.host_agent.parameter_server.payload import PayloadError, Words, decode, encode, plan
from weir.host_agent.parameter_server.residual import Held
from weir.host_agent.parameter_server.value_filter import FilterRule, Floats, above


class RefusedError(RuntimeError):
    """The server does not take part any more. The message says why."""


@dataclass(frozen=True)
class WorkerRules:
    """consistency: when a step may begin. filter: of what is pushed, in units of the parameters: it is
    compared with gradient x learning rate. peak_lr: the learning rate to which the schedule "lr" relates.
    """

    consistency: Consistency = field(default_factory=lambda: Consistency(None))
    filter: FilterRule = field(default_factory=FilterRule)
    peak_lr: float = 1.0


class UpdateWorker:
    """One worker's side of one server. For one thread at a time.

    incarnation: a number below 2^64, greater than that of any process that was this worker before, such as
    the time in nanoseconds. words: the model, which updates are written into; zeros at first.
    """

    def __init__(self, worker: int, incarnation: int, words: Words, rules: WorkerRules, held: Held) -> None:
        words[:] = 0
        self.worker, self.incarnation, self.rules, self.held = worker, incarnation, rules, held
        self.replica = Replica(words)
        self.made: int | None = None
        """Pushes made, by number; None before the server's first word, which says where to begin."""
        self.applied = 0
        self.floor = 0
        """The model here contains so many pushes of every worker (but for what filters hold)."""
        self.pushed = self.refunded = 0
        """Values pushed so far, and those of them that were lost on their way and are held again."""
        self._floors: dict[int, int] = {}  # of updates that wait for others
        self._unapplied: dict[int, FromWorker] = {}

    @property
    def ready(self) -> bool:
        """Return whether the model has come."""
        return self.replica.taken > 0

    @property
    def may_step(self) -> bool:
        """Return whether the next step may begin with the model as it is here."""
        return self.ready and self.rules.consistency.allows(self.made or 0, self.floor)

    @property
    def settled(self) -> bool:
        """Return whether every push is known to be applied."""
        return not self._unapplied

    def hello(self) -> FromWorker:
        """Return what joins, and what asks for everything that is lacking, at any time."""
        return FromWorker(Kind.JOIN, self.worker, self.incarnation, self.applied, self.replica.taken)

    def alive(self) -> FromWorker:
        """Return what asks where the clocks are, and says that this worker is there."""
        return FromWorker(
            Kind.ALIVE, self.worker, self.incarnation, taken=self.replica.taken, known=self.applied
        )

    def unapplied(self) -> list[FromWorker]:
        """Return the pushes that the server may not have, to be sent again."""
        return list(self._unapplied.values())

    def beginning(self, parameters: Floats) -> FromWorker:
        """Return what gives a server that has none its parameters."""
        payload = encode(plan(np.ones(parameters.size, np.bool_)), parameters.view(np.uint32))
        return FromWorker(Kind.BEGIN, self.worker, self.incarnation, payload=payload)

    def push(self, gradient: Floats, lr: float, settings: str = "") -> FromWorker:
        """Make a step's push: what the filter passes of the gradient and of what it held before.

        settings: for the server's optimizer, from now on; empty: as before.
        Raises ValueError for a gradient that is not finite.
        """
        if not np.isfinite(gradient).all():
            raise ValueError(f"worker {self.worker}: the gradient of this step has infinities or NaN")
        rule, clock = self.rules.filter, (self.made or 0) + 1
        due = self.held.add(gradient)
        bound = rule.at(clock, lr / self.rules.peak_lr)
        planned = plan(above(due, bound / lr if lr else np.inf, rule.block))
        taken, values = self.held.take(planned.covered), int(np.count_nonzero(planned.covered))
        self.pushed += values
        return self._keep(Kind.PUSH, lr, encode(planned, taken.view(np.uint32)), settings, values)

    def flush(self) -> FromWorker:
        """Make a step without a push, whose answer is all that is pending. From then on nobody waits for this
        worker's steps.
        """
        return self._keep(Kind.FLUSH, 0.0, np.empty(0, np.uint32))

    def leave(self) -> FromWorker:
        """Return what says farewell."""
        return FromWorker(Kind.LEAVE, self.worker, self.incarnation)

    def on_message(self, message: FromServer) -> bool:
        """Take a server's message; return whether it was news. Raises RefusedError or PayloadError."""
        if message.incarnation != self.incarnation:
            return False
        if message.kind is Kind.REFUSAL:
            raise RefusedError(message.sentence)
        if self.made is None:
            self.made = message.applied
        news = message.applied > self.applied
        self.applied = max(self.applied, message.applied)
        for clock in [clock for clock in self._unapplied if clock <= self.applied]:
            lost = [(first, count) for of, first, count in message.lost if of == clock]
            self._refund(self._unapplied[clock], lost)
            del self._unapplied[clock]
        if message.number > self.replica.taken:
            self._floors[message.number] = max(message.floor, self._floors.get(message.number, 0))
            news = self.replica.take(message.number, message.payload) > 0 or news
        for number in [number for number in self._floors if number <= self.replica.taken]:
            self.floor = max(self.floor, self._floors.pop(number))
        return news

    def _refund(self, push: FromWorker, lost: list[Run]) -> None:
        """Hold again what the server has not got of a push, for the next one. Raises PayloadError."""
        if not lost:
            return
        patch = decode(push.payload, self.replica.words.size)
        start = push.payload.size - patch.values.size
        missing = np.zeros(push.payload.size, np.bool_)
        for first, count in lost:
            if not start <= first < first + count <= missing.size:
                raise PayloadError(f"words {first} to {first + count} of a push are not values")
            missing[first : first + count] = True
        places = np.flatnonzero(patch.places)[missing[start:]]
        self.held.put_back(places, patch.values[missing[start:]].view(np.float32))
        self.refunded += places.size

    def _keep(
        self, kind: Kind, lr: float, payload: Words, settings: str = "", droppable: int = 0
    ) -> FromWorker:
        assert self.made is not None, "push before the model has come"
        self.made += 1
        message = FromWorker(
            kind,
            self.worker,
            self.incarnation,
            self.made,
            self.replica.taken,
            lr,
            payload,
            settings,
            known=self.applied,
            droppable=droppable,
        )
        self._unapplied[self.made] = message
        return message
