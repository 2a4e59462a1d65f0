# SPDX-License-Identifier: Apache-2.0
"""``weir compare``: options of the command line to a comparison, checked before anything is started."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from weir.compare.config import DEFAULT_METHODS, make_comparison
from weir.train import options
from weir.train.config import ConfigError


@options.takes(options.SHARED)
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
            help="Methods and peers, comma-separated; all: every method of Weir. peers: the peers without "
            "Weir, such as torch's hooks over Gloo. weir methods lists them.",
        ),
    ] = DEFAULT_METHODS,
    seeds: Annotated[int, typer.Option(help="Trainings of each method; mean and spread are shown.")] = 1,
    name: Annotated[
        str | None, typer.Option(help="Name of the folder, after the time; default: compare and the model.")
    ] = None,
    **settings: Any,
) -> None:
    """Train one model with several methods and compare them.

    The methods train one after the other, on the same data, from the same parameters, over the same switches.
    The table shows accuracy, bytes on the wire and time of each. A method ignores settings that do not apply
    to it. Writes compare.json, compare.png, compare.html and steps.jsonl. Ctrl-C ends every process and still
    writes the results so far.

    With RUN..., it trains nothing: it reads the summaries of these runs, compares them with the first one,
    and writes compared.json and compared.png. The runs must have the same model, data, number of workers and
    batch size.

    With --json, progress goes to standard error, and the content of compare.json or compared.json to standard
    output.
    """
    as_json = settings["as_json"]
    if runs:
        _finished(runs, context, settings["out"], name, as_json)
        return
    try:
        given = options.given(context, options.SHARED)
        if settings["config"] is not None:
            from weir.train.resuming import configured

            given = configured(settings["config"], given)
        shared = {key: value for key, value in given.items() if key in options.SHARED}
        comparison = make_comparison(methods, seeds=seeds, name=name, **shared)
    except ConfigError as error:
        typer.echo(f"weir compare: {error}", err=True)
        raise typer.Exit(2) from None
    from weir.compare.launcher import compare as run

    raise typer.Exit(run(comparison, Console(stderr=as_json), as_json=as_json))


def _finished(runs: list[Path], context: typer.Context, out: Path, name: str | None, as_json: bool) -> None:
    """Set finished runs side by side."""
    from weir.compare.finished_view import ERRORS, show

    try:
        if unwanted := sorted(options.given(context, options.SHARED).keys() - {"runs", "out", "name"}):
            raise ConfigError(
                f"{options.in_line(unwanted)}: finished runs keep their settings; leave it out, or RUN"
            )
        show(runs, out, name, Console(), as_json=as_json)
    except (ConfigError, *ERRORS) as error:
        typer.echo(f"weir compare: {error}", err=True)
        raise typer.Exit(2) from None
