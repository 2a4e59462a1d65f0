# SPDX-License-Identifier: Apache-2.0
"""``weir bench list``: the benchmarks, with what each measures and about how long it takes."""

from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.table import Table

LIST: Final = "list"
EXPECTED: Final = {
    "switch": "minutes; more with root",
    "instructions": "minutes",
    "start": "minutes",
    "tables": "minutes",
    "p4runtime": "a minute",
    "allreduce": "minutes; more with root",
    "latency": "minutes",
    "overlap": "minutes, with root",
    "fsdp": "minutes; more with root",
    "gpu": "10 minutes, with a GPU",
    "accuracy": "an hour",
    "training": "an hour, with root",
    "ps": "an hour, with root",
    "cost": "minutes",
    "dfs": "hours; with --quick, minutes",
    "selection": "minutes",
    "density": "minutes",
    "placement": "minutes",
    "scale": "minutes",
    "spraying": "minutes",
    "incast": "half an hour",
    "jobs": "half an hour",
    "tail": "minutes; with --full, hours",
    "ps-filter": "an hour",
}
"""How long each takes with its own settings on two idle cores, to an order of magnitude."""


def show(benchmarks: Iterable[tuple[str, str]], console: Console) -> None:
    """Print the benchmarks. ``benchmarks``: name and what it measures."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for head in ("benchmark", "takes about", "what it does"):
        table.add_column(head)
    for name, what in benchmarks:
        table.add_row(name, EXPECTED[name], what)
    console.print(table)
    console.print(
        "Times are those of two idle cores. Settings: weir bench NAME --help", style="dim", markup=False
    )
