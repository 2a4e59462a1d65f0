# SPDX-License-Identifier: Apache-2.0
"""compare.png: what each method reached, what it put on the wire, and where its time went."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from weir.compare.config import Comparison
from weir.compare.results import DENSE, Row, Run
from weir.compare.view import title
from weir.report.pictures import Label, count_steps, place_labels, plain_log, set_title
from weir.report.words import factor

_GREY: Final = "#7a7a7a"  # of dense, the reference
_COLOURS: Final = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#17becf",
    "#0b3d66", "#a85400", "#145214", "#6b1415", "#4f2f75",
)  # fmt: skip
_LIGHT: Final = 0.45  # opacity of the second of two bars


def draw(path: Path, comparison: Comparison, rows: Sequence[Row], runs: Sequence[Run]) -> None:
    """Draw the figures of all methods that took a step; without one there is no picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.bytes_up is not None]
    if not shown:
        return
    height = max(3.6, 1.2 + 0.34 * len(shown))
    figure = Figure(figsize=(15, 2 * height), layout="constrained")
    FigureCanvasAgg(figure)
    set_title(figure, f"Weir: {title(comparison)}")
    axes = figure.subplots(2, 3)
    colours = _colours(comparison)
    _learning(axes[0][0], shown, runs, colours)
    _accuracy(axes[0][1], shown, colours)
    _bytes(axes[0][2], shown, colours)
    _density(axes[1][0], shown, runs, colours)
    _choice(axes[1][1], shown, colours)
    _time(axes[1][2], shown, colours)
    for axis in (axes[0][0], axes[1][0]):
        count_steps(axis)
    _names(figure, axes[0][1], shown, colours)
    figure.savefig(path, dpi=120)


def _colours(comparison: Comparison) -> dict[str, str]:
    others = [name for name in comparison.methods if name != DENSE[0]]
    return {DENSE[0]: _GREY, **{name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(others)}}


def _learning(axis: Any, rows: Sequence[Row], runs: Sequence[Run], colours: dict[str, str]) -> None:
    """Draw the training loss over the steps, mean over the seeds, smoothed."""
    for row in rows:
        records = [run.record for run in runs if run.method == row.method and run.record.steps]
        length = min(len(record.steps) for record in records)
        losses = [fmean(record.steps[step].loss for record in records) for step in range(length)]
        axis.plot(
            range(1, length + 1), _smooth(losses), color=colours[row.method], label=row.method, linewidth=1.4
        )
    _label(axis, "Training loss, mean over workers and seeds", "loss", "step")
    axis.legend(frameon=False, fontsize=8, ncols=1 + (len(rows) > 6))


def _smooth(values: Sequence[float]) -> list[float]:
    """Return each with the mean of up to a 25th of all before it."""
    window = max(1, len(values) // 25)
    return [fmean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]


def _accuracy(axis: Any, rows: Sequence[Row], colours: dict[str, str]) -> None:
    """Draw accuracy against bytes on the wire: up and to the left is better."""
    known = sorted((row for row in rows if row.accuracy is not None), key=_megabytes)
    for row in known:
        total = _megabytes(row)
        accuracy = 100 * (row.accuracy or 0.0)
        axis.errorbar(
            total, accuracy, yerr=None if row.spread is None else 100 * row.spread, marker="o", markersize=8,
            color=colours[row.method], capsize=3, linestyle="none",
        )  # fmt: skip
    _label(axis, "Accuracy on held-out data, against bytes up + down", "%", "MB per worker and step")
    if known:
        axis.set_xscale("log")
        plain_log(axis.xaxis)
        axis.margins(x=0.18, y=0.2)


def _names(figure: Any, axis: Any, rows: Sequence[Row], colours: dict[str, str]) -> None:
    """Write the methods' names beside their dots."""
    known = [row for row in rows if row.accuracy is not None]
    labels = [
        Label(_megabytes(row), 100 * (row.accuracy or 0.0), row.method, colours[row.method]) for row in known
    ]
    place_labels(figure, axis, labels)


def _megabytes(row: Row) -> float:
    """Return the megabytes of both directions together."""
    return ((row.bytes_up or 0.0) + (row.bytes_down or 0.0)) / 1e6


def _bytes(axis: Any, rows: Sequence[Row], colours: dict[str, str]) -> None:
    """Draw the bytes of both directions as shares of dense."""
    _pairs(
        axis,
        rows,
        colours,
        [(lambda row: _percent(row.up_of_dense), "up"), (lambda row: _percent(row.down_of_dense), "down")],
        lambda value: f"{value:.3g}",
    )
    axis.axvline(100, color=_GREY, linestyle=":", linewidth=1)
    _label(axis, "Bytes on the wire, headers included", "", "% of dense")


def _density(axis: Any, rows: Sequence[Row], runs: Sequence[Run], colours: dict[str, str]) -> None:
    """Draw the share of the values that a worker sends, over the steps; the first seed's."""
    for row in rows:
        record = next(run.record for run in runs if run.method == row.method and run.record.steps)
        values = [100 * step.density for step in record.steps]
        axis.plot([step.step for step in record.steps], values, color=colours[row.method], linewidth=1.3)
    axis.set_yscale("log")
    plain_log(axis.yaxis)
    _label(axis, "Density: values that a worker sends", "% of the gradient", "step")


def _choice(axis: Any, rows: Sequence[Row], colours: dict[str, str]) -> None:
    """Build-up and imbalance, of methods that choose values."""
    chosen = [row for row in rows if row.build_up is not None]
    parts: list[_Part] = [(lambda row: row.build_up, "build-up"), (lambda row: row.imbalance, "imbalance")]
    _pairs(axis, chosen, colours, parts, factor)
    axis.axvline(1, color=_GREY, linestyle=":", linewidth=1)
    _label(axis, "Build-up: sent by any worker : by one", "", "lighter: imbalance, busiest worker : mean")


def _time(axis: Any, rows: Sequence[Row], colours: dict[str, str]) -> None:
    """Time of a step, and of it in communication, of which choosing is a part."""
    _pairs(
        axis,
        rows,
        colours,
        [
            (lambda row: _milli(row.step_s), "step"),
            (lambda row: _milli(row.communication_s), "communication"),
        ],
        lambda value: f"{value:.0f}",
    )
    for place, row in enumerate(rows):
        if row.selection_s:
            axis.barh(place + 0.2, 1e3 * row.selection_s, 0.36, color="black", alpha=0.75)
    _label(axis, "Time of a step", "", "ms; lighter: communicating; black: choosing")


_Part = tuple[Callable[[Row], float | None], str]


def _pairs(
    axis: Any,
    rows: Sequence[Row],
    colours: dict[str, str],
    parts: Sequence[_Part],
    words: Callable[[float], str],
) -> None:
    """Draw two horizontal bars for each method, the second one lighter, each with its value."""
    for place, row in enumerate(rows):
        for offset, (value, name), alpha in zip((-0.2, 0.2), parts, (1.0, _LIGHT), strict=True):
            if (length := value(row)) is None:
                continue
            axis.barh(place + offset, length, 0.36, color=colours[row.method], alpha=alpha)
            text = f" {words(length)}" if name in {"build-up", "imbalance"} else f" {words(length)} {name}"
            axis.text(length, place + offset, text, va="center", fontsize=7.5)
    axis.set_yticks(range(len(rows)), [row.method for row in rows], fontsize=9)
    axis.invert_yaxis()
    axis.margins(x=0.22)


def _label(axis: Any, heading: str, y: str, x: str) -> None:
    axis.set_title(heading, fontsize=11, loc="left")
    axis.set_ylabel(y)
    axis.set_xlabel(x)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
