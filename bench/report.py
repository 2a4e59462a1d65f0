# SPDX-License-Identifier: Apache-2.0
"""The report of a benchmark: tables in the terminal, all figures as JSON, pictures as PNG.

Each of them shows the command that made it.
"""

import math
import os
import platform
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table as RichTable

from weir.bench.results import Panel, Plot, Row, Table, Value, plain
from weir.report.tables import InParts

_HEAD_WIDTH: Final = 14
NONE: Final = "–"


def command_line() -> str:
    """Return the command that this process runs."""
    return f"weir {shlex.join(sys.argv[1:])}"


def factor(value: float) -> str:
    """Return a ratio with two digits at least: 12.50, 0.063, 0.0042."""
    if not value or not math.isfinite(value):
        return "0" if value == 0 else NONE
    return f"{value:.{max(2, 1 - math.floor(math.log10(abs(value))))}f}"


def spread(values: Sequence[float]) -> str:
    """Return half the range relative to the median, in per cent: how noisy the runs were; nothing of one."""
    middle = median(values)
    return f"±{(max(values) - min(values)) / 2 / abs(middle):.0%}" if middle and len(values) > 1 else ""


def show(table: Table) -> None:
    """Print a table, the command line and the notes. Columns that do not fit come in a further table."""
    heads, rows = cells(table)

    def part(chosen: Sequence[int]) -> RichTable:
        made = RichTable(title=table.title if 1 in chosen else None, title_justify="left")
        for index in chosen:
            head = textwrap.fill(heads[index], _HEAD_WIDTH, break_long_words=False, break_on_hyphens=False)
            made.add_column(head, justify="left" if index == 0 else "right", overflow="fold")
        for row in rows:
            made.add_row(*(row[index] for index in chosen))
        return made

    console = Console()
    console.print(InParts(len(heads), part))
    notes = [f"{each.name}: {each.note}" for each in table.columns if each.note]
    for note in (f"command: {command_line()}", *notes, *table.notes):
        console.print(note, style="dim", highlight=False, markup=False)


def cells(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return the heads, and the texts of each row: the spread stands beside the first column's median."""
    counted = list(dict.fromkeys(name for row in table.rows for name in row.counts))
    twins = any(row.twin for row in table.rows)
    first, *others = table.columns
    heads = ["", first.name, *(f"x {peer}" for peer in table.peers), *(["x twin"] if twins else [])]
    heads += [*counted, *([table.floor] if table.floor else []), *(column.name for column in others)]

    def texts(row: Row) -> list[str]:
        value = row.values.get(first.name)
        noise = f" {spread(value)}" if isinstance(value, list) else ""
        return [
            row.label,
            f"{_text(value, first.show)}{noise}".rstrip(),
            *(_factor(table.gain(row, table.beside(row, peer))) for peer in table.peers),
            *([_factor(table.gain(row, table.beside(row, row.twin)) if row.twin else None)] if twins else []),
            *(plain(row.counts[name]) if name in row.counts else NONE for name in counted),
            *([_share(table.of_floor(row))] if table.floor else []),
            *(_text(row.values.get(column.name), column.show) for column in others),
        ]

    return heads, [texts(row) for row in table.rows]


def _text(value: Value, form: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, str) or value is None:
        return value or NONE
    middle = median(value) if isinstance(value, list) else value
    return str(form(middle)) if math.isfinite(middle) else NONE


def _factor(value: float | None) -> str:
    return NONE if value is None else factor(value)


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


def as_json(case: str, parameters: Any, repeats: int, seeds: Sequence[int], tables: Sequence[Table]) -> Any:
    """Return the JSON of a case: what was asked for, where it ran, and every figure of every repetition."""
    return _finite(
        {
            "command": command_line(),
            "case": case,
            "parameters": {each.name: getattr(parameters, each.name) for each in fields(parameters)},
            "repeats": repeats,
            "seeds": list(seeds),
            "machine": {
                "processor": platform.machine(),
                "processors": len(os.sched_getaffinity(0)),
                "python": platform.python_version(),
            },
            "tables": [
                {
                    "title": table.title,
                    "columns": [column.name for column in table.columns],
                    "better": table.better,
                    "rows": [_row(table, row) for row in table.rows],
                    "notes": list(table.notes),
                }
                for table in tables
            ],
        }
    )


def _row(table: Table, row: Row) -> dict[str, Any]:
    others = [*table.peers, *([row.twin] if row.twin else [])]
    return {
        "contender": row.contender,
        "setting": dict(row.setting),
        "values": dict(row.values),
        "medians": {name: row.middle(name) for name in row.values if row.middle(name) is not None},
        "gains": {other: table.gain(row, table.beside(row, other)) for other in others},
        "twin": row.twin,
        "counts": dict(row.counts),
        "floor": row.floor,
        "of_floor": table.of_floor(row),
    }


def _finite(value: Any) -> Any:
    """Return a value with None in place of the numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def draw(path: Path, plot: Plot) -> None:
    """Write a picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from weir.report.pictures import set_source, set_title

    figure = Figure(figsize=(max(7.0, 5.2 * len(plot.panels)), 5), layout="constrained")
    FigureCanvasAgg(figure)
    set_title(figure, plot.title, 12)
    for axis, panel in zip(figure.subplots(1, len(plot.panels), squeeze=False)[0], plot.panels, strict=True):
        _draw_panel(axis, panel)
    set_source(figure, command_line())
    figure.savefig(path, dpi=120)


def _draw_panel(axis: Any, panel: Panel) -> None:
    from weir.report.pictures import plain_log

    for line in panel.lines:
        if line.style == "steps":
            axis.step(line.xs, line.ys, where="post", label=line.label, color=line.colour)
        else:
            axis.plot(line.xs, line.ys, line.style, markersize=4, label=line.label, color=line.colour)
    for height in panel.marks:
        axis.axhline(height, color="grey", linewidth=0.5, linestyle=":")
    if "x" in panel.log:
        axis.set_xscale("log")
        plain_log(axis.xaxis)
    if "y" in panel.log:
        axis.set_yscale("log")
    axis.set(xlabel=panel.x, ylabel=panel.y)
    axis.set_title(panel.title, fontsize=11)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
