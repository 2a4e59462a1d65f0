# SPDX-License-Identifier: Apache-2.0
"""Servers and workers over a network that does what it wants, with crashes: the invariant after every step.

At any moment, for every worker: its model + what is under way to it + what is pending for it = the server's
model, in words modulo 2^32; and what workers pushed = what is in the model + what they hold + what is under
way. Gradients here are small whole numbers, of which float32 sums are exact.
"""

import itertools
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.effort import effort
from tests.host_agent.parameter_server.world import Exact, Momentum, Sum, alone
from weir.host_agent.parameter_server import feed, server_machine
from weir.host_agent.parameter_server.clocks import Consistency
from weir.host_agent.parameter_server.journal import Journal, JournalError
from weir.host_agent.parameter_server.messages import NOTHING, Kind, Message
from weir.host_agent.parameter_server.payload import Words, decode
from weir.host_agent.parameter_server.residual import Residual, Where
from weir.host_agent.parameter_server.routing import Integers, ParameterInfo, Table, Units
from weir.host_agent.parameter_server.server_machine import ServerMachine
from weir.host_agent.parameter_server.server_rules import ServerRules
from weir.host_agent.parameter_server.value_filter import Bits, FilterRule, Floats
from weir.host_agent.parameter_server.worker_machine import (
    RefusedError,
    UnitSet,
    WorkerMachine,
    WorkerRules,
)

PARAMETERS = [ParameterInfo("a", (20, 3), row=3), ParameterInfo("b", (50,), row=8)]
UNITS = Units.of(PARAMETERS)
SIZE = UNITS.size


def largest(due: Floats, where: Where) -> Bits:
    """Choose a fifth of what is due, as a sparsifier does."""
    bound = np.sort(np.abs(due))[-max(1, due.size // 5)] if due.size else 0
    found: Bits = (np.abs(due) >= bound) & (due != 0)
    return found


class World:
    """Servers, up to three workers, and packets that arrive in any order, any number of times, or not.

    Units move as worker 0 says, which may die before it has told all servers.
    """

    bound: int | None = None
    down = FilterRule(4.0)
    lossy = 0.0  # share of pushes of which a part is lost
    servers_count = 1
    sparsifier = False

    def __init__(self, seed: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.numbers = np.random.default_rng(seed)
        self.start = self.numbers.integers(-9, 9, SIZE).astype(np.float32)
        self.incarnations = itertools.count(1)
        self.workers: dict[int, WorkerMachine] = {}
        self.net: list[tuple[int, int, Message]] = []  # from and to: servers are -1, -2 and so on
        self.entered = np.zeros(SIZE, np.float64)
        self.answered: dict[tuple[int, int, int], int] = {}  # pushes that a worker knows to be applied
        owner = self.numbers.integers(self.servers_count, size=len(UNITS))
        self.table = Table.placed(UNITS, self.servers_count, owner)
        self.journals = [Journal(self._path(index)) for index in range(self.servers_count)]
        self.servers = [self._served(index) for index in range(self.servers_count)]

    def _path(self, index: int) -> Path:
        return Path(self.folder.name) / str(index)

    def teardown(self) -> None:
        for journal in self.journals:
            journal.close()
        self.folder.cleanup()

    def _served(self, index: int) -> ServerMachine:
        rules = ServerRules(Consistency(self.bound), self.down, workers=3)
        mine = self.start[UNITS.elements(self.table.of(index))]
        return Exact(index, self.table, Sum(mine), rules, self.journals[index])

    def _serve(self, index: int, message: Message) -> None:
        """Give a server a message as it is on the wire, where any of a push's values may be lost."""
        words = message.encode()
        came = np.ones(words.size, np.bool_)
        if message.droppable and self.numbers.random() < self.lossy:
            came[words.size - message.droppable :] = self.numbers.random(message.droppable) < 0.7
        words[~came] = 0
        self._send(index, self.servers[index].handle(Message.received(words, came)))

    def _send(self, index: int, messages: list[Message]) -> None:
        """Let a server's messages travel: to workers, or to servers, whose ranks come after theirs."""
        for message in messages:
            to = message.member if message.member < 3 else -1 - (message.member - 3)
            self.net.append((-1 - index, to, message))

    def live(self, moments: int = effort(150, 300)) -> None:
        """Let things happen, and look after each whether everything is as it must be."""
        for worker in range(3):
            self.starts(worker)
            self.all_arrives()
        for _ in range(moments):
            what = self.numbers.choice(len(_EVENTS), p=_WEIGHTS)
            event, of_worker = _EVENTS[what]
            getattr(self, event)(*([int(self.numbers.integers(3))] if of_worker else []))
            self.replica_and_under_way_and_pending_are_the_model()
            self.what_entered_is_somewhere()
            self.what_was_acknowledged_is_applied()

    # ---------------------------------------------------------------------------------------- workers

    def starts(self, worker: int) -> None:
        """Start a worker, or kill it and start it again: what it held, and had not delivered, is gone."""
        if worker in self.workers:
            self._lose(worker)
        rules = WorkerRules(
            Consistency(self.bound), FilterRule(3.0), choose=largest if self.sparsifier else None
        )
        words = np.empty(SIZE, np.uint32)
        self.workers[worker] = WorkerMachine(
            worker, next(self.incarnations), words, self.table, rules, Residual(SIZE)
        )
        self._asks(worker)

    def leaves(self, worker: int) -> None:
        if worker in self.workers:
            message = self.workers[worker].leave()
            self._lose(worker)
            for index in range(self.servers_count):
                self._serve(index, message)

    def _lose(self, worker: int) -> None:
        """Take back what the model will never contain. What a server has not applied yet, it forgets."""
        gone = self.workers.pop(worker)
        self.net = [one for one in self.net if worker not in one[:2]]
        self.entered -= gone.held.arrays()["sum"]
        for index, server in enumerate(self.servers):
            if server.incarnation(worker) == gone.incarnation:
                self.entered -= self._not_in_the_model(gone, index)
                if worker in server._pending or server._early.get(worker):
                    self._send(index, server.dismiss(worker))

    def _not_in_the_model(self, worker: WorkerMachine, index: int) -> Floats:
        """Return what is neither in a server's model nor held: under way, or lost, and its worker has not
        heard of it.
        """
        server = self.servers[index]
        known = server.incarnation(worker.worker) == worker.incarnation
        applied = server.clocks.of[worker.worker] if known else 0
        found = np.zeros(SIZE, np.float32)
        for push, units in worker.sessions[index].unapplied.values():
            elements = UNITS.elements(units)
            if not elements.size:
                continue
            words = push.payload.copy()
            if push.number <= applied:
                kept = np.ones(words.size, np.bool_)
                for _, first, count in server.readers[worker.worker].lost.get(push.number, ()):
                    kept[first : first + count] = False
                kept[: words.size - push.droppable] = False
                words[kept] = 0
            found[elements] += decode(words, elements.size).dense().view(np.float32)
        return found

    def asks(self, worker: int) -> None:
        if worker in self.workers:
            self._asks(worker)

    def _asks(self, worker: int) -> None:
        found = self.workers[worker]
        for index in range(self.servers_count):
            self.net.append((worker, -1 - index, found.hello(index)))

    def steps(self, worker: int) -> None:
        flush, sets, moves = self.numbers.random(3) < (0.03, 0.5, 0.5)
        found = self.workers.get(worker)
        if found is None or not found.may_step or len(found.sessions[0].unapplied) > 8:
            return
        self._check_staleness(found)
        if flush:
            messages = found.flush()
        else:
            if moves and worker == 0 and self._settled(found):
                units = np.flatnonzero(self.numbers.random(len(UNITS)) < 0.3)
                there = self.numbers.integers(self.servers_count, size=units.size)
                found._planned = np.stack([units, there], axis=1)
            some = UnitSet(2 + worker, np.arange(worker, len(UNITS), 3)) if sets else found.everything
            size = int(UNITS.sizes[some.units].sum())
            gradient = (self.numbers.integers(-6, 7, size) * (self.numbers.random(size) < 0.4)).astype(
                np.float32
            )
            self.entered[UNITS.elements(some.units)] += gradient
            messages = found.push(gradient, 1.0, units=some, wanted=some if sets else None)
        self.net += [(worker, -1 - index, message) for index, message in enumerate(messages)]

    def _settled(self, worker: WorkerMachine) -> bool:
        """Return whether worker 0 could know, by their reports, that all servers have the latest table."""
        epochs = {server.table.epoch for server in self.servers} | {
            session.epoch for session in worker.sessions
        }
        under_way = any(
            push.moves_epoch > push.epoch
            for session in worker.sessions
            for push, _ in session.unapplied.values()
        )
        busy = any(not server.holdings.settled for server in self.servers)
        return epochs == {worker.table.epoch} and not under_way and not busy

    def _check_staleness(self, worker: WorkerMachine) -> None:
        """Check that nobody is more than the bound behind, against the servers' own books."""
        for server, session in zip(self.servers, worker.sessions, strict=True):
            if self.bound is not None and server.incarnation(worker.worker) == worker.incarnation:
                assert session.made is not None
                clocks = server.clocks
                running = [clock for name, clock in clocks.of.items() if name not in clocks.finished]
                assert min(running, default=session.made) >= session.made - self.bound

    # ---------------------------------------------------------------------------------------- network

    def arrives(self) -> None:
        if self.net:
            place = int(self.numbers.integers(len(self.net)))
            keep = self.numbers.random() < 0.1
            self._deliver(*(self.net[place] if keep else self.net.pop(place)))

    def all_arrives(self) -> None:
        for _ in range(2):
            packets, self.net = self.net, []
            for packet in packets:
                self._deliver(*packet)
        self.net = []

    def _deliver(self, sender: int, to: int, message: Message) -> None:
        if to < 0:
            self._serve(-1 - to, message)
            return
        worker = self.workers.get(to)
        if worker is None:
            return
        again = Message.decode(message.encode())
        if again.incarnation == worker.incarnation:
            assert again.kind is Kind.UPDATE, again.sentence
        index = -1 - sender
        worker.on_message(index, again)
        self.answered[index, worker.worker, worker.incarnation] = worker.sessions[index].applied

    def loses(self) -> None:
        if self.net:
            self.net.pop(int(self.numbers.integers(len(self.net))))

    def repeats(self, worker: int) -> None:
        if worker in self.workers:
            for index in range(self.servers_count):
                self.net += [(worker, -1 - index, push) for push in self.workers[worker].unapplied(index)]

    def hands_over(self) -> None:
        """Tell servers again of units that have moved to them."""
        for index, server in enumerate(self.servers):
            self.net += [(-1 - index, -1 - other, message) for other, message in server.outstanding()]

    # ---------------------------------------------------------------------------------------- the servers

    def crashes(self) -> None:
        """Start a server again from its folder: it is bit by bit where it was."""
        index = int(self.numbers.integers(self.servers_count))
        torn = self.numbers.bytes(int(self.numbers.integers(20)))
        before = self.servers[index]._arrays()
        self.journals[index].close()
        if self.journals[index].size:
            with (self._path(index) / "journal").open("ab") as file:
                file.write(torn)
        self.journals[index] = Journal(self._path(index))
        self.servers[index] = self._served(index)
        after = self.servers[index]._arrays()
        for name, array in before.items():
            if name.endswith(("/numbers", "/lost")) or "contained" in name:  # may be told once more
                continue
            assert np.array_equal(array, after[name]), name

    def saves(self) -> None:
        for server in self.servers:
            server.save()

    # ---------------------------------------------------------------------------------------- what must hold

    def _in_transit(self) -> list[Message]:
        """Return handovers whose units no server has yet, also where their new server keeps them."""
        kept = [message for server in self.servers for message in server.holdings.handed.values()]
        return kept + [
            message
            for server in self.servers
            for to, message in server.outstanding()
            if (message.epoch, server.index) not in self.servers[to].holdings.handed
            and (
                self.servers[to].table.epoch < message.epoch
                or (
                    self.servers[to].table.epoch == message.epoch
                    and server.index in self.servers[to].holdings.expected
                )
            )
        ]

    def _model(self) -> Floats:
        """Return the model, of which every unit is on one server, or between two."""
        found = np.full(SIZE, np.nan, np.float32)
        for server in self.servers:
            places = UNITS.elements(server.holdings.units)
            assert np.isnan(found[places]).all()
            found[places] = server.optimizer.parameters
        for message in self._in_transit():
            places = UNITS.elements(UNITS.decode(message.pushed_units))
            assert np.isnan(found[places]).all()
            found[places] = message.payload.view(np.float32)
        assert not np.isnan(found).any()
        return found

    def replica_and_under_way_and_pending_are_the_model(self) -> None:
        for name, worker in self.workers.items():
            if any(server.incarnation(name) != worker.incarnation for server in self.servers):
                continue
            later = sorted(
                (update.made, index, number)
                for index, server in enumerate(self.servers)
                for number, update in server.readers[name].feed.under_way.items()
                if number > worker.sessions[index].acked
            )
            words = worker.words.copy()
            stamps = worker._stamps if worker._stamps is not None else np.zeros(SIZE, np.int16)
            for made, index, number in later:
                update = self.servers[index].readers[name].feed.under_way[number]
                if update.pushed:
                    units = worker._parts[made, update.pushed][index].units
                else:
                    units = UNITS.decode(update.units)
                elements = UNITS.elements(units)
                if elements.size:
                    patch = decode(update.payload, elements.size)
                    current = stamps[elements[patch.places]] <= made
                    words[elements[patch.places][current]] = patch.values[current]
            for server in self.servers:
                places = UNITS.elements(server.holdings.units)
                view = server.readers[name].feed.view
                known = view != feed.UNKNOWN
                assert np.array_equal(words[places][known], view[known])

    def what_entered_is_somewhere(self) -> None:
        found = self.start.astype(np.float64) - self._model()
        for worker in self.workers.values():
            found += worker.held.arrays()["sum"]
            for index in range(self.servers_count):
                found += self._not_in_the_model(worker, index)
        assert np.array_equal(found, self.entered)

    def what_was_acknowledged_is_applied(self) -> None:
        for (index, name, incarnation), applied in self.answered.items():
            if self.servers[index].incarnation(name) == incarnation:
                assert self.servers[index].clocks.of[name] >= applied


_OFTEN = {
    "steps": (40, True),
    "arrives": (90, False),
    "all_arrives": (4, False),
    "repeats": (6, True),
    "asks": (3, True),
    "hands_over": (4, False),
    "loses": (8, False),
    "crashes": (2, False),
    "saves": (1, False),
    "starts": (1, True),
    "leaves": (0.5, True),
}
_EVENTS = [(name, of_worker) for name, (_, of_worker) in _OFTEN.items()]
_WEIGHTS = np.array([often for often, _ in _OFTEN.values()]) / sum(often for often, _ in _OFTEN.values())


def live(world: type[World], seeds: Iterable[int]) -> None:
    for seed in seeds:
        made = world(seed)
        try:
            made.live()
        finally:
            made.teardown()


def world_of(bound: int | None, servers: int, *, lossy: float = 0.0, sparsifier: bool = False) -> type[World]:
    """Return the world of one combination."""
    down = FilterRule(4.0) if bound is None else FilterRule(4.0, "sqrt", 4)
    options = {
        "bound": bound,
        "servers_count": servers,
        "lossy": lossy,
        "sparsifier": sparsifier,
        "down": down,
    }
    return type("World", (World,), options)


Lossy = world_of(None, 1, lossy=0.5)
COMBINATIONS = {
    f"{'async' if bound is None else f'ssp:{bound}' if bound else 'sync'}, {servers} servers, "
    f"{'sparsifier' if sparsifier else 'filter'}{', losses' if lossy else ''}": world_of(
        bound, servers, lossy=lossy, sparsifier=sparsifier
    )
    for bound in (None, 2, 0)
    for servers in (1, 3)
    for sparsifier in (False, True)
    for lossy in ((0.0,) if bound == 0 else (0.0, 0.5))
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_invariants(name: str) -> None:
    live(COMBINATIONS[name], range(effort(2, 3)))


@pytest.mark.parametrize("mistake", ["is not refunded", "is refunded twice"])
def test_a_mistake_about_what_was_lost_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times = 2 if "twice" in mistake else 0

    def refund(self: Residual, places: npt.NDArray[np.intp], values: Floats) -> None:
        self.arrays()["sum"][places] += times * values

    monkeypatch.setattr(Residual, "put_back", refund)
    with pytest.raises(AssertionError):
        live(Lossy, range(20))


@pytest.mark.parametrize("mistake", ["forgets what it held", "believes it sent all", "sends the difference"])
def test_a_mistake_in_the_filter_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mistake == "forgets what it held":
        monkeypatch.setattr(Residual, "take", _forgetful_take)
    else:
        monkeypatch.setattr(feed, "encode_covered", _careless if "all" in mistake else _differing)
    with pytest.raises(AssertionError):
        live(World, range(20))


_honest_encode, _honest_take = feed.encode_covered, Residual.take


def _forgetful_take(self: Residual, where: Where, chosen: Bits) -> Floats:
    taken = _honest_take(self, where, chosen)
    self.arrays()["sum"][:] = 0
    return taken


def _careless(words: Words, chosen: Bits, view: Words) -> tuple[Words, Bits]:
    found = _honest_encode(words, chosen, view.copy())
    view[:] = words
    return found


def _differing(words: Words, chosen: Bits, view: Words) -> tuple[Words, Bits]:
    before = view.copy()
    _honest_encode(words, chosen, view)
    return _honest_encode(words - before, chosen, before)


@given(st.integers(0, 3), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=120))
def test_a_step_begins_with_what_its_bound_demands(bound: int, schedule: list[tuple[int, int]]) -> None:
    """Each worker pushes ones to an element of its own: a replica shows how many of whose pushes it has."""
    server = Exact(0, alone(3), Sum(np.zeros(3, np.float32)), ServerRules(Consistency(bound)))
    rules = WorkerRules(Consistency(bound))
    workers = [WorkerMachine(w, 1, np.empty(3, np.uint32), alone(3), rules, Residual(3)) for w in range(3)]
    for worker in workers:
        _exchange(server, workers, worker.hello(0))
    waiting: list[Message] = []
    for who, what in schedule:
        worker = workers[who]
        if what < 5 and worker.may_step:
            made = worker.sessions[0].made
            assert made is not None
            assert (worker.words.view(np.float32) >= made - bound).all()
            waiting += server.handle(*worker.push(-np.eye(3, dtype=np.float32)[who], 1.0))
        elif what >= 5 and waiting:
            answer = waiting.pop(what % len(waiting))
            workers[answer.member].on_message(0, answer)
    while waiting:
        answer = waiting.pop()
        workers[answer.member].on_message(0, answer)
    assert any(worker.may_step for worker in workers), "somebody can always go on"


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_others_stop_at_the_bound_while_one_sleeps(tmp_path: Path, bound: int) -> None:
    server, workers = _pair(tmp_path, ServerRules(Consistency(bound)))
    steps = 0
    while workers[0].may_step:
        _exchange(server, workers, *workers[0].push(np.ones(99, np.float32), 0.1))
        steps += 1
    assert steps == bound + 1
    _exchange(server, workers, *workers[1].push(np.ones(99, np.float32), 0.1))
    assert workers[0].may_step


def _pair(tmp_path: Path, rules: ServerRules) -> tuple[ServerMachine, list[WorkerMachine]]:
    model = Momentum(np.linspace(-1, 1, 99, dtype=np.float32))
    server = ServerMachine(0, alone(99), model, rules, Journal(tmp_path))
    workers = [
        WorkerMachine(w, 1, np.empty(99, np.uint32), alone(99), WorkerRules(rules.consistency), Residual(99))
        for w in range(2)
    ]
    for worker in workers:
        _exchange(server, workers, worker.hello(0))
    return server, workers


def _exchange(server: ServerMachine, workers: list[WorkerMachine], message: Message) -> None:
    for answer in server.handle(message):
        workers[answer.member].on_message(0, answer)


def test_optimizer_state_survives_checkpoint_and_journal(tmp_path: Path) -> None:
    rng, rules = np.random.default_rng(0), ServerRules(journal_limit=3000)
    server, workers = _pair(tmp_path, rules)
    for step in range(20):
        gradient = rng.standard_normal(99).astype(np.float32)
        _exchange(server, workers, *workers[step % 2].push(gradient, 0.1))
    state = server._arrays()
    server._journal.close()
    again = ServerMachine(0, alone(99), Momentum(np.zeros(99, np.float32)), rules, Journal(tmp_path))
    for name, array in again._arrays().items():
        if not name.endswith("readers"):
            assert array.tobytes() == state[name].tobytes(), name
    assert (tmp_path / "checkpoint.npz").exists()


def test_flush_brings_the_replica_to_the_model(tmp_path: Path) -> None:
    server, workers = _pair(tmp_path, ServerRules(filter=FilterRule(1e9)))
    for step in range(4):
        _exchange(server, workers, *workers[step % 2].push(np.ones(99, np.float32), 0.1))
    model = server.optimizer.parameters.view(np.uint32)
    assert not np.array_equal(workers[0].words, model)
    _exchange(server, workers, *workers[0].flush())
    assert np.array_equal(workers[0].words, model)


def test_word_of_an_update_that_overtakes_it_settles_nothing(tmp_path: Path) -> None:
    server, workers = _pair(tmp_path, ServerRules(filter=FilterRule(1e9)))
    worker = workers[0]
    _exchange(server, workers, *worker.push(np.ones(99, np.float32), 0.1))
    (update, *_) = server.handle(*worker.flush())
    (word,) = server.handle(worker.alive(0))
    assert word.number == 0 and word.applied == update.applied
    worker.on_message(0, word)
    assert not worker.settled and worker.waits(0), "it knows that its flush is applied, and lacks the model"
    worker.on_message(0, update)
    assert worker.settled and not worker.waits(0)
    assert np.array_equal(worker.words, server.optimizer.parameters.view(np.uint32))


def test_a_worker_that_is_done_no_longer_holds_the_others(tmp_path: Path) -> None:
    server, workers = _pair(tmp_path, ServerRules(Consistency(1)))
    for _ in range(2):
        _exchange(server, workers, *workers[0].push(np.ones(99, np.float32), 0.1))
    assert not workers[0].may_step
    _exchange(server, workers, *workers[1].flush())
    assert workers[0].may_step
    server.save()
    server._journal.close()
    again = ServerMachine(0, alone(99), Momentum(np.zeros(99, np.float32)), server.rules, Journal(tmp_path))
    assert again.clocks.finished == {1}


def test_a_dead_worker_no_longer_holds_the_others(tmp_path: Path) -> None:
    server, workers = _pair(tmp_path, ServerRules(Consistency(1)))
    for _ in range(2):
        _exchange(server, workers, *workers[0].push(np.ones(99, np.float32), 0.1))
    assert not workers[0].may_step
    for answer in server.dismiss(1):
        workers[answer.member].on_message(0, answer)
    assert workers[0].may_step


def test_refusals_are_in_words_and_change_nothing(tmp_path: Path) -> None:
    server, workers = _pair(tmp_path, ServerRules())
    before = server.optimizer.parameters.copy()
    (push,) = workers[0].push(np.ones(99, np.float32), 0.1)
    stranger, ahead = replace(push, member=5), replace(push, acked=77)
    cut, unsaid = replace(push, payload=push.payload[:-1]), replace(push, pushed=9, pushed_units=NOTHING)
    later = replace(push, epoch=2, moves_epoch=2)
    infinite = push.payload.copy()
    infinite[-1] = np.array([np.inf], np.float32).view(np.uint32)[0]
    loud = replace(push, payload=infinite)
    old = Message(Kind.JOIN, 0, 0)
    said = [server.handle(message) for message in (stranger, ahead, cut, unsaid, loud, later, old)]
    words = ("join", "never sent", "decoded", "never defined", "NaN", "routing epoch 2", "restarted")
    for (answer,), word in zip(said, words, strict=True):
        assert answer.kind is Kind.REFUSAL
        assert word in answer.sentence
    assert np.array_equal(server.optimizer.parameters, before)
    assert sum(server.refusals.values()) == 7
    assert server_machine.MOST_EARLY > 1


def test_a_gradient_that_is_not_finite_is_named(tmp_path: Path) -> None:
    _, workers = _pair(tmp_path, ServerRules())
    with pytest.raises(ValueError, match="worker 1: the gradient"):
        workers[1].push(np.full(99, np.nan, np.float32), 0.1)


def test_another_model_is_refused(tmp_path: Path) -> None:
    server, _ = _pair(tmp_path, ServerRules())
    server.save()
    server._journal.close()
    with pytest.raises(JournalError, match="checkpoint is of"):
        ServerMachine(0, alone(999), Momentum(np.zeros(999, np.float32)), ServerRules(), Journal(tmp_path))


def test_a_server_that_has_lost_its_state_says_so_to_a_worker_that_knows_more() -> None:
    """One that waited for parameters would be waited for in turn."""
    model = np.linspace(0, 5, 30, dtype=np.float32)
    server = ServerMachine(0, alone(30), Sum(np.zeros(30, np.float32)), ServerRules(), begun=False)
    worker = WorkerMachine(0, 1, np.empty(30, np.uint32), alone(30), WorkerRules(), Residual(30))
    server.handle(worker.beginning(0, model))
    _exchange(server, [worker], worker.hello(0))
    assert worker.ready
    again = ServerMachine(0, alone(30), Sum(np.zeros(30, np.float32)), ServerRules(), begun=False)
    (answer,) = again.handle(worker.hello(0))
    with pytest.raises(RefusedError, match="is ahead of the server, and the server has no state"):
        worker.on_message(0, answer)


def test_a_server_without_parameters_waits_for_them(tmp_path: Path) -> None:
    model = np.linspace(0, 5, 30, dtype=np.float32)
    server = ServerMachine(
        0, alone(30), Sum(np.zeros(30, np.float32)), ServerRules(), Journal(tmp_path), begun=False
    )
    worker = WorkerMachine(0, 1, np.empty(30, np.uint32), alone(30), WorkerRules(), Residual(30))
    gone = WorkerMachine(1, 1, np.empty(30, np.uint32), alone(30), WorkerRules(), Residual(30))
    for message in (worker.hello(0), gone.hello(0), gone.leave()):
        assert server.handle(message) == []
    for answer in server.handle(worker.beginning(0, model)):
        worker.on_message(0, answer)
    assert np.array_equal(worker.words, model.view(np.uint32)), "it need not ask again"
    assert server.workers == (0,)
    assert server.handle(worker.beginning(0, model + 1)) == [], "there are some already"


class Settings(Sum):
    def step(
        self, gradient: Floats, touched: Integers | None, lr: float, share: float, settings: str
    ) -> None:
        self.parameters -= gradient * np.float32(settings)


def test_settings_are_each_worker_s_own_and_survive(tmp_path: Path) -> None:
    def served() -> ServerMachine:
        return ServerMachine(0, alone(4), Settings(np.zeros(4, np.float32)), ServerRules(), Journal(tmp_path))

    server, ones = served(), np.ones(4, np.float32)
    workers = [
        WorkerMachine(w, 1, np.empty(4, np.uint32), alone(4), WorkerRules(), Residual(4)) for w in range(2)
    ]
    for worker, factor in zip(workers, ("3", "50"), strict=True):
        _exchange(server, workers, worker.hello(0))
        _exchange(server, workers, *worker.push(ones, 0.1, factor))
    server.save()
    for _ in range(2):
        server._journal.close()
        server = served()
        _exchange(server, workers, *workers[0].push(ones, 0.1))
    assert server.optimizer.parameters.tolist() == [-59.0] * 4
