# SPDX-License-Identifier: Apache-2.0
"""The commands of ``weir bench`` that simulate networks in virtual time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from weir.bench.arguments import Journal, begin, model_of, numbers, shares
from weir.train import options
from weir.wire.definition import MAX_WORKERS

Processes = Annotated[int | None, typer.Option(min=1, help="Runs at a time; default: one per core.")]


def _loads(given: list[float] | None) -> list[float] | None:
    """Return shares as they are; 0 is none at all."""
    shares([load for load in given or [] if load != 0])
    return given


def scale(
    workers: Annotated[
        str, typer.Option(help="Sizes of the job; the first is what the others are compared with.")
    ] = "32,256,1024",
    kilobytes: Annotated[int, typer.Option(min=1, help="Size of the vector in KiB.")] = 256,
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Switch slots of the job.")] = 64,
    gigabits: Annotated[float, typer.Option(min=0.001, help="Rate of every link in Gbit/s.")] = 1.0,
    delay: Annotated[float, typer.Option(min=0, help="Delay of every link in microseconds.")] = 1.0,
    loss: Annotated[
        float, typer.Option(min=0, max=0.5, help="Share of packets that every link loses.")
    ] = 0.0,
    sums: Annotated[int, typer.Option(min=1, help="How many sums, one after the other.")] = 1,
) -> None:
    """Simulate one sum over ever more workers: racks of 32, then two tiers, then three.

    The time is virtual, until the last worker has the sum; every worker's sum is checked.
    """
    from weir.bench.simulated.scale import measure

    sizes = numbers(int, workers, "--workers", 0, MAX_WORKERS)
    measure(sizes, kilobytes * 256, slots, round(gigabits * 1e9), round(delay * 1000), loss, sums)


def spraying(
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each mode.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Permutations in a run.")] = 3,
    kilobytes: Annotated[int, typer.Option(min=4, help="Size of a tensor in KiB.")] = 1024,
    spines: Annotated[int, typer.Option(min=2, max=8, help="Paths between two racks.")] = 4,
    depth: Annotated[int, typer.Option(min=1, help="Packets that a switch queue holds.")] = 128,
) -> None:
    """Simulate 16 hosts in four racks that send one another tensors, with each way to choose among paths."""
    from weir.bench.spraying import Permutation, measure

    measure(Permutation(spines=spines, depth=depth, tensor=kilobytes * 1024, rounds=rounds), seeds)


def incast(
    depths: Annotated[
        str, typer.Option(help="Packets that a switch queue holds, comma-separated.")
    ] = "16,32,128",
    kilobytes: Annotated[str, typer.Option(help="Sizes of a tensor in KiB.")] = "64,256,1024,4096",
    workers: Annotated[str, typer.Option(help="Workers in four racks: multiples of 4.")] = "8,16,32",
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each contender.")] = 5,
    tensors: Annotated[int, typer.Option(min=2, help="Tensors in a run, at most.")] = 20,
    budget: Annotated[float, typer.Option(min=0, max=1, help="Share of lanes that may go missing.")] = 0.1,
    processes: Processes = None,
    journal: Journal = None,
) -> None:
    """Simulate tensors pushed to servers and pulled at once by all workers, through short queues.

    Sets DCTCP's streams beside Weir's flows, lossless and with a loss budget, in the same class. Fails where
    queues overflowed and switches trimmed nothing all the same. The whole grid takes about half an hour on
    two cores; with --journal it goes on where it was stopped.
    """
    from weir.bench.incast import measure
    from weir.bench.tail_cases import Scenario

    sizes = [1024 * size for size in numbers(int, kilobytes, "--kilobytes", 3, 1 << 20)]
    many = numbers(int, workers, "--workers", 3, 256)
    if any(number % 4 for number in many):
        raise typer.BadParameter("--workers: multiples of 4, as there are four racks")
    scenario = Scenario(tensors=tensors, budget=budget, others=0)
    depth = numbers(int, depths, "--depths", 0, 1 << 16)
    _fail_if(measure(depth, sizes, many, seeds, scenario, processes, journal))


def jobs(
    depths: Annotated[
        str, typer.Option(help="Packets that a switch queue holds, comma-separated.")
    ] = "16,32",
    jobs: Annotated[str, typer.Option(help="Jobs at a time, comma-separated.")] = "4",
    workers: Annotated[
        int, typer.Option(min=1, max=8, help="Workers of each job in each of four racks.")
    ] = 2,
    model: options.Model = "cnn",
    steps: Annotated[int, typer.Option(min=1, help="Steps of every job.")] = 8,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each row.")] = 5,
    budget: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of the front layers' lanes that may go missing.")
    ] = 0.1,
    processes: Processes = None,
    journal: Journal = None,
) -> None:
    """Simulate training jobs that share a fabric: rings over DCTCP, Weir, and Weir that drops gradients.

    Says how much of the gradients' energy went missing with what switches trimmed. Fails when they trimmed
    nothing.
    """
    begin("jobs", "computing gradients")
    from itertools import product

    from weir.bench.jobs import Fabric, measure

    fabrics = [
        Fabric(jobs=count, workers=workers, depth=depth, model=model_of(model), steps=steps, budget=budget)
        for depth, count in product(
            numbers(int, depths, "--depths", 0, 1 << 16), numbers(int, jobs, "--jobs", 0, 8)
        )
    ]
    _fail_if(measure(fabrics, seeds, processes=processes, journal=journal))


def tail(
    load: Annotated[
        list[float] | None,
        typer.Option(
            callback=_loads,
            help="Share of the links between racks that others' bursts take; may be given more than once. "
            "Default: 0, only the tensors themselves.",
        ),
    ] = None,
    setting: Annotated[
        str, typer.Option(help="collectives (all-reduce), server (push and pull), or both.")
    ] = "server",
    workers: Annotated[
        list[int] | None,
        typer.Option(help="8, 16 or 32, in four racks; may be given more than once. Default: 16."),
    ] = None,
    loss: Annotated[
        float, typer.Option(min=0, max=0.5, help="Share of packets that links between racks lose.")
    ] = 0.0,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each contender.")] = 1,
    tensors: Annotated[int, typer.Option(min=1, help="Tensors in a run.")] = 20,
    kilobytes: Annotated[
        list[int] | None,
        typer.Option(
            help="Size of a tensor in KiB; may be given more than once. Default: 256, with --preset 64."
        ),
    ] = None,
    budget: Annotated[float, typer.Option(min=0, max=1, help="Share of lanes that may go missing.")] = 0.1,
    min_rto: Annotated[
        float, typer.Option(min=0.1, help="Least retransmission timeout of all contenders, in ms.")
    ] = 10.0,
    depth: Annotated[
        list[int] | None,
        typer.Option(
            help="Packets that a switch queue holds; may be given more than once. Default: 32; --preset: 128."
        ),
    ] = None,
    contenders: Annotated[str, typer.Option(help="Rows to measure, by their letters.")] = "adefghi",
    preset: Annotated[
        str | None,
        typer.Option(
            help="A published set-up instead of four racks at 1 Gbit/s: dlcp (144 hosts, 100 Gbit/s), "
            "dlcp-testbed (10 machines at one switch) or mlt (8 machines)."
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="The grid: 8, 16 and 32 workers, 16, 32 and 128 packets, 64 KiB to 4 MiB, loads 0 and 0.7, "
            "both settings. Hours.",
        ),
    ] = False,
    processes: Processes = None,
    journal: Journal = None,
    plot: Annotated[Path, typer.Option(help="Where the plot (PNG) goes.")] = Path("runs/bench-tail.png"),
) -> None:
    """Simulate tensor completion times, mean and p99, of workers that send all at once.

    Every row has a twin: DCTCP in the same class of the same queues, or Weir without the row's mechanism.
    Fails when a row's mechanism did nothing.
    """
    from dataclasses import replace
    from itertools import product

    from weir.bench.tail import measure_all
    from weir.bench.tail_cases import CONTENDERS, PRESETS, RACKS, SETTINGS, Scenario

    chosen = [name for name in SETTINGS if full or setting in (name, "both")]
    if not chosen:
        raise typer.BadParameter(f"--setting: {', '.join(SETTINGS)} or both, not {setting!r}")
    rows = [contender for contender in CONTENDERS if contender.name[0] in contenders]
    if not rows or set(contenders) - {contender.name[0] for contender in CONTENDERS}:
        raise typer.BadParameter(f"--contenders: letters from a to j, not {contenders!r}")
    if any(count % RACKS or count < RACKS for count in workers or []):
        raise typer.BadParameter(f"--workers: as many in each of {RACKS} racks")
    if preset is not None and (preset not in PRESETS or workers or full):
        raise typer.BadParameter(f"--preset: one of {', '.join(PRESETS)}, without --workers and --full")
    if preset is not None and any(load or []):
        raise typer.BadParameter("--preset: all hosts there are the job's, nobody is left to make --load")
    counts = workers or ([8, 16, 32] if full else [16])
    bases = [PRESETS[preset]] if preset else [Scenario(workers=count // RACKS) for count in counts]
    scenarios = [
        replace(
            base,
            loss=loss,
            tensors=tensors,
            budget=budget,
            min_rto=min_rto / 1000,
            depth=places,
            tensor=1024 * size,
        )
        for base, places, size in product(
            bases,
            depth or ([16, 32, 128] if full else [128 if preset else 32]),
            kilobytes or ([64, 256, 1024, 4096] if full else [64 if preset else 256]),
        )
    ]
    loads = load or ([0.0, 0.7] if full else [0.0])
    idle = measure_all(scenarios, chosen, loads, seeds, rows, processes, plot, journal)
    _fail_if(idle)


def _fail_if(idle: "Sequence[str]") -> None:
    """End with an error that says which mechanisms did nothing, if some did."""
    if idle:
        typer.secho(f"mechanisms that did nothing: {'; '.join(idle)}", fg="red", err=True)
        raise typer.Exit(1)
