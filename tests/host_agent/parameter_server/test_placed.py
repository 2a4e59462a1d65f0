# SPDX-License-Identifier: Apache-2.0
"""Placed servers over a network that loses, repeats and reorders, with crashes while units migrate.

Gradients are small whole numbers, of which float32 sums are exact: whatever happens, the model at the end is
the one at the beginning less every gradient, once.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from weir.host_agent.parameter_server import placed_server
from weir.host_agent.parameter_server.journal import Journal
from weir.host_agent.parameter_server.messages import MessageError
from weir.host_agent.parameter_server.migration import MARGIN, plan_moves, report_of
from weir.host_agent.parameter_server.payload import PayloadError
from weir.host_agent.parameter_server.placed_server import PlacedServer
from weir.host_agent.parameter_server.placed_worker import ALL_NEWS, NO_UNITS, PlacedWorker, UnitSet
from weir.host_agent.parameter_server.rows import Rows
from weir.host_agent.parameter_server.shards import ParameterInfo
from weir.host_agent.parameter_server.terms import OptimizerSpec
from weir.host_agent.parameter_server.turns import Kind, Message
from weir.host_agent.parameter_server.units import Integers, Units

WORKERS, SERVERS, STEPS = 2, 3, 8
UNITS = Units.of([ParameterInfo("a", (20, 3)), ParameterInfo("b", (50,))], [3, 8])
SIZE = int(UNITS.starts[-1])
SGD, ADAGRAD = OptimizerSpec("SGD", ({"lr": 1.0},)), OptimizerSpec("Adagrad", ({"lr": 1.0},))


class World:
    """Workers, servers with journals, and what is on its way between them."""

    def __init__(self, folder: Path, rng: np.random.Generator, spec: OptimizerSpec, limit: int) -> None:
        self.folder, self.rng, self.spec, self.limit = folder, rng, spec, limit
        self.owner = rng.integers(SERVERS, size=len(UNITS))
        self.words = [np.zeros(SIZE, np.uint32) for _ in range(WORKERS)]
        self.workers = [
            PlacedWorker(rank, WORKERS, SERVERS, UNITS, self.owner, self.words[rank])
            for rank in range(WORKERS)
        ]
        self.journals: list[Journal | None] = [None] * SERVERS
        self.servers = [self.start(index) for index in range(SERVERS)]
        self.net: list[tuple[int, Message]] = []
        self.crashes = 0

    def start(self, index: int) -> PlacedServer:
        if (before := self.journals[index]) is not None:
            before.close()
        journal = self.journals[index] = Journal(self.folder / str(index))
        return PlacedServer(
            index,
            WORKERS,
            UNITS,
            self.owner,
            Rows(SIZE, self.spec),
            journal=journal,
            journal_limit=self.limit,
        )

    def turn(
        self, pushed: list[UnitSet], gradients: list[np.ndarray], wanted: list[UnitSet], faults: bool
    ) -> None:
        for worker, *what in zip(self.workers, pushed, gradients, wanted, strict=True):
            sent = worker.turn(what[0], what[1].astype(np.float32).view(np.uint32), 1.0, what[2])
            self.net += [(WORKERS + server, message) for server, message in sent]
        while not all(worker.answered for worker in self.workers) or self.outstanding():
            if faults and self.rng.random() < 0.05:
                self.crashes += 1
                index = int(self.rng.integers(SERVERS))
                self.servers[index] = self.start(index)
            if not self.net:
                self.resend()
            place = int(self.rng.integers(len(self.net)))
            to, message = self.net[place]
            if not faults or self.rng.random() < 0.8:
                del self.net[place]  # otherwise it comes again
            if not faults or self.rng.random() < 0.8:
                self.deliver(to, message)

    def outstanding(self) -> list[tuple[int, Message]]:
        return [one for server in self.servers for one in server.outstanding()]

    def resend(self) -> None:
        self.net += self.outstanding()
        for worker in self.workers:
            self.net += [(WORKERS + server, message) for server, message in worker.unanswered()]

    def deliver(self, to: int, message: Message) -> None:
        message = Message.decode(message.encode(UNITS), UNITS)
        if to < WORKERS:
            self.workers[to].on_message(message)
        else:
            self.net += self.servers[to - WORKERS].handle(message)

    def close(self) -> None:
        for journal in self.journals:
            assert journal is not None
            journal.close()


@contextmanager
def world(seed: int, spec: OptimizerSpec = SGD, limit: int = 64 << 20) -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        made = World(Path(folder), np.random.default_rng(seed), spec, limit)
        yield made
        made.close()


def random_units(rng: np.random.Generator) -> Integers:
    return np.flatnonzero(rng.random(len(UNITS)) < rng.uniform(0, 0.6))


def train(made: World, *, faults: bool, moves: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the model that all workers have at the end, and the one that they should have."""
    rng = np.random.default_rng(int(made.rng.integers(1 << 30)))
    start = rng.integers(-9, 9, SIZE).astype(np.float32)
    everything, nothing = UnitSet(0, np.arange(len(UNITS))), np.zeros(0)
    made.turn([everything, NO_UNITS], [start, nothing], [ALL_NEWS] * 2, faults)
    model = start.copy()
    sets = [[UnitSet(1 + batch, random_units(rng)) for batch in range(2)] for _ in range(WORKERS)]
    for step in range(STEPS):
        # Half of the pushes are of sets that servers remember, half say what they are of.
        pushed = [
            sets[w][step % 2] if step % 4 < 2 else UnitSet(0, random_units(rng)) for w in range(WORKERS)
        ]
        gradients = [rng.integers(-5, 5, UNITS.elements(one.units).size) for one in pushed]
        for one, gradient in zip(pushed, gradients, strict=True):
            np.subtract.at(model, UNITS.elements(one.units), gradient)
        if moves and step % 2:
            moving = np.flatnonzero(rng.random(len(UNITS)) < 0.4)
            made.workers[0]._planned = np.stack([moving, rng.integers(SERVERS, size=moving.size)], axis=1)
        wanted = [sets[w][(step + 1) % 2] if step % 3 else ALL_NEWS for w in range(WORKERS)]
        made.turn(pushed, gradients, wanted, faults)
        for words, want in zip(made.words, wanted, strict=True):
            elements = UNITS.elements(want.units)
            np.testing.assert_array_equal(words.view(np.float32)[elements], model[elements])
    made.turn([NO_UNITS] * 2, [nothing] * 2, [everything] * 2, faults)
    np.testing.assert_array_equal(made.words[0], made.words[1])
    return made.words[0].view(np.float32), model


@settings(max_examples=examples(15), deadline=None, phases=[Phase.generate])
@given(st.integers(0, 1 << 20), st.sampled_from([2_000, 64 << 20]))
def test_no_update_is_lost_or_applied_twice_while_units_migrate_and_servers_crash(
    seed: int, limit: int
) -> None:
    with world(seed, limit=limit) as made:
        found, wanted = train(made, faults=True, moves=True)
        np.testing.assert_array_equal(found, wanted)
        assert made.workers[0].moved > 0
        assert sum(server.handed_over for server in made.servers) > 0
        for server in made.servers:
            np.testing.assert_array_equal(server.owner, made.workers[0].owner)
            here = UNITS.elements(np.flatnonzero(server.owner == server.index))
            np.testing.assert_array_equal(server.rows.values[here], wanted[here])


def test_migrations_take_the_optimizers_state_along() -> None:
    models = []
    for moves in (False, True):
        with world(3, spec=ADAGRAD) as made:
            made.turn([NO_UNITS] * 2, [np.zeros(0)] * 2, [NO_UNITS] * 2, faults=False)
            rng, everything = np.random.default_rng(5), UnitSet(0, np.arange(len(UNITS)))
            for _step in range(6):
                if moves:
                    to = rng.permutation(np.arange(len(UNITS)) % SERVERS)
                    made.workers[0]._planned = np.stack([np.arange(len(UNITS)), to], axis=1)
                gradients = [np.full(SIZE, 1.0 + _step) / 3] * 2
                made.turn([everything] * 2, gradients, [ALL_NEWS] * 2, faults=moves)
            models.append(made.words[0].copy())
    np.testing.assert_array_equal(models[0], models[1])


@pytest.mark.parametrize("broken", ["nothing moves", "state stays"])
def test_a_migration_that_does_nothing_is_found(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above would see it."""
    if broken == "nothing moves":
        monkeypatch.setattr(placed_server.PlacedServer, "_move", lambda self, moves: [])
    else:
        monkeypatch.setattr(Rows, "take", lambda self, elements, given: None)
    with world(3) as made, pytest.raises((AssertionError, RuntimeError)):
        found, wanted = train(made, faults=False, moves=True)
        np.testing.assert_array_equal(found, wanted)


def test_what_makes_no_sense_is_refused_and_changes_nothing() -> None:
    with world(1) as made:
        server = made.servers[0]
        mine = np.flatnonzero(made.owner == 0)
        others = np.flatnonzero(made.owner == 1)
        full = np.zeros(int(UNITS.sizes[mine].sum()), np.uint32)
        for message, sentence in (
            (Message(Kind.TURN, 0, 7), "its state is an older one, or lost"),
            (Message(Kind.TURN, 9, 0), "rank 9 is no worker"),
            (Message(Kind.TURN, 0, 0, epoch=3), "epoch 3 came in epoch 0"),
            (Message(Kind.TURN, 0, 0, pushed_set=4), "has never said what its set 4 is"),
            (Message(Kind.TURN, 0, 0, pushed=others, values=full), "units that other servers have"),
            (Message(Kind.TURN, 0, 0, pushed=mine, values=full[:-1]), "values for other units"),
            (Message(Kind.TURN, 0, 0, pushed=mine, values=full | 0x7F800000), "infinities or NaN"),
        ):
            ((_, answer),) = server.handle(message)
            assert answer.kind is Kind.REFUSAL and sentence in answer.sentence
        assert (server.turn, sum(server.refusals.values())) == (-1, 7)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=60))
def test_words_that_are_no_message_are_refused(words: list[int]) -> None:
    kind = Kind.TURN if words and words[0] % 2 else Kind.VALUES
    array = np.array([kind, *(word % 9 for word in words[:11]), *words[11:]], np.uint32)
    with suppress(MessageError, PayloadError):
        Message.decode(array, UNITS)


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(1, 300_000), st.integers(0, 1 << 20), st.floats(0, 1))
def test_lists_of_units_come_back(count: int, seed: int, density: float) -> None:
    units = Units(np.arange(count + 1))
    chosen = np.flatnonzero(np.random.default_rng(seed).random(count) < density**4)
    np.testing.assert_array_equal(units.decode(units.encode(chosen)), chosen)


# -- decisions ------------------------------------------------------------------------------------------


def decided(use: np.ndarray, owner: Integers, sizes: Integers, together: bool = True) -> Integers:
    servers = int(owner.max()) + 1
    reports = [
        report_of(use.astype(np.float32), owner == server, server, together) for server in range(servers)
    ]
    return plan_moves(reports, owner, sizes, use.shape[0], 1, together)


def test_units_move_to_the_worker_that_uses_them_when_that_pays() -> None:
    owner, sizes = np.repeat([0, 1], 20), np.full(40, 10)
    use = np.zeros((2, 40))
    use[0, :20] = use[1, 20:] = 100.0
    use[0, 25], use[1, 25] = 500.0, 10.0  # of server 1, used by worker 0
    use[1, 3], use[0, 3] = 10.0 * MARGIN, 0.0  # what it saves is no more than what it costs
    assert decided(use, owner, sizes).tolist() == [[25, 0]]


def test_users_attract_units_only_where_they_are_on_the_servers_machine() -> None:
    owner, sizes = np.repeat([0, 1], 20), np.full(40, 10)
    use = np.zeros((2, 40))
    use[0, 25] = use[1, 5] = 500.0  # each is used by the other machine's worker; the loads are even
    assert sorted(decided(use, owner, sizes).tolist()) == [[5, 1], [25, 0]]
    assert not len(decided(use, owner, sizes, together=False))


def test_loads_are_evened_where_no_machine_has_both() -> None:
    owner, sizes = np.repeat([0, 1], 20), np.full(40, 10)
    use = np.zeros((3, 40))  # three workers, two servers
    use[:, :4] = 1_000.0
    moves = decided(use, owner, sizes, together=False)
    assert len(moves) == 2 and set(moves[:, 1].tolist()) == {1}


def test_nothing_moves_where_nothing_is_gained() -> None:
    owner, sizes = np.repeat([0, 1], 20), np.full(40, 10)
    assert not len(decided(np.full((3, 40), 100.0), owner, sizes, together=False))
    assert not len(decided(np.zeros((2, 40)), owner, sizes))


def exchanged(migrate_every: int, machines: int = 3, rows: int = 300, steps: int = 240) -> tuple[int, int]:
    """Train on machines with a worker and a server each; return words between machines, and units moved.

    Which third of the rows a worker uses changes in the middle.
    """
    units = Units(np.arange(0, 4 * rows + 1, 4))
    owner = np.random.default_rng(1).integers(machines, size=rows)
    servers = [
        PlacedServer(
            index, machines, units, owner, Rows(4 * rows, SGD), report_every=migrate_every, together=True
        )
        for index in range(machines)
    ]
    workers = [
        PlacedWorker(
            rank,
            machines,
            machines,
            units,
            owner,
            np.zeros(4 * rows, np.uint32),
            1 if migrate_every and rank == 0 else 0,
            together=True,
        )
        for rank in range(machines)
    ]
    words = 0

    def used(worker: int, step: int) -> UnitSet:
        third = (worker + (step >= steps // 2)) % machines
        return UnitSet(1 + third, np.arange(third * rows // machines, (third + 1) * rows // machines))

    for step in range(-1, steps):
        net: list[tuple[int, int, Message]] = []
        for rank, worker in enumerate(workers):
            pushed = used(rank, step) if step >= 0 else NO_UNITS
            gradient = np.ones(4 * pushed.units.size, np.float32).view(np.uint32)
            sent = worker.turn(pushed, gradient, 0.1, used(rank, step + 1))
            net += [(rank, machines + server, message) for server, message in sent]
        while net:
            sender, to, message = net.pop(0)
            words += message.encode(units).size if sender % machines != to % machines else 0
            if to < machines:
                workers[to].on_message(message)
            else:
                net += [(to, *answer) for answer in servers[to - machines].handle(message)]
    return words, workers[0].moved


def test_migrations_pay_for_themselves() -> None:
    """Words that leave a machine, reports and handovers among them, are far fewer than where all stays."""
    stays, none = exchanged(0)
    moves, moved = exchanged(10)
    assert none == 0 and moved > 100
    assert moves < 0.5 * stays


def busiest(
    migrate_every: int, workers: int = 4, servers: int = 3, count: int = 240, steps: int = 200
) -> int:
    """Push what is above a filter's threshold, which the first third of the blocks is more often, and pull
    what has changed; return the words that the busiest server takes and gives, reports and handovers too.
    """
    units = Units(np.arange(0, 16 * count + 1, 16))
    owner = np.arange(count) * servers // count
    machines = [
        PlacedServer(s, workers, units, owner, Rows(16 * count, SGD), report_every=migrate_every)
        for s in range(servers)
    ]
    team = [
        PlacedWorker(
            *(rank, workers, servers, units, owner, np.zeros(16 * count, np.uint32)),
            words_each=1 if migrate_every and rank == 0 else 0,
        )
        for rank in range(workers)
    ]
    words, rng = np.zeros(workers + servers, np.int64), np.random.default_rng(1)
    for step in range(-1, steps):
        net: list[tuple[int, int, Message]] = []
        for rank, worker in enumerate(team):
            chosen = np.flatnonzero(rng.random(count) < np.where(owner == 0, 0.5, 0.05)) if step >= 0 else []
            pushed = UnitSet(0, np.asarray(chosen, np.int64))
            gradient = np.ones(16 * pushed.units.size, np.float32).view(np.uint32)
            sent = worker.turn(pushed, gradient, 0.1, ALL_NEWS)
            net += [(rank, workers + server, message) for server, message in sent]
        while net:
            sender, to, message = net.pop(0)
            words[[sender, to]] += message.encode(units).size
            if to < workers:
                team[to].on_message(message)
            else:
                net += [(to, *answer) for answer in machines[to - workers].handle(message)]
    return int(words[workers:].max())


def test_migrations_of_blocks_take_more_off_the_busiest_server_than_they_cost_it() -> None:
    assert busiest(20) < 0.85 * busiest(0)  # by no more: each keeps its share of the elements and a tenth
