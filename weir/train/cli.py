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
    model: Annotated[str, typer.Option(help="resnet18, cnn or lm (a small language model).")] = "resnet18",
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
    pcap: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Capture all switch ports; see weir pcap.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the folder of this run goes.")] = Path(
        "runs"
    ),
    name: Annotated[
        str | None, typer.Option(help="Name of the run's folder, after the time; default: model and method.")
    ] = None,
) -> None:
    """Train a real model with its gradients summed by the P4 program.

    Starts a switch, a controller and the workers on this machine, trains with DistributedDataParallel over
    the switch, then once more over plain Gloo for reference. Writes config.json, steps.jsonl, summary.json
    and report.png. Ctrl-C ends every process and still writes the summary.
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
            pcap=pcap,
            out=out,
            name=name,
        )
    except ConfigError as error:
        typer.echo(f"weir train: {error}", err=True)
        raise typer.Exit(2) from None
    from weir.train.launcher import train as run

    raise typer.Exit(run(config, Console()))
