# SPDX-License-Identifier: Apache-2.0
"""Accuracy over time, as ``weir bench training`` draws it."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from weir.bench.table import command_line
from weir.report.pictures import set_source, set_title
from weir.report.words import duration
from weir.train.config import TrainConfig
from weir.train.words import links_line

if TYPE_CHECKING:
    from weir.bench.training_ways import WayResult

_PEERS: Final = ("#888888", "#bbbbbb")
_WEIR: Final = ("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#e377c2", "#17becf")


def draw(
    path: Path,
    outcomes: "Sequence[WayResult]",
    reached: Mapping[str, float | None],
    target: float,
    config: TrainConfig,
) -> None:
    """Draw one curve a run; where a run was cut short, a dashed one to where it would reach the target."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    set_title(figure, f"{config.model}, {config.workers} workers: accuracy over training time", 12)
    axis = figure.subplots()
    axis.set_title(links_line(config), fontsize=10, loc="left")
    peers, ours = itertools.cycle(_PEERS), itertools.cycle(_WEIR)
    for outcome in outcomes:
        seconds = reached[outcome.name]
        colour = next(ours if outcome.way.kind == "weir" else peers)
        label = outcome.name if seconds is None else f"{outcome.name}: {duration(seconds)} to {target:.1%}"
        points = outcome.curve()
        style = "o-" if outcome.complete else "o--"
        if not outcome.complete:
            label += f" (from {len(outcome.record.steps)} steps of {duration(outcome.step_s)})"
            if seconds is not None and outcome.time_to(target) is None:
                points = [*points, (seconds, target)]
        axis.plot([x for x, _ in points], [100 * y for _, y in points], style, color=colour, label=label)
    axis.axhline(100 * target, color="#444444", linestyle=":", linewidth=1)
    axis.set_xscale("log")
    for each in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
        each(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel("seconds of training (evaluation left out), logarithmic")
    axis.set_ylabel("accuracy on held-out data, %")
    axis.grid(alpha=0.25, which="both")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="best")
    set_source(figure, command_line())
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
