# SPDX-License-Identifier: Apache-2.0
"""``weir bench selection``: what choosing costs, as a share of the backward pass of the same training.

In processor time, on one thread, in one process: a step's gradients are computed by all workers in turn, then
every method chooses among them. Only what rank 0 does is timed: what a worker does on a machine of its own.
Nothing is sent. Choosing takes as long whatever the data, the backward pass does not: of resnet18 it is also
timed with larger images, up to CIFAR's.
"""

import time
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Final

import torch
from rich.console import Console
from rich.progress import track

from weir.bench.replay import Replay, train
from weir.bench.table import show
from weir.host_agent.compression.phase_clock import PhaseClock
from weir.train.config import Model, make_config
from weir.train.task import make_task, mean_loss

_IMAGES: Final = 16, 32
"""Pixels of an image, each way; the training's own have 8."""

console = Console(stderr=True)


def run(
    model: Model, methods: Sequence[str], density: float, workers: int, batch: int, steps: int
) -> dict[str, float]:
    """Measure and print; returns the median share of the backward pass that each method takes."""
    torch.set_num_threads(1)
    module = make_task(make_config(model=model)).model
    replays = {name: Replay(module, name, workers, density, timer=time.process_time) for name in methods}
    taken: dict[str, list[PhaseClock]] = {name: [] for name in methods}
    backward: list[float] = []
    larger: dict[int, list[float]] = {size: [] for size in _IMAGES} if model == "resnet18" else {}
    training = train(model, workers, batch_size=batch, timer=time.process_time)
    for number in track(range(steps), "steps", console=console, transient=True):
        gradients, seconds = next(training)
        sent = {name: replay.step(gradients) for name, replay in replays.items()}
        if number >= steps // 2:
            backward += seconds
            for size, found in larger.items():
                found.append(_backward(module, batch, size))
            for name, one in sent.items():
                taken[name].append(one.seconds)
    reference = median(backward)
    shares = {name: median(one.total for one in own) / reference for name, own in taken.items()}
    elements = sum(p.numel() for p in module.parameters())
    show(
        f"Selection for {model}'s gradient ({elements / 1e6:.1f} million values), density {density:g}",
        (
            *(
                "method",
                "choice ms",
                "sum seen ms",
                "mask ms",
                "planner ms",
                "total ms",
                "of backward",
                "mean",
            ),
            *(f"at {size}x{size}" for size in larger),
        ),
        [_row(name, own, reference, larger) for name, own in taken.items()],
        [
            f"backward: {1e3 * reference:.0f} ms, {model}, batch {batch}, one thread, the same run, "
            f"processor time; medians of the second half of {steps} steps; rank 0 of {workers}",
            *(f"at {size}x{size} pixels: {1e3 * median(found):.0f} ms" for size, found in larger.items()),
            "sum seen: what the method learns from a sum; mask: bits of what was chosen; planner: counting, "
            "planning, learning; mean: of the total, as a share of backward: counting is not in every step",
        ],
    )
    return shares


def _backward(module: torch.nn.Module, batch: int, size: int) -> float:
    """Return seconds of a backward pass for larger images, of noise."""
    images, targets = torch.randn(batch, 1, size, size), torch.zeros(batch, dtype=torch.int64)
    loss = mean_loss(module(images), targets)
    began = time.process_time()
    torch.autograd.grad(loss, [p for p in module.parameters() if p.requires_grad])
    return time.process_time() - began


def _row(
    name: str, taken: Sequence[PhaseClock], reference: float, larger: Mapping[int, Sequence[float]]
) -> tuple[str, ...]:
    parts = (
        [one.choice for one in taken],
        [one.observing for one in taken],
        [one.mask for one in taken],
        [one.planning for one in taken],
        [one.total for one in taken],
    )
    total = parts[-1]
    return (
        name,
        *(f"{1e3 * median(part):.1f}" for part in parts),
        f"{median(total) / reference:.1%}",
        f"{fmean(total) / reference:.1%}",
        *(f"{median(total) / median(found):.1%}" for found in larger.values()),
    )
