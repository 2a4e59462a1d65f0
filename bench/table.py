# SPDX-License-Identifier: Apache-2.0
"""The tables that benchmarks print: medians and ratios of one run, with the command that made them."""

import shlex
import sys
import textwrap
from collections.abc import Sequence
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from weir.report.tables import InParts

_HEAD_WIDTH: Final = 14


def show(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> None:
    """Print one table and, below it, the command line and what must be known to read it.

    Columns that do not fit beside the others come in a further table.
    """

    def part(chosen: Sequence[int]) -> Table:
        table = Table(title=title if 1 in chosen else None, title_justify="left")
        for index in chosen:
            head = textwrap.fill(columns[index], _HEAD_WIDTH, break_long_words=False, break_on_hyphens=False)
            table.add_column(head, justify="left" if index == 0 else "right", overflow="fold")
        for row in rows:
            table.add_row(*(row[index] for index in chosen))
        return table

    console = Console()
    console.print(InParts(len(columns), part))
    console.print(f"command: {command_line()}", style="dim", highlight=False)
    for note in notes:
        console.print(note, style="dim", highlight=False)


def command_line() -> str:
    """Return the command that this process runs."""
    return f"weir {shlex.join(sys.argv[1:])}"


def spread(values: Sequence[float]) -> str:
    """Return half the range relative to the median, in per cent: how noisy the runs were; "-" of one run."""
    middle = median(values)
    return f"±{(max(values) - min(values)) / 2 / middle:.0%}" if middle and len(values) > 1 else "-"
