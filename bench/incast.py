# SPDX-License-Identifier: Apache-2.0
"""``weir bench incast``: many workers push to few servers at once through short queues, and pull the sums.

In virtual time, as `weir.bench.tail` has it, without strangers: all load is the job's own. Weir's flows and
DCTCP's streams are in the same class of the switches and leave hosts when the link is free.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final

from weir.bench.grid import simulate
from weir.bench.table import show
from weir.bench.tail import percentile
from weir.bench.tail_cases import CONTENDERS, Scenario, TailResult, run
from weir.report.words import factor

_DCTCP, _LOSSLESS, _BOUNDED = "d", "f", "g"
_CONTENDERS: Final = {one.name[0]: one for one in CONTENDERS if one.name[0] in (_DCTCP, _LOSSLESS, _BOUNDED)}
_MOST_BYTES: Final = 32 << 20  # that all workers push in a run: larger tensors, fewer of them
_LEAST_TENSORS: Final = 2
_LONG: Final = 4 << 20  # bytes of all workers' tensors in which windows settle: more need but one warm-up

_Cell = tuple[int, int, int]  # depth, bytes of a tensor, workers


def measure(
    depths: Sequence[int],
    tensors: Sequence[int],
    workers: Sequence[int],
    seeds: int,
    scenario: Scenario,
    processes: int | None = None,
    journal: Path | None = None,
) -> list[str]:
    """Run all cells of the grid and print their table.

    tensors: sizes in bytes. workers: of all racks. Return, in words, where switches trimmed nothing although
    lossless flows lost packets in the same queues.
    """
    cells = list(product(depths, tensors, workers))
    by_cost = sorted(cells, key=lambda cell: cell[1] * cell[2])
    todo = [(cell, name, seed) for cell in by_cost for name in _CONTENDERS for seed in range(1, seeds + 1)]
    runs = [("server", _CONTENDERS[name], _of(scenario, cell), seed) for cell, name, seed in todo]
    results = {(cell, name): TailResult() for cell, name, _ in todo}
    outcomes = simulate(run, TailResult, runs, processes, journal)
    for (cell, name, _), one in zip(todo, outcomes, strict=True):
        results[cell, name].add(one)
    _print(scenario, seeds, cells, results)
    return [
        f"{_name(cell)}: nothing was trimmed"
        for cell in cells
        if results[cell, _LOSSLESS].counts["retransmissions"]
        and not results[cell, _BOUNDED].counts["trimmed"]
    ]


def _name(cell: _Cell) -> str:
    depth, tensor, workers = cell
    return f"{depth}, {tensor >> 10} KiB, {workers}:1"


def _of(scenario: Scenario, cell: _Cell) -> Scenario:
    depth, tensor, workers = cell
    many = max(_LEAST_TENSORS, min(scenario.tensors, _MOST_BYTES // (tensor * workers)))
    warmup = scenario.warmup if tensor * workers <= _LONG else 1
    return replace(
        scenario,
        load=0.0,
        depth=depth,
        tensor=tensor,
        workers=workers // scenario.racks,
        tensors=many,
        warmup=warmup,
    )


def _print(
    scenario: Scenario, seeds: int, cells: Sequence[_Cell], results: dict[tuple[_Cell, str], TailResult]
) -> None:
    rows = []
    for cell in cells:
        dctcp, lossless, bounded = (results[cell, name] for name in (_DCTCP, _LOSSLESS, _BOUNDED))
        tails = [percentile(one.times, 99) for one in (dctcp, lossless, bounded)]
        rows.append(
            (
                _name(cell),
                f"{1000 * _of(scenario, cell).floor('server'):.2f}",
                *(f"{1000 * tail:.2f}" for tail in tails),
                factor(tails[1] / tails[0]),
                factor(tails[2] / tails[0]) if bounded.counts["trimmed"] else "nothing to trim",
                *(f"{one.counts['timeouts'] / len(one.times):.1f}" for one in (dctcp, lossless, bounded)),
                *(
                    f"{one.counts['retransmissions'] / len(one.times):.0f}"
                    for one in (dctcp, lossless, bounded)
                ),
                f"{bounded.counts['trimmed'] / len(bounded.times):.0f}",
                f"{bounded.counts['missing'] / bounded.counts['lanes']:.1%}",
            )
        )
    budget = f"{scenario.budget:.0%}"
    show(
        "Push to and pull from servers, own incast: p99 of a tensor's completion",
        (
            "packets a queue, tensor, workers",
            "floor, ms",
            "DCTCP, ms",
            "Weir, ms",
            f"Weir {budget}, ms",
            "Weir / DCTCP",
            f"Weir {budget} / DCTCP",
            "RTOs, DCTCP",
            "asked, Weir",
            f"asked, {budget}",
            "again, DCTCP",
            "again, Weir",
            f"again, {budget}",
            f"trimmed, {budget}",
            "missing",
        ),
        rows,
        (
            f"simulated: {scenario.racks} racks with one server each, {scenario.spines} spines, all links "
            f"{scenario.rate / 1e9:g} Gbit/s; every worker pushes one shard of its tensor to each server and "
            "pulls it.",
            "floor: a server's link carrying all shards in, then out. RTOs: time-outs a tensor, of all; "
            "asked: Weir's questions after one without an answer. again: packets sent again.",
            f"{seeds} seeds; p99 by nearest rank of all their tensors; {budget}: of pushes may be missing.",
        ),
    )
