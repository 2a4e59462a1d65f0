# SPDX-License-Identifier: Apache-2.0
"""``weir compare``: options of the command line to a comparison, checked before anything is started."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from weir.compare.config import DEFAULT_METHODS, make_comparison
from weir.train import options
from weir.train.config import ConfigError


def compare(
    *,
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Names with commas between, or all; weir methods lists them.",
            rich_help_panel="Method",
        ),
    ] = DEFAULT_METHODS,
    seeds: Annotated[
        int, typer.Option(help="Trainings of each method, of which mean and spread are shown.")
    ] = 1,
    workers: options.Workers = 4,
    model: options.Model = "resnet18",
    data: options.Data = None,
    format: options.Format = None,
    density: options.Density = 0.05,
    threshold: options.Threshold = 1e-3,
    block: options.Block = 256,
    warmup_steps: options.WarmupSteps = 0,
    exclude: options.Exclude = None,
    powersgd_rank: options.PowerSgdRank = 2,
    group_size: options.GroupSize = None,
    swa_epochs: options.SwaEpochs = 0,
    epochs: options.Epochs = 3,
    max_steps: options.MaxSteps = None,
    evaluate_every: options.EvaluateEvery = None,
    batch_size: options.BatchSize = None,
    lr: options.LearningRate = None,
    topology: options.Topology = "single",
    links: options.Links = None,
    loss: options.Loss = 0.0,
    background: options.Background = "none",
    background_load: options.BackgroundLoad = 0.5,
    background_dscp: options.BackgroundDscp = 0,
    loss_budget: options.LossBudget = 0.0,
    loss_policy: options.LossPolicy = None,
    out: options.Out = Path("runs"),
    name: Annotated[
        str | None, typer.Option(help="Name of the folder, after the time; default: compare and the model.")
    ] = None,
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
            workers=workers,
            model=model,
            data=data,
            format=format,
            density=density,
            threshold=threshold,
            block=block,
            warmup_steps=warmup_steps,
            exclude=exclude,
            powersgd_rank=powersgd_rank,
            group_size=group_size,
            swa_epochs=swa_epochs,
            epochs=epochs,
            max_steps=max_steps,
            evaluate_every=evaluate_every,
            batch_size=batch_size,
            lr=lr,
            topology=topology,
            links=links,
            loss=loss,
            background=background,
            background_load=background_load,
            background_dscp=background_dscp,
            loss_budget=loss_budget,
            loss_policy=loss_policy,
            out=out,
            name=name,
        )
    except ConfigError as error:
        typer.echo(f"weir compare: {error}", err=True)
        raise typer.Exit(2) from None
    from weir.compare.launcher import compare as run

    raise typer.Exit(run(comparison, Console()))
