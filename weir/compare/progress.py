# SPDX-License-Identifier: Apache-2.0
"""The display of a comparison that runs: the table as far as it goes; without a terminal plain lines."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from weir.compare.config import Comparison
from weir.compare.results import Run, make_rows
from weir.compare.view import ResultTable, title
from weir.report.words import byte_count, duration, percent
from weir.train.messages import Evaluated
from weir.train.record import RunRecord, StepSummary

_LINE_EVERY_S: Final = 10.0


class Progress(Protocol):
    """Shows a comparison while it goes."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def phase(self, text: str) -> None:
        """Say what goes on while nothing is trained; empty: no more."""

    def begin(self, run: Run, runs: Sequence[Run]) -> None:
        """Show that a training starts, the last of ``runs``."""

    def show(self, record: RunRecord, news: StepSummary | Evaluated) -> None:
        """Show that it has got further."""

    def ended(self, run: Run) -> None:
        """Show that it is over, well or not."""


def make_progress(comparison: Comparison, console: Console) -> Progress:
    """Return a live table when ``console`` is a terminal, else plain lines."""
    return LiveTable(comparison, console) if console.is_terminal else PlainLines(comparison, console)


class PlainLines:
    """A line when a training begins and ends, and one every few seconds in between."""

    def __init__(self, comparison: Comparison, console: Console) -> None:
        self._comparison, self._console = comparison, console
        self._total = len(comparison.methods) * len(comparison.seeds)
        self._name = ""
        self._last = 0.0

    def __enter__(self) -> Self:
        self._line(f"Weir: {title(self._comparison)}")
        return self

    def __exit__(self, *_exception: object) -> None:
        pass

    def phase(self, text: str) -> None:
        """Print a line."""
        if text:
            self._line(text)

    def begin(self, run: Run, runs: Sequence[Run]) -> None:
        """Print a line."""
        self._name = f"{run.method}, seed {run.seed}"
        self._line(f"training {len(runs)} of {self._total}: {self._name}")

    def show(self, record: RunRecord, news: StepSummary | Evaluated) -> None:
        """Print a step when no line was printed lately; an evaluation never."""
        if isinstance(news, StepSummary) and time.monotonic() - self._last >= _LINE_EVERY_S:
            self._line(
                f"{self._name}: step {news.step}/{record.total_steps}, loss {news.loss:.3f}, "
                f"{duration(news.seconds)}, up {byte_count(news.bytes_up)}"
            )

    def ended(self, run: Run) -> None:
        """Print a line."""
        accuracy = run.record.accuracy
        reached = "" if accuracy is None else f", accuracy {percent(accuracy)}"
        self._line(f"{self._name}: {run.record.status}{reached}")

    def _line(self, text: str) -> None:
        self._last = time.monotonic()
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class LiveTable:
    """The comparison's table, redrawn as trainings go on, above a bar for all of them."""

    def __init__(self, comparison: Comparison, console: Console) -> None:
        self._comparison = comparison
        self._runs: Sequence[Run] = ()
        self._began = time.monotonic()
        self._phase = Spinner("dots", text="")
        # Transient: the table at the end says the same, and more.
        self._live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.phase("")
        self._live.stop()

    def phase(self, text: str) -> None:
        """Show the text beside a spinner below the table."""
        self._phase.text = text

    def begin(self, run: Run, runs: Sequence[Run]) -> None:
        """Add a line to the table, or another training of a method."""
        if not self._runs:
            self._began = time.monotonic()
        self._runs = runs

    def show(self, record: RunRecord, news: StepSummary | Evaluated) -> None:
        """Do nothing: it is seen with the next redrawing."""

    def ended(self, run: Run) -> None:
        """Do nothing: it is seen with the next redrawing."""

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = (
            [ResultTable(make_rows(self._comparison, self._runs))] if self._runs else []
        )
        if self._runs:
            parts += [Text(""), self._bar()]
        if self._phase.text:
            parts.append(self._phase)
        return Panel(
            Group(*parts), title=f"Weir: {title(self._comparison)}".replace("\n", "; "), title_align="left",
            border_style="cyan",
        )  # fmt: skip

    def _bar(self) -> RenderableType:
        """Return a bar: how far the training under way is, and all of them."""
        run = self._runs[-1]
        total = len(self._comparison.methods) * len(self._comparison.seeds)
        step, steps = len(run.record.steps), run.record.total_steps
        done = len(self._runs) - 1 + (step / steps if steps else 0.0)
        spent = time.monotonic() - self._began
        left = f", about {duration(spent * (total - done) / done)} left" if done >= 0.1 else ""
        where = f"step {step} of {steps}" if steps else "workers start"
        line = Table.grid(padding=(0, 2))
        line.add_row(
            ProgressBar(total=total, completed=done, width=30),
            Text(f"training {len(self._runs)} of {total}: {run.method}, seed {run.seed}, {where}{left}"),
        )
        return line
