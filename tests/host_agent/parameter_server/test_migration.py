# SPDX-License-Identifier: Apache-2.0
"""Migrations: decisions, that they pay, and optimizers that go along. Crashes are in ``test_machine``."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.host_agent.parameter_server.world import Floats, Momentum, Sum
from weir.host_agent.parameter_server.clocks import Consistency
from weir.host_agent.parameter_server.messages import Message
from weir.host_agent.parameter_server.migration import MARGIN, plan_moves, report_of
from weir.host_agent.parameter_server.residual import Residual
from weir.host_agent.parameter_server.routing import Integers, ParameterInfo, Table, Units
from weir.host_agent.parameter_server.server_machine import ServerMachine
from weir.host_agent.parameter_server.server_rules import ServerRules
from weir.host_agent.parameter_server.value_filter import FilterRule
from weir.host_agent.parameter_server.worker_machine import UnitSet, WorkerMachine, WorkerRules

SYNC = Consistency(0)


class Machines:
    """Workers and servers without faults. told: hears sender, receiver and words of every message."""

    def __init__(
        self,
        table: Table,
        workers: int,
        told: Callable[[int, int, int], None] = lambda *_: None,
        *,
        migrate_every: int = 0,
        together: bool = False,
        filter: FilterRule | None = None,
        optimizer: type[Sum] = Sum,
    ) -> None:
        self.table, self.told = table, told
        self.handed_over: set[tuple[int, int, int]] = set()
        rules = ServerRules(SYNC, workers=workers, report_every=migrate_every, together=together)
        self.servers = [
            ServerMachine(
                index,
                table,
                optimizer(np.zeros(int(table.units.sizes[table.of(index)].sum()), np.float32)),
                rules,
            )
            for index in range(table.servers)
        ]
        self.workers = [
            WorkerMachine(
                rank,
                1,
                np.zeros(table.size, np.uint32),
                table,
                WorkerRules(
                    SYNC,
                    filter or FilterRule(),
                    words_each=1 if migrate_every and rank == 0 else 0,
                    workers=workers,
                    together=together,
                ),
                Residual(table.size),
            )
            for rank in range(workers)
        ]
        for worker in self.workers:
            self.exchange([(worker.worker, [worker.hello(server) for server in range(table.servers)])])

    def exchange(self, sent: Sequence[tuple[int, list[Message]]]) -> None:
        """Deliver messages of workers to the servers, and all that follows."""
        count = len(self.workers)
        net = [(rank, count + server, one) for rank, own in sent for server, one in enumerate(own)]
        while net:
            sender, to, message = net.pop(0)
            self.told(sender, to, message.encode().size)
            if to < count:
                self.workers[to].on_message(sender - count, message)
                continue
            server = self.servers[to - count]
            net += [(to, answer.member, answer) for answer in server.handle(message)]
            for other, handed in server.outstanding():
                if (handed.epoch, to, other) not in self.handed_over:
                    self.handed_over.add((handed.epoch, to, other))
                    net.append((to, count + other, handed))


def model_of(machines: Machines) -> Floats:
    found = np.zeros(machines.table.size, np.float32)
    for server in machines.servers:
        found[machines.table.units.elements(server.table.of(server.index))] = server.optimizer.parameters
    return found


@pytest.mark.parametrize("optimizer", [Sum, Momentum])
def test_migrations_change_nothing_and_take_the_optimizers_state_along(optimizer: type[Sum]) -> None:
    units, models = Units.of([ParameterInfo("a", (20, 3), row=3), ParameterInfo("b", (50,), row=8)]), []
    for moves in (False, True):
        rng, numbers = np.random.default_rng(3), np.random.default_rng(5)
        machines = Machines(Table.placed(units, 3, rng.integers(3, size=len(units))), 2, optimizer=optimizer)
        for _ in range(6):
            if moves:
                there = rng.permutation(np.arange(len(units)) % 3)
                machines.workers[0]._planned = np.stack([np.arange(len(units)), there], axis=1)
            gradients = [numbers.standard_normal(units.size).astype(np.float32) for _ in range(2)]
            machines.exchange(
                [
                    (rank, worker.push(gradient, 0.1))
                    for rank, (worker, gradient) in enumerate(zip(machines.workers, gradients, strict=True))
                ]
            )
        models.append(model_of(machines))
        for worker in machines.workers:
            np.testing.assert_array_equal(worker.words.view(np.float32), models[-1])
        assert (machines.workers[1].moved > 50) == moves
        assert (sum(server.holdings.handed_over for server in machines.servers) > 0) == moves
    np.testing.assert_array_equal(models[0], models[1])


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


def test_units_change_places_though_neither_server_has_much_room() -> None:
    owner, sizes = np.repeat([0, 1], 20), np.full(40, 10)
    use = np.zeros((2, 40))
    use[0, 20:], use[1, :20] = 90.0, 100.0
    moves = decided(use, owner, sizes)
    assert len(moves) == 40 and (moves[:, 1] != owner[moves[:, 0]]).all()


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
    units = Units.of([ParameterInfo("p", (rows, 4), row=4)])
    words = 0

    def told(sender: int, to: int, size: int) -> None:
        nonlocal words
        words += size if sender % machines != to % machines else 0

    table = Table.placed(units, machines, np.random.default_rng(1).integers(machines, size=rows))
    made = Machines(table, machines, told, migrate_every=migrate_every, together=True)

    def used(worker: int, step: int) -> UnitSet:
        third = (worker + (step >= steps // 2)) % machines
        return UnitSet(2 + third, np.arange(third * rows // machines, (third + 1) * rows // machines))

    for step in range(steps):
        made.exchange(
            [
                (
                    rank,
                    worker.push(
                        np.ones(4 * used(rank, step).units.size, np.float32),
                        0.1,
                        units=used(rank, step),
                        wanted=used(rank, step + 1),
                    ),
                )
                for rank, worker in enumerate(made.workers)
            ]
        )
    return words, made.workers[0].moved


def test_migrations_pay_for_themselves() -> None:
    """Words that leave a machine, reports and handovers among them, are far fewer than where all stays."""
    stays, none = exchanged(0)
    moves, moved = exchanged(10)
    assert none == 0 and moved > 100
    assert moves < 0.25 * stays


def busiest(
    migrate_every: int, workers: int = 4, servers: int = 3, count: int = 240, steps: int = 200
) -> int:
    """Push what is above a filter's threshold, which the first third of the blocks is more often, and take
    what has changed; return the words that the busiest server takes and gives, reports and handovers too.
    """
    units = Units.of([ParameterInfo("p", (count, 16), row=16)])
    owner = np.arange(count) * servers // count
    words, rng = np.zeros(workers + servers, np.int64), np.random.default_rng(1)

    def told(sender: int, to: int, size: int) -> None:
        words[[sender, to]] += size

    made = Machines(
        Table.placed(units, servers, owner),
        workers,
        told,
        migrate_every=migrate_every,
        filter=FilterRule(0.05),
    )
    for _ in range(steps):
        sent = []
        for rank, worker in enumerate(made.workers):
            chosen = rng.random(count) < np.where(owner == 0, 0.5, 0.05)
            sent.append((rank, worker.push(np.repeat(chosen, 16).astype(np.float32), 0.1)))
        made.exchange(sent)
    return int(words[workers:].max())


def test_migrations_of_blocks_take_more_off_the_busiest_server_than_they_cost_it() -> None:
    assert busiest(20) < 0.85 * busiest(0)  # by no more: each keeps its share of the elements and a tenth
