# SPDX-License-Identifier: Apache-2.0
"""Tables in the terminal: in parts where they are too wide, or as JSON instead."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table

_ANY_WIDTH: Final = 10_000

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def print_json(found: Any) -> None:
    """Print figures as JSON, for commands with ``--json``.

    Args:
        found: Dictionaries, lists, text, numbers, None. Other objects, such as paths, become text.
    """
    typer.echo(json.dumps(found, indent=2, default=str))


@dataclass(frozen=True)
class InParts:
    """A table with as many of its columns beside each other as fit; the first one is in every part.

    count: of columns. make: the table of these columns, by number; its cells are not to wrap.
    """

    count: int
    make: Callable[[Sequence[int]], Table]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        part = [0]
        for column in range(1, self.count):
            if len(part) > 1 and self._width([*part, column], console, options) > options.max_width:
                yield self.make(part)
                yield ""
                part = [0]
            part.append(column)
        yield self.make(part)

    def _width(self, columns: Sequence[int], console: Console, options: ConsoleOptions) -> int:
        table = self.make(columns)
        table.title = None  # is broken into lines as wide as the table
        return Measurement.get(console, options.update(max_width=_ANY_WIDTH), table).maximum
