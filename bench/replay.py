# SPDX-License-Identifier: Apache-2.0
"""Recorded gradients, and methods that are applied to them: many methods see the same gradients.

``record`` trains densely and keeps every worker's gradients in a file. ``Replay`` does with them what the
DDP hook does, but for the network: each worker's residuals and choice (host_agent.local_gradients), one
format for all (host_agent.formats), and sums in memory, without rounding. With fewer workers than were
recorded it takes the first ones' gradients.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from host_agent.bucket_layout import BucketLayout
from host_agent.dtypes import Lanes
from host_agent.formats import SCALE_LANES, Formats, Plan, Proposal, parse_rule
from host_agent.formats.cost import Flags, Occupancy, Traffic, exchange_traffic
from host_agent.local_gradients import LocalGradients
from host_agent.loss_policy import LossPolicy
from host_agent.primitive import Peers, Primitive
from host_agent.report import ReduceReport
from host_agent.sparsifiers import SparsifierOptions, create_sparsifier
from weir.train.config import PRESETS, Model, make_config
from weir.train.data import share
from weir.train.task import make_task, mean_loss

SLOTS = 256
"""Slots of the job whose traffic is counted: as many as ``weir train`` gets."""


@dataclass(frozen=True)
class Recording:
    """Gradients of a dense training: float32[steps, workers, elements] in a file."""

    path: Path
    model: Model
    steps: int
    workers: int

    def open(self) -> npt.NDArray[np.float32]:
        """What was recorded, read as it is used."""
        flat = np.memmap(self.path, np.float32, mode="c")
        return flat.reshape(self.steps, self.workers, -1)


def record(path: Path, model: Model, workers: int, steps: int, seed: int = 1) -> Recording:
    """Train so many steps with so many workers in this process, dense and synchronous."""
    config = make_config(model=model, workers=workers, seed=seed)
    task = make_task(config)
    parameters = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=config.lr)
    train, epoch = task.data.train, 0
    todo: list[tuple[torch.Tensor, ...]] = []
    with path.open("wb") as out:
        for _ in range(steps):
            if not todo:
                epoch += 1
                ranks = [
                    share(len(train), rank, workers, config.batch_size, seed, epoch)
                    for rank in range(workers)
                ]
                todo = list(zip(*ranks, strict=True))
            mean: torch.Tensor | None = None
            for batch in todo.pop(0):
                loss = mean_loss(task.model(train.inputs[batch]), train.targets[batch])
                gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)])
                out.write(gradient.numpy().data)
                mean = gradient / workers if mean is None else mean + gradient / workers
            assert mean is not None, "there is a worker"
            lengths = [parameter.numel() for parameter in parameters]
            for parameter, part in zip(parameters, torch.split(mean, lengths), strict=True):
                parameter.grad = part.view_as(parameter)
            if (limit := PRESETS[model].clip) is not None:
                torch.nn.utils.clip_grad_norm_(parameters, limit)
            optimizer.step()
    return Recording(path, model, steps, workers)


@dataclass(frozen=True)
class Sent:
    """What the workers sent in one step.

    chosen: of each parameter bool[workers, length], what each worker chose. plan: the formats. elements: that
    travelled from each worker: its own, or all of the union if the method fills it. counters: numbers that
    each worker told the others.
    """

    chosen: tuple[Flags, ...]
    plan: Plan
    masks: tuple[int | None, ...]
    elements: int
    counters: int
    fills_union: bool

    def traffic(self) -> Traffic:
        """What it takes on the wire, exactly."""
        return exchange_traffic(
            [Occupancy(chosen) for chosen in self.chosen],
            self.masks,
            block=self.plan.block,
            levels=self.plan.levels,
            slots=SLOTS,
            counters=self.counters,
            fills_union=self.fills_union,
        )


class Replay:
    """One method, applied by all workers step after step."""

    def __init__(
        self, module: torch.nn.Module, method: str, workers: int, density: float, rule: str | None = None
    ) -> None:
        """module: whose gradients they are. rule: of formats; None: the method's own."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.layout = BucketLayout.of(0, [name for name, _ in named], [p for _, p in named], SCALE_LANES)
        self.ranks: list[LocalGradients] = []
        for rank in range(workers):
            sparsifier = create_sparsifier(method, SparsifierOptions(density=density, seed=1))
            gradients = LocalGradients(sparsifier, LossPolicy.of(0.0))
            gradients.join(module, rank, workers)
            self.ranks.append(gradients)
        first = self.ranks[0].sparsifier
        self.formats = Formats(parse_rule(rule or first.format), first)
        self.formats.join(workers, SLOTS)

    def step(self, gradients: npt.NDArray[np.float32]) -> Sent:
        """One step of all workers. gradients: float32[workers or more, elements]."""
        layout, fills = self.layout, self.ranks[0].sparsifier.fills_union
        outgoing = [
            rank.prepare(layout, torch.from_numpy(own))
            for rank, own in zip(self.ranks, gradients, strict=False)
        ]
        chosen = torch.stack([one.sent != 0 for one in outgoing])
        plan = self.formats.plan(layout, self.ranks[0].spans, self.ranks[0].excluded)
        # With one worker, who would send what any of them would, the selection is what all would agree on.
        selection = Proposal(plan, layout, chosen.any(dim=0).float()).agree(_peers(0, 1))
        total = torch.zeros(layout.length)
        notes: list[Lanes] = []
        for number, (rank, one) in enumerate(zip(self.ranks, outgoing, strict=True)):
            packed = selection.pack(one.compensated if fills else one.sent)
            notes.append(self.formats.notes(_peers(number, len(outgoing)), selection, packed))
            delivered = selection.unpack(packed)
            total += delivered
            rank.settle(one, one.compensated - delivered)
        union = selection.union(total)
        for rank in self.ranks:
            rank.observe(layout, total, union)
            rank.end_step()
        told = cast(Lanes, np.bitwise_or.reduce(notes))
        self.formats.settle(selection, total, len(outgoing), told)
        self.formats.end_step()
        return self._sent(chosen, plan, told.size // len(outgoing), int(torch.count_nonzero(union)), fills)

    def _sent(self, chosen: torch.Tensor, plan: Plan, counters: int, union: int, fills: bool) -> Sent:
        flags: Flags = chosen.numpy()
        elements = len(flags) * union if fills else int(np.count_nonzero(flags))
        return Sent(
            tuple(flags[:, segment.in_vector] for segment in self.layout),
            plan,
            tuple(plan.formats[segment.name].mask for segment in self.layout),
            elements,
            counters,
            fills,
        )


class _Alone:
    """A network with one worker: every sum is its own contribution."""

    def reduce(self, *_what: object, **_how: object) -> ReduceReport:
        """Leaves the lanes as they are; nobody reads the report."""
        return cast(ReduceReport, None)

    def barrier(self) -> ReduceReport:
        """Nobody to wait for."""
        return cast(ReduceReport, None)


def _peers(rank: int, size: int) -> Peers:
    return Peers(cast(Primitive, _Alone()), rank, size)
