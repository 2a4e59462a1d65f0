# SPDX-License-Identifier: Apache-2.0
"""``weir calibrate``: options of the command line to a calibration, and what comes of it."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from weir.calibrate.config import OF_SPARSIFIERS, make_calibration
from weir.methods import Plugin
from weir.process.child import ChildError
from weir.report.tables import Json, print_json
from weir.train import options
from weir.train.config import ConfigError


def calibrate(
    context: typer.Context,
    *,
    model: Annotated[
        str, typer.Option(help="mlp, cnn, lm (a small language model), bag (of words) or resnet18.")
    ] = "cnn",
    workers: Annotated[int, typer.Option(help="Workers of the job, 1 to 32.")] = 4,
    seeds: Annotated[int | None, typer.Option(help="Runs for each figure; default: 3.")] = None,
    tolerance: Annotated[
        float, typer.Option(help="Points of accuracy, in per cent, that the mean may fall.")
    ] = 0.5,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data; default: the model's own.")
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS", help="Largest number of steps in each epoch; default: the model's own."
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(metavar="NAME", help="As for weir train, sparsifiers only; dense: everything is sent."),
    ] = "dense",
    plugin: Plugin = None,
    density: Annotated[float, typer.Option(help="As for weir train.")] = 0.05,
    assigned: options.Assigned = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; default: the model's own.")] = None,
    momentum: Annotated[float, typer.Option(help="Momentum of SGD.")] = 0.0,
    loss_budget: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Write no policy. Measure only the cost of losing everything that a --loss-budget of weir "
            "train allows, and fail if it exceeds the tolerance.",
        ),
    ] = None,
    error_feedback: Annotated[
        bool, typer.Option(help="Send lost values again with the next step, or never.")
    ] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed, fewer epochs, a coarse grid: a first impression.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: one per processor.")
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File for the policy; a picture goes beside it. Default: policy-MODEL.json."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find how much of its gradients a model can lose, by layer class and by magnitude class.

    Trains without loss, then repeatedly with a share of the blocks lost at the source: each worker loses its
    own blocks in every step. Searches for the largest share that costs no more than the tolerance. Needs no
    switch: all workers train in one process. Prints a table and writes a policy for
    weir train --set loss_policy=FILE.
    If nothing may be lost, it says so, writes nothing and fails.
    """
    try:
        config = make_calibration(
            model=model,
            workers=workers,
            seeds=seeds,
            tolerance=tolerance,
            epochs=epochs,
            max_steps=max_steps,
            method=method,
            plugin=plugin,
            density=density,
            **options.assigned(context, OF_SPARSIFIERS),
            lr=lr,
            momentum=momentum,
            loss_budget=loss_budget,
            error_feedback=error_feedback,
            quick=quick,
            processes=processes or len(os.sched_getaffinity(0)),
            out=policy,
        )
    except ConfigError as error:
        typer.echo(f"weir calibrate: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"weir calibrate: training {config.model} without loss, then with more and more ...", err=True)
    from weir.calibrate import report, runner
    from weir.calibrate.progress import RunProgress
    from weir.train.folder import FolderError, writing
    from weir.train.running import interruptible

    console = Console(stderr=as_json)
    try:
        with RunProgress(console) as progress, interruptible():
            if config.loss_budget is not None:
                check = runner.check(config, progress)
                if as_json:
                    print_json(check.as_json())
                else:
                    console.print(report.checked(check))
                raise typer.Exit(0 if check.tolerated else 1)
            done = runner.calibrate(config, progress)
    except KeyboardInterrupt:
        typer.echo("weir calibrate: interrupted; nothing was written", err=True)
        raise typer.Exit(130) from None
    except ChildError as error:
        typer.echo(f"weir calibrate: {error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        print_json(done.as_json())
    else:
        console.print(report.tables(done))  # first of all: they took long
    if done.policy.lossless:
        typer.echo(f"weir calibrate: {report.nothing(done)}", err=True)
        raise typer.Exit(1)
    picture = config.out.with_suffix(".png")
    try:
        with writing(config.out):
            config.out.parent.mkdir(parents=True, exist_ok=True)
            done.policy.save(config.out)
        with writing(picture):
            report.draw(picture, done)
    except FolderError as error:
        typer.echo(f"weir calibrate: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"written: {config.out}, {picture}", err=as_json)
