# SPDX-License-Identifier: Apache-2.0
"""The commands of ``weir bench`` that need no network: what is chosen, coded and placed, in one process."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from weir.bench.arguments import Density, Journal, Workers, begin, model_of, models_of, numbers
from weir.methods import Plugin
from weir.train import options

if TYPE_CHECKING:
    from weir.train.config import Model


def cost(
    models: Annotated[
        str, typer.Option(help="Models, comma-separated: resnet18, cnn, mlp, lm.")
    ] = "mlp,cnn,lm",
    densities: Annotated[
        str, typer.Option(help="Shares of the values that each worker chooses, comma-separated.")
    ] = "0.001,0.01,0.05,0.1",
    workers: Annotated[str, typer.Option(help="Numbers of workers, comma-separated.")] = "2,4,8,16",
    steps: Annotated[int, typer.Option(min=3, help="Steps recorded; the first third does not count.")] = 12,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Settings at a time; default: one per core.")
    ] = None,
    plot: Annotated[Path, typer.Option(help="Where the plot (PNG) goes.")] = Path("runs/bench-cost.png"),
) -> None:
    """Count the bytes that Weir, OmniReduce and lists of values send for the same recorded gradients.

    The bytes are those on the wire in both directions, headers included. They are calculated exactly and
    without a network: no figure depends on this machine.
    """
    begin("cost", "recording gradients")
    from weir.bench.cost import run

    chosen = models_of(models)
    sent = numbers(float, densities, "--densities", 0, 1)
    counts = numbers(int, workers, "--workers", 1, 32)
    run(chosen, sent, counts, steps, plot, processes)


def dfs(
    models: Annotated[
        str, typer.Option(help="Models, comma-separated: resnet18, cnn, mlp, lm, bag.")
    ] = "mlp,cnn,lm,bag",
    densities: Annotated[
        str, typer.Option(help="Densities, comma-separated, which make each contender's curve.")
    ] = "0.001,0.003,0.01,0.03,0.1,0.2,0.4",
    workers: Annotated[str, typer.Option(help="Numbers of workers, comma-separated.")] = "2,4,8,16",
    steps: Annotated[int, typer.Option(min=3, help="Steps compared; the first third does not count.")] = 48,
    seeds: Annotated[int, typer.Option(min=1, help="Of the trainings.")] = 3,
    trained_densities: Annotated[
        str, typer.Option(help="Densities of the trainings for accuracy, comma-separated; empty: none.")
    ] = "0.003,0.01,0.03,0.2",
    trained_workers: Annotated[
        str, typer.Option(help="Numbers of workers of these trainings, comma-separated.")
    ] = "4",
    trained_steps: Annotated[int, typer.Option(min=1, help="Steps of these trainings.")] = 300,
    journal: Journal = None,
    quick: Annotated[
        bool, typer.Option(help="A few minutes: mlp, 4 workers, 1 seed, fewer densities and steps.")
    ] = False,
    plot: Annotated[Path, typer.Option(help="Where the plot (PNG) goes.")] = Path("runs/bench-dfs.png"),
) -> None:
    """Compare DFS, whole and with each part left out, with its peers: bytes at equal energy, and accuracy.

    Peers: OmniReduce at every block size, block top-k, top-k in planned encodings with and without packed
    lanes, lists of (index, value). Also shows which block sizes were chosen, and whether large values lie
    together, as blocks need. Nothing depends on the machine.
    """
    begin("dfs", "training, and sending gradients in many ways")
    from weir.bench.dfs import run

    if quick:
        models, densities, workers, trained_densities = "mlp", "0.003,0.01,0.03,0.1", "4", "0.03"
        steps, seeds, trained_steps = 36, 1, 120
    chosen = models_of(models)
    of_curves = numbers(float, densities, "--densities", 0, 1)
    counts = numbers(int, workers, "--workers", 1, 32)
    of_trainings = numbers(float, trained_densities, "--trained-densities", 0, 1) if trained_densities else []
    by = numbers(int, trained_workers, "--trained-workers", 1, 32)
    run(chosen, of_curves, counts, steps, seeds, of_trainings, by, trained_steps, plot, journal)


def selection(
    model: options.Model = "resnet18",
    methods: Annotated[
        str, typer.Option(help="Methods, comma-separated: weir methods lists them.")
    ] = "dfs,topk,topk-block,exdyna,micro,deft",
    plugin: Plugin = None,
    density: Density = 0.01,
    workers: Workers = 2,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a worker's backward pass.")] = 32,
    steps: Annotated[int, typer.Option(min=2, help="Steps; the second half counts.")] = 24,
) -> None:
    """Time the choice of what is sent, as a share of the backward pass; one thread, the same run."""
    begin("selection", "training and choosing")
    from weir.bench.selection import run

    run(model_of(model), _sparsifiers(methods), density, workers, batch, steps)


def density(
    model: options.Model = "cnn",
    methods: Annotated[
        str, typer.Option(help="Methods, comma-separated: weir methods lists them.")
    ] = "exdyna,exdyna-published,micro,micro-published,deft,topk",
    plugin: Plugin = None,
    target: Annotated[float, typer.Option(min=0, max=1, help="Density to aim at.")] = 0.001,
    workers: Workers = 8,
    steps: Annotated[int, typer.Option(min=2, help="Steps of a dense training.")] = 200,
    plot: Annotated[Path, typer.Option(help="Where the plot (PNG) goes.")] = Path("runs/bench-density.png"),
) -> None:
    """Follow the density of the sums, the balance among workers and the time to choose: ExDyna's figures."""
    begin("density", "training and choosing")
    from weir.bench.density import run

    run(model_of(model), _sparsifiers(methods), target, workers, steps, plot)


def ps_filter(
    model: Annotated[str, typer.Option(help="mlp, cnn or lm.")] = "mlp",
    workers: Workers = 4,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training data.")] = 10,
    thresholds: Annotated[
        str, typer.Option(help="Thresholds of the first step, in units of the parameters, comma-separated.")
    ] = "0.001,0.003,0.01,0.03",
    schedules: Annotated[
        str, typer.Option(help="Of constant, lr, sqrt, cbrt and rootA (such as root4), comma-separated.")
    ] = "constant,lr,sqrt,cbrt",
    block: Annotated[
        int, typer.Option(help="Elements that the filter sends or holds together, 1 to 256, a power of two.")
    ] = 1,
    momentum: Annotated[
        float,
        typer.Option(min=0, max=0.99, help="Momentum on the workers, whose buffer is then their residual."),
    ] = 0.0,
    at_server: Annotated[bool, typer.Option(help="Momentum on the server instead.")] = False,
    delay: Annotated[
        int, typer.Option(min=0, help="Pushes, of all workers, that are made before one reaches the server.")
    ] = 0,
    tempered: Annotated[
        bool, typer.Option(help="The staler a push is, the less it moves the model, as in training.")
    ] = True,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each kind.")] = 3,
) -> None:
    """Count data and accuracy of Parameter Flow by threshold and schedule of its filter, by direction."""
    begin("ps-filter", "training with parameter servers")
    from weir.bench.ps_filter import Setting, run
    from weir.host_agent.parameter_server.value_filter import FilterRule
    from weir.train.config import PRESETS

    known = [name for name in PRESETS if name != "resnet18"]
    if model not in known:
        raise typer.BadParameter(f"--model {model} is not one of {', '.join(known)}")
    try:
        rules = [
            FilterRule(threshold, schedule.strip(), block)
            for schedule in schedules.split(",")
            for threshold in (numbers(float, thresholds, "--thresholds", 0, 1000) if thresholds else [])
        ]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    run(Setting(cast("Model", model), workers, epochs, momentum, at_server, delay, tempered), rules, seeds)


def placement(
    machines: Annotated[str, typer.Option(help="How many machines, comma-separated.")] = "16",
    buckets: Annotated[
        str, typer.Option(help="Features to a parameter, where they are hashed, comma-separated.")
    ] = "8,32",
    lines: Annotated[int, typer.Option(min=1, help="Lines of text in a sample.")] = 60,
    samples: Annotated[int, typer.Option(min=100, help="Samples of each corpus, at most.")] = 3000,
    only_time: Annotated[
        bool,
        typer.Option("--only-time", help="Place --samples made-up samples, and say how long that takes."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of all that is random.")] = 1,
) -> None:
    """Compare what partitions and hashes of a sparse linear model's features save, and its accuracy.

    Corpora are text of packages that are installed beside Weir, and made-up samples of known structure.
    """
    from weir.bench.placement import measure, time_partitions

    sizes = tuple(numbers(int, machines, "--machines", 0, 63))
    if only_time:
        for size in sizes:
            time_partitions(samples, size, seed)
        return
    shares = tuple(numbers(int, buckets, "--buckets", 0, 1 << 20))
    measure(sizes, shares, lines, samples, seed)


def _sparsifiers(names: str) -> list[str]:
    from weir.host_agent.compression.sparsifiers import sparsifier_class

    try:
        return [sparsifier_class(name).name for name in names.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"--methods: {error}") from None
