# SPDX-License-Identifier: Apache-2.0
"""Training with AdamW by compressed updates, densely, with PowerSGD, and by one worker alone.

Every way trains the same model from the same seed on the same batches, each at its best of several rates.
One worker alone, of whom nothing is sent, is the floor: a method that ends above it costs more than it gives.
All sums go through the switch, so bytes are Weir's for every way, with all headers from Ethernet up.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Any, Final, NamedTuple

import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import weir.torch
from weir.bench.case import Run, parameter
from weir.bench.rank import Place
from weir.bench.ranks import in_memory, run_ranks
from weir.bench.results import Column, Row, Table
from weir.bench.training.models import TASKS, held_out_loss, sequences, texts
from weir.report.words import byte_count

_WARM_UP: Final = 30  # steps
_LAST: Final = 0.1  # of the rate, at the end
_ONE_BUCKET_MB: Final = 4096


@dataclass(frozen=True)
class Way:
    """A way to train.

    Attributes:
        words: in tables.
        power_rank: of torch's PowerSGD hook; 0: without it.
        alone: nothing is sent.
        compress: options of ``weir.torch.compress``; None: gradients are summed.
    """

    words: str
    power_rank: int = 0
    alone: bool = False
    compress: Mapping[str, Any] | None = field(default=None, hash=False)


WAYS: Final = {
    "dense": Way("dense"),
    "alone": Way("one worker alone", alone=True),
    "powersgd-1": Way("PowerSGD, rank 1", power_rank=1),
    "powersgd-2": Way("PowerSGD, rank 2", power_rank=2),
    "powersgd-4": Way("PowerSGD, rank 4", power_rank=4),
    "compress": Way("compress", compress={}),
    "compress-mean-clip": Way("compress, mean clipped", compress={"clip_norm": 1.0}),
    "compress-half": Way("compress, half in turn", compress={"share": 0.5}),
    "compress-third": Way("compress, a third in turn", compress={"share": 0.32}),
    "compress-32": Way("compress, 32 bits", compress={"bits": 32}),
    "compress-exact": Way(
        "compress, nothing left out", compress={"bits": 32, "sample_share": 1.0, "sample_bits": 32}
    ),
}


@dataclass(frozen=True)
class Parameters:
    """The training."""

    models: tuple[str, ...] = parameter(("gpt",), "that are trained", choices=TASKS)
    ways: tuple[str, ...] = parameter(
        ("dense", "alone", "powersgd-4", "compress", "compress-half", "compress-third"),
        "to train",
        choices=WAYS,
    )
    workers: int = parameter(4, "workers", least=1, most=32)
    steps: int = parameter(300, "steps", least=1)
    batch: int = parameter(8, "sequences of a worker and step", least=1)
    rates: tuple[float, ...] = parameter((1.0, 2.0, 4.0), "times the model's learning rate", above=0)
    growth: float = parameter(1.0, "factor of the rate that is reached at the end", above=0)


class Training(NamedTuple):
    """A training: a model, a way, and its settings."""

    model: str
    way: str
    steps: int
    batch: int
    rate: float
    growth: float
    seed: int


class Trained(NamedTuple):
    """A training's end on one worker. up, down: bytes in a step; late: in its second half alone."""

    loss: float
    up: float
    down: float
    late_up: float
    late_down: float


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Train each model in each way."""
    with in_memory(parameters.workers) as links:
        for model in parameters.models:
            rows = []
            for name in parameters.ways:
                found = {}
                for rate in parameters.rates:
                    run.say(f"{model}: {WAYS[name].words}, {rate:g} times the rate ...")
                    specs = [
                        Training(
                            model, name, parameters.steps, parameters.batch, rate, parameters.growth, seed
                        )
                        for seed in run.seeds
                    ]
                    found[rate] = [run_ranks(train, spec, links) for spec in specs]
                rows.append(_row(WAYS[name].words, found))
            size = sum(one.numel() for one in TASKS[model].make().parameters())
            yield Table(
                f"AdamW on {model} ({size}), {parameters.workers} workers, {parameters.steps} steps",
                (
                    Column("loss", lambda n: f"{n:.3f}", "held out, nats a byte; mean of seeds, best rate"),
                    Column("seeds", note="the loss of each"),
                    Column("rate", lambda n: f"{n:g}", "times the model's"),
                    Column("by rate", note="the loss at each rate"),
                    Column("up", byte_count, "to the switch, of a worker and step"),
                    Column("down", byte_count, "from it"),
                    Column("late up", byte_count, "the same in the second half of the steps"),
                    Column("late down", byte_count),
                ),
                tuple(rows),
                peers=(WAYS["dense"].words, WAYS["alone"].words),
                notes=(f"batches of {parameters.batch} x 64 bytes a worker",),
            )


def _row(words: str, found: Mapping[float, list[list[Trained]]]) -> Row:
    """Return a way's row: of each rate a run for each seed, each of all workers."""
    losses = {rate: [mean(one.loss for one in ranks) for ranks in runs] for rate, runs in found.items()}
    best = min(losses, key=lambda rate: mean(losses[rate]))
    first = found[best][0][0]
    return Row(
        words,
        {
            "loss": mean(losses[best]),
            "seeds": " ".join(f"{loss:.3f}" for loss in losses[best]),
            "rate": best,
            "by rate": ", ".join(f"{rate:g}: {mean(losses[rate]):.3f}" for rate in sorted(losses)),
            "up": first.up,
            "down": first.down,
            "late up": first.late_up,
            "late down": first.late_down,
        },
    )


def train(place: Place, spec: Training) -> Trained:
    """Train on one worker."""
    way, task = WAYS[spec.way], TASKS[spec.model]
    text, held_out = texts()
    torch.manual_seed(spec.seed)
    model = task.make()
    optimizer = torch.optim.AdamW(model.parameters(), task.rate * spec.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _schedule(spec))
    clips = task.clip
    group = place.weir()
    trained, evaluated, finish = _prepare(way, place, model, optimizer)
    if way.compress is not None and "clip_norm" in way.compress:
        clips = math.inf
    generator = torch.Generator().manual_seed(1000 * spec.seed + place.rank)
    counts = [(0, 0)]
    for step in range(spec.steps):
        optimizer.zero_grad()
        trained(sequences(text, spec.batch, generator)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clips)
        optimizer.step()
        schedule.step()
        if step + 1 in (spec.steps // 2, spec.steps):
            stats = group.connection.stats
            counts.append((stats.bytes_up, stats.bytes_down))
    finish()
    with evaluated():
        loss = held_out_loss(model, held_out)
    (up, down), half = counts[-1], spec.steps - spec.steps // 2
    late = [(after - before) / half for before, after in zip(counts[-2], counts[-1], strict=True)]
    return Trained(loss, up / spec.steps, down / spec.steps, *late)


def _schedule(spec: Training) -> Callable[[int], float]:
    """Return the rate of a step: a warm-up, then a cosine, times what grows to ``growth``."""

    def rate(step: int) -> float:
        if step < _WARM_UP:
            return (step + 1) / _WARM_UP
        done = (step - _WARM_UP) / max(1, spec.steps - _WARM_UP)
        cosine = _LAST + (1 - _LAST) * (1 + math.cos(math.pi * done)) / 2
        return cosine * (1 + (spec.growth - 1) * done)

    return rate


def _prepare(
    way: Way, place: Place, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[torch.nn.Module, Callable[[], contextlib.AbstractContextManager[Any]], Callable[[], None]]:
    """Return what is trained, where it is evaluated, and what ends the training."""
    if way.alone:
        return model, contextlib.nullcontext, lambda: None
    if way.compress is not None:
        compressed = weir.torch.compress(model, optimizer, process_group=place.weir(), **way.compress)
        return model, compressed.shared_point, compressed.finish
    bucket = _ONE_BUCKET_MB if way.power_rank else None
    ddp = DistributedDataParallel(model, process_group=place.weir(), bucket_cap_mb=bucket)
    if way.power_rank:
        state = PowerSGDState(place.weir(), way.power_rank, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook)
    return ddp, contextlib.nullcontext, lambda: None
