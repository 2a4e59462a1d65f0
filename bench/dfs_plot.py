# SPDX-License-Identifier: Apache-2.0
"""Bytes by delivered energy, as ``weir bench dfs`` draws them."""

from collections.abc import Sequence
from pathlib import Path

from weir.bench.dfs_cases import PLANNED, Curves
from weir.bench.table import command_line
from weir.report.pictures import set_source, set_title

_DRAWN = {
    "dfs": "o-",
    "dfs without portions": "o--",
    "dfs without lists": "o:",
    "dfs without packed lanes": "o-.",
    PLANNED: "s-",
    "top-k planned": "s--",
    "block top-k": "^-",
    "lists of pairs": "x-",
    "OmniReduce-256": "d-",
}


def draw(path: Path, found: Sequence[Curves]) -> None:
    """Draw for each model, with most workers and the first seed, every contender's curve."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(one.model for one in found))
    figure = Figure(figsize=(5.2 * len(models), 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    set_title(figure, "Bytes by the energy that they deliver: right and low is better", 12)
    for axis, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        one = max((c for c in found if c.model == model), key=lambda c: (c.workers, -c.seed))
        for name, style in _DRAWN.items():
            points = sorted((p.energy, p.bytes) for p in one.points[name])
            axis.plot([e for e, _ in points], [b for _, b in points], style, markersize=4, label=name)
        axis.set_yscale("log")
        axis.set_title(f"{model}, {one.workers} workers", fontsize=11)
        axis.set_xlabel("share of the energy that is delivered")
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("bytes of all workers in a step, both ways")
    figure.axes[-1].legend(fontsize=8)
    set_source(figure, command_line())
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
