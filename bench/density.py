# SPDX-License-Identifier: Apache-2.0
"""``weir bench density``: what sparsifiers that promise a density send over a training, and who sends it.

The figures that ExDyna's code prints (Yoon and Oh, CCGrid 2024; kljp/exdyna), with its definitions: k is the
number of values that some worker chose; density = k / n; load imbalance = N x (most chosen by one worker) / k
- 1, where k counts a value once for every worker that chose it. Build-up is a density of the sum above the
target, because workers choose different values: k / n up to N times what each of them was to choose.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from weir.bench.replay import Replay, ReplayedStep, train
from weir.bench.table import command_line, show
from weir.report.pictures import count_steps, set_source, set_title
from weir.report.words import factor
from weir.train.config import Model, make_config
from weir.train.task import make_task

console = Console(stderr=True)


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


def run(
    model: Model, methods: Sequence[str], density: float, workers: int, steps: int, plot: Path
) -> dict[str, list[Point]]:
    """Train densely, let all methods choose from the same gradients, print and draw."""
    torch.set_num_threads(1)
    module = make_task(make_config(model=model)).model
    replays = {name: Replay(module, name, workers, density) for name in methods}
    found: dict[str, list[Point]] = {name: [] for name in methods}
    training = train(model, workers)
    for _ in track(range(steps), "steps", console=console, transient=True):
        gradients, _seconds = next(training)
        for name, replay in replays.items():
            found[name].append(Point.of(replay.step(gradients)))
    show(
        f"Density over {steps} steps of {model}, {workers} workers, target {density:g}",
        (
            "method, steps",
            "density / target",
            "off target",
            "a worker's / target",
            "load imbalance",
            "selection ms",
        ),
        [row for name, points in found.items() for row in _rows(name, points, density)],
        [
            "density: of the sum, values that some worker chose, means over the steps; off target: mean over "
            "the steps of how far it is from the target; a worker's: what one chose, on average; "
            "load imbalance: what the busiest worker chose over the mean, less 1; selection: median, rank 0",
            "gradients: a dense training's; each worker's residuals are kept",
        ],
    )
    _draw(plot, found, density, model, workers)
    Console().print(f"drawn: {plot}", style="dim", highlight=False)
    return found


def _rows(name: str, points: Sequence[Point], density: float) -> list[tuple[str, ...]]:
    """Return a row for the first tenth of the steps, one for the second half."""
    size, first = len(points), max(1, len(points) // 10)
    parts = {f"1 to {first}": points[:first], f"{size // 2 + 1} to {size}": points[size // 2 :]}
    return [
        (
            f"{name}, {steps}",
            factor(fmean(p.union for p in part) / density),
            f"{fmean(abs(p.union / density - 1) for p in part):.0%}",
            factor(fmean(p.own for p in part) / density),
            f"{fmean(p.imbalance for p in part):.3f}",
            f"{1e3 * median(p.selection_s for p in part):.1f}",
        )
        for steps, part in parts.items()
    ]


def _draw(path: Path, found: dict[str, list[Point]], density: float, model: Model, workers: int) -> None:
    """Draw the density of the sum over the steps, and load imbalance."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    set_title(figure, f"{model}, {workers} workers, target density {density:g}", 12)
    above, below = figure.subplots(2, 1, sharex=True)
    for name, points in found.items():
        steps = range(1, len(points) + 1)
        above.plot(steps, [point.union / density for point in points], label=name, linewidth=1.4)
        below.plot(steps, [point.imbalance for point in points], linewidth=1.4)
    above.axhline(1, color="#444444", linestyle=":", linewidth=1)
    above.set_yscale("log")
    above.set_ylabel("density of the sum / target")
    above.legend(frameon=False, fontsize=9, ncols=2)
    below.set_ylabel("load imbalance")
    below.set_xlabel("step")
    count_steps(below)
    for axis in (above, below):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    set_source(figure, command_line())
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
