# SPDX-License-Identifier: Apache-2.0
"""``weir compare``: options of the command line to a comparison, checked before anything is started."""

from typing import Annotated, Any

import typer
from rich.console import Console

from weir.compare.config import DEFAULT_METHODS, make_comparison
from weir.train import options
from weir.train.config import ConfigError


@options.takes_training_options
def compare(
    *,
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Methods, comma-separated, or all; weir methods lists them.",
            rich_help_panel="Method",
        ),
    ] = DEFAULT_METHODS,
    seeds: Annotated[int, typer.Option(help="Trainings of each method; mean and spread are shown.")] = 1,
    name: Annotated[
        str | None, typer.Option(help="Name of the folder, after the time; default: compare and the model.")
    ] = None,
    **settings: Any,
) -> None:
    """Train the same model with several methods and set them side by side.

    Every method trains on the same data, from the same parameters, over the same switches, one after the
    other. The table says how accurate each became, what it put on the wire and what time it took. Settings
    that a method has no use for are left out for it. Writes compare.json, compare.png, compare.html and
    steps.jsonl. Ctrl-C ends every process and still writes what there is.
    """
    try:
        comparison = make_comparison(
            methods,
            seeds=seeds,
            name=name,
            **settings,
        )
    except ConfigError as error:
        typer.echo(f"weir compare: {error}", err=True)
        raise typer.Exit(2) from None
    from weir.compare.launcher import compare as run

    raise typer.Exit(run(comparison, Console()))
