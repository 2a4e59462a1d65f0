# SPDX-License-Identifier: Apache-2.0
"""Recorded gradients, and methods that are applied to them: many methods see the same gradients.

``train`` trains densely; ``recorded`` keeps every worker's gradients in a file. ``Replay`` gives them to the
step that the DDP hook makes (``weir.host_agent.compression.exchange``), all workers in this process, the
lanes summed in memory. With fewer workers than were recorded it takes the first ones' gradients.
"""

import fcntl
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from softp4.native.scratch import scratch_folder
from weir.bench.case import ParameterError, Run
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.collectives.packing import LaneBits, LaneFormat
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import SCALE_BLOCK, EncodingPlan
from weir.host_agent.compression.encodings.cost import Flags, Occupancy, WireCost, exchange_cost, reduce_cost
from weir.host_agent.compression.exchange import GradientExchange
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.phase_clock import PhaseClock
from weir.host_agent.compression.sparsifiers import SparsifierOptions, create_sparsifier, sparsifier_class
from weir.train.config import Model, TrainConfig, make_config
from weir.train.data import share
from weir.train.task import Task, make_task, mean_loss

Gradients: TypeAlias = npt.NDArray[np.float32]  # [workers, elements], parameters in the module's order

SLOTS: Final = 256
"""Slots of the job whose traffic is counted: as many as ``weir train`` gets."""

_FOLDER: Final = "WEIR_RECORDED"  # environment: where recordings are kept


def _mean(gradients: Gradients) -> torch.Tensor:
    return torch.from_numpy(gradients.mean(axis=0))


@dataclass(frozen=True)
class Training:
    """A training in this process.

    named: the parameters in their order. steps: without end, each step's gradients, and the seconds that each
    worker's backward pass took; a step is applied when the next one is asked for.
    """

    task: Task
    named: Sequence[tuple[str, torch.nn.Parameter]]
    steps: Iterator[tuple[Gradients, list[float]]]


def train(
    model: Model,
    workers: int,
    seed: int = 1,
    batch_size: int | None = None,
    *,
    average: Callable[[Gradients], torch.Tensor] = _mean,
    momentum: float | None = None,
    timer: Callable[[], float] = time.perf_counter,
    decay: int | None = None,
    task: Task | None = None,
) -> Training:
    """Train with this many workers, synchronously.

    Args:
        average: makes of a step's gradients the one that all workers apply, flat; by default their mean.
        momentum: of SGD; with it, the learning rate is that part of the model's own which has the same
            effect in the long run. None: none.
        timer: returns the seconds that backward passes are timed with.
        decay: steps over which the learning rate goes down to nothing, in a line; None: it does not.
        task: what is trained; None: a new one.
    """
    config = make_config(model=model, workers=workers, seed=seed, batch_size=batch_size)
    task = task or make_task(config)
    named = [(name, one) for name, one in task.model.named_parameters() if one.requires_grad]
    return Training(task, named, _steps(task, config, named, average, momentum or 0.0, timer, decay))


def _steps(
    task: Task,
    config: TrainConfig,
    named: Sequence[tuple[str, torch.nn.Parameter]],
    average: Callable[[Gradients], torch.Tensor],
    momentum: float,
    timer: Callable[[], float],
    decay: int | None,
) -> Iterator[tuple[Gradients, list[float]]]:
    parameters = [parameter for _, parameter in named]
    lengths = [parameter.numel() for parameter in parameters]
    optimizer = torch.optim.SGD(parameters, lr=config.lr * (1 - momentum), momentum=momentum)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, decay) if decay else None
    data, workers = task.data.train, config.workers
    for epoch in itertools.count(1):
        ranks = [
            share(len(data), rank, workers, config.batch_size, config.seed, epoch) for rank in range(workers)
        ]
        for batches in zip(*ranks, strict=True):
            gradients, seconds = np.empty((workers, sum(lengths)), np.float32), []
            for batch, row in zip(batches, gradients, strict=True):
                loss = mean_loss(task.model(data.inputs[batch]), data.targets[batch])
                began = timer()
                parts = torch.autograd.grad(loss, parameters)
                seconds.append(timer() - began)
                torch.cat([part.flatten() for part in parts], out=torch.from_numpy(row))
            yield gradients, seconds
            mean = average(gradients)
            for parameter, own in zip(parameters, torch.split(mean, lengths), strict=True):
                parameter.grad = own.view_as(parameter)
            if (limit := config.max_norm) is not None:
                torch.nn.utils.clip_grad_norm_(parameters, limit)
            optimizer.step()
            if schedule is not None:
                schedule.step()


def recorded(model: Model, workers: int, seed: int, steps: int, momentum: float = 0.0) -> Gradients:
    """Return the gradients of the first steps of a dense training: float32[steps, workers, elements].

    They are recorded once for all processes within ``recordings``, in a file, and read as they are used.
    """
    folder = Path(os.environ[_FOLDER])
    path = folder / f"{model}-{workers}-{seed}-{steps}-{momentum:g}"
    with (folder / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be recording the same
        if not path.exists():
            with path.with_suffix(".part").open("wb") as out:
                for gradients, _ in islice(train(model, workers, seed, momentum=momentum).steps, steps):
                    out.write(gradients.data)
            path.with_suffix(".part").rename(path)
    return np.memmap(path, np.float32, mode="c").reshape(steps, workers, -1)


@contextmanager
def recordings() -> Iterator[None]:
    """Keep recordings for this process and those that it starts, until the end of the block."""
    with scratch_folder("weir-recorded") as folder:
        os.environ[_FOLDER] = str(folder)
        try:
            yield
        finally:
            del os.environ[_FOLDER]


NOTHING: Final = WireCost(0, (), 0, 0, 0)


@dataclass(frozen=True)
class ReplayedStep:
    """One step of all workers.

    Attributes:
        chosen: of each parameter bool[workers, length], what each worker chose.
        plan: how the parameters were encoded.
        masks: of each parameter, elements per bit of its mask; None: it was sent whole.
        elements: those that travelled from all workers: their own, or the union's where the method fills it.
        counters: numbers that each worker told the others.
        fills_union: all workers sent what any had chosen.
        form: of values in lanes; None: one in each.
        reductions: how many there were.
        total: of each parameter, the sum of what was delivered.
        wanted, missing: squared norms of the sum of all that the workers had (gradients over their number,
            and residuals), and of what of it was not delivered.
        seconds: what rank 0's own part took.
        counted: what it took on the wire, counted from the lanes of all reductions.
    """

    chosen: tuple[Flags, ...]
    plan: EncodingPlan
    masks: tuple[int | None, ...]
    elements: int
    counters: int
    fills_union: bool
    regions: tuple[int, ...] | None = None
    form: LaneFormat | None = None
    reductions: int = 0
    total: tuple[torch.Tensor, ...] = ()
    wanted: float = 0.0
    missing: float = 0.0
    seconds: PhaseClock = field(default_factory=PhaseClock)
    counted: WireCost = NOTHING

    def traffic(self) -> WireCost:
        """Return what it takes on the wire by the cost model."""
        return exchange_cost(
            [Occupancy(chosen) for chosen in self.chosen],
            self.masks,
            packet_block=self.plan.packet_block,
            levels=self.plan.levels,
            slots=SLOTS,
            counters=self.counters,
            fills_union=self.fills_union,
            regions=self.regions,
            capacities=None if self.plan.capacities is None else list(self.plan.capacities.values()),
            form=self.form,
        )


def method_names(names: Sequence[str]) -> list[str]:
    """Return methods by their full names. Raises ParameterError for one that chooses nothing."""
    try:
        return [sparsifier_class(name).name for name in names]
    except ValueError as error:
        raise ParameterError(f"methods: {error}") from None


class Replay:
    """One method, applied by all workers step after step.

    Args:
        module: whose gradients they are.
        method: the name of a sparsifier.
        workers: how many there are.
        density: the share of the values to send.
        rule: which encodings may be used; None: the method's own.
        lane_bits: of a value on the wire; None: the method's own.
        leave_out: parts of the method to do without.
        timer: returns the seconds that rank 0 is timed with.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        method: str,
        workers: int,
        density: float,
        rule: str | None = None,
        lane_bits: LaneBits | None = None,
        leave_out: tuple[str, ...] = (),
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.layout = BucketLayout.of(0, [name for name, _ in named], [p for _, p in named], SCALE_BLOCK)
        self.group = InMemoryGroup(workers, watch=self._count)
        self._counted: list[WireCost] = []
        self.ranks: list[GradientExchange] = []
        for communicator in self.group.communicators:
            sparsifier = create_sparsifier(
                method, SparsifierOptions(density=density, seed=1, leave_out=leave_out)
            )
            rank = GradientExchange(sparsifier, LossPolicy.of(0.0), encoding=rule, lane_bits=lane_bits)
            rank.timer = timer
            rank.join(module, communicator, SLOTS)
            self.ranks.append(rank)

    @property
    def value_bits(self) -> float:
        """Bits of a value on the wire."""
        return self.ranks[0].gradients.sparsifier.value_bits

    def _count(self, sent: Flags, packet_block: int) -> None:
        """Take note of what a reduction costs."""
        self._counted.append(reduce_cost(sent, packet_block, SLOTS))

    def step(self, gradients: Gradients) -> ReplayedStep:
        """Return one step of all workers. gradients: float32[workers or more, elements]."""
        buckets = [torch.from_numpy(own).clone() for own in gradients[: len(self.ranks)]]
        wanted = torch.zeros(self.layout.length)
        for rank, bucket in zip(self.ranks, buckets, strict=True):
            wanted += rank.gradients.compensated(self.layout, bucket)
        self._counted.clear()
        done = self.group.run(
            [
                partial(rank.exchange_bucket, self.layout, bucket)
                for rank, bucket in zip(self.ranks, buckets, strict=True)
            ]
        )
        first, total = done[0], done[0].total
        fills = self.ranks[0].gradients.sparsifier.fills_union
        flags: Flags = torch.stack([one.choice.flags for one in done]).numpy()
        if fills:
            elements = len(done) * int(torch.count_nonzero(first.selection.union(total)))
        else:
            elements = int(np.count_nonzero(flags))
        plan = first.selection.plan
        return ReplayedStep(
            chosen=tuple(flags[:, segment.in_vector] for segment in self.layout),
            plan=plan,
            masks=tuple(plan.encodings[segment.name].mask_block for segment in self.layout),
            elements=elements,
            counters=first.notes,
            fills_union=fills,
            regions=tuple(plan.regions.get(segment.name, SCALE_BLOCK) for segment in self.layout),
            form=self.ranks[0].form,
            reductions=len(self._counted),
            total=tuple(total[segment.in_vector] for segment in self.layout),
            wanted=float(wanted.square().sum()),
            missing=float((wanted - total).square().sum()),
            seconds=first.seconds,
            counted=reduce(add, self._counted),
        )


def side_by_side(
    training: Training,
    methods: Sequence[str],
    workers: int,
    density: float,
    steps: int,
    run: Run,
    timer: Callable[[], float] = time.perf_counter,
) -> Iterator[tuple[list[float], dict[str, ReplayedStep]]]:
    """Yield each step's backward passes, in seconds, and what every method makes of the step's gradients."""
    torch.set_num_threads(1)
    replays = {
        name: Replay(training.task.model, name, workers, density, timer=timer)
        for name in method_names(methods)
    }
    for number, (gradients, seconds) in enumerate(islice(training.steps, steps), 1):
        yield seconds, {name: replay.step(gradients) for name, replay in replays.items()}
        if number % max(1, steps // 10) == 0:
            run.say(f"step {number} of {steps}")


@dataclass
class Energy:
    """The share of the sum of all workers' gradients and residuals that a method delivers, by squares; and
    elements that travelled. Added up over the steps that count.
    """

    wanted: float = 0.0
    missing: float = 0.0
    elements: int = 0

    def add(self, step: ReplayedStep) -> None:
        """Add a step."""
        self.wanted += step.wanted
        self.missing += step.missing
        self.elements += step.elements

    @property
    def delivered(self) -> float:
        """Share of the energy."""
        return 1 - self.missing / self.wanted
