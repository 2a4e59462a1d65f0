# SPDX-License-Identifier: Apache-2.0
"""Server and workers over a network that does what it wants, with crashes: the invariant after every step.

At any moment, for every worker: its model + what is under way to it + what is pending for it = the server's
model, in words modulo 2^32; and what workers pushed = what is in the model + what they hold + what is under
way. Gradients here are small whole numbers, of which float32 sums are exact.
"""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.host_agent.parameter_server.world import Momentum, Sum
from weir.host_agent.parameter_server import feed, update_server
from weir.host_agent.parameter_server.clocks import Consistency
from weir.host_agent.parameter_server.journal import Journal, JournalError
from weir.host_agent.parameter_server.messages import FromServer, FromWorker, Kind
from weir.host_agent.parameter_server.payload import Words, decode
from weir.host_agent.parameter_server.residual import Residual
from weir.host_agent.parameter_server.update_server import ServerRules, UpdateServer
from weir.host_agent.parameter_server.update_worker import RefusedError, UpdateWorker, WorkerRules
from weir.host_agent.parameter_server.value_filter import Bits, FilterRule, Floats

SIZE = 40
WORKERS = st.integers(0, 2)


class World(RuleBasedStateMachine):
    """One server, up to three workers, and packets that arrive in any order, any number of times, or not."""

    bound: int | None = None
    down = FilterRule(4.0)
    lossy = 0.0  # share of pushes of which a part is lost

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.numbers = np.random.default_rng(7)
        self.start = self.numbers.integers(-9, 9, SIZE).astype(np.float32)
        self.incarnations = itertools.count(1)
        self.workers: dict[int, UpdateWorker] = {}
        self.to_server: list[FromWorker] = []
        self.to_workers: list[FromServer] = []
        self.entered = np.zeros(SIZE, np.float64)
        self.answered: dict[tuple[int, int], int] = {}  # pushes that a worker knows to be applied
        self.journal = Journal(Path(self.folder.name))
        self.server = self._served()

    def teardown(self) -> None:
        self.journal.close()
        self.folder.cleanup()

    def _served(self) -> UpdateServer:
        rules = ServerRules(Consistency(self.bound), self.down)
        return UpdateServer(Sum(self.start.copy()), rules, self.journal)

    def _words(self, message: FromWorker) -> None:
        """Give the server a message as it is on the wire, where any of a push's values may be lost."""
        words = message.encode()
        came = np.ones(words.size, np.bool_)
        if message.droppable and self.numbers.random() < self.lossy:
            came[words.size - message.droppable :] = self.numbers.random(message.droppable) < 0.7
        words[~came] = 0
        answers = self.server.handle(FromWorker.received(words, came))
        self.to_workers += answers
        if answers and self.bound is None and message.kind in (Kind.PUSH, Kind.FLUSH):
            view = self.server.feeds[answers[-1].worker].view.view(np.float32)
            assert (np.abs(self._parameters - view) <= self.down.threshold).all(), "only what is small waits"

    # ---------------------------------------------------------------------------------------- workers

    @rule(worker=WORKERS)
    def starts(self, worker: int) -> None:
        """Start a worker, or kill it and start it anew: what it held, and had not delivered, is gone."""
        if worker in self.workers:
            self._lose(worker)
        rules = WorkerRules(Consistency(self.bound), FilterRule(3.0))
        words = np.empty(SIZE, np.uint32)
        self.workers[worker] = UpdateWorker(worker, next(self.incarnations), words, rules, Residual(SIZE))
        self._asks(worker)

    @rule(worker=WORKERS)
    def leaves(self, worker: int) -> None:
        if worker in self.workers:
            message = self.workers[worker].leave()
            self._lose(worker)
            self._words(message)

    def _lose(self, worker: int) -> None:
        """Take back what the model will never contain."""
        gone = self.workers.pop(worker)
        self.entered -= gone.held.arrays()["sum"]
        if self.server.incarnation(worker) != gone.incarnation:
            return
        self.entered -= self._not_in_the_model(gone)
        self.to_server = [m for m in self.to_server if m.worker != worker]

    def _not_in_the_model(self, worker: UpdateWorker) -> Floats:
        """Return what is neither in the server's model nor held: under way, or lost, and its worker has not
        heard of it.
        """
        known = self.server.incarnation(worker.worker) == worker.incarnation
        applied = self.server.clocks.of[worker.worker] if known else 0
        found = np.zeros(SIZE, np.float32)
        for push in worker.unapplied():
            if push.kind is not Kind.PUSH:
                continue
            words = push.payload.copy()
            if push.clock <= applied:
                kept = np.ones(words.size, np.bool_)
                for first, count in self.server._lost[worker.worker].get(push.clock, ()):
                    kept[first : first + count] = False
                kept[: words.size - push.droppable] = False
                words[kept] = 0
            found += decode(words, SIZE).dense().view(np.float32)
        return found

    @rule(worker=WORKERS)
    def asks(self, worker: int) -> None:
        if worker in self.workers:
            self._asks(worker)

    def _asks(self, worker: int) -> None:
        self.to_server.append(self.workers[worker].hello())

    @rule(worker=WORKERS, flush=st.sampled_from([False, False, False, True]))
    def steps(self, worker: int, flush: bool) -> None:
        found = self.workers.get(worker)
        if found is None or not found.may_step or len(found.unapplied()) > 8:
            return
        self._check_staleness(found)
        if flush:
            self.to_server.append(found.flush())
            return
        gradient = (self.numbers.integers(-6, 7, SIZE) * (self.numbers.random(SIZE) < 0.4)).astype(np.float32)
        self.entered += gradient
        self.to_server.append(found.push(gradient, 1.0))

    def _check_staleness(self, worker: UpdateWorker) -> None:
        """Check that nobody is more than the bound behind, against the server's own books."""
        if self.bound is not None and self.server.incarnation(worker.worker) == worker.incarnation:
            assert worker.made is not None
            clocks = self.server.clocks
            running = [clock for name, clock in clocks.of.items() if name not in clocks.finished]
            assert min(running, default=worker.made) >= worker.made - self.bound

    # ---------------------------------------------------------------------------------------- network

    @rule(data=st.data(), keep=st.booleans())
    @precondition(lambda self: self.to_server)
    def up(self, data: st.DataObject, keep: bool) -> None:
        place = data.draw(st.integers(0, len(self.to_server) - 1))
        self._words(self.to_server[place] if keep else self.to_server.pop(place))

    @rule(data=st.data(), keep=st.booleans())
    @precondition(lambda self: self.to_workers)
    def down_(self, data: st.DataObject, keep: bool) -> None:
        place = data.draw(st.integers(0, len(self.to_workers) - 1))
        self._give(self.to_workers[place] if keep else self.to_workers.pop(place))

    @rule()
    def all_arrives(self) -> None:
        for message in self.to_server:
            self._words(message)
        self.to_server = []
        for message in self.to_workers:
            self._give(message)
        self.to_workers = []

    def _give(self, message: FromServer) -> None:
        worker = self.workers.get(message.worker)
        if worker is None:
            return
        again = FromServer.decode(message.encode())
        if again.incarnation == worker.incarnation:
            assert again.kind is Kind.UPDATE, again.sentence
        worker.on_message(again)
        self.answered[worker.worker, worker.incarnation] = worker.applied

    @rule(data=st.data())
    def loses(self, data: st.DataObject) -> None:
        for packets in (self.to_server, self.to_workers):
            if packets:
                packets.pop(data.draw(st.integers(0, len(packets) - 1)))  # type: ignore[attr-defined]

    @rule(worker=WORKERS)
    def repeats(self, worker: int) -> None:
        if worker in self.workers:
            self.to_server += self.workers[worker].unapplied()

    # ---------------------------------------------------------------------------------------- the server

    @rule(torn=st.binary(max_size=20))
    def crashes(self, torn: bytes) -> None:
        """Start the server anew from its folder: it is bit by bit where it was."""
        before = self.server._arrays()
        under_way = {w: dict(f.under_way) for w, f in self.server.feeds.items()}
        self.journal.close()
        if self.journal.size:
            with (Path(self.folder.name) / "journal").open("ab") as file:
                file.write(torn)
        self.journal = Journal(Path(self.folder.name))
        self.server = self._served()
        after = self.server._arrays()
        for name in before.keys() & after.keys():
            if not name.endswith("readers") and not name.startswith("lost"):  # which may be told once more
                assert np.array_equal(before[name], after[name]), name
        for worker, updates in under_way.items():
            kept = self.server.feeds[worker].under_way
            assert all(np.array_equal(kept[number], payload) for number, payload in updates.items())

    @rule()
    def saves(self) -> None:
        self.server.save()

    # ---------------------------------------------------------------------------------------- what must hold

    @invariant()
    def replica_and_under_way_and_pending_are_the_model(self) -> None:
        model = self.server.optimizer.parameters.view(np.uint32)
        for name, worker in self.workers.items():
            if self.server.incarnation(name) != worker.incarnation:
                continue
            fed = self.server.feeds[name]
            words, replica = worker.replica.words.copy(), worker.replica
            under_way = np.zeros(SIZE, np.uint32)
            for number, payload in fed.under_way.items():
                if number > replica.taken:
                    patch = decode(payload, SIZE)
                    under_way[patch.places] += patch.values - words[patch.places]
                    patch.onto(words)
            assert np.array_equal(replica.words + under_way + fed.pending(self._parameters), model)

    @property
    def _parameters(self) -> np.ndarray:
        return self.server.optimizer.parameters

    @invariant()
    def what_entered_is_somewhere(self) -> None:
        found = self.start.astype(np.float64) - self._parameters
        for worker in self.workers.values():
            found += worker.held.arrays()["sum"] + self._not_in_the_model(worker)
        assert np.array_equal(found, self.entered)

    @invariant()
    def what_was_acknowledged_is_applied(self) -> None:
        for (name, incarnation), applied in self.answered.items():
            if self.server.incarnation(name) == incarnation:
                assert self.server.clocks.of[name] >= applied


class Stale(World):
    bound = 2


class Synchronous(World):
    bound = 0
    down = FilterRule(4.0, "sqrt", 4)


class Lossy(World):
    """Pushes arrive in part; what did not is held again once the worker knows."""

    lossy = 0.5


_SETTINGS = settings(max_examples=40, stateful_step_count=60, deadline=None)
_TO_FAIL = settings(
    _SETTINGS, max_examples=2000, database=None, phases=[Phase.generate], report_multiple_bugs=False
)


@pytest.mark.parametrize("world", [World, Stale, Synchronous, Lossy])
def test_invariants(world: type[World]) -> None:
    run_state_machine_as_test(world, settings=_SETTINGS)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("mistake", ["is not refunded", "is refunded twice"])
def test_a_mistake_about_what_was_lost_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times = 2 if "twice" in mistake else 0

    def refund(self: Residual, places: npt.NDArray[np.intp], values: Floats) -> None:
        self.arrays()["sum"][places] += times * values

    monkeypatch.setattr(Residual, "put_back", refund)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Lossy, settings=_TO_FAIL)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("mistake", ["forgets what it held", "believes it sent all", "sends the difference"])
def test_a_mistake_in_the_filter_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mistake == "forgets what it held":
        monkeypatch.setattr(Residual, "take", _forgetful_take)
    else:
        monkeypatch.setattr(feed, "encode_covered", _careless if "all" in mistake else _differing)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(World, settings=_TO_FAIL)  # type: ignore[no-untyped-call]


_honest_encode, _honest_take = feed.encode_covered, Residual.take


def _forgetful_take(self: Residual, chosen: Bits) -> Floats:
    taken = _honest_take(self, chosen)
    self.arrays()["sum"][:] = 0
    return taken


def _careless(words: Words, chosen: Bits, view: Words) -> Words:
    payload = _honest_encode(words, chosen, view.copy())
    view[:] = words
    return payload


def _differing(words: Words, chosen: Bits, view: Words) -> Words:
    before = view.copy()
    _honest_encode(words, chosen, view)
    return _honest_encode(words - before, chosen, before)


@given(st.integers(0, 3), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=120))
def test_a_step_begins_with_what_its_bound_demands(bound: int, schedule: list[tuple[int, int]]) -> None:
    """Each worker pushes ones to an element of its own: a replica shows how many of whose pushes it has."""
    server = UpdateServer(Sum(np.zeros(3, np.float32)), ServerRules(Consistency(bound)))
    rules = WorkerRules(Consistency(bound))
    workers = [UpdateWorker(w, 1, np.empty(3, np.uint32), rules, Residual(3)) for w in range(3)]
    for worker in workers:
        for answer in server.handle(worker.hello()):
            worker.on_message(answer)
    waiting: list[FromServer] = []
    for who, what in schedule:
        worker = workers[who]
        if what < 5 and worker.may_step:
            assert worker.made is not None
            assert (worker.replica.words.view(np.float32) >= worker.made - bound).all()
            waiting += server.handle(worker.push(-np.eye(3, dtype=np.float32)[who], 1.0))
        elif what >= 5 and waiting:
            answer = waiting.pop(what % len(waiting))
            workers[answer.worker].on_message(answer)
    while waiting:
        answer = waiting.pop()
        workers[answer.worker].on_message(answer)
    assert any(worker.may_step for worker in workers), "somebody can always go on"


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_others_stop_at_the_bound_while_one_sleeps(tmp_path: Path, bound: int) -> None:
    server, workers = _pair(tmp_path, ServerRules(Consistency(bound)))
    steps = 0
    while workers[0].may_step:
        _exchange(server, workers, workers[0].push(np.ones(99, np.float32), 0.1))
        steps += 1
    assert steps == bound + 1
    _exchange(server, workers, workers[1].push(np.ones(99, np.float32), 0.1))
    assert workers[0].may_step


def _pair(tmp_path: Path, rules: ServerRules) -> tuple[UpdateServer, list[UpdateWorker]]:
    server = UpdateServer(Momentum(np.linspace(-1, 1, 99, dtype=np.float32)), rules, Journal(tmp_path))
    workers = [
        UpdateWorker(w, 1, np.empty(99, np.uint32), WorkerRules(rules.consistency), Residual(99))
        for w in range(2)
    ]
    for worker in workers:
        _exchange(server, workers, worker.hello())
    return server, workers


def _exchange(server: UpdateServer, workers: list[UpdateWorker], message: FromWorker) -> None:
    for answer in server.handle(message):
        workers[answer.worker].on_message(answer)


def test_optimizer_state_survives_checkpoint_and_journal(tmp_path: Path) -> None:
    rng, rules = np.random.default_rng(0), ServerRules(journal_limit=3000)
    server, workers = _pair(tmp_path, rules)
    for step in range(20):
        gradient = rng.standard_normal(99).astype(np.float32)
        _exchange(server, workers, workers[step % 2].push(gradient, 0.1))
    state = server._arrays()
    server._journal.close()
    again = UpdateServer(Momentum(np.zeros(99, np.float32)), rules, Journal(tmp_path))
    for name, array in again._arrays().items():
        if not name.endswith("readers"):
            assert array.tobytes() == state[name].tobytes(), name
    assert (tmp_path / "checkpoint.npz").exists()


def test_flush_brings_the_replica_to_the_model(tmp_path: Path) -> None:
    server, workers = _pair(tmp_path, ServerRules(filter=FilterRule(1e9)))
    for step in range(4):
        _exchange(server, workers, workers[step % 2].push(np.ones(99, np.float32), 0.1))
    model = server.optimizer.parameters.view(np.uint32)
    assert not np.array_equal(workers[0].replica.words, model)
    _exchange(server, workers, workers[0].flush())
    assert np.array_equal(workers[0].replica.words, model)


def test_a_worker_that_is_done_no_longer_holds_the_others(tmp_path: Path) -> None:
    server, workers = _pair(tmp_path, ServerRules(Consistency(1)))
    for _ in range(2):
        _exchange(server, workers, workers[0].push(np.ones(99, np.float32), 0.1))
    assert not workers[0].may_step
    _exchange(server, workers, workers[1].flush())
    assert workers[0].may_step
    server.save()
    server._journal.close()
    again = UpdateServer(Momentum(np.zeros(99, np.float32)), server.rules, Journal(tmp_path))
    assert again.clocks.finished == {1}


def test_a_dead_worker_no_longer_holds_the_others(tmp_path: Path) -> None:
    server, workers = _pair(tmp_path, ServerRules(Consistency(1)))
    for _ in range(2):
        _exchange(server, workers, workers[0].push(np.ones(99, np.float32), 0.1))
    assert not workers[0].may_step
    for answer in server.dismiss(1):
        workers[answer.worker].on_message(answer)
    assert workers[0].may_step


def test_refusals_are_in_words_and_change_nothing(tmp_path: Path) -> None:
    server, workers = _pair(tmp_path, ServerRules())
    before = server.optimizer.parameters.copy()
    push = workers[0].push(np.ones(99, np.float32), 0.1)
    stranger = FromWorker(Kind.PUSH, 5, 1, 1, 0, 0.1, push.payload)
    ahead = FromWorker(Kind.PUSH, 0, 1, 1, 77, 0.1, push.payload)
    cut = FromWorker(Kind.PUSH, 0, 1, 1, 1, 0.1, push.payload[:-1])
    infinite = push.payload.copy()
    infinite[-1] = np.array([np.inf], np.float32).view(np.uint32)[0]
    loud = FromWorker(Kind.PUSH, 0, 1, 1, 1, 0.1, infinite)
    old = FromWorker(Kind.JOIN, 0, 0)
    said = [server.handle(message) for message in (stranger, ahead, cut, loud, old)]
    for (answer,), word in zip(said, ("join", "never sent", "read", "NaN", "anew"), strict=True):
        assert answer.kind is Kind.REFUSAL
        assert word in answer.sentence
    assert np.array_equal(server.optimizer.parameters, before)
    assert sum(server.refusals.values()) == 5
    assert update_server.MOST_EARLY > 1


def test_a_gradient_that_is_not_finite_is_named(tmp_path: Path) -> None:
    _, workers = _pair(tmp_path, ServerRules())
    with pytest.raises(ValueError, match="worker 1: the gradient"):
        workers[1].push(np.full(99, np.nan, np.float32), 0.1)


def test_another_model_is_refused(tmp_path: Path) -> None:
    server, _ = _pair(tmp_path, ServerRules())
    server.save()
    server._journal.close()
    with pytest.raises(JournalError, match="99 parameters, the model has 98"):
        UpdateServer(Momentum(np.zeros(98, np.float32)), ServerRules(), Journal(tmp_path))


def test_a_server_that_has_lost_its_state_says_so_to_a_worker_that_knows_more() -> None:
    """One that waited for parameters would be waited for in turn."""
    model = np.linspace(0, 5, 30, dtype=np.float32)
    server = UpdateServer(Sum(np.zeros(30, np.float32)), ServerRules(), begun=False)
    worker = UpdateWorker(0, 1, np.empty(30, np.uint32), WorkerRules(), Residual(30))
    server.handle(worker.beginning(model))
    for answer in server.handle(worker.hello()):
        worker.on_message(answer)
    assert worker.ready
    again = UpdateServer(Sum(np.zeros(30, np.float32)), ServerRules(), begun=False)
    (answer,) = again.handle(worker.hello())
    with pytest.raises(RefusedError, match="knows of more than the server, which has no state"):
        worker.on_message(answer)


def test_a_server_without_parameters_waits_for_them(tmp_path: Path) -> None:
    model = np.linspace(0, 5, 30, dtype=np.float32)
    server = UpdateServer(Sum(np.zeros(30, np.float32)), ServerRules(), Journal(tmp_path), begun=False)
    worker = UpdateWorker(0, 1, np.empty(30, np.uint32), WorkerRules(), Residual(30))
    assert server.handle(worker.hello()) == []
    assert server.handle(worker.beginning(model)) == []
    assert server.handle(worker.beginning(model + 1)) == [], "there are some already"
    _exchange(server, [worker], worker.hello())
    assert np.array_equal(worker.replica.words, model.view(np.uint32))


class Settings(Sum):
    def step(self, gradient: Floats, lr: float, share: float, settings: str) -> None:
        self.parameters -= gradient * np.float32(settings)


def test_settings_are_each_worker_s_own_and_survive(tmp_path: Path) -> None:
    def served() -> UpdateServer:
        return UpdateServer(Settings(np.zeros(4, np.float32)), ServerRules(), Journal(tmp_path))

    server, ones = served(), np.ones(4, np.float32)
    workers = [UpdateWorker(w, 1, np.empty(4, np.uint32), WorkerRules(), Residual(4)) for w in range(2)]
    for worker, factor in zip(workers, ("3", "50"), strict=True):
        _exchange(server, workers, worker.hello())
        _exchange(server, workers, worker.push(ones, 0.1, factor))
    server.save()
    for _ in range(2):
        server._journal.close()
        server = served()
        _exchange(server, workers, workers[0].push(ones, 0.1))
    assert server.optimizer.parameters.tolist() == [-59.0] * 4
