# SPDX-License-Identifier: Apache-2.0
"""Recorded gradients, and methods that are applied to them: many methods see the same gradients.

``train`` trains densely; ``record`` keeps every worker's gradients in a file. ``Replay`` does with them what
the DDP hook does, but for the network: each worker's residuals and choice (host_agent.local_gradients), one
format for all (host_agent.formats), and sums in memory, without rounding. With fewer workers than were
recorded it takes the first ones' gradients.
"""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import SCALE_LANES, Encodings, Plan, Proposal, parse_rule
from weir.host_agent.compression.encodings.cost import Flags, Occupancy, Traffic, exchange_traffic
from weir.host_agent.compression.local_gradients import LocalGradients
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import SparsifierOptions, create_sparsifier
from weir.host_agent.transport.report import ReduceReport
from weir.train.config import PRESETS, Model, make_config
from weir.train.data import share
from weir.train.task import make_task, mean_loss

Gradients: TypeAlias = npt.NDArray[np.float32]  # [workers, elements], parameters in the module's order

SLOTS = 256
"""Slots of the job whose traffic is counted: as many as ``weir train`` gets."""


@dataclass(frozen=True)
class Recording:
    """Gradients of a dense training: float32[steps, workers, elements] in a file."""

    path: Path
    model: Model
    steps: int
    workers: int

    def open(self) -> Gradients:
        """Return what was recorded, read as it is used."""
        flat = np.memmap(self.path, np.float32, mode="c")
        return flat.reshape(self.steps, self.workers, -1)


def record(path: Path, model: Model, workers: int, steps: int, seed: int = 1) -> Recording:
    """Keep the gradients of the first steps of a training in a file."""
    with path.open("wb") as out:
        for gradients, _ in islice(train(model, workers, seed), steps):
            out.write(gradients.data)
    return Recording(path, model, steps, workers)


def train(
    model: Model, workers: int, seed: int = 1, batch_size: int | None = None
) -> Iterator[tuple[Gradients, list[float]]]:
    """Train with so many workers in this process, dense and synchronous, without end.

    Gives each step's gradients and the seconds that each worker's backward pass took.
    """
    config = make_config(model=model, workers=workers, seed=seed, batch_size=batch_size)
    task = make_task(config)
    parameters = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
    lengths = [parameter.numel() for parameter in parameters]
    optimizer, data = torch.optim.SGD(parameters, lr=config.lr), task.data.train
    for epoch in itertools.count(1):
        ranks = [share(len(data), rank, workers, config.batch_size, seed, epoch) for rank in range(workers)]
        for batches in zip(*ranks, strict=True):
            gradients, seconds = np.empty((workers, sum(lengths)), np.float32), []
            for batch, row in zip(batches, gradients, strict=True):
                loss = mean_loss(task.model(data.inputs[batch]), data.targets[batch])
                began = time.perf_counter()
                parts = torch.autograd.grad(loss, parameters)
                seconds.append(time.perf_counter() - began)
                torch.cat([part.flatten() for part in parts], out=torch.from_numpy(row))
            yield gradients, seconds
            mean = torch.from_numpy(gradients.mean(axis=0))
            for parameter, own in zip(parameters, torch.split(mean, lengths), strict=True):
                parameter.grad = own.view_as(parameter)
            if (limit := PRESETS[model].clip) is not None:
                torch.nn.utils.clip_grad_norm_(parameters, limit)
            optimizer.step()


@dataclass(frozen=True)
class Seconds:
    """What one worker does in a step to choose, and to choose the format, in seconds.

    choice: the sparsifier's. observing: it looks at the sum. mask: of what was chosen. planning: counting,
    telling the others, planning.
    """

    choice: float = 0.0
    observing: float = 0.0
    mask: float = 0.0
    planning: float = 0.0

    @property
    def total(self) -> float:
        """Return all of it."""
        return self.choice + self.observing + self.mask + self.planning


@dataclass(frozen=True)
class Sent:
    """What the workers sent in one step.

    chosen: of each parameter bool[workers, length], what each worker chose. plan: the formats. elements: that
    travelled from all workers: their own, or all of the union if the method fills it. counters: numbers that
    each worker told the others. total: of each parameter, what was delivered, summed. wanted, missing:
    squared norms of the sum of all that the workers had (gradients over their number, residuals), and of what
    of it was not delivered. seconds: of rank 0.
    """

    chosen: tuple[Flags, ...]
    plan: Plan
    masks: tuple[int | None, ...]
    elements: int
    counters: int
    fills_union: bool
    total: tuple[torch.Tensor, ...] = ()
    wanted: float = 0.0
    missing: float = 0.0
    seconds: Seconds = field(default_factory=Seconds)

    def traffic(self) -> Traffic:
        """Return what it takes on the wire, exactly."""
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
        self.formats = Encodings(parse_rule(rule or first.format), first)
        self.formats.join(workers, SLOTS)

    def step(self, gradients: Gradients) -> Sent:
        """Return one step of all workers. gradients: float32[workers or more, elements]."""
        layout, fills, first = self.layout, self.ranks[0].sparsifier.fills_union, self.ranks[0]
        outgoing = [
            rank.prepare(layout, torch.from_numpy(own))
            for rank, own in zip(self.ranks, gradients, strict=False)
        ]
        clock = _Clock()
        with clock("planning"):
            plan = self.formats.plan(layout, first.spans, first.excluded)
        with clock("mask"):
            Proposal(plan, layout, outgoing[0].sent)
        chosen = torch.stack([one.sent != 0 for one in outgoing])
        # With one worker, who would send what any of them would, the selection is what all would agree on.
        selection = Proposal(plan, layout, chosen.any(dim=0).float()).agree(_peers(0, 1))
        total, wanted = torch.zeros(layout.length), torch.zeros(layout.length)
        notes: list[Lanes] = []
        for number, (rank, one) in enumerate(zip(self.ranks, outgoing, strict=True)):
            packed = selection.pack(one.compensated if fills else one.sent)
            with clock("planning" if rank is first else "others"):
                notes.append(self.formats.notes(_peers(number, len(outgoing)), selection, packed))
            delivered = selection.unpack(packed)
            total += delivered
            wanted += one.compensated
            rank.settle(one, one.compensated - delivered)
        union = selection.union(total)
        for rank in self.ranks:
            with clock("observing" if rank is first else "others"):
                rank.observe(layout, total, union)
                rank.end_step()
        told = cast(Lanes, np.bitwise_or.reduce(notes))
        with clock("planning"):
            self.formats.settle(selection, total, len(outgoing), told)
            self.formats.end_step()
        del clock.seconds["others"]
        flags: Flags = chosen.numpy()
        elements = len(flags) * int(torch.count_nonzero(union)) if fills else int(np.count_nonzero(flags))
        return Sent(
            tuple(flags[:, segment.in_vector] for segment in layout),
            plan,
            tuple(plan.formats[segment.name].mask for segment in layout),
            elements,
            told.size // len(outgoing),
            fills,
            tuple(total[segment.in_vector] for segment in layout),
            float(wanted.square().sum()),
            float((wanted - total).square().sum()),
            Seconds(choice=outgoing[0].seconds, **clock.seconds),
        )


class _Clock:
    """Adds up seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {"others": 0.0}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Times the block."""
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


class _Alone(Communicator):
    """One worker, whose sums are its own contributions."""

    def reduce_lanes(self, *_what: object, **_how: object) -> ReduceReport:
        """Leave the lanes as they are; nobody reads the report."""
        return cast(ReduceReport, None)


def _peers(rank: int, size: int) -> Communicator:
    return _Alone(rank, size)
