# SPDX-License-Identifier: Apache-2.0
"""Finished runs side by side: a table, and a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir.compare.finished import Comparison, Finished, FinishedError, compared
from weir.report.pictures import count_steps, set_title
from weir.report.tables import InParts, print_json
from weir.report.words import byte_count, duration, percent, ratio
from weir.train.folder import FolderError, make_folder, write_json, writing

_COLOURS: Final = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf")
_HEADS: Final = (
    "\nrun", "\nmethod", "\naccuracy", "\nsteps", "up per\nstep", "of\nfirst", "down per\nstep", "of\nfirst",
    "\nstep", "of\nfirst",
)  # fmt: skip
_NOTE: Final = (
    "up, down: bytes on the wire per worker and step, all headers included; of first: against the first; "
    "step: median, of the slowest worker. Times of runs on other machines, or beside other work, say little."
)


def show(paths: list[Path], out: Path, name: str | None, console: Console, *, as_json: bool = False) -> None:
    """Print finished runs side by side, and write compared.json and compared.png into a new folder.

    Args:
        paths: Folders of runs, or their summaries.
        out: Folder of the new folder.
        name: The new folder's name after the time; None: compared.
        console: Where the table is printed.
        as_json: Print the content of compared.json, not the table.

    Raises:
        FinishedError: The runs cannot be compared.
        FolderError: Nothing can be written.
    """
    found = compared(paths)
    if not as_json:
        console.print(view(found))
    folder = make_folder(out, name or "compared", {"runs": [str(path) for path in paths]})
    figures = {
        "runs": [run.as_json() for run in found.runs],
        "settings_that_differ": {setting: list(values) for setting, values in found.differing},
    }
    write_json(folder / "compared.json", figures)
    with writing(folder / "compared.png"):
        draw(folder / "compared.png", found)
    if as_json:
        print_json({"folder": folder, **figures})
    else:
        console.print(f"written to {folder}/", highlight=False, soft_wrap=True)


def view(found: Comparison) -> RenderableType:
    """Return the table, with the settings in which the runs differ."""
    first = found.runs[0]
    rows = [_row(run, first) for run in found.runs]

    def part(chosen: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
        for column in chosen:
            table.add_column(_HEADS[column], justify="right" if column > 1 else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(row[column] for column in chosen))
        return table

    lines = [f"{setting}: {', '.join(values)}" for setting, values in found.differing]
    notes = [_NOTE, *(f"settings that differ: {'; '.join(lines)}" for _ in lines[:1])]
    notes += [
        f"{run.name}: bytes and times are of the steps after {run.resumed_after}, where it went on"
        for run in found.runs
        if run.resumed_after
    ]
    parts = InParts(len(_HEADS), part)
    return Group(Text(found.title, style="italic"), parts, *(Text(note, style="dim") for note in notes))


def _row(run: Finished, first: Finished) -> tuple[str, ...]:
    return (
        run.name + ("" if run.status == "complete" else f"\n({run.status})"),
        run.method,
        "–" if run.accuracy is None else percent(run.accuracy),
        str(run.resumed_after + run.steps),
        byte_count(run.bytes_up),
        ratio(run.bytes_up, first.bytes_up),
        byte_count(run.bytes_down),
        ratio(run.bytes_down, first.bytes_down),
        duration(run.step_s),
        ratio(run.step_s, first.step_s),
    )


def draw(path: Path, found: Comparison) -> None:
    """Draw accuracy over the steps, bytes and time of a step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, max(4.0, 1.5 + 0.4 * len(found.runs))), layout="constrained")
    FigureCanvasAgg(figure)
    set_title(figure, f"Weir: {found.title}")
    learning, traffic, times = figure.subplots(1, 3)
    colours = [_COLOURS[place % len(_COLOURS)] for place in range(len(found.runs))]
    for run, colour in zip(found.runs, colours, strict=True):
        points = [(step, 100 * accuracy) for step, accuracy in run.curve]
        learning.plot(
            *zip(*points, strict=True) if points else ((), ()), color=colour, marker="o", label=run.name
        )
    count_steps(learning)
    learning.set_title("Accuracy on held-out data, %", fontsize=11, loc="left")
    learning.set_xlabel("step")
    learning.legend(frameon=False, fontsize=8)
    _bars(
        traffic,
        found,
        colours,
        lambda run: run.bytes_up + run.bytes_down,
        byte_count,
        "Bytes of a step, both ways",
    )
    _bars(times, found, colours, lambda run: run.step_s, duration, "Median step")
    figure.savefig(path, dpi=120)


def _bars(
    axis: Any,
    found: Comparison,
    colours: list[str],
    value: Callable[[Finished], float],
    words: Callable[[float], str],
    title: str,
) -> None:
    places = range(len(found.runs))
    axis.barh(places, [value(run) for run in found.runs], 0.6, color=colours)
    for place, run in enumerate(found.runs):
        axis.text(value(run), place, f" {words(value(run))}", va="center", fontsize=8)
    axis.set_yticks(list(places), [run.name for run in found.runs], fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.25)
    axis.set_xticks([])
    axis.set_title(title, fontsize=11, loc="left")


ERRORS: Final = (FinishedError, FolderError)
