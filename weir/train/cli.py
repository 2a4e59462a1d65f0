# SPDX-License-Identifier: Apache-2.0
"""``weir train``: options of the command line to a TrainConfig, checked before anything heavy is imported."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from weir.train.config import ConfigError, make_config


def train(
    *,
    workers: Annotated[int, typer.Option(help="Worker processes, 1 to 32.")] = 4,
    model: Annotated[
        str, typer.Option(help="resnet18, cnn, mlp or lm (a small language model).")
    ] = "resnet18",
    data: Annotated[
        str | None,
        typer.Option(help="digits (images) or stdlib (text of Python's library); default: the model's own."),
    ] = None,
    sparsifier: Annotated[
        str, typer.Option(help="What is sent of a gradient: none (all of it), topk, topk-block, threshold.")
    ] = "topk-block",
    density: Annotated[
        float, typer.Option(help="topk, topk-block: the share of values or blocks sent, above 0, at most 1.")
    ] = 0.05,
    threshold: Annotated[
        float, typer.Option(help="threshold: the magnitude from which a value is sent.")
    ] = 1e-3,
    block: Annotated[
        int, typer.Option(help="Values per block, the unit that is skipped when zero: 32, 64, 128 or 256.")
    ] = 256,
    epochs: Annotated[int, typer.Option(help="Passes over the training data.")] = 3,
    max_steps: Annotated[
        int | None, typer.Option(help="Steps per epoch at most; default: the whole of the data.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per worker and step; default: the model's own.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; default: the model's own.")] = None,
    seed: Annotated[int, typer.Option(help="Of parameters and of the order of the data.")] = 1,
    reference: Annotated[
        bool, typer.Option(help="Train a second time over plain Gloo with the same seed, for comparison.")
    ] = True,
    topology: Annotated[
        str,
        typer.Option(
            metavar="SHAPE",
            help="single: one switch. leaf-spine-RxS: R racks, a leaf switch in each, joined by S spines; "
            "the workers are spread over the racks.",
            rich_help_panel="Network",
        ),
    ] = "single",
    links: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Rate of every link, both ways, such as 100mbit; default: as fast as this machine.",
            rich_help_panel="Network",
        ),
    ] = None,
    loss: Annotated[
        float,
        typer.Option(
            metavar="P",
            help="Share of packets that every link loses in each direction, 0 to 0.5.",
            rich_help_panel="Network",
        ),
    ] = 0.0,
    background: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="incast: other hosts of the racks burst together towards one worker of each rack. "
            "Needs --links.",
            rich_help_panel="Network",
        ),
    ] = "none",
    background_load: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Share of that worker's link that the bursts take on average.",
            rich_help_panel="Network",
        ),
    ] = 0.5,
    background_dscp: Annotated[
        int,
        typer.Option(
            metavar="DSCP",
            help="Class of the bursts, 0 to 63. 0: best effort, which the switches serve after all of Weir's "
            "classes, 8 (back layers) to 48 (front layers).",
            rich_help_panel="Network",
        ),
    ] = 0,
    loss_budget: Annotated[
        float,
        typer.Option(
            metavar="P",
            help="Share of a front layer's gradient that may be missing from its sum, rather than be waited "
            "for; of back layers and of large values less, so of the whole less. What is missing is added to "
            "the next step's. 0: nothing.",
            rich_help_panel="Network",
        ),
    ] = 0.0,
    loss_policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Budgets by layer and magnitude, as weir calibrate writes them; instead of --loss-budget.",
            rich_help_panel="Network",
        ),
    ] = None,
    pcap: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Capture all ports of the switch (of the first, where there are several); see weir pcap.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the folder of this run goes.")] = Path(
        "runs"
    ),
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
            sparsifier=sparsifier,
            density=density,
            threshold=threshold,
            block=block,
            epochs=epochs,
            max_steps=max_steps,
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
