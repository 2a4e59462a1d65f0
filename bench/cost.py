# SPDX-License-Identifier: Apache-2.0
"""``weir bench cost``: bytes in both directions, headers included, on the same recorded gradients.

No packet is sent and nothing is timed: bytes follow exactly from what each worker has to send, and are tested
equal to those of the real transport (``weir.host_agent.compression.encodings.cost``).
``weir.bench.cost_cases`` says who takes part.
"""

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Final

import torch
from rich.console import Console
from rich.progress import Progress

from softp4.native.scratch import scratch_folder
from weir.bench.cost_cases import BASELINE, OWN, Measured, Setting, measure, saving_at_energy, settings
from weir.bench.cost_plot import draw
from weir.bench.replay import Recording, record
from weir.bench.table import show
from weir.process.pool import one_thread, process_pool
from weir.report.words import byte_count
from weir.train.config import Model

GOAL: Final = 0.8717
"""DFS's headline: communication cost less than OmniReduce's by that share, "up to"."""

console = Console(stderr=True)


def run(
    models: list[Model],
    densities: list[float],
    workers: list[int],
    steps: int,
    plot: Path,
    processes: int | None,
) -> list[Measured]:
    """Record, replay, print a table for each model, and draw."""
    found = measure_all(models, densities, workers, steps, processes)
    for model in models:
        _print(model, [one for one in found if one.setting.model == model])
    _overview(found)
    _summary(found)
    draw(plot, found)
    plot.with_suffix(".json").write_text(json.dumps([asdict(one) for one in found], indent=1))
    Console().print(f"drawn: {plot}; every figure: {plot.with_suffix('.json')}", style="dim", highlight=False)
    return found


def measure_all(
    models: list[Model], densities: list[float], workers: list[int], steps: int, processes: int | None
) -> list[Measured]:
    """Return the whole grid, several settings at a time."""
    torch.set_num_threads(1)
    grid = settings(models, densities, workers)
    done: dict[Setting, Measured] = {}
    with (
        Progress(console=console, transient=True) as progress,
        scratch_folder("cost") as folder,
    ):
        recording = progress.add_task("recording gradients", total=len(models))
        replaying = progress.add_task("replaying them", total=len(grid))
        recordings: dict[str, Recording] = {}
        for model in models:
            recordings[model] = record(folder / model, model, max(workers), steps)
            progress.advance(recording)
        # The largest first: what comes last then keeps nobody waiting.
        order = sorted(grid, key=lambda s: (recordings[s.model].path.stat().st_size, s.workers), reverse=True)
        todo = [(one, recordings[one.model]) for one in order]
        for measured in _measured(todo, processes or os.cpu_count() or 1):
            done[measured.setting] = measured
            progress.advance(replaying)
    return [done[one] for one in grid]


def _measured(todo: list[tuple[Setting, Recording]], processes: int) -> Iterator[Measured]:
    """Yield what was measured, in any order; with one process, in this one."""
    if processes == 1:
        yield from itertools.starmap(measure, todo)
        return
    with process_pool(processes, one_thread) as pool:
        for future in as_completed([pool.submit(measure, *one) for one in todo]):
            yield future.result()


def _print(model: str, found: Sequence[Measured]) -> None:
    rows = []
    for one in found:
        setting, best = one.setting, one.best("omnireduce:")
        baseline = one.bytes[BASELINE]
        rows.append(
            (
                f"{setting.density:.1%}, {setting.workers}",
                byte_count(baseline.total / one.steps),
                f"{_percent(one.saving(best))} ({best.removeprefix('omnireduce:')})",
                _percent(one.saving("lists")),
                _percent(one.saving("block-topk")),
                *(_both(one, name) for name in ("planner", *OWN)),
                "/".join(f"{100 * one.density[name]:.2g}" for name in OWN) + " %",
                _or_dash(saving_at_energy(one, found, "dfs")),
                "/".join(f"{100 * one.energy[name]:.0f}" for name in ("planner", "block-topk", *OWN)) + " %",
                _percent(1 - one.bytes["dfs"].bare / baseline.bare),
                *(_percent(one.saving(name, best)) for name in ("planner", "dfs")),
                _percent(one.saving("planner", one.best("weir:"))),
            )
        )
    columns = (
        *("density, workers", "OmniReduce-256 a step", "its best b", "lists", "block top-k"),
        *(
            "planner (up/down)",
            "DFS (up/down)",
            "ExDyna (up/down)",
            "their density",
            "DFS, equal energy",
            "energy",
            "DFS, no headers",
        ),
        *("planner : best b", "DFS : best b", "planner : best fixed mask"),
    )
    show(f"Communication cost of {model}: saved of OmniReduce-256's bytes", columns, rows)


def _overview(found: Sequence[Measured]) -> None:
    """Show the main comparisons of all settings in one table."""
    workers = list(dict.fromkeys(one.setting.workers for one in found))
    rows: dict[str, list[str]] = {}
    for one in found:
        equal = saving_at_energy(one, found, "dfs")
        shares = (one.saving("planner"), one.saving("dfs"), equal)
        cell = " · ".join("–" if share is None else f"{100 * share:.1f}" for share in shares)
        rows.setdefault(f"{one.setting.model}, {100 * one.setting.density:g} %", []).append(cell)
    show(
        "Saved of OmniReduce-256's bytes, %: planner · DFS at equal density · DFS at equal energy",
        ("model, density", *(f"{count} workers" for count in workers)),
        [(name, *cells) for name, cells in rows.items()],
    )


def _both(one: Measured, name: str) -> str:
    mine, theirs = one.bytes[name], one.bytes[BASELINE]
    return (
        f"{_percent(one.saving(name))} ({100 * (1 - mine.up / theirs.up):.0f}/"
        f"{100 * (1 - mine.down / theirs.down):.0f})"
    )


def _or_dash(share: float | None) -> str:
    return "–" if share is None else _percent(share)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _summary(found: Sequence[Measured]) -> None:
    """Print what the tables mean, and what they come to."""
    lines = [
        "cost: bytes on the wire of all workers, up and down, every header from Ethernet up; down counts "
        "once for each worker; no acknowledgements, nothing sent again",
        "OmniReduce-256: top-k masks as its open code sends them (RDMA, messages of 256 elements, first "
        "block of each column always); its best b: of block sizes 1 to 256 and messages of 64, 256 and "
        "1024, in hindsight, for each row (b/message); block top-k: OmniReduce-256 with its own choice of "
        "blocks",
        "lists: (index, value) of 32 bits each, gathered; planner: the same top-k masks over Weir; DFS, "
        "ExDyna: their own choice at the same density, over Weir; no headers: of both only values, and an "
        "index of 32 bits to each block; best fixed mask: Weir's, in hindsight; their density: of what "
        "travels from each worker, the union where a method has all workers send that",
        "energy: of the sum of all workers' gradients and residuals, the share that is delivered, by "
        "squares: top-k/block top-k/DFS/ExDyna; who delivers less owes more; DFS, equal energy: at the "
        "density of this table that costs least and delivers no less than the top-k masks of the row",
        "gradients: a dense training's; each worker's residuals are kept; the first third of the steps, in "
        "which residuals and planner begin, is not counted",
    ]
    for name in ("planner", *OWN):
        savings = {one.setting: one.saving(name) for one in found}
        most, least = max(savings, key=savings.__getitem__), min(savings, key=savings.__getitem__)
        reached = sum(saving >= GOAL for saving in savings.values())
        own_blocks = [one.saving(name, "block-topk") for one in found]
        lines.append(
            f"{name}: saves {_percent(savings[least])} ({_words(least)}) to {_percent(savings[most])} "
            f"({_words(most)}), at least {GOAL:.2%} in {reached} of {len(found)} settings; against "
            f"OmniReduce-256 with block top-k {_percent(min(own_blocks))} to {_percent(max(own_blocks))}; "
            f"against the best fixed b of each setting {_percent(_mean(found, name, 'omnireduce:'))} on "
            f"average, against Weir's best fixed mask {_percent(_mean(found, name, 'weir:'))}"
        )
    equal = [share for one in found if (share := saving_at_energy(one, found, "dfs")) is not None]
    if equal:
        reached = sum(share >= GOAL for share in equal)
        lines.append(
            f"dfs at equal energy: saves {_percent(min(equal))} to {_percent(max(equal))}, at least "
            f"{GOAL:.2%} in {reached} of the {len(equal)} settings in which some density of the table "
            "delivers as much"
        )
    for line in lines:
        Console().print(line, style="dim", highlight=False)


def _mean(found: Sequence[Measured], name: str, prefix: str) -> float:
    return fmean(one.saving(name, one.best(prefix)) for one in found)


def _words(setting: Setting) -> str:
    return f"{setting.model}, {setting.density:.1%}, {setting.workers} workers"
