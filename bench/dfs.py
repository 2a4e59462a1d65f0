# SPDX-License-Identifier: Apache-2.0
"""``weir bench dfs``: DFS, whole and with each part left out, beside its peers.

At equal density and equal delivered energy on the same recorded gradients, and by the accuracy of trainings.
No packet is sent: bytes are those of the slot protocol, counted from the lanes of every reduction, headers
from Ethernet up, both directions, all workers. No figure depends on the machine.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import Future, as_completed
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Final

import torch
from rich.console import Console
from rich.progress import Progress

from weir.bench.cost import GOAL
from weir.bench.dfs_cases import BASELINE, DENSE, PLANNED, REPLAYED, Curves, Point, measure, saving
from weir.bench.dfs_plot import draw
from weir.bench.dfs_training import Trained, Training
from weir.bench.dfs_training import run as run_training
from weir.bench.replay import record
from weir.bench.table import show
from weir.native.scratch import scratch_folder
from weir.pool import one_thread, process_pool
from weir.train.config import Model
from weir.train.words import byte_count

WITH_MOMENTUM: Final = 0.9

console = Console(stderr=True)


def run(
    models: Sequence[Model],
    densities: Sequence[float],
    workers: Sequence[int],
    steps: int,
    seeds: int,
    trained_steps: int,
    plot: Path,
) -> list[Curves]:
    """Measure, print tables, and draw."""
    torch.set_num_threads(1)
    with (
        Progress(console=console, transient=True) as progress,
        scratch_folder("dfs") as folder,
        process_pool(os.cpu_count() or 1, one_thread) as pool,
    ):
        found = {(m, n, s): Curves(m, n, s) for m in models for n in workers for s in range(1, seeds + 1)}
        replaying = progress.add_task("replaying gradients", total=len(found) * len(densities))
        for model in models:
            for seed in range(1, seeds + 1):
                path = folder / "recorded"
                recording = record(path, model, max(workers), steps, seed, _momentum(model))
                waiting = {
                    pool.submit(measure, recording, count, density): (count, density)
                    for count in workers
                    for density in densities
                }
                for future in as_completed(waiting):
                    count, density = waiting[future]
                    _take(found[model, count, seed], density, *future.result())
                    progress.advance(replaying)
        trainings = _trainings(models, densities, min(4, max(workers)), trained_steps, seeds)
        training = progress.add_task("training", total=len(trainings))
        futures: list[Future[Trained]] = [pool.submit(run_training, one) for one in trainings]
        for _ in as_completed(futures):
            progress.advance(training)
        trained = [future.result() for future in futures]
    curves = list(found.values())
    _print_energy(curves)
    _print_sizes(curves)
    if trained:
        _print_accuracy(trained)
    draw(plot, curves)
    whole = {"curves": [asdict(one) for one in curves], "trained": [asdict(one) for one in trained]}
    plot.with_suffix(".json").write_text(json.dumps(whole, indent=1))
    Console().print(f"drawn: {plot}; every figure: {plot.with_suffix('.json')}", style="dim", highlight=False)
    return curves


def _momentum(model: Model) -> float:
    return WITH_MOMENTUM if model == "resnet18" else 0.0


def _take(curves: Curves, density: float, points: dict[str, Point], sizes: dict[int, int]) -> None:
    for name, point in points.items():
        curves.points.setdefault(name, []).append(point)
    curves.sizes[density] = sizes


def _trainings(
    models: Sequence[Model], densities: Sequence[float], workers: int, steps: int, seeds: int
) -> list[Training]:
    if not steps:
        return []
    middle = sorted(densities)[len(densities) // 2]
    return [
        Training(model, name, middle, workers, steps, seed, _momentum(model))
        for model in models
        for name in (DENSE, *REPLAYED)
        for seed in range(1, seeds + 1)
    ]


def _print_energy(found: Sequence[Curves]) -> None:
    """Show what DFS saves of each peer's bytes at the energies of the peer's own points."""
    peers = [name for name in found[0].points if name != "dfs"]
    groups = list(dict.fromkeys((one.model, one.workers) for one in found))
    rows, reached, cells = [], 0, 0
    for peer in peers:
        row = [peer]
        for group in groups:
            mine = [one for one in found if (one.model, one.workers) == group]
            shares = [
                share
                for one in mine
                for point in one.points[peer]
                if (share := saving(one, "dfs", peer, point.energy)) is not None
            ]
            row.append(_spread(shares))
            if peer == BASELINE:
                reached, cells = reached + sum(share >= GOAL for share in shares), cells + len(shares)
        rows.append(row)
    show(
        "DFS at equal delivered energy: saved of a peer's bytes, mean (least) over densities and seeds",
        ("peer", *(f"{model}, {count} workers" for model, count in groups)),
        rows,
        [
            "energy: share of the sum of all workers' gradients and residuals that is delivered; bytes at an "
            "energy between two densities are drawn out between them; -: none is comparable",
            "OmniReduce-b, lists of pairs: each worker's largest values, in blocks of b as its open code "
            "sends them, or as (index, value); top-k planned: the same through Weir's switch; dfs without: "
            "a part left out",
            f"dfs saves {GOAL:.2%} of {BASELINE}'s bytes or more in {reached} of {cells} comparable cells",
        ],
    )
    planned = [
        share
        for one in found
        for point in one.points[PLANNED]
        if (share := saving(one, "dfs", PLANNED, point.energy)) is not None
    ]
    if planned:
        Console().print(
            f"against {PLANNED}: {fmean(planned):.1%} on average, {min(planned):.1%} at least",
            style="dim",
            highlight=False,
        )


def _print_sizes(found: Sequence[Curves]) -> None:
    """Show how many of the elements were in blocks of which size."""
    sizes = sorted({size for one in found for counts in one.sizes.values() for size in counts})
    rows = []
    for model in dict.fromkeys(one.model for one in found):
        for density in sorted({density for one in found if one.model == model for density in one.sizes}):
            counts = [one.sizes[density] for one in found if one.model == model]
            total = sum(sum(count.values()) for count in counts)
            rows.append(
                (
                    f"{model}, {density:.1%}",
                    *(f"{sum(count.get(size, 0) for count in counts) / total:.0%}" for size in sizes),
                )
            )
    show("Elements in blocks of each size", ("model, density", *(str(s or "whole") for s in sizes)), rows)


def _print_accuracy(trained: Sequence[Trained]) -> None:
    rows = []
    for model in dict.fromkeys(one.training.model for one in trained):
        mine = [one for one in trained if one.training.model == model]
        for name in dict.fromkeys(one.training.contender for one in mine):
            same = [one for one in mine if one.training.contender == name]
            accuracies = [one.accuracy for one in same]
            rows.append(
                (
                    f"{model}, {name}",
                    byte_count(fmean(one.bytes for one in same)),
                    f"{fmean(accuracies):.1%}",
                    f"{min(accuracies):.1%} to {max(accuracies):.1%}",
                )
            )
    first = trained[0].training
    show(
        f"Trained for {first.steps} steps with {first.workers} workers, density {first.density:.1%}",
        ("model, contender", "bytes a step", "accuracy", "of the seeds"),
        rows,
        ["bytes: of all workers, up and down; resnet18 with momentum 0.9, and a tenth of the learning rate"],
    )


def _spread(shares: Sequence[float]) -> str:
    return f"{fmean(shares):.0%} ({min(shares):.0%})" if shares else "-"
