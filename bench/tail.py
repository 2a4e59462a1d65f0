# SPDX-License-Identifier: Apache-2.0
"""``weir bench tail``: how long the slowest tensors take where others' bursts share the links.

In virtual time: the real switch program and host code in `simulator`, so the figures do not depend on the
machine that computes them. `weir.bench.tail_cases` says what is compared. A table states gains over a row's
twin, and none for a row whose mechanism did nothing: then the command fails in the end.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from rich.console import Console

from weir.bench import grid
from weir.bench.table import show
from weir.bench.tail_cases import CONTENDERS, Contender, Scenario, Setting, TailResult, run
from weir.report.pictures import plain_log
from weir.report.words import factor

console = Console(stderr=True)


@dataclass(frozen=True)
class _Case:
    """One row: a contender in one setting under one load, over all seeds."""

    setting: Setting
    load: float
    contender: Contender


def measure(
    settings: Sequence[Setting],
    loads: Sequence[float],
    seeds: int,
    scenario: Scenario,
    contenders: Sequence[Contender] = CONTENDERS,
    processes: int | None = None,
    plot: Path | None = None,
    journal: Path | None = None,
) -> list[str]:
    """Run all, print a table for each setting and load, and draw the distributions.

    Return which rows' mechanisms did nothing, in words.
    """
    results = simulate(settings, loads, range(1, seeds + 1), scenario, contenders, processes, journal)
    for setting in settings:
        for load in loads:
            mine = {case.contender: one for case, one in results.items() if _is(case, setting, load)}
            _print(setting, replace(scenario, load=load), seeds, mine)
    if plot is not None:
        draw(results, plot)
        console.print(f"distributions drawn in {plot}")
    return [
        f"{case.contender.name!r} in {case.setting} at a load of {case.load:.0%}: nothing was "
        f"{case.contender.shows}"
        for case, one in results.items()
        if not one.shows(case.contender)
    ]


def measure_all(
    scenarios: Sequence[Scenario],
    settings: Sequence[Setting],
    loads: Sequence[float],
    seeds: int,
    contenders: Sequence[Contender],
    processes: int | None = None,
    plot: Path | None = None,
    journal: Path | None = None,
) -> list[str]:
    """Do ``measure`` for each scenario; of several, plots are named after what differs."""
    idle = []
    for scenario in scenarios:
        workers, size = scenario.racks * scenario.workers, scenario.tensor // 1024
        of_this = f"-{workers}-{scenario.depth}-{size}" if len(scenarios) > 1 else ""
        name = plot and plot.with_stem(f"{plot.stem}{of_this}")
        idle += measure(settings, loads, seeds, scenario, contenders, processes, name, journal)
    return idle


def simulate(
    settings: Iterable[Setting],
    loads: Sequence[float],
    seeds: Iterable[int],
    scenario: Scenario,
    contenders: Iterable[Contender],
    processes: int | None = None,
    journal: Path | None = None,
) -> dict[_Case, TailResult]:
    """Return all runs, several at a time; the seeds of a case put together."""
    cases = [_Case(s, load, c) for s in settings for load in loads for c in contenders if c.fits(s)]
    todo = [(case, seed) for seed in seeds for case in cases]
    runs = [(case.setting, case.contender, replace(scenario, load=case.load), seed) for case, seed in todo]
    results = {case: TailResult() for case in cases}
    for (case, _), one in zip(
        todo, grid.simulate(run, TailResult, runs, processes, journal, _said), strict=True
    ):
        results[case].add(one)
    return results


def _said(case: tuple[Setting, Contender, Scenario, int], outcome: TailResult) -> str:
    """Return a line about a run that has ended."""
    setting, contender, scenario, seed = case
    times = outcome.times
    return (
        f"{setting}, load {scenario.load:.0%}, {contender.name}, seed {seed}: "
        f"mean {_ms(mean(times))} ms, p99 {_ms(percentile(times, 99))} ms of {len(times)} tensors"
    )


def _ms(seconds: float) -> str:
    """Return a time in milliseconds; at 100 Gbit/s they are tenths."""
    return f"{1000 * seconds:.{2 if seconds > 0.001 else 3}f}"


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile by nearest rank: the smallest value that so many per cent do not exceed."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def _is(case: _Case, setting: Setting, load: float) -> bool:
    return (case.setting, case.load) == (setting, load)


def _print(setting: Setting, scenario: Scenario, seeds: int, results: dict[Contender, TailResult]) -> None:
    tails = {contender.name[0]: percentile(outcome.times, 99) for contender, outcome in results.items()}
    floor, first = scenario.floor(setting), _plainest(results)
    rows = []
    for contender, outcome in results.items():
        faster = (floor + mean(results[first].times)) / (floor + mean(outcome.times)) - 1
        counts, tail = outcome.counts, tails[contender.name[0]]
        missing = counts.get("missing", 0) / counts["lanes"] if counts.get("lanes") else 0
        rows.append(
            (
                contender.name,
                _ms(mean(outcome.times)),
                _ms(percentile(outcome.times, 50)),
                _ms(tail),
                _gain(contender, outcome, tails),
                f"{outcome.acted.get(contender.shows, 0):,}" if contender.shows else "-",
                f"{faster:+.0%}" if contender is not first else "-",
                f"{counts.get('timeouts', 0) / len(outcome.times):.2f}",
                f"{missing:.2%}",
                f"{1000 * percentile(outcome.background, 99):.1f}" if outcome.background else "-",
            )
        )
    title = {"collectives": "All-reduce", "server": "Push to and pull from servers"}[setting]
    show(
        f"{title}: completion time of a tensor, background load {scenario.load:.0%}",
        (
            "ms",
            "mean",
            "median",
            "p99",
            "p99 / twin",
            "acted",
            f"steps over {first.name[0]}",
            "RTOs",
            "missing",
            "others",
        ),
        rows,
        _notes(setting, scenario, seeds),
    )


def _plainest(contenders: Iterable[Contender]) -> Contender:
    """Return the one over which training's throughput is stated: what networks have as they come."""
    every = list(contenders)
    return next((one for one in every if one.algorithm == "cubic"), every[0])


def _gain(contender: Contender, outcome: TailResult, tails: Mapping[str, float]) -> str:
    """Return the p99 over the twin's, unless the mechanism did nothing."""
    if contender.twin not in tails:
        return "-"
    if not outcome.shows(contender):
        return "did nothing"
    return f"{factor(tails[contender.name[0]] / tails[contender.twin])} of {contender.twin}"


def _notes(setting: Setting, scenario: Scenario, seeds: int) -> list[str]:
    hosts = scenario.workers + 1 + scenario.others
    ratio = hosts / scenario.spines
    size = f"{scenario.tensor // 1024} KiB"
    peer = "ring all-reduce over DCTCP" if setting == "collectives" else "DCTCP streams to and fro"
    return [
        f"simulated: {scenario.racks} racks of {scenario.workers} workers, 1 server and {scenario.others} "
        f"background hosts, {scenario.spines} spines, all links {scenario.rate / 1e9:g} Gbit/s and "
        f"{scenario.delay_ns / 1000:g} µs, racks {ratio:.1f}:1 oversubscribed, {scenario.depth} packets "
        "a queue.",
        f"background: bursts of {scenario.fan_in} DCTCP flows of {scenario.burst // 1000} kB from background "
        f"hosts to any host of another rack; its load is that of the links between racks, which lose "
        f"{scenario.loss:.2%} of packets."
        if scenario.load
        else "no traffic but the tensors' own.",
        f"a, d, e: {peer}, least time-out {1000 * scenario.min_rto:g} ms, as for Weir; d in the class of "
        "Weir's packets, in switches and hosts; e one to three classes lower while more is left to send "
        "(pFabric). b: the path of all of a job's packets, or of each flow, is drawn once (ECMP). g, h: "
        "expendable packets lose their lanes in deep queues, or are dropped; i: receivers stop when they "
        "have enough, as in MLT; j: a with CUBIC, "
        "which does not answer to marks, in place of DCTCP. A budget allows "
        f"{scenario.budget:.0%} of the lanes {'' if setting == 'collectives' else 'pushed '}to be missing.",
        f"{seeds} x {scenario.tensors} tensors of {size}, one at a time. p99: nearest rank. p99 / twin: over "
        "that of the row without the mechanism, or of DCTCP in the same class. acted: packets that switches "
        "trimmed, dropped, or served by class; lanes that receivers did without. "
        f"steps: throughput of training that computes for {_ms(scenario.floor(setting))} ms between "
        "tensors, as long as the busiest link takes for one. RTOs: time-outs per tensor. missing: share of "
        "lanes. others: p99 of the background's flows.",
    ]


def draw(results: dict[_Case, TailResult], path: Path) -> None:
    """Draw the distribution functions, a panel for each setting and load."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((case.setting, case.load) for case in results))
    figure = Figure(figsize=(5.5 * len(panels), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False)
    for axis, (setting, load) in zip(axes[0], panels, strict=True):
        for case, outcome in results.items():
            if _is(case, setting, load):
                times = sorted(1000 * time for time in outcome.times)
                shares = [(rank + 1) / len(times) for rank in range(len(times))]
                axis.step(times, shares, where="post", label=case.contender.name)
        axis.set(xscale="log", xlabel="completion time, ms", ylabel="share of tensors", ylim=(0, 1.01))
        plain_log(axis.xaxis)
        axis.set_title(f"{setting}, background load {load:.0%}")
        axis.axhline(0.99, color="grey", linewidth=0.5)
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
