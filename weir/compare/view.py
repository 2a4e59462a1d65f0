# SPDX-License-Identifier: Apache-2.0
"""A comparison as a table: in the terminal while it grows and at the end, and for the page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from weir.compare.config import Comparison
from weir.compare.results import DENSE, FLOOR, Row, dense_source
from weir.methods import peers
from weir.report.tables import InParts
from weir.report.words import byte_count, duration, percent, times, workers
from weir.train.config import PRESETS
from weir.train.words import caution, network_line

NOT_KNOWN: Final = "–"


@dataclass(frozen=True)
class Column:
    """head: what it is, two words or so. cell: a row's value as text."""

    head: str
    cell: Callable[[Row], str]


def _or_dash(value: float | None, words: Callable[[float], str]) -> str:
    return NOT_KNOWN if value is None else words(value)


def _accuracy(row: Row) -> str:
    spread = "" if row.spread is None else f" ± {100 * row.spread:.1f}"
    return _or_dash(row.accuracy, lambda share: f"{100 * share:.1f}{spread} %")


COLUMNS: Final = (
    Column("loss", lambda row: _or_dash(row.loss, lambda loss: f"{loss:.3f}")),
    Column("accuracy", _accuracy),
    Column("of gain", lambda row: _or_dash(row.kept, lambda share: f"{share:.0%}")),
    Column("up per step", lambda row: _or_dash(row.bytes_up, byte_count)),
    Column("of dense", lambda row: _or_dash(row.up_of_dense, percent)),
    Column("down per step", lambda row: _or_dash(row.bytes_down, byte_count)),
    Column("of dense", lambda row: _or_dash(row.down_of_dense, percent)),
    Column("density", lambda row: _or_dash(row.density, percent)),
    Column("build- up", lambda row: _or_dash(row.build_up, times)),
    Column("imbal- ance", lambda row: _or_dash(row.imbalance, times)),
    Column("selec- tion", lambda row: _or_dash(row.selection_s, duration)),
    Column("commu- nication", lambda row: _or_dash(row.communication_s, duration)),
    Column("step", lambda row: _or_dash(row.step_s, duration)),
)
_STYLES: Final = {"failed": "red", "interrupted": "yellow"}


@dataclass(frozen=True)
class ResultTable:
    """A line for each method, in several tables where the terminal is narrow. Shows how trainings ended."""

    rows: Sequence[Row]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield InParts(1 + len(COLUMNS), self._part)

    def _part(self, chosen: Sequence[int]) -> Table:
        columns = [COLUMNS[index - 1] for index in chosen if index]
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
        table.add_column("\nmethod", no_wrap=True)
        for column in columns:
            table.add_column(_on_two_lines(column.head), justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(_name(row), *(column.cell(row) for column in columns))
        return table


def _name(row: Row) -> Text:
    ended = f"\n({row.status})" if row.status in _STYLES else ""
    return Text(row.method + ended, style=_STYLES.get(row.status, "bold green"))


def one_line(head: str) -> str:
    """Return a column's head without the places where it may be broken: "build- up" is "build-up"."""
    return head.replace("- ", "-" if head.startswith("build") else "")


def _on_two_lines(head: str) -> str:
    first, _, second = head.partition(" ")
    return f"{first}\n{second}" if second else f"\n{first}"


def title(comparison: Comparison) -> str:
    """Describe the training in one line; its network, where it matters, in a second."""
    config, seeds = comparison.any, len(comparison.seeds)
    often = "1 seed" if seeds == 1 else f"{seeds} seeds"
    line = f"{config.model} on {config.data}, {workers(config.workers)}, {often}"
    return "\n".join(filter(None, (line, network_line(config))))


def notes(comparison: Comparison, rows: Sequence[Row]) -> list[str]:
    """Return what the columns mean, and what cannot be concluded from them."""
    said = [
        "loss, accuracy: on held-out data; of gain: share of dense training's gain over one worker alone, in "
        f"{PRESETS[comparison.any.model].metric}{_ends(rows)}; up, down: bytes on the wire per worker and "
        f"step, all headers included; of dense: against {dense_source(rows)}",
        "density: values that a worker sends; build-up: values that some worker sends, over those that one "
        "sends on average; imbalance: what the busiest worker chose, over the average",
        "selection: time per step to choose; communication: per step, beside the backward pass too; step: "
        "median, of the slowest worker",
    ]
    if len(comparison.seeds) == 1:
        said.append("one seed: differences in accuracy may be chance; --seeds 3 shows how far they spread")
    else:
        said.append("±: standard deviation over the seeds")
    if any(name in peers() for name in comparison.methods) and comparison.any.network_matters:
        said.append(
            "peers have no part in this network: Gloo is on loopback; do not compare times with theirs"
        )
    first = comparison.seeds[0]
    cautions = (caution(comparison.trainings[name, first]) for name in comparison.methods)
    return [*said, *filter(None, cautions)]


def _ends(rows: Sequence[Row]) -> str:
    """Return why no share of the gain is known, where that is so."""
    if any(row.kept is not None for row in rows):
        return ""
    if {FLOOR} & {row.method for row in rows} and set(DENSE) & {row.method for row in rows}:
        return ": there is none here"
    return f"; needs --methods {FLOOR} and {' or '.join(DENSE)}"


def result_view(comparison: Comparison, rows: Sequence[Row]) -> RenderableType:
    """Return the table at the end, with what it means."""
    if not any(row.bytes_up is not None for row in rows):
        return Text(f"{title(comparison)}: no step was trained")
    return Group(
        Text(title(comparison), style="italic"),
        ResultTable(rows),
        *(Text(note, style="dim") for note in notes(comparison, rows)),
    )
