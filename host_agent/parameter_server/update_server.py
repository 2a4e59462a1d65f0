# SPDX-License-Identifier: Apache-2.0
"""An update-centric parameter server as a state machine without I/O: updates in, filtered updates out.

Nobody ever pulls a model: a worker that joins has zeros, and its first update is everything. Each push that
the server applies is answered by an update of what has changed by more than a threshold since the last one;
what is below it stays pending (``feed``). Pushes are applied in each worker's order, once each, in whatever
order they come and however often.

The state follows from the messages that were applied, in their order, and from nothing else: no clock, no
random number. So a journal of them, on top of a checkpoint, is enough to be after a crash exactly where one
was, with the same numbers on the same updates (given the same machine and libraries, as the optimizer must
round alike).

Example::

    server = UpdateServer(optimizer, ServerRules(), Journal(folder))
    for message in server.handle(words):
        send(message.worker, message.encode())
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from weir.host_agent.parameter_server.clocks import Clocks, Consistency
from weir.host_agent.parameter_server.feed import Feed
from weir.host_agent.parameter_server.journal import Arrays, Journal
from weir.host_agent.parameter_server.messages import FromServer, FromWorker, Kind, Run
from weir.host_agent.parameter_server.payload import PayloadError, Words, decode
from weir.host_agent.parameter_server.value_filter import FilterRule, Floats

MOST_EARLY: Final = 64
"""Pushes of a worker that may wait for one before them. A worker sends them again, so none is lost."""


class Optimizer(Protocol):
    """The use that a server makes of pushes. Deterministic: the journal plays them again."""

    @property
    def parameters(self) -> Floats:
        """Return the model, flat; the same array always."""
        ...

    def step(self, gradient: Floats, lr: float, share: float, settings: str) -> None:
        """Change the parameters. share: of the learning rate, at most 1 / workers, as each of them makes only
        its part of a step. settings: the last that the pushing worker has sent.
        """
        ...

    def arrays(self) -> Arrays:
        """Return the state besides the parameters, by name."""
        ...

    def load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over a state that ``arrays`` gave."""
        ...


@dataclass(frozen=True)
class ServerRules:
    """consistency: who gets an update when. filter: of what the server sends; peak_lr: the learning rate to
    which the schedule "lr" relates. journal_limit: bytes of the journal after which a checkpoint is made.
    tempered: what is stale moves the model less, see ``UpdateServer``.
    """

    consistency: Consistency = field(default_factory=lambda: Consistency(None))
    filter: FilterRule = field(default_factory=FilterRule)
    peak_lr: float = 1.0
    journal_limit: int = 64 << 20
    tempered: bool = True


class UpdateServer:
    """One shard's server. For one thread at a time.

    The staleness of a push is the number of pushes, anybody's, that were applied since the model that its
    gradient is of. It is workers - 1 where all take turns, and then each makes its part of a step, 1 /
    workers. A push that is staler makes 1 / (staleness + 1): delayed gradients of full size make training
    oscillate where it would converge without a delay (Zhang et al., "Staleness-aware Async-SGD", IJCAI 2016,
    who divide by the staleness).
    """

    def __init__(
        self, optimizer: Optimizer, rules: ServerRules, journal: Journal | None = None, *, begun: bool = True
    ) -> None:
        """Begin with the optimizer's parameters, or where the journal ends.

        begun: these are the parameters to begin with; otherwise a BEGIN brings them, and before that nobody
        can join.
        """
        self.optimizer, self.rules, self.begun = optimizer, rules, begun
        self.clocks = Clocks()
        self.feeds: dict[int, Feed] = {}
        self.refusals: Counter[str] = Counter()
        self._incarnations: dict[int, int] = {}
        self._newest: dict[int, int] = {}  # the greatest incarnation so far, also of who has left
        self._told: dict[int, int] = {}  # the floor of the last update, by worker
        self._pushes = 0  # applied, of all workers
        self._contained: dict[int, dict[int, int]] = {}  # pushes in a worker's model, by number of its update
        self._lost: dict[
            int, dict[int, tuple[Run, ...]]
        ] = {}  # of pushes that are applied, until it is known
        self._settings: dict[int, str] = {}
        self._early: dict[int, dict[int, FromWorker]] = {}
        self._journal: Journal | None = None
        if journal is not None:
            journal.replay(
                self._load, lambda record: self._apply(FromWorker.decode(np.frombuffer(record, np.uint32)))
            )
            self._journal = journal

    @property
    def workers(self) -> tuple[int, ...]:
        """Return who has joined."""
        return tuple(sorted(self.clocks.of))

    @property
    def known(self) -> int:
        """Return how many workers have ever joined."""
        return len(self._newest)

    def awaited(self, workers: int) -> str:
        """Return words for what this server waits for, and cannot go on without; "" for nothing.

        workers: how many there are in the job.
        """
        if not self.begun:
            return "worker 0 to give it the model"
        if missing := [worker for worker in range(workers) if worker not in self._newest]:
            return f"{named(missing)} to join"
        made, floor = self.clocks.of, self.clocks.floor
        running = [worker for worker in made if worker not in self.clocks.finished]
        held = [worker for worker in running if not self.rules.consistency.allows(made[worker], floor)]
        slowest = [worker for worker in running if made[worker] == floor]
        words = f"{named(slowest)} to make step {floor + 1}, before which {named(held)} may not go on"
        return words if held else ""

    def incarnation(self, worker: int) -> int | None:
        """Return which process of this worker has joined; None: none has."""
        return self._incarnations.get(worker)

    def handle(self, message: FromWorker) -> list[FromServer]:
        """Take a worker's message, and return what is to be sent because of it.

        What cannot be taken is answered by a refusal, and changes nothing.
        """
        worker = message.worker
        if message.kind is Kind.BEGIN:
            return [] if self.begun else self._check(message) or self._record(message)
        if message.kind is Kind.JOIN:
            if not self.begun and message.taken:
                return self._refuse(message, "stranger", "knows of more than the server, which has no state")
            return self._join(message) if self.begun else []
        if self._incarnations.get(worker) != message.incarnation:
            return self._refuse(message, "stranger", "has not joined, or was taken out: it must join anew")
        applied = self.clocks.of[worker]
        if message.kind is not Kind.LEAVE:
            if message.taken > self.feeds[worker].last:
                return self._refuse(message, "time", "has taken updates that were never sent")
            self._acknowledge(message)
            if message.kind is Kind.ALIVE:
                return [self._message(worker)]
            if message.clock <= applied:
                return []
            if refusal := self._check(message):
                return refusal
            if message.clock > applied + 1:
                early = self._early.setdefault(worker, {})
                if len(early) < MOST_EARLY:
                    early[message.clock] = message
                return []
        sent = self._record(message)
        while following := self._early.get(worker, {}).pop(self.clocks.of.get(worker, -1) + 1, None):
            sent += self._record(following)
        return sent

    def lacking(self, worker: int) -> list[FromServer]:
        """Return what a worker has not acknowledged, to be sent again; at least where the clocks are."""
        feed = self.feeds[worker]
        return [self._message(worker, number, payload) for number, payload in feed.lacking(worker)] or [
            self._message(worker)
        ]

    def dismiss(self, worker: int) -> list[FromServer]:
        """Take a worker out that is known to be dead, and return what the others are to know."""
        return self._record(FromWorker(Kind.LEAVE, worker, self._incarnations[worker]))

    def save(self) -> None:
        """Make a checkpoint now."""
        if self._journal is not None:
            self._journal.save(self._arrays())

    def _refuse(self, message: FromWorker, reason: str, sentence: str) -> list[FromServer]:
        self.refusals[reason] += 1
        return [FromServer.refusing(message, f"worker {message.worker} {sentence}")]

    def _join(self, message: FromWorker) -> list[FromServer]:
        worker = message.worker
        if self._incarnations.get(worker) != message.incarnation:
            if message.incarnation <= self._newest.get(worker, -1):
                return self._refuse(message, "stranger", "has left, or was started anew since it joined")
            if message.taken:
                return self._refuse(
                    message, "stranger", "was taken out, or the server has lost its state: it must join anew"
                )
            return self._record(message)
        if message.taken > self.feeds[worker].last or message.clock > self.clocks.of[worker]:
            return self._refuse(
                message, "time", "knows of more than the server does, whose state is an older one: restore it"
            )
        self._acknowledge(message)
        return self.lacking(worker)

    def _check(self, message: FromWorker) -> list[FromServer]:
        """Refuse a push that cannot be applied."""
        if message.kind is Kind.FLUSH:
            return []
        try:
            values = decode(message.payload, self.optimizer.parameters.size).values.view(np.float32)
        except PayloadError as error:
            return self._refuse(message, "payload", f"pushed what cannot be read: {error}")
        if not np.isfinite(values).all():
            return self._refuse(message, "not finite", f"pushed infinities or NaN in step {message.clock}")
        return []

    def _record(self, message: FromWorker) -> list[FromServer]:
        """Apply a message once it is in the journal."""
        if self._journal is not None:
            self._journal.append(message.encode().tobytes())
        sent = self._apply(message)
        if self._journal is not None and self._journal.size > self.rules.journal_limit:
            self.save()
        return sent

    # ------------------------------------------------------------- the state, which follows from the journal

    def _apply(self, message: FromWorker) -> list[FromServer]:
        worker, parameters = message.worker, self.optimizer.parameters
        if message.kind is Kind.BEGIN:
            parameters[:] = decode(message.payload, parameters.size).dense().view(np.float32)
            self.begun = True
            return []
        if message.kind in (Kind.JOIN, Kind.LEAVE):
            if worker in self._incarnations:
                self.clocks.leave(worker)
                del self.feeds[worker], self._incarnations[worker], self._told[worker], self._settings[worker]
                del self._contained[worker], self._lost[worker]
                self._early.pop(worker, None)
            sent = self._wake(message)
            if message.kind is Kind.JOIN:
                self._incarnations[worker] = self._newest[worker] = message.incarnation
                self._settings[worker] = ""
                self.clocks.join(worker)
                self.feeds[worker] = Feed(np.zeros_like(parameters))
                self.feeds[worker].admit(worker)
                self._told[worker] = 0
                self._contained[worker], self._lost[worker] = {}, {}
                sent += [self._message(worker), self._update(worker, 0.0)]
            return sent
        if message.kind is Kind.PUSH:
            gradient = decode(message.payload, parameters.size).dense().view(np.float32)
            self._settings[worker] = message.settings or self._settings[worker]
            self.optimizer.step(gradient, message.lr, self._share(message), self._settings[worker])
            self._pushes += 1
            if message.lost:
                self._lost[worker][message.clock] = message.lost
        self.clocks.tick(worker)
        self._acknowledge(message)
        if message.kind is Kind.FLUSH:
            self.clocks.finish(worker)
            return [self._update(worker, 0.0), *self._wake(message)]
        return self._wake(message, worker)

    def _acknowledge(self, message: FromWorker) -> None:
        """Forget what a worker says that it has, or knows."""
        self.feeds[message.worker].acknowledge(message.worker, message.taken)
        lost = self._lost[message.worker]
        for clock in [clock for clock in lost if clock <= message.known]:
            del lost[clock]

    def _share(self, push: FromWorker) -> float:
        """Return the share of its learning rate with which a push moves the model."""
        contained = self._contained[push.worker]
        for number in [number for number in contained if number < push.taken]:
            del contained[number]
        staleness = self._pushes - contained.get(push.taken, 0) if self.rules.tempered else 0
        return 1.0 / max(len(self._incarnations), staleness + 1)

    def _wake(self, message: FromWorker, pusher: int | None = None) -> list[FromServer]:
        """Send an update to who has pushed, and to who waited, if the floor lets them go on."""
        allows, floor = self.rules.consistency.allows, self.clocks.floor
        return [
            self._update(worker, self._threshold(message))
            for worker, made in sorted(self.clocks.of.items())
            if allows(made, floor) and (worker == pusher or not allows(made, self._told[worker]))
        ]

    def _threshold(self, message: FromWorker) -> float:
        return self.rules.filter.at(max(message.clock, 1), message.lr / self.rules.peak_lr)

    def _update(self, worker: int, threshold: float) -> FromServer:
        feed = self.feeds[worker]
        payload = feed.update(self.optimizer.parameters, threshold, self.rules.filter.block)
        self._told[worker] = self.clocks.floor
        self._contained[worker][feed.last] = self._pushes
        return self._message(worker, feed.last, payload)

    def _message(self, worker: int, number: int = 0, payload: Words | None = None) -> FromServer:
        """Return an update as it is told now. Told again, it must not promise what came after it."""
        clocks, last = self.clocks, number in (0, self.feeds[worker].last)
        return FromServer(
            Kind.UPDATE,
            worker,
            self._incarnations[worker],
            number,
            clocks.of[worker],
            self._told[worker] if last else 0,
            np.empty(0, np.uint32) if payload is None else payload,
            tuple((clock, *run) for clock, runs in self._lost[worker].items() for run in runs),
        )

    def _arrays(self) -> Arrays:
        """Return the whole state, by name."""
        workers = self.workers
        return {
            "parameters": self.optimizer.parameters,
            "floor": np.array([self.clocks.floor], np.int64),
            "workers": np.array([(w, self.clocks.of[w], self._told[w]) for w in workers], np.int64),
            "finished": np.array(sorted(self.clocks.finished), np.int64),
            "incarnations": np.array([self._incarnations[w] for w in workers], np.uint64),
            "newest": np.array(list(self._newest.items()), np.uint64),
            "begun": np.array([self.begun]),
            "pushes": np.array([self._pushes], np.int64),
            **{f"contained-{w}": np.array(list(self._contained[w].items()), np.int64) for w in workers},
            **{f"lost-{w}": _rows(self._lost[w]) for w in workers},
            **{f"settings-{w}": np.frombuffer(self._settings[w].encode(), np.uint8) for w in workers},
            **{f"optimizer/{name}": array for name, array in self.optimizer.arrays().items()},
            **{f"feed-{w}/{name}": a for w in workers for name, a in self.feeds[w].arrays().items()},
        }

    def _load(self, arrays: Arrays) -> None:
        parameters = self.optimizer.parameters
        if arrays["parameters"].shape != parameters.shape:
            raise ValueError(
                f"the checkpoint is of {arrays['parameters'].size} parameters, the model has "
                f"{parameters.size}: give this run a folder of its own"
            )
        parameters[:] = arrays["parameters"]
        self.optimizer.load(_under("optimizer/", arrays))
        rows = arrays["workers"].reshape(-1, 3).tolist()
        finished = set(arrays["finished"].tolist())
        self.clocks = Clocks({worker: made for worker, made, _ in rows}, finished, int(arrays["floor"][0]))
        self._told = {worker: told for worker, _, told in rows}
        self._incarnations = {
            row[0]: int(number) for row, number in zip(rows, arrays["incarnations"], strict=True)
        }
        self._newest = {int(worker): int(number) for worker, number in arrays["newest"].reshape(-1, 2)}
        self.begun = bool(arrays["begun"][0])
        self._pushes = int(arrays["pushes"][0])
        self._contained = {w: dict(arrays[f"contained-{w}"].reshape(-1, 2).tolist()) for w in self.clocks.of}
        self._lost = {w: _by_clock(arrays[f"lost-{w}"]) for w in self.clocks.of}
        self._settings = {w: arrays[f"settings-{w}"].tobytes().decode() for w in self.clocks.of}
        self.feeds = {w: Feed.restored(_under(f"feed-{w}/", arrays)) for w in self.clocks.of}


def named(workers: Sequence[int]) -> str:
    """Return words for some workers."""
    return f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))}"


def _under(prefix: str, arrays: Arrays) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _rows(lost: Mapping[int, tuple[Run, ...]]) -> npt.NDArray[np.int64]:
    return np.array([(clock, *run) for clock, runs in lost.items() for run in runs], np.int64)


def _by_clock(rows: npt.NDArray[np.int64]) -> dict[int, tuple[Run, ...]]:
    lost: dict[int, tuple[Run, ...]] = {}
    for clock, first, count in rows.reshape(-1, 3).tolist():
        lost[clock] = (*lost.get(clock, ()), (first, count))
    return lost
