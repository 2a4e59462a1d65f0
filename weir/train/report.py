# SPDX-License-Identifier: Apache-2.0
"""report.png: loss and accuracy of both runs, bytes per step against dense, density.

Where both runs had the same real links: accuracy over time, and the time of a step in place of the density.
Where the network takes something away, also what went missing and what switches and workers did about it.
"""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from weir.report.pictures import count_steps, plain_log, set_title
from weir.report.words import percent
from weir.train.config import TrainConfig
from weir.train.display import headline
from weir.train.record import RunRecord
from weir.train.summary import use_rows
from weir.train.wirebytes import dense_bytes
from weir.train.words import NOT_KNOWN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS: Final = {"weir": "#1f77b4", "gloo": "#888888"}
_NAMES: Final = {"weir": "Weir", "gloo": "Gloo, dense"}


def write_report(path: Path, config: TrainConfig, records: list[RunRecord]) -> None:
    """Draw the runs' curves into ``path``."""
    draw(config, records).savefig(path, dpi=120)


def draw(config: TrainConfig, records: list[RunRecord]) -> "Figure":
    """Return the picture of the runs' curves."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    linked = config.hosts == "namespaces"
    disturbed = config.network_matters and (config.lossy or not linked)
    rows = 3 if disturbed else 2
    figure = Figure(figsize=(11, 3.5 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    set_title(figure, headline(config))
    axes = figure.subplots(rows, 2)
    for record in records:
        if record.steps:
            _loss(axes[0][0], record)
            _accuracy(axes[0][1], record, over_time=linked)
            _bytes(axes[1][0], record)
            if linked:
                _times(axes[1][1], record)
    _last_accuracies(axes[0][1], records)
    if not linked:
        _density(axes[1][1], records)
    _finish(axes, records, over_time=linked)
    if linked:
        figure.supxlabel("\n".join(_use(config, record) for record in records if record.steps), fontsize=9)
    weir = next((record for record in records if record.run == "weir" and record.steps), None)
    if disturbed and weir is not None:
        _network(axes[2][0], axes[2][1], config, weir)
        if not linked:  # there the line is taken
            figure.supxlabel(_switches(weir), fontsize=10)
    return figure


def _use(config: TrainConfig, record: RunRecord) -> str:
    """Return what a run needed of its links and of the processors, in a line."""
    known = (" ".join(row) for row in use_rows(config, record) if row[1] != NOT_KNOWN)
    return f"{_NAMES[record.run]}: {'; '.join(known)}"


def _style(record: RunRecord) -> dict[str, Any]:
    return {"color": _COLOURS[record.run], "label": _NAMES[record.run], "linewidth": 1.6}


def _loss(axis: Any, record: RunRecord) -> None:
    axis.plot([s.step for s in record.steps], [s.loss for s in record.steps], **_style(record))


def _accuracy(axis: Any, record: RunRecord, *, over_time: bool) -> None:
    """Draw the accuracy at every evaluation, by step, or by the seconds of training until then."""
    passed = [0.0, *itertools.accumulate(step.seconds for step in record.steps)]
    points = [(passed[e.step] if over_time else e.step, 100 * e.accuracy) for e in record.evaluations]
    axis.plot([x for x, _ in points], [y for _, y in points], marker="o", **_style(record))
    axis.margins(y=0.15)  # room for the last accuracies


def _last_accuracies(axis: Any, records: list[RunRecord]) -> None:
    """Write each run's last accuracy at the end of its curve, the highest above it, the others below."""
    ends = {
        record.run: line.get_xydata()[-1]
        for line in axis.get_lines()
        for record in records
        if line.get_label() == _NAMES[record.run] and len(line.get_xydata())
    }
    highest = max(ends, key=lambda run: ends[run][1], default=None)
    for run, (x, y) in ends.items():
        axis.annotate(
            f"{y:.1f}", (x, y), xytext=(0, 7 if run == highest else -14), textcoords="offset points",
            ha="center", color=_COLOURS[run], fontsize=9,
        )  # fmt: skip


def _bytes(axis: Any, record: RunRecord) -> None:
    axis.plot([s.step for s in record.steps], [s.bytes_up / 1e6 for s in record.steps], **_style(record))


def _times(axis: Any, record: RunRecord) -> None:
    axis.plot([s.step for s in record.steps], [1000 * s.seconds for s in record.steps], **_style(record))


def _density(axis: Any, records: list[RunRecord]) -> None:
    for record in records:
        if record.run != "weir" or not record.steps:
            continue
        steps = [s.step for s in record.steps]
        axis.plot(
            steps,
            [100 * s.density for s in record.steps],
            color=_COLOURS["weir"],
            label="values sent by one worker",
        )
        if record.build_up is not None:
            union = [100 * s.density * (s.build_up or 1.0) for s in record.steps]
            axis.plot(steps, union, color="#ff7f0e", linestyle="--", label="values sent by any worker")


def _network(missing: Any, packets: Any, config: TrainConfig, weir: RunRecord) -> None:
    """Draw, for each step, the share that went missing against the budget, and what happened to packets."""
    at = [step.step for step in weir.steps]
    share = [100 * step.delivery.missing_share for step in weir.steps]
    budget = [100 * step.delivery.budget / max(1, step.delivery.lanes) for step in weir.steps]
    missing.plot(at, share, color=_COLOURS["weir"], label="missing, added to the next step's")
    if config.lossy:
        missing.plot(at, budget, color="#d62728", linestyle=":", label="budget")
    for name, colour, label in _PACKETS:
        packets.plot(at, [getattr(s.delivery.counters, name) for s in weir.steps], color=colour, label=label)
    packets.plot(at, [s.retransmissions for s in weir.steps], color="#888888", label="retransmissions")
    _label(missing, "Missing from the sums, of the gradient's values", "%")
    _label(packets, "Packets by outcome, all workers, per step", "packets")
    for axis in (missing, packets):
        axis.set_ylim(bottom=0, top=max(1.0, 1.45 * axis.get_ylim()[1]))  # room for the legend
        axis.legend(frameon=False, fontsize=9, loc="upper right", ncols=2)


def _switches(weir: RunRecord) -> str:
    """Return what the switches counted in the whole run, in one line."""
    counts = weir.counts
    if counts is None:
        return ""
    parts = [
        f"trimmed by switches {counts.trims:,}",
        f"marked {counts.marks:,}",
        f"lost on purpose {counts.lost:,}",
    ]
    if counts.spines:
        parts.insert(0, "summed by " + ", ".join(f"{name} {percent(v)}" for name, v in counts.shares.items()))
    return "; ".join(parts)


_PACKETS: Final = (
    ("releases", "#d62728", "releases"),
    ("trimmed", "#ff7f0e", "rounds without this worker"),
    ("marked", "#9467bd", "results that met congestion"),
)


def _label(axis: Any, title: str, unit: str, below: str = "step") -> None:
    axis.set_title(title, fontsize=11, loc="left")
    axis.set_ylabel(unit)
    axis.set_xlabel(below)
    axis.set_xlim(left=0)
    if below == "step":
        count_steps(axis)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _plain_log_scale(axis: Any) -> None:
    """Make an axis logarithmic, from well below the lowest curve to well above the highest."""
    axis.set_yscale("log")
    axis.set_ylim(bottom=axis.get_ylim()[0] / 2, top=axis.get_ylim()[1] * 2)
    plain_log(axis.yaxis)


def _finish(axes: Any, records: list[RunRecord], *, over_time: bool) -> None:
    parameters = next((r.ready.parameters for r in records if r.ready), None)
    last = ("Time of a step, slowest worker", "ms") if over_time else ("Density", "% of the gradient")
    titles = (
        (axes[0][0], "Training loss (mean over workers)", "loss", "step"),
        (axes[0][1], "Accuracy on held-out data", "%", "training time, s" if over_time else "step"),
        (axes[1][0], "Bytes up per worker and step, headers included", "MB", "step"),
        (axes[1][1], *last, "step"),
    )
    for axis, *words in titles:
        _label(axis, *words)
    if parameters:
        dense = dense_bytes(parameters) / 1e6
        axes[1][0].axhline(
            dense, color=_COLOURS["weir"], linestyle=":", label="Weir without skipping (calculated)"
        )
    _plain_log_scale(axes[1][0])
    axes[1][1].set_ylim(bottom=0)
    for axis, *_ in titles:
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=9)
