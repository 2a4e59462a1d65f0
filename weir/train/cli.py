# SPDX-License-Identifier: Apache-2.0
"""``weir train``: options of the command line to a TrainConfig, checked before anything is started."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from weir.train import options
from weir.train.config import DEFAULT_METHOD, ConfigError, make_config


def train(
    *,
    workers: options.Workers = 4,
    model: options.Model = "resnet18",
    data: options.Data = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What is sent of a gradient, and when: weir methods lists them. dense: all of it, always.",
            rich_help_panel="Method",
        ),
    ] = DEFAULT_METHOD,
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
    seed: Annotated[int, typer.Option(help="Of parameters and of the order of the data.")] = 1,
    reference: Annotated[
        bool, typer.Option(help="Train a second time over plain Gloo with the same seed, for comparison.")
    ] = True,
    topology: options.Topology = "single",
    links: options.Links = None,
    loss: options.Loss = 0.0,
    background: options.Background = "none",
    background_load: options.BackgroundLoad = 0.5,
    background_dscp: options.BackgroundDscp = 0,
    loss_budget: options.LossBudget = 0.0,
    loss_policy: options.LossPolicy = None,
    pcap: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Capture all ports of the switch (of the first, where there are several); see weir pcap.",
        ),
    ] = None,
    out: options.Out = Path("runs"),
    name: Annotated[
        str | None, typer.Option(help="Name of the run's folder, after the time; default: model and method.")
    ] = None,
) -> None:
    """Train a real model with its gradients summed by the P4 program.

    Starts switches, a controller and the workers on this machine, trains with DistributedDataParallel over
    the switches, then once more over plain Gloo for reference. Writes config.json, steps.jsonl, summary.json
    and report.png. Ctrl-C ends every process and still writes the summary.

    With the options under Network it builds racks and spines, slows and disturbs their links, and lets a
    bounded share of the gradients go missing. The reference does not see these links: it runs over loopback.
    """
    try:
        config = make_config(
            workers=workers,
            model=model,
            data=data,
            method=method,
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
            seed=seed,
            reference=reference,
            topology=topology,
            links=links,
            loss=loss,
            background=background,
            background_load=background_load,
            background_dscp=background_dscp,
            loss_budget=loss_budget,
            loss_policy=loss_policy,
            pcap=pcap,
            out=out,
            name=name,
        )
    except ConfigError as error:
        typer.echo(f"weir train: {error}", err=True)
        raise typer.Exit(2) from None
    from weir.train.launcher import train as run

    raise typer.Exit(run(config, Console()))
