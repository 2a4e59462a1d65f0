# SPDX-License-Identifier: Apache-2.0
"""Asynchronous pushes over flows that lose: within their budget, the smallest first, and nothing for good."""

from random import Random

import numpy as np
import pytest

from tests.host_agent.flows.world import FLOW_ID, Floats, Meddling, World, is_chunk, is_protected
from tests.host_agent.parameter_server.world import Sum, alone
from weir.host_agent.flows import FlowConfig
from weir.host_agent.parameter_server.flow_ends import service_of
from weir.host_agent.parameter_server.messages import Kind, Message, MessageError
from weir.host_agent.parameter_server.residual import Residual
from weir.host_agent.parameter_server.server_machine import ServerMachine
from weir.host_agent.parameter_server.server_rules import ServerRules
from weir.host_agent.parameter_server.value_filter import FilterRule
from weir.host_agent.parameter_server.worker_machine import WorkerMachine, WorkerRules
from weir.simulator.link import Faults

SIZE, STEPS = 20_000, 12
ALL = Faults(delay=100_000, jitter=200_000, loss=0.05, duplicate=0.05)


class Session:
    """A worker and a server; pushes take a flow through a network with faults, the way back has none."""

    def __init__(self, budget: float, faults: Faults, meddling: Meddling, seed: int) -> None:
        self.budget = budget
        self.config = FlowConfig(FLOW_ID, max_loss=budget)
        self.world = World(self.config, seed, faults, faults, meddling, meddling)
        self.server = ServerMachine(0, alone(SIZE), Sum(np.zeros(SIZE, np.float32)), ServerRules())
        rules = WorkerRules(filter=FilterRule(2.0))
        self.held = Residual(SIZE)
        self.worker = WorkerMachine(0, 1, np.empty(SIZE, np.uint32), alone(SIZE), rules, self.held)
        self.missing: list[float] = []  # of each push, by the server's books
        for answer in self.server.handle(self.worker.hello(0)):
            self.worker.on_message(0, answer)

    def push(self, gradient: Floats) -> None:
        """Push, and take in what comes of it."""
        (push,) = self.worker.push(gradient, 1.0)
        words = push.encode()
        self.world.submit(words.view(np.float32), service_of(push, words, self.config, self.budget, layer=1))
        self.world.run()
        delivery = self.world.deliveries[push.number]
        message = Message.received(delivery.values.view(np.uint32), delivery.lanes_received())
        self.missing.append(sum(count for *_, count in message.lost) / push.droppable)
        for _ in range(2):  # told twice, refunded once
            for answer in self.server.handle(message):
                self.worker.on_message(0, answer)


def gradients(seed: int) -> list[Floats]:
    numbers = np.random.default_rng(seed)
    return [
        (numbers.integers(-6, 7, SIZE) * (numbers.random(SIZE) < 0.7)).astype(np.float32)
        for _ in range(STEPS)
    ]


@pytest.mark.parametrize("budget", [0.0, 0.1, 0.4])
@pytest.mark.parametrize(
    ("faults", "meddling"),
    [(ALL, Meddling(trim=0.5, garbage=0.1)), (Faults(), Meddling(trim=1.0)), (Faults(loss=0.3), Meddling())],
)
def test_what_entered_is_in_the_model_or_held(budget: float, faults: Faults, meddling: Meddling) -> None:
    session = Session(budget, faults, meddling, seed=3)
    entered = np.zeros(SIZE, np.float32)
    for gradient in gradients(5):
        entered += gradient
        session.push(gradient)
        held = session.held.arrays()["sum"]
        np.testing.assert_array_equal(held - session.server.optimizer.parameters, entered)
        model = session.worker.words.view(np.float32)
        np.testing.assert_array_equal(model, session.server.optimizer.parameters)
    assert max(session.missing) <= budget
    assert (session.worker.refunded > 0) == (budget > 0)
    assert session.worker.settled


def test_the_smallest_values_may_be_lost_and_where_they_belong_may_not() -> None:
    """Every chunk that may be trimmed is; those are the ones with the smallest mean magnitude."""
    session = Session(0.1, Faults(), Meddling(trim=1.0), seed=1)
    rising = np.linspace(3, 9, SIZE).astype(np.float32)
    session.push(rising)
    chunks = [frame for frame in session.world.there.seen if is_chunk(frame)]
    assert is_protected(chunks[0]), "the message's head, and the payload's"
    assert any(not is_protected(frame) for frame in chunks)
    lost = session.held.arrays()["sum"] != 0
    assert 0 < lost.sum() <= 0.1 * SIZE
    assert rising[lost].max() < np.quantile(rising, 0.4)


def test_a_message_without_its_head_is_none() -> None:
    words = Message(Kind.ALIVE, 0, 1).encode()
    came = np.ones(words.size, np.bool_)
    came[Random(1).randrange(words.size)] = False
    with pytest.raises(MessageError, match="head"):
        Message.received(words, came)


def test_messages_that_carry_no_values_are_lossless() -> None:
    config = FlowConfig(FLOW_ID)
    for message in (
        Message(Kind.ALIVE, 0, 1),
        Message(Kind.BEGIN, 0, 1, payload=np.ones(9999, np.uint32)),
    ):
        words = message.encode()
        assert not service_of(message, words, config, 0.5, layer=2).budgets.size
