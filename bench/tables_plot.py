# SPDX-License-Identifier: Apache-2.0
"""Lookup time by the size of the table, as ``weir bench tables`` draws it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from weir.bench.table import command_line
from weir.report.pictures import set_source


class Measured(Protocol):
    """weir.bench.tables.LookupTime."""

    @property
    def case(self) -> str:
        """Return which table."""

    @property
    def entries(self) -> int:
        """Return the number of entries in it."""

    @property
    def frame(self) -> float:
        """Return nanoseconds a frame."""


def draw(path: Path, points: Sequence[Measured]) -> None:
    """Draw a line for each kind of table."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for case in dict.fromkeys(point.case for point in points):
        mine = [point for point in points if point.case == case]
        axis.plot([p.entries for p in mine], [p.frame for p in mine], marker="o", label=case)
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("entries")
    axis.set_ylabel("ns a frame, in memory")
    axis.set_title("The soft switch by the size of its table", fontweight="bold")
    axis.grid(alpha=0.3)
    axis.legend()
    set_source(figure, command_line())
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
