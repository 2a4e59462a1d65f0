# SPDX-License-Identifier: Apache-2.0
"""What workers send in real trainings, without a network: for what costs are compared on.

All workers train in one process: gradients of their own share of the data with the same parameters, and what
the DDP hook does with them (host_agent.local_gradients).

Example::

    planned = Planned(workers=4, slots=256)
    for step in record(Setting("lm", "topk", density=0.01), steps=20):
        plan, traffic = planned.step(step)     # what the automatic choice costs
        dense = step.traffic(None, block=256, levels=1, slots=256)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch

from host_agent.bucket_layout import BucketLayout
from host_agent.formats.cost import Occupancy, Traffic, exchange_traffic
from host_agent.formats.format import SCALE_LANES, Plan
from host_agent.formats.planner import Planner
from host_agent.local_gradients import LocalGradients, Outgoing
from host_agent.loss_policy import LossPolicy
from host_agent.sparsifiers import SparsifierOptions, create_sparsifier
from weir.train.config import PRESETS, Model, make_config
from weir.train.data import share
from weir.train.task import make_task, mean_loss


@dataclass(frozen=True)
class Setting:
    """A training: model, method (a sparsifier's name), how much it keeps, how many workers."""

    model: Model
    method: str
    density: float = 0.05
    workers: int = 4
    block: int = 256
    seed: int = 1


@dataclass(frozen=True)
class Step:
    """One step of all workers.

    names: the model's parameters in their order. sent: for each, bool[workers, length], what each worker
    chose. total: for each, float32[length], the sum of what was sent. fills: workers send all that is
    selected.
    """

    names: tuple[str, ...]
    sent: tuple[npt.NDArray[np.bool_], ...]
    total: tuple[torch.Tensor, ...]
    fills: bool = False

    @cached_property
    def parts(self) -> tuple[Occupancy, ...]:
        """What each worker sends of each parameter."""
        return tuple(map(Occupancy, self.sent))

    @cached_property
    def layout(self) -> BucketLayout:
        """All parameters in one bucket."""
        return BucketLayout.of(0, self.names, self.total, SCALE_LANES)

    def traffic(self, mask: int | None, *, block: int, levels: int, slots: int) -> Traffic:
        """What one format for all parameters costs."""
        return self._traffic([mask] * len(self.names), block, levels, slots)

    def _traffic(
        self, masks: list[int | None], block: int, levels: int, slots: int, counters: int = 0
    ) -> Traffic:
        return exchange_traffic(
            self.parts,
            masks,
            block=block,
            levels=levels,
            slots=slots,
            counters=counters,
            fills_union=self.fills,
        )


class Planned:
    """What the automatic choice of formats costs, step by step: the planner, without the network."""

    def __init__(self, workers: int, slots: int, *, fills: bool = False) -> None:
        self.planner = Planner(workers, slots, fills=fills)
        self.slots = slots

    def step(self, step: Step) -> tuple[Plan, Traffic]:
        """The plan of a step, and what it costs."""
        plan = self.planner.plan(step.layout, {}, None)
        masks = [plan.formats[name].mask for name in step.names]
        selected = [_selected(sent, mask) for sent, mask in zip(step.sent, masks, strict=True)]
        counts = np.stack([self._count(step, row) for row in zip(*selected, strict=True)])
        total = torch.zeros(step.layout.length)
        for segment, part in zip(step.layout, step.total, strict=True):
            total[segment.in_vector] = part
        self.planner.observe(step.layout, plan, total, counts)
        self.planner.end_step()
        return plan, step._traffic(masks, plan.block, plan.levels, self.slots, counts.shape[1])

    def _count(self, step: Step, parts: tuple[npt.NDArray[np.bool_], ...]) -> npt.NDArray[np.uint32]:
        """What one worker counts of its packed vector."""
        layout = step.layout.resized([part.size for part in parts], SCALE_LANES)
        packed = torch.zeros(layout.length, dtype=torch.bool)
        for segment, part in zip(layout, parts, strict=True):
            packed[segment.in_vector] = torch.from_numpy(part)
        return self.planner.count(layout, packed)


def _selected(sent: npt.NDArray[np.bool_], mask: int | None) -> npt.NDArray[np.bool_]:
    """What is packed of one parameter: bool[workers, elements]."""
    if mask is None:
        return sent
    rows = np.pad(sent, ((0, 0), (0, -sent.shape[1] % mask))).reshape(len(sent), -1, mask)
    chosen: npt.NDArray[np.bool_] = rows[:, rows.any(axis=(0, 2))].reshape(len(sent), -1)
    return chosen


def record(setting: Setting, steps: int) -> Iterator[Step]:
    """The first ``steps`` steps of a training."""
    return islice(_Training(setting).run(), steps)


class _Training:
    def __init__(self, setting: Setting) -> None:
        self.workers, seed = setting.workers, setting.seed
        config = make_config(model=setting.model, workers=setting.workers, seed=seed)
        self.batch, self.seed, self.lr = config.batch_size, config.seed, config.lr
        self.clip = PRESETS[setting.model].clip
        self.task = make_task(config)
        options = SparsifierOptions(setting.density, block=setting.block, seed=setting.seed)
        named = list(self.task.model.named_parameters())
        self.parameters = [parameter for _, parameter in named]
        self.layout = BucketLayout.of(0, [name for name, _ in named], self.parameters, SCALE_LANES)
        self.ranks = []
        for rank in range(self.workers):
            gradients = LocalGradients(create_sparsifier(setting.method, options), LossPolicy.of(0.0))
            gradients.join(self.task.model, rank, self.workers)
            self.ranks.append(gradients)

    def run(self) -> Iterator[Step]:
        train, optimizer = self.task.data.train, torch.optim.SGD(self.parameters, lr=self.lr)
        epoch = 0
        while True:
            epoch += 1
            batches = [
                share(len(train), rank, self.workers, self.batch, self.seed, epoch)
                for rank in range(self.workers)
            ]
            for parts in zip(*batches, strict=True):
                yield self._step([self._gradient(part) for part in parts], optimizer)

    def _gradient(self, batch: torch.Tensor) -> torch.Tensor:
        train = self.task.data.train
        loss = mean_loss(self.task.model(train.inputs[batch]), train.targets[batch])
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, self.parameters)])

    def _step(self, gradients: list[torch.Tensor], optimizer: torch.optim.Optimizer) -> Step:
        outgoing = [
            rank.prepare(self.layout, bucket) for rank, bucket in zip(self.ranks, gradients, strict=True)
        ]
        chosen = [one.sent != 0 for one in outgoing]
        delivered = self._delivered(outgoing, torch.stack(chosen).any(dim=0))
        total = torch.stack(delivered).sum(dim=0)
        for rank, one, what in zip(self.ranks, outgoing, delivered, strict=True):
            rank.settle(one, what)
            rank.observe(self.layout, total)
            rank.end_step()
        for segment, parameter in zip(self.layout, self.parameters, strict=True):
            parameter.grad = total[segment.in_vector].view_as(parameter).clone()
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        optimizer.step()
        places = [segment.in_vector for segment in self.layout]
        flags = torch.stack(chosen).numpy()
        return Step(
            tuple(segment.name for segment in self.layout),
            tuple(flags[:, place] for place in places),
            tuple(total[place] for place in places),
            self.ranks[0].sparsifier.fills_union,
        )

    def _delivered(self, outgoing: list[Outgoing], union: torch.Tensor) -> list[torch.Tensor]:
        """What each worker sends: what it chose, or all that any chose if its method wants so."""
        if self.ranks[0].sparsifier.fills_union:
            return [one.compensated * union for one in outgoing]
        return [one.sent for one in outgoing]
