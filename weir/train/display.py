# SPDX-License-Identifier: Apache-2.0
"""The display of a training: a live table on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from weir.report.words import byte_count, duration, percent, times
from weir.train.config import TrainConfig
from weir.train.messages import Evaluated
from weir.train.record import RunRecord, StepSummary
from weir.train.wirebytes import dense_bytes
from weir.train.words import epochs, network_line, network_rows, training_line

_LINE_EVERY_S = 5.0


class Display(Protocol):
    """Shows runs while they go."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def phase(self, text: str) -> None:
        """Say what goes on while no step does: "starting the switch"."""

    def begin(self, record: RunRecord) -> None:
        """Show a run that starts, until the end."""

    def show(self, record: RunRecord, news: StepSummary | Evaluated) -> None:
        """Show that a run has got further."""


def make_display(config: TrainConfig, console: Console, *, quiet: bool = False) -> Display:
    """Return a live table when ``console`` is a terminal, else plain lines; ``quiet``: nothing at all."""
    if quiet:
        return Silence()
    return LiveTable(config, console) if console.is_terminal else PlainLines(config, console)


class Silence:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        pass

    def phase(self, text: str) -> None:
        """Do nothing."""

    def begin(self, record: RunRecord) -> None:
        """Do nothing."""

    def show(self, record: RunRecord, news: StepSummary | Evaluated) -> None:
        """Do nothing."""


class PlainLines(Silence):
    """One line per epoch, and one every few seconds in between."""

    def __init__(self, config: TrainConfig, console: Console) -> None:
        self._config, self._console = config, console
        self._last = 0.0

    def __enter__(self) -> Self:
        self._line(headline(self._config))
        return self

    def phase(self, text: str) -> None:
        """Print a line."""
        if text:
            self._line(text)

    def begin(self, record: RunRecord) -> None:
        """Print a line."""
        self._line(f"{record.run}: run starts, {epochs(self._config)}")

    def show(self, record: RunRecord, news: StepSummary | Evaluated) -> None:
        """Print an evaluation, and a step when no line was printed lately."""
        if isinstance(news, Evaluated):
            self._line(
                f"{record.run}: epoch {news.epoch}/{record.epochs}, step {news.step}: "
                f"held-out loss {news.loss:.3f}, accuracy {percent(news.accuracy)}"
            )
        elif time.monotonic() - self._last >= _LINE_EVERY_S or news.step == 1:
            self._line(
                f"{record.run}: step {news.step}/{record.total_steps}, loss {news.loss:.3f}, "
                f"{duration(news.seconds)} ({percent(_share(news))} communicating), "
                f"up {byte_count(news.bytes_up)} ({percent(_of_dense(record, news))} of dense), "
                f"{news.retransmissions} retransmissions"
            )
            if (rows := network_rows(self._config, record)) and record.run == "weir":
                self._line("  " + "; ".join(f"{label}: {value}" for label, value in rows))

    def _line(self, text: str) -> None:
        self._last = time.monotonic()
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class LiveTable(Silence):
    """A table with a column per run, redrawn a few times a second."""

    def __init__(self, config: TrainConfig, console: Console) -> None:
        self._config = config
        self._records: list[RunRecord] = []
        self._phase = Spinner("dots", text="")
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.phase("")
        self._live.stop()

    def phase(self, text: str) -> None:
        """Show the text beside a spinner below the table."""
        self._phase.text = text  # Spinner.update leaves an old text alone when given an empty one

    def begin(self, record: RunRecord) -> None:
        """Add a column."""
        self._records.append(record)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [runs_table(self._config, self._records)]
        if line := network_line(self._config):
            parts.insert(0, Text(line, style="italic"))
        if self._phase.text:
            parts.append(self._phase)
        return Panel(
            Group(*parts),
            title=f"Weir: {training_line(self._config)}",
            title_align="left",
            border_style="cyan",
        )


def headline(config: TrainConfig) -> str:
    """Return the run in one line; its network, where there is more than one switch, in a second."""
    return "\n".join(filter(None, (f"Weir: {training_line(config)}", network_line(config))))


def runs_table(config: TrainConfig, records: list[RunRecord]) -> Table:
    """Return a table with a column per run: how far it is, and figures of its last step."""
    table = Table(box=None, pad_edge=False, expand=True)
    table.add_column("", style="dim", no_wrap=True)
    for record in records:
        name = "Weir" if record.run == "weir" else "Gloo, for reference"
        table.add_column(Text(name, style="bold green" if record.run == "weir" else "bold"), ratio=1)
    columns = [_cells(record) for record in records]
    for row, label in enumerate(_LABELS):
        table.add_row(label, *(column[row] for column in columns))
    for same in zip(*(network_rows(config, record) for record in records), strict=True):
        table.add_row(same[0][0], *(value for _, value in same))
    return table


_LABELS = (
    "",
    "step",
    "loss",
    "accuracy",
    "time per step",
    "  of it communicating",
    "bytes up per step",
    "  of dense",
    "density",
    "sent by any : by one",
    "selection per step",
    "retransmissions",
)


def _cells(record: RunRecord) -> list[RenderableType]:
    bar = ProgressBar(total=max(1, record.total_steps), completed=record.done)
    if not record.steps:
        return [bar, "workers start", *[""] * (len(_LABELS) - 2)]
    last = record.steps[-1]
    return [
        bar,
        f"{last.step} of {record.total_steps}, epoch {last.epoch} of {record.epochs}",
        f"{last.loss:.3f}",
        "–" if record.accuracy is None else percent(record.accuracy),
        duration(record.step_s),
        percent(_share(last)),
        byte_count(last.bytes_up),
        percent(_of_dense(record, last)),
        percent(last.density),
        "–" if last.build_up is None else times(last.build_up),
        "–" if last.build_up is None else duration(last.selection_s),
        str(record.mean_traffic.retransmissions),
    ]


def _share(step: StepSummary) -> float:
    return step.communication_s / step.seconds if step.seconds else 0.0


def _of_dense(record: RunRecord, step: StepSummary) -> float:
    """Return a step's bytes up against those of Weir without any block left out."""
    return step.bytes_up / dense_bytes(record.ready.parameters) if record.ready else 0.0
