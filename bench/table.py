# SPDX-License-Identifier: Apache-2.0
"""The tables that benchmarks print: medians and ratios of one run, with the command that made them."""

import sys
import textwrap
from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.table import Table


def show(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> None:
    """Print one table and, below it, the command line and what must be known to read it."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    console.print(f"command: {command_line()}", style="dim", highlight=False)
    for note in notes:
        console.print(note, style="dim", highlight=False)


def command_line(width: int = 10_000) -> str:
    """Return the command that this process runs, in lines of at most so many characters."""
    return textwrap.fill(f"weir {' '.join(sys.argv[1:])}", width, break_on_hyphens=False)


def spread(values: Sequence[float]) -> str:
    """Return half the range relative to the median, in per cent: how noisy the runs were."""
    middle = median(values)
    return f"±{(max(values) - min(values)) / 2 / middle:.0%}" if middle else "-"
