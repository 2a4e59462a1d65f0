# SPDX-License-Identifier: Apache-2.0
"""The cost of choosing, as a share of the backward pass of the same training.

In processor time, on one thread, in one process: a step's gradients are computed by all workers in turn, then
every method chooses among them. Only what rank 0 does is timed: what a worker does on a machine of its own.
Nothing is sent. Choosing takes as long whatever the data, the backward pass does not: of resnet18 it is also
timed with larger images, up to CIFAR's.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, cast

import torch

from weir.bench.case import Run, parameter
from weir.bench.gradients.replay import method_names, side_by_side, train
from weir.bench.results import Column, Row, Table, share
from weir.host_agent.compression.phase_clock import PhaseClock
from weir.train.config import SGD_MODELS, Model
from weir.train.task import mean_loss

_IMAGES: Final = 16, 32
"""Pixels of an image, each way; the training's own have 8."""

_PARTS: Final = {
    "choice": "",
    "observing": "what the method learns from a sum",
    "mask": "bits of what was chosen",
    "planning": "counting, planning, learning",
}


@dataclass(frozen=True)
class Parameters:
    """The training, and who chooses."""

    model: str = parameter("resnet18", "that is trained", choices=SGD_MODELS)
    methods: tuple[str, ...] = parameter(
        ("dfs", "topk", "topk-block", "exdyna", "micro", "deft"), "methods: weir methods lists them"
    )
    density: float = parameter(0.01, "share of the values to send", above=0, most=1)
    workers: int = parameter(2, "workers", least=1, most=32)
    batch: int = parameter(32, "samples of a worker's backward pass", least=1)
    steps: int = parameter(24, "steps; the second half counts", least=2)

    def __post_init__(self) -> None:
        method_names(self.methods)


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Train and choose, alternately."""
    model, batch, clock = cast(Model, parameters.model), parameters.batch, time.process_time
    training = train(model, parameters.workers, batch_size=batch, timer=clock)
    module = training.task.model
    taken: dict[str, list[PhaseClock]] = {}
    backward: list[float] = []
    larger: dict[int, list[float]] = {size: [] for size in _IMAGES} if model == "resnet18" else {}
    steps = side_by_side(
        training, parameters.methods, parameters.workers, parameters.density, parameters.steps, run, clock
    )
    for number, (seconds, sent) in enumerate(steps):
        if number < parameters.steps // 2:
            continue
        backward += seconds
        for size, found in larger.items():
            found.append(_backward(module, batch, size))
        for name, one in sent.items():
            taken.setdefault(name, []).append(one.seconds)
    reference = median(backward)
    elements = sum(p.numel() for p in module.parameters())
    yield Table(
        f"Selection for {model}'s gradient ({elements / 1e6:.1f} million values), density "
        f"{parameters.density:g}",
        (
            Column("total ms", lambda n: f"{n:.1f}"),
            *(Column(f"{part} ms", lambda n: f"{n:.1f}", note) for part, note in _PARTS.items()),
            Column("of backward", share),
            Column("mean", share, "of the total, as a share of backward: counting is not in every step"),
            *(Column(f"at {size}x{size}", share) for size in larger),
        ),
        tuple(Row(name, _values(own, reference, larger)) for name, own in taken.items()),
        notes=(
            f"backward: {1e3 * reference:.0f} ms, {model}, batch {batch}, one thread, the same run, "
            "processor time; "
            f"medians of the second half of {parameters.steps} steps; rank 0 of {parameters.workers}",
            *(f"at {size}x{size} pixels: {1e3 * median(found):.0f} ms" for size, found in larger.items()),
        ),
    )


def _backward(module: torch.nn.Module, batch: int, size: int) -> float:
    """Return seconds of a backward pass for larger images, of noise."""
    images, targets = torch.randn(batch, 1, size, size), torch.zeros(batch, dtype=torch.int64)
    loss = mean_loss(module(images), targets)
    began = time.process_time()
    torch.autograd.grad(loss, [p for p in module.parameters() if p.requires_grad])
    return time.process_time() - began


def _values(
    taken: list[PhaseClock], reference: float, larger: dict[int, list[float]]
) -> dict[str, float | list[float]]:
    total = [one.total for one in taken]
    return {
        "total ms": [1e3 * seconds for seconds in total],
        **{f"{part} ms": [1e3 * getattr(one, part) for one in taken] for part in _PARTS},
        "of backward": median(total) / reference,
        "mean": fmean(total) / reference,
        **{f"at {size}x{size}": median(total) / median(found) for size, found in larger.items()},
    }
