# SPDX-License-Identifier: Apache-2.0
"""The share of its learning rate with which a push moves the model, by how stale it is."""

from pathlib import Path

import numpy as np

from tests.host_agent.parameter_server.world import Sum, alone
from weir.host_agent.parameter_server.journal import Journal
from weir.host_agent.parameter_server.residual import Residual
from weir.host_agent.parameter_server.routing import Integers
from weir.host_agent.parameter_server.server_machine import ServerMachine
from weir.host_agent.parameter_server.server_rules import ServerRules
from weir.host_agent.parameter_server.value_filter import Floats
from weir.host_agent.parameter_server.worker_machine import WorkerMachine, WorkerRules

SIZE = 8


class Shares(Sum):
    """Notes the shares of its steps."""

    def __init__(self) -> None:
        super().__init__(np.zeros(SIZE, np.float32))
        self.shares: list[float] = []

    def step(
        self, gradient: Floats, touched: Integers | None, lr: float, share: float, settings: str
    ) -> None:
        super().step(gradient, touched, lr, share, settings)
        self.shares.append(share)


def joined(server: ServerMachine, count: int) -> list[WorkerMachine]:
    workers = [
        WorkerMachine(rank, 1, np.empty(SIZE, np.uint32), alone(SIZE), WorkerRules(), Residual(SIZE))
        for rank in range(count)
    ]
    for worker in workers:
        for answer in server.handle(worker.hello(0)):
            worker.on_message(0, answer)
    return workers


def push(server: ServerMachine, worker: WorkerMachine, *, answered: bool = True) -> None:
    answers = server.handle(*worker.push(np.ones(SIZE, np.float32), 1.0))
    for answer in answers if answered else []:
        worker.on_message(0, answer)


def test_workers_that_take_turns_share_a_step() -> None:
    optimizer = Shares()
    server = ServerMachine(0, alone(SIZE), optimizer, ServerRules())
    workers = joined(server, 3)
    for _ in range(4):
        for worker in workers:
            push(server, worker)
    assert optimizer.shares == [1 / 3] * 12


def test_a_push_that_is_staler_moves_the_model_less() -> None:
    optimizer = Shares()
    server = ServerMachine(0, alone(SIZE), optimizer, ServerRules())
    slow, quick = joined(server, 2)
    for _ in range(5):
        push(server, quick)
    push(server, slow)  # its model lacks five pushes
    push(server, slow)
    assert optimizer.shares == [1 / 2] * 5 + [1 / 6, 1 / 2]


def test_pushes_whose_answers_are_under_way_are_stale() -> None:
    optimizer = Shares()
    server = ServerMachine(0, alone(SIZE), optimizer, ServerRules())
    (worker,) = joined(server, 1)
    for _ in range(3):
        push(server, worker, answered=False)
    assert optimizer.shares == [1, 1 / 2, 1 / 3]


def test_a_restarted_server_knows_how_stale_pushes_are(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        server = ServerMachine(0, alone(SIZE), Shares(), ServerRules(), journal)
        slow, quick = joined(server, 2)
        push(server, quick)
        server.save()
        push(server, quick)
    optimizer = Shares()
    with Journal(tmp_path) as journal:
        server = ServerMachine(0, alone(SIZE), optimizer, ServerRules(), journal)
        push(server, slow)
    assert optimizer.shares == [1 / 2, 1 / 3], "of what came after the checkpoint, and of what came now"
