# SPDX-License-Identifier: Apache-2.0
"""``weir partition DATA``."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from weir.report.tables import Json, print_json


def partition(
    data: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of text files, or one file in svmlight's format. The words of a text are its "
            "features; its folder is its label."
        ),
    ],
    *,
    machines: Annotated[int, typer.Option(min=1, help="Machines; each has a worker and a server.")] = 8,
    racks: Annotated[
        int,
        typer.Option(
            min=1,
            help="Racks of a leaf-spine network, with equal numbers of machines; busy pairs share a rack.",
        ),
    ] = 1,
    partitioner: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="refined (Weir's), mtkahypar, metis, greedy, hash, random; or random/random, which ignores "
            "the use of parameters, too.",
        ),
    ] = "refined",
    hashing: Annotated[
        Literal["none", "plain", "compositional", "local", "clustered"],
        typer.Option(
            help="Features that share a parameter: none; any (plain); two parameters for each feature, "
            "each shared with other features (compositional); features that the same machines use (local); "
            "of these, features with a similar effect on the label (clustered)."
        ),
    ] = "none",
    buckets: Annotated[
        int,
        typer.Option(min=0, help="Parameters when features are hashed; default: an eighth of the features."),
    ] = 0,
    hashes: Annotated[
        int, typer.Option(min=1, help="Parameters of a feature, with --hashing plain or local.")
    ] = 1,
    lines: Annotated[int, typer.Option(min=0, help="Lines of text in a sample; 0: a file each.")] = 0,
    hold_out: Annotated[
        int,
        typer.Option(min=0, help="Hold out every N-th sample for evaluation in training; 0: none."),
    ] = 0,
    slack: Annotated[
        float, typer.Option(min=0, help="Share by which a machine may exceed its equal part.")
    ] = 0.05,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0,
    compare: Annotated[bool, typer.Option("--compare", help="Try all installed partitioners.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Explain the figures.")] = False,
    plan_file: Annotated[
        Path | None,
        typer.Option(
            "--plan", metavar="FILE", help="Write the plan, for weir train --mode ps --placement FILE."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the traffic between machines as a PNG.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Place samples on workers and parameters on servers so that little data travels.

    Prints the traffic of an iteration over all samples: every worker pulls each parameter that it needs and
    does not have once, and pushes one gradient for it. With --hashing, features share parameters.
    """
    from weir.host_agent.placement.partitioners import PARTITIONERS
    from weir.host_agent.placement.partitioners.packages import MissingPackageError
    from weir.host_agent.placement.plan import BOTH_RANDOM, Plan, make_plan
    from weir.partition.planfile import PlanFile, Source
    from weir.partition.view import as_figures, comparison, draw, explanation, summary

    console = Console()
    names = (BOTH_RANDOM, *PARTITIONERS)
    try:
        if partitioner not in names:
            raise ValueError(f"--partitioner {partitioner}: there are {', '.join(names)}")
        source = Source(tuple(data), lines, hold_out)
        with Console(stderr=True).status(f"reading {', '.join(map(str, data))}"):
            samples, _ = source.read()
        count = 0 if hashing == "none" else buckets or max(samples.width // 8, machines)
        plans: dict[str, Plan] = {}
        for name in dict.fromkeys([*(names if compare else ()), partitioner]):
            with Console(stderr=True).status(f"{name}: {len(samples):,} samples on {machines} machines"):
                try:
                    plans[name] = make_plan(
                        samples,
                        machines,
                        name,
                        hashing=hashing,
                        buckets=count,
                        hashes=hashes,
                        racks=racks,
                        slack=slack,
                        seed=seed,
                    )
                except MissingPackageError as error:
                    if name == partitioner:
                        raise
                    typer.echo(f"left out: {error}", err=True)
    except (OSError, ValueError, MissingPackageError) as error:
        typer.echo(f"weir partition: {error}", err=True)
        raise typer.Exit(2) from None
    plan = plans[partitioner]
    if as_json:
        print_json({name: as_figures(each) for name, each in plans.items()})
    else:
        if compare:
            console.print(comparison(plans))
        console.print(summary(samples, plan, partitioner))
        if explain:
            console.print(explanation(samples, plan))
    try:
        if plan_file is not None:
            PlanFile(source, plan.placement, plan.buckets).save(plan_file)
        if plot is not None:
            draw(plan, partitioner, plot)
    except OSError as error:
        where = error.filename or (plot if plan_file is None else f"{plan_file}, or the plot")
        typer.echo(f"weir partition: cannot write {where}: {error.strerror}", err=True)
        raise typer.Exit(1) from None
