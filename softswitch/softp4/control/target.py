# SPDX-License-Identifier: Apache-2.0
"""Parts common to the commands of ``softp4 ctl``: the switch that is meant, the printing of answers."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from softp4.control.address import ControlAddressError, running
from softp4.control.client import CallFailedError, call


@dataclass
class Target:
    """Switch that a command is for, and its way of printing."""

    socket: Path | None
    pid: int | None
    json: bool

    def call(self, name: str, **arguments: Any) -> Any:
        """Return what the switch answers. Ends the command with its words when it refuses."""
        try:
            return call(self._find(), name, **arguments)
        except (CallFailedError, ControlAddressError) as error:
            fail(str(error))

    def _find(self) -> Path:
        if self.socket is not None:
            return self.socket
        found = running()
        if self.pid is not None and self.pid not in found:
            fail(f"no switch of yours runs as process {self.pid}")
        if not found:
            fail("no switch of yours is running (root's switches are root's: use sudo)")
        if self.pid is None and len(found) > 1:
            pids = ", ".join(map(str, found))
            fail(f"several switches are running: choose one with --pid ({pids}); `list` says more")
        return found[self.pid] if self.pid is not None else next(iter(found.values()))


def show(context: typer.Context, found: Any, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table or, with --json, what the switch answered."""
    if context.obj.json:
        typer.echo(json.dumps(found, indent=1))
        return
    rows = [tuple("-" if cell in (None, "") else str(cell) for cell in row) for row in rows]
    if not rows:
        typer.echo("none")
        return
    table = Table(show_header=any(heads))
    for index, head in enumerate(heads):
        number = all(row[index].replace(",", "").isdecimal() for row in rows)
        table.add_column(head, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def fail(message: str) -> NoReturn:
    """End the command with these words."""
    typer.echo(f"softp4 ctl: {message}", err=True)
    raise typer.Exit(1)
