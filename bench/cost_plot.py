# SPDX-License-Identifier: Apache-2.0
"""Savings by density and workers, as ``weir bench cost`` draws them."""

from collections.abc import Callable, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any, Final, TypeAlias

from weir.bench.cost_cases import Measured, saving_at_energy
from weir.bench.table import command_line
from weir.report.pictures import set_source, set_title

Saving: TypeAlias = Callable[[Measured, Sequence[Measured]], float | None]

_ROWS: Final[tuple[tuple[str, Saving], ...]] = (
    ("same top-k masks, planned,\nagainst OmniReduce-256", lambda one, _: one.saving("planner")),
    ("DFS at the same density\nagainst OmniReduce-256", lambda one, _: one.saving("dfs")),
    (
        "DFS at equal energy\nagainst OmniReduce-256",
        lambda one, found: saving_at_energy(one, found, "dfs"),
    ),
    (
        "DFS at the same density\nagainst OmniReduce's best b",
        lambda one, _: one.saving("dfs", one.best("omnireduce:")),
    ),
)


def draw(path: Path, found: Sequence[Measured]) -> None:
    """Draw a heat-map for each model and comparison: per cent of the other's bytes that are saved."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(one.setting.model for one in found))
    figure = Figure(figsize=(3.6 * len(models) + 1.2, 2.7 * len(_ROWS) + 1), layout="constrained")
    FigureCanvasAgg(figure)
    set_title(figure, "Communication cost saved, % (both directions, headers included)", 12)
    axes = figure.subplots(len(_ROWS), len(models), squeeze=False)
    image: Any = None
    for row, (title, saving) in zip(axes, _ROWS, strict=True):
        for axis, model in zip(row, models, strict=True):
            mine = [one for one in found if one.setting.model == model]
            image = _panel(axis, mine, saving)
        row[0].set_ylabel(f"{title}\n\nworkers", fontsize=9)
    for axis, model in zip(axes[0], models, strict=True):
        axis.set_title(model, fontsize=11)
    for axis in axes[-1]:
        axis.set_xlabel("density")
    figure.colorbar(image, ax=axes, shrink=0.6, label="% saved")
    set_source(figure, command_line())
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _panel(axis: Any, found: Sequence[Measured], saving: Saving) -> Any:
    densities = sorted({one.setting.density for one in found})
    workers = sorted({one.setting.workers for one in found})
    grid = [[nan] * len(densities) for _ in workers]
    for one in found:
        place = workers.index(one.setting.workers), densities.index(one.setting.density)
        grid[place[0]][place[1]] = 100 * (nan if (share := saving(one, found)) is None else share)
    image = axis.imshow(grid, vmin=-100, vmax=100, cmap="RdBu", aspect="auto", origin="lower")
    for y, line in enumerate(grid):
        for x, value in enumerate(line):
            text, colour = "–" if isnan(value) else f"{value:.0f}", "white" if abs(value) > 60 else "black"
            axis.text(x, y, text, ha="center", va="center", color=colour)
    axis.set_xticks(range(len(densities)), [f"{100 * density:g} %" for density in densities])
    axis.set_yticks(range(len(workers)), [str(count) for count in workers])
    return image
