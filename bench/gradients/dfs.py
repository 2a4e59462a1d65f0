# SPDX-License-Identifier: Apache-2.0
"""DFS, whole and with each part left out, beside its peers.

At equal delivered energy on the same gradients, and at equal accuracy of trainings. No packet is sent: bytes
are those of the slot protocol, counted from the lanes of every reduction, headers from Ethernet up, both
directions, all workers. No figure depends on the machine.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import fmean
from typing import Final, cast

from weir.bench.case import Run, parameter
from weir.bench.gradients.contenders import (
    BASELINE,
    DENSE,
    PACKED,
    PLANNED,
    REPLAYED,
    SIZES,
    Curves,
    Measured,
    Point,
    Runs,
    Trained,
    measure,
    saving,
    together,
    trained,
)
from weir.bench.gradients.cost import GOAL
from weir.bench.gradients.replay import recordings
from weir.bench.grid import simulate
from weir.bench.results import Column, Line, Panel, Plot, Row, Table, share
from weir.report.words import byte_count
from weir.train.config import SGD_MODELS, Model

TOLERANCE: Final = 0.005
"""Of accuracy, below which two trainings are equal."""

_CODED_ALONE: Final = "dfs without lists"  # not trained: it trains as dfs does
_DRAWN: Final = {
    "dfs": "o-",
    "dfs without portions": "o--",
    "dfs without lists": "o:",
    "dfs without packed lanes": "o-.",
    PLANNED: "s-",
    "top-k planned": "s--",
    "block top-k": "^-",
    "lists of pairs": "x-",
    BASELINE: "d-",
}

_Case = tuple[Model, str, float, int, int, int]  # model, contender, density, workers, steps, seed
Cell = tuple[Model, int, str, float]
"""Model, workers, contender and density."""

_Means = Mapping[tuple[str, float], tuple[float, float]]  # (contender, density) to bytes and accuracy


@dataclass(frozen=True)
class Parameters:
    """Curves of bytes by energy, and trainings for accuracy."""

    models: tuple[str, ...] = parameter(("mlp", "cnn", "lm", "bag"), "whose gradients", choices=SGD_MODELS)
    densities: tuple[float, ...] = parameter(
        (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.4), "which make each contender's curve", above=0, most=1
    )
    workers: tuple[int, ...] = parameter((2, 4, 8, 16), "numbers of workers", least=2, most=32)
    steps: int = parameter(48, "compared; the first third does not count", least=6)
    trained_densities: tuple[float, ...] = parameter(
        (0.003, 0.01, 0.03, 0.2), "of the trainings for accuracy; empty: none", above=0, most=1
    )
    trained_workers: tuple[int, ...] = parameter((4,), "of these trainings", least=2, most=32)
    trained_steps: int = parameter(300, "of these trainings", least=1)


def run(parameters: Parameters, run: Run) -> Iterator[Table | Plot]:
    """Measure curves, look at runs of large values, and train."""
    models = cast(tuple[Model, ...], parameters.models)
    every = product(models, parameters.workers, run.seeds)
    found = {(m, n, s): Curves(m, n, s) for m, n, s in every}
    todo = [(m, n, parameters.steps, s, density) for m, n, s in found for density in parameters.densities]
    near = [
        (density, model, min(4, max(parameters.workers)), parameters.steps, 1)
        for model in models
        for density in parameters.densities
    ]
    with recordings():
        measured = simulate(measure, Measured, todo, run)
        runs = simulate(together, Runs, near, run)
    for (m, n, _, s, density), one in zip(todo, measured, strict=True):
        curves = found[m, n, s]
        for name, point in one.points.items():
            curves.points.setdefault(name, []).append(Point(*point))
        curves.sizes[density] = {pair[0]: pair[1] for pair in one.sizes}
    yield _energy(list(found.values()))
    yield _sizes(list(found.values()))
    yield _together(near, runs)
    yield Plot("Bytes by the energy that they deliver: right and low is better", _panels(found.values()))
    if cases := _trainings(parameters, run.seeds):
        yield _accuracy(cases, simulate(trained, Trained, cases, run))


def _trainings(parameters: Parameters, seeds: Sequence[int]) -> list[_Case]:
    """Return what is trained: peers at the densities, DFS at some between them, too, its parts at one."""
    if not (densities := parameters.trained_densities):
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
        (model, name, density, count, parameters.trained_steps, seed)
        for model in cast(tuple[Model, ...], parameters.models)
        for count in parameters.trained_workers
        for name, density in trained
        for seed in seeds
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


def _energy(found: Sequence[Curves]) -> Table:
    """Return what DFS saves of each peer's bytes at the energies of the peer's own points."""
    groups = list(dict.fromkeys((one.model, one.workers) for one in found))
    rows: list[Row] = []
    saved: dict[str, list[float]] = {}
    for peer in (name for name in found[0].points if name != "dfs"):
        values = {}
        for group in groups:
            shares = [
                saving(one, "dfs", peer, point.energy)
                for one in found
                if (one.model, one.workers) == group
                for point in one.points[peer]
            ]
            comparable = [each for each in shares if each is not None]
            saved.setdefault(peer, []).extend(comparable)
            values["{}, {} workers".format(*group)] = _spread(comparable)
        rows.append(Row(peer, values))
    reached = sum(each >= GOAL for each in saved[BASELINE])
    notes = [
        "energy: share of the sum of all workers' gradients and residuals that is delivered; bytes at an "
        "energy "
        "between two densities are drawn out between them; –: none is comparable",
        "OmniReduce-b, lists of pairs: each worker's largest values, in blocks of b as its open code "
        "sends them, "
        "or as (index, value), or as values behind a bitmap; packed: with DFS's bits a value, scales not "
        "counted; top-k planned: the same through Weir's switch; dfs without: a part left out",
        f"dfs saves {GOAL:.2%} of {BASELINE}'s bytes or more in {reached} of {len(saved[BASELINE])} "
        "comparable cells",
    ]
    if planned := saved.get(PLANNED):
        notes.append(f"against {PLANNED}: {fmean(planned):.1%} on average, {min(planned):.1%} at least")
    return Table(
        "DFS at equal delivered energy: saved of a peer's bytes, mean (least) over densities and seeds",
        tuple(Column("{}, {} workers".format(*group)) for group in groups),
        tuple(rows),
        better="more",
        notes=tuple(notes),
    )


def _sizes(found: Sequence[Curves]) -> Table:
    """Return how many of the elements were in blocks of which size."""
    sizes = sorted({size for one in found for counts in one.sizes.values() for size in counts})
    rows = []
    for model in dict.fromkeys(one.model for one in found):
        for density in sorted({density for one in found if one.model == model for density in one.sizes}):
            counts = [one.sizes[density] for one in found if one.model == model]
            total = sum(sum(count.values()) for count in counts)
            shares = {_size(size): sum(count.get(size, 0) for count in counts) / total for size in sizes}
            rows.append(Row(f"{model}, {density:.1%}", shares))
    columns = tuple(Column(_size(size), lambda part: f"{part:.0%}") for size in sizes)
    return Table("Elements in blocks of each size", columns, tuple(rows), better="more")


def _size(size: int) -> str:
    return str(size or "whole")


def _together(cases: Sequence[tuple[float, Model, int, int, int]], runs: Sequence[Runs]) -> Table:
    """Return whether large values lie together."""
    names = [f"blocks of {size}" for size in SIZES[1:]]
    rows = []
    for (density, model, *_), one in zip(cases, runs, strict=True):
        first, *others = (part for _, part in one.delivered)
        blocks = {name: part / first if first else None for name, part in zip(names, others, strict=True)}
        values = {"followed": one.together, "energy": first, **blocks}
        rows.append(Row(f"{model}, {density:.1%}", values))
    return Table(
        "What the best blocks of each size would deliver for the bits of single elements",
        (
            Column(
                "followed",
                share,
                "of the largest elements those whose next one is among them, too; by chance: the density",
            ),
            Column("energy", share, "of single elements; blocks of: over that"),
            *(Column(name, lambda part: f"{part:.0%}") for name in names),
        ),
        tuple(rows),
        better="more",
        notes=(
            "of gradients and residuals of all workers, added up, beside dfs without sizes; bits: "
            "positions and "
            "values, each parameter by itself",
        ),
    )


def _panels(found: Iterable[Curves]) -> list[Panel]:
    """Return for each model, with most workers and the first seed, every contender's curve."""
    best: dict[str, Curves] = {}
    for one in found:
        if one.model not in best or one.workers > best[one.model].workers:
            best[one.model] = one
    panels = []
    for model, one in best.items():
        lines = []
        for name, style in _DRAWN.items():
            points = sorted((point.energy, point.bytes) for point in one.points[name])
            lines.append(Line(name, [e for e, _ in points], [b for _, b in points], style))
        title = f"{model}, {one.workers} workers"
        panels.append(Panel(title, "share of the energy that is delivered", "bytes of a step", lines, "y"))
    return panels


def _accuracy(cases: Sequence[_Case], found: Sequence[Trained]) -> Table:
    """Return what each contender sends and reaches, and what DFS saves of its bytes at equal accuracy."""
    rows = []
    shares: dict[Cell, float | None] = {}
    for group in dict.fromkeys((case[0], case[3]) for case in cases):
        mine = [(case, one) for case, one in zip(cases, found, strict=True) if (case[0], case[3]) == group]
        means, (model, workers) = _means(mine), group
        for (name, density), (sent, reached) in sorted(
            means.items(), key=lambda item: (item[0][1], item[0][0])
        ):
            saved = shares[model, workers, name, density] = saving_at_equal_accuracy(means, name, density)
            blocked = name.removeprefix(PACKED).startswith("OmniReduce")
            best = (_best_block(means, density, packed) for packed in ("", PACKED))
            if blocked and name not in (BASELINE, *best):
                continue
            rows.append(
                Row(
                    name,
                    {"bytes": sent, "accuracy": reached, "dfs saves": None if name == "dfs" else saved},
                    {"model": model, "workers": f"{workers} workers", "density": f"{density:.1%}"},
                )
            )
    return Table(
        f"Trained for {cases[0][4]} steps",
        (
            Column("bytes", byte_count, "a step, of all workers, up and down"),
            Column("accuracy", share, "on held-out data"),
            Column(
                "dfs saves",
                lambda part: f"{part:.0%}",
                f"with the cheapest of its densities that are at most {100 * TOLERANCE:g} points less "
                "accurate; –: none is",
            ),
        ),
        tuple(rows),
        notes=(
            "means of the seeds; resnet18 with momentum 0.9, and a tenth of the learning rate",
            "OmniReduce: in blocks of 256, and of the size that is cheapest there; dfs also at densities "
            "between "
            "the others",
            verdict(shares),
        ),
    )


def _best_block(means: _Means, density: float, packed: str) -> str:
    """Return OmniReduce with the block that costs least at a density. packed: `PACKED`, or nothing."""
    return min(
        (name for name, at in means if at == density and name.startswith(f"{packed}OmniReduce")),
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


def _spread(shares: Sequence[float]) -> str | None:
    return f"{fmean(shares):.0%} ({min(shares):.0%})" if shares else None
