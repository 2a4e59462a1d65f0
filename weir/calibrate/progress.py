# SPDX-License-Identifier: Apache-2.0
"""Progress of a calibration, for a user: a bar with the time left, and a line for each finding.

Where there is no terminal, a line now and then instead of the bar.
"""

from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from weir.calibrate.report import name_of
from weir.calibrate.search import Finding, Question
from weir.calibrate.trial import TrialOutcome

_LINES: Final = 10  # of progress, where there is no bar


class RunProgress:
    """A Listener on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("training runs"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("training without loss", total=None)
        self._said = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def expect(self, runs: int) -> None:
        """Make the bar so long."""
        self._progress.update(self._task, total=runs)

    def ran(self, question: Question | None, p: float, outcome: TrialOutcome) -> None:
        """Move the bar on."""
        what = "no loss" if question is None else f"{question.name}, {p:.0%}"
        self._progress.update(self._task, advance=1, description=f"{what}: {outcome.accuracy:.1%}")
        self._say_so()

    def found(self, finding: Finding, spared: int) -> None:
        """Print what was found, and shorten the bar."""
        self._progress.update(self._task, advance=spared)
        self._say_so()
        share = f"{finding.tolerated:.0%} tolerated" if finding.tolerated else "nothing tolerated"
        beyond = f", {finding.beyond:.0%} is too much" if finding.beyond is not None else ""
        self._console.print(f"{name_of(finding)}: {share}{beyond}", highlight=False)

    def _say_so(self) -> None:
        """Say how far it is, where there is no terminal, in steps of a tenth."""
        task = self._progress.tasks[self._task]
        reached = int(_LINES * task.completed / task.total) if task.total else 0
        if not self._console.is_terminal and reached > self._said:
            self._said = reached
            self._console.print(f"{task.completed:g} of {task.total:g} training runs", highlight=False)
