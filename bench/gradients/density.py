# SPDX-License-Identifier: Apache-2.0
"""Densities, over a training, of sparsifiers that promise one, and the balance among workers.

The figures that ExDyna's code prints (Yoon and Oh, CCGrid 2024; kljp/exdyna), with its definitions: k is the
number of values that some worker chose; density = k / n; load imbalance = N x (most chosen by one worker) / k
- 1, where k counts a value once for every worker that chose it. Build-up is a density of the sum above the
target, because workers choose different values: k / n up to N times what each of them was to choose.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import cast

import numpy as np

from weir.bench.case import Run, parameter
from weir.bench.gradients.replay import ReplayedStep, method_names, side_by_side, train
from weir.bench.results import Column, Line, Panel, Plot, Row, Table
from weir.report.words import factor
from weir.train.config import SGD_MODELS, Model


@dataclass(frozen=True)
class Parameters:
    """The training, and who chooses."""

    model: str = parameter("cnn", "that is trained", choices=SGD_MODELS)
    methods: tuple[str, ...] = parameter(
        ("exdyna", "exdyna-published", "micro", "micro-published", "deft", "topk"),
        "methods: weir methods lists them",
    )
    target: float = parameter(0.001, "density to aim at", above=0, most=1)
    workers: int = parameter(8, "workers", least=1, most=32)
    steps: int = parameter(200, "of a dense training", least=2)

    def __post_init__(self) -> None:
        method_names(self.methods)


@dataclass(frozen=True)
class Point:
    """One step. union: share of the values that some worker chose; own: that one chose, mean and most."""

    union: float
    own: float
    most: float
    selection_s: float

    @classmethod
    def of(cls, sent: ReplayedStep) -> "Point":
        """Return the figures of what the workers chose."""
        chosen = np.concatenate(sent.chosen, axis=1)
        counts = np.count_nonzero(chosen, axis=1) / chosen.shape[1]
        union = int(np.count_nonzero(chosen.any(axis=0))) / chosen.shape[1]
        return cls(union, float(counts.mean()), float(counts.max()), sent.seconds.total)

    @property
    def imbalance(self) -> float:
        """Return how much more than the mean the busiest worker chose."""
        return self.most / self.own - 1 if self.own else 0.0


def run(parameters: Parameters, run: Run) -> Iterator[Table | Plot]:
    """Train densely, and let all methods choose from the same gradients."""
    target, found = parameters.target, dict[str, list[Point]]()
    training = train(cast(Model, parameters.model), parameters.workers)
    for _, sent in side_by_side(
        training, parameters.methods, parameters.workers, target, parameters.steps, run
    ):
        for name, one in sent.items():
            found.setdefault(name, []).append(Point.of(one))
    yield Table(
        f"Density over {parameters.steps} steps of {parameters.model}, {parameters.workers} workers, "
        f"target {target:g}",
        (
            Column(
                "density / target", factor, "of the sum: values that some worker chose, mean over the steps"
            ),
            Column(
                "off target", lambda n: f"{n:.0%}", "mean over the steps of how far it is from the target"
            ),
            Column("a worker's / target", factor, "what one chose, on average"),
            Column("load imbalance", lambda n: f"{n:.3f}", "what the busiest chose over the mean, less 1"),
            Column("selection ms", lambda n: f"{n:.1f}", "median, rank 0"),
        ),
        tuple(row for name, points in found.items() for row in _rows(name, points, target)),
        notes=("gradients: a dense training's; each worker's residuals are kept",),
    )
    yield Plot(
        f"{parameters.model}, {parameters.workers} workers, target density {target:g}", _panels(found, target)
    )


def _rows(name: str, points: Sequence[Point], density: float) -> Iterator[Row]:
    """Yield a row for the first tenth of the steps, one for the second half."""
    size, first = len(points), max(1, len(points) // 10)
    parts = {f"1 to {first}": points[:first], f"{size // 2 + 1} to {size}": points[size // 2 :]}
    for steps, part in parts.items():
        yield Row(
            name,
            {
                "density / target": fmean(p.union for p in part) / density,
                "off target": fmean(abs(p.union / density - 1) for p in part),
                "a worker's / target": fmean(p.own for p in part) / density,
                "load imbalance": fmean(p.imbalance for p in part),
                "selection ms": 1e3 * median(p.selection_s for p in part),
            },
            {"steps": f"steps {steps}"},
        )


def _panels(found: Mapping[str, Sequence[Point]], density: float) -> list[Panel]:
    def lines(value: str) -> list[Line]:
        return [
            Line(name, range(1, len(points) + 1), [getattr(point, value) for point in points], "-")
            for name, points in found.items()
        ]

    return [
        Panel("density of the sum", "step", "density", lines("union"), "y", (density,)),
        Panel("load imbalance", "step", "busiest over mean, less 1", lines("imbalance")),
    ]
