# SPDX-License-Identifier: Apache-2.0
"""A calibration for people: a table, and a picture."""

from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir.calibrate.runner import Calibration, Check, mean_accuracy
from weir.calibrate.search import Finding
from weir.report.pictures import set_title
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES

_NAMES: Final = {
    "all": "all blocks",
    "layer 0": "layer class 0 (front)",
    f"layer {LAYER_CLASSES - 1}": f"layer class {LAYER_CLASSES - 1} (back)",
    "magnitude 0": "magnitude class 0 (small)",
    f"magnitude {MAGNITUDE_CLASSES - 1}": f"magnitude class {MAGNITUDE_CLASSES - 1} (large)",
    "policy": "all classes at once, scale",
}
ONE_SEED: Final = (
    "One seed: differences in accuracy may be chance, and so may where they pass the tolerance; "
    "--seeds 3 shows the mean of three."
)
_BLUE, _GREY, _ORANGE = "#1f77b4", "#888888", "#ff7f0e"


def name_of(finding: Finding) -> str:
    """Return what was lost, as text."""
    name, comma, again = finding.question.name.partition(",")
    name = _NAMES.get(name, name.replace("layer", "layer class").replace("magnitude", "magnitude class"))
    return name + comma + again


def tables(done: Calibration) -> RenderableType:
    """Return what was tolerated, and the policy made of it."""
    config = done.config
    found = Table(
        title=f"Loss that {config.model} tolerates: {config.workers} workers, {config.epochs} epochs, "
        f"{_seeds(config.seeds)}\n{mean_accuracy(done.lossless):.2f} % without loss, "
        f"{config.tolerance:g} points less tolerated",
        title_justify="left",
    )
    found.add_column("lost in each step, by each worker")
    for column in ("tolerated", "too much", "points lost", "of all blocks"):
        found.add_column(column, justify="right")
    for finding in (*done.findings, done.whole):
        if finding.question.index == 0 and finding.question.kind in {"layer", "magnitude", "policy"}:
            found.add_section()
        at = finding.at
        found.add_row(
            name_of(finding),
            _share(finding.tolerated) if finding.tolerated else "none",
            _share(finding.beyond) if finding.beyond is not None else "-",
            f"{at.drop:+.2f}" if at else "-",
            f"{at.lost:.1%}" if at else "-",
        )
    budgets = Table(title="Policy: what may go missing, by class", title_justify="left")
    budgets.add_column("layer class")
    for magnitude in range(MAGNITUDE_CLASSES):
        budgets.add_column(f"magnitude {magnitude}", justify="right")
    budgets.add_column("whole tensor", justify="right")
    made = done.policy
    for layer, (row, whole) in enumerate(zip(made.budgets, made.tensor, strict=True)):
        of = "" if done.parameters[layer] else " (none here)"
        budgets.add_row(f"{layer}{of}", *(f"{share:.3g}" for share in (*row, whole)))
    notes = Text(
        "too much: the next share tried. points lost, of all blocks: at the tolerated share. Lost blocks are "
        "sent again with the next step's, but where it says that they are not.",
        style="dim",
    )
    if config.seeds == 1:
        notes.append(f"\n{ONE_SEED}")
    return Group(found, notes, budgets)


def nothing(done: Calibration) -> str:
    """Return why there is no policy, and what may be tried, of a calibration that found nothing to lose."""
    config = done.config
    by_class = [finding for finding in done.findings if finding.question.kind in {"layer", "magnitude"}]
    intolerant = [name_of(finding) for finding in by_class if not finding.tolerated]
    if len(intolerant) == len(by_class):
        why = (
            f"no class tolerated the loss of {_share(config.grid[0])} of its blocks, the least that was tried"
        )
    elif any(any(row) for row in done.whole.question.shape):
        why = "the classes tolerated some loss one by one, but not all at once"
    else:
        why = f"every block is of a class that tolerated no loss: {', '.join(intolerant)}"
    chance = "more --seeds, as one seed's accuracy may fall by chance; " if config.seeds == 1 else ""
    return (
        f"{why}, within {config.tolerance:g} points of accuracy. A policy would allow nothing to be lost, so "
        f"none is written to {config.out}. Try {chance}a larger --tolerance; or more --epochs, so that "
        f"training has settled. Without a policy, weir train loses nothing"
    )


def checked(done: Check) -> RenderableType:
    """Return what a budget cost, by seed."""
    config, lossy = done.config, done.lossy
    table = Table(
        title=f"What a loss budget of {config.loss_budget:.0%} costs {config.model}: "
        f"{config.workers} workers, {config.epochs} epochs",
        title_justify="left",
    )
    table.add_column("seed")
    for column in ("without loss", "with it", "points lost"):
        table.add_column(column, justify="right")
    for seed, (whole, less) in enumerate(zip(done.lossless, lossy.accuracies, strict=True), start=1):
        table.add_row(str(seed), f"{whole:.2%}", f"{less:.2%}", f"{100 * (whole - less):+.2f}")
    table.add_section()
    means = mean_accuracy(done.lossless), mean_accuracy(lossy.accuracies)
    table.add_row("mean", *(f"{mean:.2f}%" for mean in means), f"{lossy.drop:+.2f}")
    again = "sent again with the next step" if config.error_feedback else "never sent again"
    verdict = "within" if done.tolerated else "more than"
    notes = Text(
        f"{lossy.lost:.1%} of all blocks were lost, of the smallest, {again}: {verdict} the tolerance of "
        f"{config.tolerance:g} points.",
        style="dim",
    )
    return Group(table, notes)


def _seeds(seeds: int) -> str:
    return f"{seeds} seed{'' if seeds == 1 else 's'}"


def _share(p: float) -> str:
    return f"{p:.0%}" if p >= 0.01 else f"{p:.2%}"


def draw(path: Path, done: Calibration) -> None:
    """Draw the findings: random loss, by layer class, by magnitude class."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    config = done.config
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    set_title(
        figure,
        f"Loss that {config.model} tolerates: {config.workers} workers, {_seeds(config.seeds)}, "
        f"{config.tolerance:g} points tolerated",
    )
    curves, layers, magnitudes = figure.subplots(1, 3)
    _curves(curves, done)
    _bars(layers, "layer", "Tolerated loss by layer class", "front to back", done)
    _bars(magnitudes, "magnitude", "Tolerated loss by magnitude class", "small to large", done)
    if config.seeds == 1:
        figure.supxlabel(ONE_SEED, fontsize=10, color="#d62728", wrap=True)
    figure.savefig(path, dpi=120)


def _curves(axis: Any, done: Calibration) -> None:
    """Draw points lost against the share of blocks lost, wherever all classes lose."""
    styles = {
        True: (_BLUE, "sent again with the next step"),
        False: (_ORANGE, "not sent again"),
    }
    for finding in done.findings:
        if finding.question.kind == "all":
            style = styles[finding.question.error_feedback]
            points = [(0.0, 0.0), *((100 * m.p, m.drop) for m in finding.measurements)]
            axis.plot(*zip(*points, strict=True), color=style[0], marker="o", label=style[1])
    axis.axhline(done.config.tolerance, color=_GREY, linestyle="--", linewidth=1, label="tolerance")
    axis.set_yscale("symlog", linthresh=1)
    axis.yaxis.set_major_formatter("{x:g}")
    _label(axis, "Random loss of all blocks", "blocks lost, %", "accuracy lost, points")
    axis.legend(frameon=False, fontsize=9)


def _bars(axis: Any, kind: str, title: str, order: str, done: Calibration) -> None:
    """Draw a bar for each class, and how much of the class there is."""
    findings = [f for f in done.findings if f.question.kind == kind]
    places = range(len(findings))
    axis.bar(places, [100.0 for _ in findings], color=_BLUE, alpha=0.15, label="too much, or not tried")
    bars = axis.bar(places, [100 * f.tolerated for f in findings], color=_BLUE, label="tolerated")
    for bar, finding in zip(bars, findings, strict=True):
        axis.annotate(
            f"{100 * finding.tolerated:g}", (bar.get_x() + bar.get_width() / 2, bar.get_height()),
            xytext=(0, 3), textcoords="offset points", ha="center", fontsize=9,
        )  # fmt: skip
    axis.set_xticks(list(places), [str(f.question.index) for f in findings])
    axis.set_ylim(0, 118)
    _label(axis, title, f"class, {order}", "blocks of the class lost, %")
    axis.legend(frameon=False, fontsize=9, loc="upper right", ncols=2)


def _label(axis: Any, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=11)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
