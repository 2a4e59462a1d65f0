# SPDX-License-Identifier: Apache-2.0
"""``weir bench dfs``: DFS, whole and with each part left out, beside its peers.

At equal delivered energy on the same gradients, and at equal accuracy of trainings. No packet is sent: bytes
are those of the slot protocol, counted from the lanes of every reduction, headers from Ethernet up, both
directions, all workers. No figure depends on the machine.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import Final

from rich.console import Console

from weir.bench.cost import GOAL
from weir.bench.dfs_cases import BASELINE, DENSE, PLANNED, REPLAYED, Curves, Measured, Point, measure, saving
from weir.bench.dfs_plot import draw
from weir.bench.dfs_runs import Runs
from weir.bench.dfs_runs import run as look_at_runs
from weir.bench.dfs_training import Trained
from weir.bench.dfs_training import run as run_training
from weir.bench.grid import simulate
from weir.bench.table import show
from weir.report.words import byte_count
from weir.train.config import Model

TOLERANCE: Final = 0.005
"""Of accuracy, below which two trainings are equal."""

_CODED_ALONE: Final = "dfs without lists"  # not trained: it trains as dfs does

_Case = tuple[Model, str, float, int, int, int]  # model, contender, density, workers, steps, seed
Cell = tuple[Model, int, str, float]
"""Model, workers, contender and density."""

_Means = Mapping[tuple[str, float], tuple[float, float]]  # (contender, density) to bytes and accuracy


def run(
    models: Sequence[Model],
    densities: Sequence[float],
    workers: Sequence[int],
    steps: int,
    seeds: int,
    trained_densities: Sequence[float],
    trained_workers: Sequence[int],
    trained_steps: int,
    plot: Path,
    journal: Path | None,
) -> list[Curves]:
    """Measure, print tables, and draw. trained_densities: none: nothing is trained for its accuracy."""
    found = {(m, n, s): Curves(m, n, s) for m in models for n in workers for s in range(1, seeds + 1)}
    todo = [(m, n, steps, s, density) for (m, n, s) in found for density in densities]
    for (m, n, _, s, density), one in zip(
        todo, simulate(measure, Measured, todo, journal=journal), strict=True
    ):
        curves = found[m, n, s]
        for name, point in one.points.items():
            curves.points.setdefault(name, []).append(Point(*point))
        curves.sizes[density] = {pair[0]: pair[1] for pair in one.sizes}
    looked_at = [
        (density, model, min(4, max(workers)), steps, 1) for model in models for density in densities
    ]
    runs = simulate(look_at_runs, Runs, looked_at, journal=journal)
    cases = _trainings(models, trained_densities, trained_workers, trained_steps, seeds)
    trained = simulate(run_training, Trained, cases, journal=journal) if cases else []
    every = list(found.values())
    _print_energy(every)
    _print_sizes(every)
    _print_runs(looked_at, runs)
    if trained:
        _print_accuracy(cases, trained)
    draw(plot, every)
    whole = {
        "curves": [asdict(one) for one in every],
        "runs": [{"case": case, **asdict(one)} for case, one in zip(looked_at, runs, strict=True)],
        "trained": [{"case": case, **asdict(one)} for case, one in zip(cases, trained, strict=True)],
    }
    plot.with_suffix(".json").write_text(json.dumps(whole, indent=1))
    Console().print(f"drawn: {plot}; every figure: {plot.with_suffix('.json')}", style="dim", highlight=False)
    return every


def _trainings(
    models: Sequence[Model], densities: Sequence[float], workers: Sequence[int], steps: int, seeds: int
) -> list[_Case]:
    """Return what is trained: peers at the densities, DFS at some between them, too, its parts at one."""
    if not densities:
        return []
    peers = [name for name in REPLAYED if not name.startswith("dfs")]
    parts = [name for name in REPLAYED if name.startswith("dfs without") and name != _CODED_ALONE]
    trained = [
        (DENSE, 1.0),
        *product(peers, densities),
        *product(["dfs"], finer(densities)),
        *product(parts, [sorted(densities)[len(densities) // 2]]),
    ]
    return [
        (model, name, density, count, steps, seed)
        for model in models
        for count in workers
        for name, density in trained
        for seed in range(1, seeds + 1)
    ]


def finer(densities: Sequence[float]) -> list[float]:
    """Return these, one between each two, and three below, so that DFS has one where a peer is as accurate.

    Below, each is a third of the second one above it: what DFS sends for a density is less than what any peer
    does, so it is compared at lower ones.
    """
    ordered = sorted(densities)
    below = [ordered[0] / math.sqrt(3) ** count for count in (1, 2, 3)]
    between = [math.sqrt(low * high) for low, high in pairwise(ordered)]
    return sorted([*ordered, *(round(density, 4) for density in (*below, *between))])


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


def _print_runs(cases: Sequence[tuple[float, Model, int, int, int]], runs: Sequence[Runs]) -> None:
    """Show whether large values lie together."""
    sizes = [int(size) for size, _ in runs[0].delivered[1:]]
    rows = []
    for (density, model, *_), one in zip(cases, runs, strict=True):
        first, *others = (share for _, share in one.delivered)
        rows.append(
            (
                f"{model}, {density:.1%}",
                f"{one.together:.1%}",
                f"{first:.1%}",
                *(f"{share / first:.0%}" if first else "-" for share in others),
            )
        )
    show(
        "What the best blocks of each size would deliver for the bits of single elements",
        ("model, density", "followed", "energy", *(f"blocks of {size}" for size in sizes)),
        rows,
        [
            "of gradients and residuals of all workers, added up, beside dfs without sizes; bits: positions "
            "and values, each parameter by itself; energy: of single elements; blocks of: over that",
            "followed: of the largest elements those whose next one is among them, too; by chance that is "
            "the density",
        ],
    )


def _print_accuracy(cases: Sequence[_Case], trained: Sequence[Trained]) -> None:
    """Show what each contender sends and reaches, and what DFS saves of its bytes at equal accuracy."""
    rows = []
    shares: dict[Cell, float | None] = {}
    for group in dict.fromkeys((case[0], case[3]) for case in cases):
        mine = [(case, one) for case, one in zip(cases, trained, strict=True) if (case[0], case[3]) == group]
        means, (model, workers) = _means(mine), group
        for (name, density), (sent, reached) in sorted(
            means.items(), key=lambda item: (item[0][1], item[0][0])
        ):
            share = shares[model, workers, name, density] = saving_at_equal_accuracy(means, name, density)
            if name.startswith("OmniReduce") and name not in (BASELINE, _best_block(means, density)):
                continue
            rows.append(
                (
                    f"{model}, {workers} workers, {density:.1%}, {name}",
                    byte_count(sent),
                    f"{reached:.1%}",
                    "-" if share is None or name == "dfs" else f"{share:.0%}",
                )
            )
    show(
        f"Trained for {cases[0][4]} steps",
        ("model, workers, density, contender", "bytes a step", "accuracy", "dfs saves"),
        rows,
        [
            "means of the seeds; bytes: of all workers, up and down; resnet18 with momentum 0.9, and a "
            "tenth of the learning rate",
            "OmniReduce: in blocks of 256, and of the size that is cheapest there; dfs also at densities "
            "between the others",
            f"dfs saves: with the cheapest of its densities that are at most {100 * TOLERANCE:g} points less "
            "accurate; -: none is",
        ],
    )
    Console().print(verdict(shares), style="bold", highlight=False)


def _best_block(means: _Means, density: float) -> str:
    """Return OmniReduce with the block that costs least at a density."""
    return min(
        (name for name, at in means if at == density and name.startswith("OmniReduce")),
        key=lambda name: means[name, density][0],
        default="",
    )


def verdict(shares: Mapping[Cell, float | None]) -> str:
    """Say in how many cells DFS costs less at equal accuracy, and in which not. shares: saved, by cell."""
    peers = {at: share for at, share in shares.items() if not at[2].startswith("dfs") and at[2] != PLANNED}
    dearer = [
        f"{model}, {workers} workers, {density:.1%}, {name}"
        for (model, workers, name, density), share in peers.items()
        if share is None or share <= 0
    ]
    parts = [
        f"at equal accuracy dfs is cheaper than what is dense, unplanned or of a fixed size in "
        f"{len(peers) - len(dearer)} of {len(peers)} cells"
    ]
    if dearer:
        parts.append(f"but not in: {'; '.join(dearer)}")
    planned = [share for (_, _, name, _), share in shares.items() if name == PLANNED and share is not None]
    if planned:
        parts.append(f"{fmean(planned):.0%} below {PLANNED} on average")
    return ", ".join(parts)


def _means(outcomes: Sequence[tuple[_Case, Trained]]) -> _Means:
    """Return one model's means over the seeds."""
    sent: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for (_, _, density, *_), one in outcomes:
        for name, count in one.bytes.items():
            sent.setdefault((name, density), []).append((count, one.accuracy))
    return {at: (fmean(b for b, _ in found), fmean(a for _, a in found)) for at, found in sent.items()}


def saving_at_equal_accuracy(means: _Means, name: str, density: float) -> float | None:
    """Return the share of a contender's bytes that DFS saves at some density where it is as accurate.

    None: there is no such density.
    """
    theirs, accuracy = means[name, density]
    mine = [
        sent
        for (who, _), (sent, reached) in means.items()
        if who == "dfs" and reached >= accuracy - TOLERANCE
    ]
    return 1 - min(mine) / theirs if mine else None


def _spread(shares: Sequence[float]) -> str:
    return f"{fmean(shares):.0%} ({min(shares):.0%})" if shares else "-"
