# SPDX-License-Identifier: Apache-2.0
"""Data and accuracy by threshold and schedule of Parameter Flow's filter.

Ratatouille's table (MNIST, asynchronous) with the digits that Weir trains on: the state machines of server
and workers in one process, which alternate in an order drawn from the seed. So a worker's model lacks what
others have pushed since its own last turn, and runs repeat bit by bit. Bytes are those of the flows' data
packets with their headers, of what is sent once a worker has begun.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final

import numpy as np
import torch

from weir.bench.case import ParameterError, Run, parameter
from weir.bench.results import Column, Row, Table
from weir.host_agent.flows import FlowConfig
from weir.host_agent.parameter_server import routing
from weir.host_agent.parameter_server.messages import Message
from weir.host_agent.parameter_server.residual import MomentumResidual, Residual
from weir.host_agent.parameter_server.server_machine import ServerMachine
from weir.host_agent.parameter_server.server_rules import ServerRules
from weir.host_agent.parameter_server.value_filter import FilterRule
from weir.host_agent.parameter_server.worker_machine import WorkerMachine, WorkerRules
from weir.host_agent.torch.parameter_server.shard_optimizer import UnitsOptimizer, spec_of
from weir.host_agent.transport.report import FRAME_OVERHEAD
from weir.train.config import PRESETS, SGD_MODELS, Model
from weir.train.data import digits, learning_rate, share, stdlib
from weir.train.models import make_model
from weir.train.task import accuracy, mean_loss
from weir.wire.definition import FLOW

_FLOW: Final = FlowConfig(0)


@dataclass(frozen=True)
class Outcome:
    """One run: bytes that workers pushed and that the server sent, the accuracy of the server's model, and
    the loss at each push.
    """

    pushed: int
    sent: int
    accuracy: float
    losses: tuple[float, ...]

    @property
    def total(self) -> int:
        """Bytes of both directions."""
        return self.pushed + self.sent


@dataclass(frozen=True)
class Setting:
    """The settings of all runs.

    momentum: of workers, whose buffer is their residual; 0: none. at_server: of the server instead; workers
    have a plain residual. delay: pushes, anybody's, that are made before a push reaches the server. tempered:
    what is stale moves the model less, see ``ServerMachine``. max_steps: of each worker and epoch at most.
    """

    model: Model
    workers: int
    epochs: int
    momentum: float = 0.0
    at_server: bool = False
    delay: int = 0
    tempered: bool = True
    max_steps: int | None = None


def wire_bytes(message: Message) -> int:
    """Return the bytes of a message's data packets."""
    lanes = message.encode().size
    return 4 * lanes + _FLOW.chunks(lanes) * (FRAME_OVERHEAD + FLOW.size)


def train(setting: Setting, rule: FilterRule, seed: int) -> Outcome:
    """Train with one filter in both directions."""
    preset = PRESETS[setting.model]
    data = stdlib() if preset.data == "stdlib" else digits()
    torch.manual_seed(seed)
    model = make_model(setting.model)
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    peak = preset.lr * (1 - setting.momentum)
    table = routing.Table.shares([routing.ParameterInfo(name, tuple(p.shape)) for name, p in named], 1)
    optimizer = UnitsOptimizer(
        table.units,
        table.of(0),
        spec_of(torch.optim.SGD(model.parameters(), lr=peak, momentum=setting.momentum * setting.at_server)),
    )
    parameters = [parameter for _, parameter in named]
    with torch.no_grad():
        optimizer.parameters[:] = torch.nn.utils.parameters_to_vector(parameters).numpy()
    size = optimizer.parameters.size
    server = ServerMachine(
        0, table, optimizer, ServerRules(filter=rule, peak_lr=peak, tempered=setting.tempered)
    )
    workers = [
        WorkerMachine(
            rank,
            1,
            np.empty(size, np.uint32),
            table,
            WorkerRules(filter=rule, peak_lr=peak),
            MomentumResidual(size, setting.momentum)
            if setting.momentum and not setting.at_server
            else Residual(size),
        )
        for rank in range(setting.workers)
    ]
    for worker in workers:
        for answer in server.handle(worker.hello(0)):
            worker.on_message(0, answer)
    pushed = sent = 0
    losses: list[float] = []
    under_way: deque[Message] = deque()
    for rank, batch, step, steps in _turns(setting, len(data.train), preset.batch_size, seed):
        worker = workers[rank]
        lr = learning_rate(peak, step, steps)
        torch.nn.utils.vector_to_parameters(
            torch.from_numpy(worker.words.view(np.float32).copy()), parameters
        )
        model.zero_grad()
        loss = mean_loss(model(data.train.inputs[batch]), data.train.targets[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        if preset.clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, preset.clip)
        gradient = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None]).numpy()
        (push,) = worker.push(gradient, lr, f'[{{"lr": {lr!r}}}]')
        pushed += wire_bytes(push)
        under_way.append(push)
        while len(under_way) > setting.delay:
            for answer in server.handle(under_way.popleft()):
                sent += wire_bytes(answer)
                workers[answer.member].on_message(0, answer)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(optimizer.parameters.copy()), parameters)
    return Outcome(pushed, sent, accuracy(model, data.test), tuple(losses))


def _turns(
    setting: Setting, samples: int, batch_size: int, seed: int
) -> "list[tuple[int, torch.Tensor, int, int]]":
    """Return whose turn it is, with which batch, and the number of its step out of how many."""
    order, found = np.random.default_rng(seed), []
    for epoch in range(1, setting.epochs + 1):
        batches = [
            share(samples, rank, setting.workers, batch_size, seed, epoch)[: setting.max_steps]
            for rank in range(setting.workers)
        ]
        a_epoch = len(batches[0])
        ranks = order.permutation(np.repeat(np.arange(setting.workers), a_epoch))
        made = [0] * setting.workers
        for rank in ranks.tolist():
            step = (epoch - 1) * a_epoch + made[rank]
            found.append((rank, batches[rank][made[rank]], step, a_epoch * setting.epochs))
            made[rank] += 1
    return found


@dataclass(frozen=True)
class Parameters:
    """The training, and its filters: all combinations of thresholds and schedules."""

    model: str = parameter(
        "mlp", "that is trained", choices=[name for name in SGD_MODELS if name != "resnet18"]
    )
    workers: int = parameter(4, "workers", least=1, most=32)
    epochs: int = parameter(10, "passes over the training data", least=1)
    max_steps: int | None = parameter(None, "of each worker and epoch at most", least=1)
    thresholds: tuple[float, ...] = parameter(
        (0.001, 0.003, 0.01, 0.03), "of the first step, in units of the parameters", above=0, most=1000
    )
    schedules: tuple[str, ...] = parameter(
        ("constant", "lr", "sqrt", "cbrt"), "of constant, lr, sqrt, cbrt and rootA (such as root4)"
    )
    block: int = parameter(1, "elements that are sent or held together, a power of two", least=1, most=256)
    momentum: float = parameter(
        0.0, "of the workers, whose buffer is then their residual", least=0, most=0.99
    )
    at_server: bool = parameter(False, "momentum on the server instead")
    delay: int = parameter(0, "pushes, of all workers, made before one reaches the server", least=0)
    tempered: bool = parameter(True, "the staler a push is, the less it moves the model, as in training")

    def __post_init__(self) -> None:
        self.rules()

    def rules(self) -> list[FilterRule]:
        """Return all filters. Raises ParameterError."""
        try:
            return [
                FilterRule(threshold, schedule, self.block)
                for schedule in self.schedules
                for threshold in self.thresholds
            ]
        except ValueError as error:
            raise ParameterError(str(error)) from None


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Train: a row per filter, against the same runs without one."""
    torch.set_num_threads(1)
    given = vars(parameters)
    setting = Setting(**{name: given[name] for name in Setting.__dataclass_fields__})
    found: dict[str, list[Outcome]] = {}
    for rule in (FilterRule(), *parameters.rules()):
        name = str(rule) if found else _NONE
        run.say(f"filter {name} ...")
        found[name] = [train(setting, rule, seed) for seed in run.seeds]
    what = "SGD on the server"
    if setting.momentum:
        what = f"momentum {setting.momentum:g} on the {'server' if setting.at_server else 'workers'}"
    if setting.delay:
        what += f", pushes {setting.delay} pushes late, {'' if setting.tempered else 'not '}tempered"
    yield Table(
        f"Parameter Flow, {setting.model}, {setting.workers} asynchronous workers, {setting.epochs} "
        f"epochs, {what}",
        (
            Column("all MB", lambda n: f"{n:.1f}", "data packets of flows with headers, both directions"),
            *(Column(f"{way} MB", lambda n: f"{n:.1f}") for way in ("pushed", "sent")),
            *(
                Column(way, lambda n: f"{n:+.1%}", "against no filter")
                for way in ("push", "pull", "all data")
            ),
            Column("accuracy", lambda n: f"{n:.2%}"),
            Column("points", lambda n: f"{n:+.2f}", "of accuracy, against no filter"),
        ),
        tuple(_row(name, found[_NONE], one) for name, one in found.items()),
        peers=(_NONE,),
        notes=(f"means of {len(run.seeds)} seeds",),
    )


_NONE: Final = "none"


def _row(name: str, plain: Sequence[Outcome], found: Sequence[Outcome]) -> Row:
    ways = {"push": "pushed", "pull": "sent", "all data": "total"}
    less = {
        head: mean(
            getattr(run, way) / getattr(before, way) - 1 for run, before in zip(found, plain, strict=True)
        )
        for head, way in ways.items()
    }
    points = mean(run.accuracy - before.accuracy for run, before in zip(found, plain, strict=True))
    return Row(
        name,
        {
            "all MB": mean(run.total for run in found) / 1e6,
            "pushed MB": mean(run.pushed for run in found) / 1e6,
            "sent MB": mean(run.sent for run in found) / 1e6,
            **less,
            "accuracy": mean(run.accuracy for run in found),
            "points": 100 * points,
        },
    )
