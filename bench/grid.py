# SPDX-License-Identifier: Apache-2.0
"""Runs of a grid that look at no clock: several at a time, and those of a journal are not made again."""

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from weir.bench.case import Run
from weir.process.pool import process_pool

T = TypeVar("T")

console: Final = Console(stderr=True)


class Journal:
    """Outcomes of runs in a file, a line of JSON each, so that a grid that was stopped goes on.

    A run is known by its arguments as text. The file says nothing of the code that made it: begin a new one
    when that has changed. A line that was cut off, or is damaged, is left out.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    entry = json.loads(line)
                    self._known[entry["run"]] = dict(entry["outcome"])
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue

    def get(self, case: tuple[Any, ...]) -> dict[str, Any] | None:
        """Return the fields of a run's outcome, if it was made."""
        return self._known.get(repr(case))

    def put(self, case: tuple[Any, ...], outcome: Any) -> None:
        """Write down a run's outcome, a dataclass; on a new line, whatever the last one is."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps({"run": repr(case), "outcome": asdict(outcome)}) + "\n")


def simulate(
    measure: Callable[..., T],
    kind: type[T],
    cases: Sequence[tuple[Any, ...]],
    run: Run,
    said: Callable[[tuple[Any, ...], T], str] | None = None,
) -> list[T]:
    """Return ``measure(*case)``, a dataclass of this kind, for all cases, in their order.

    run: says how many at a time (a single one in this process), and which file keeps their outcomes, see
    ``Journal``. said: a line to print when one ends.
    """
    book = Journal(run.journal)
    known = {number: found for number, case in enumerate(cases) if (found := book.get(case)) is not None}
    outcomes = {number: kind(**fields) for number, fields in known.items()}
    todo = [number for number in range(len(cases)) if number not in outcomes]
    at_once = max(1, min(len(todo), run.processes or os.cpu_count() or 1))
    had = f", {len(known)} more are in {run.journal}" if known else ""
    run.say(f"{len(todo)} runs, {at_once} at a time; one can take minutes{had}")

    def keep(number: int, outcome: T) -> None:
        outcomes[number] = outcome
        book.put(cases[number], outcome)
        if said is not None:
            run.say(said(cases[number], outcome))

    if at_once == 1:
        for number in todo:
            keep(number, measure(*cases[number]))
        return [outcomes[number] for number in range(len(cases))]
    bar = Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console, transient=True)
    with bar, process_pool(at_once) as pool:
        task = bar.add_task("running", total=len(todo))
        runs: dict[Future[T], int] = {pool.submit(measure, *cases[number]): number for number in todo}
        for future in as_completed(runs):
            keep(runs[future], future.result())
            bar.advance(task)
    return [outcomes[number] for number in range(len(cases))]
