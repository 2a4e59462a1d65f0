# SPDX-License-Identifier: Apache-2.0
"""``weir compare``: options of the command line to a comparison, checked before anything is started."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from weir.compare.config import DEFAULT_METHODS, make_comparison
from weir.train import options
from weir.train.config import ConfigError


@options.takes_training_options
def compare(
    *,
    context: typer.Context,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            help="Folders of finished runs of weir train, to be set side by side. Then nothing is trained.",
            show_default=False,
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Methods and peers, comma-separated; all: the methods, peers: those without Weir, such as "
            "torch's hooks over Gloo. weir methods lists them.",
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

    With RUN..., it trains nothing: it reads the summaries of these runs, and writes compared.json and
    compared.png. The first one is what the others are compared with. Runs of another model, of other data,
    numbers of workers or batch sizes are refused.
    """
    if runs:
        _finished(runs, context, settings["out"], name)
        return
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


def _finished(runs: list[Path], context: typer.Context, out: Path, name: str | None) -> None:
    """Set finished runs side by side."""
    from weir.compare.finished_view import ERRORS, show

    try:
        if unwanted := sorted(options.given(context).keys() - {"runs", "out", "name"}):
            raise ConfigError(
                f"{options.in_line(unwanted)}: finished runs have their settings; leave it out, or RUN"
            )
        show(runs, out, name, Console())
    except (ConfigError, *ERRORS) as error:
        typer.echo(f"weir compare: {error}", err=True)
        raise typer.Exit(2) from None
