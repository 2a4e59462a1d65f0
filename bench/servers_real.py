# SPDX-License-Identifier: Apache-2.0
"""Training with parameter servers over real links: time and bytes to equal accuracy, over several seeds.

Every way trains every model from every seed, one after the other, on links of the same rate: Gloo's ring, a
dense parameter server over TCP, and Weir's: dense, with methods, with filters, asynchronous. How peers
get their network: see ``training``. Each seed is compared with itself; what is shown are medians.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from rich.console import Console

from weir.bench.table import show
from weir.bench.training import trained, ways
from weir.bench.training_ways import PEERS, TraceKind, WayResult
from weir.netns.namespace import gain_root
from weir.report.words import byte_count, duration, factor
from weir.train.config import Model, TrainConfig, make_config
from weir.train.record import mean_known
from weir.train.words import NOT_KNOWN, links_line

PEERS_HERE: Final[tuple[TraceKind, ...]] = ("gloo", "ps")

console = Console(stderr=True)


@dataclass(frozen=True)
class Extent:
    """The part of a model's training that is measured, and its links, unless the user says."""

    epochs: int
    max_steps: int | None
    evaluate_every: int
    links: str


EXTENTS: Final[dict[Model, Extent]] = {
    "mlp": Extent(8, None, 22, "200mbit"),
    "cnn": Extent(3, None, 11, "200mbit"),
    "lm": Extent(1, None, 8, "1gbit"),
    "bag": Extent(8, None, 14, "200mbit"),
    "resnet18": Extent(2, None, 4, "1gbit"),
}
"""Our choice: far enough that all ways learn much of what there is to learn, over links on which a dense
server over TCP spends most of a step; a few minutes a model and seed on two cores.
"""

NEAR: Final = 0.95
"""Of the peers' best accuracy: a way that never comes so far has not learnt the same, and sets no target."""


@dataclass(frozen=True)
class Plan:
    """The ways to train, besides the peers.

    methods: of synchronous servers; the first one's twin pushes after the backward pass. rule: of filters in
    both directions, synchronous and for each of ``consistencies``; empty: the latter have none. given:
    further settings.
    """

    workers: int
    methods: Sequence[str]
    rule: str
    consistencies: Sequence[str]
    given: Mapping[str, Any]


def configs(plan: Plan, model: Model, seed: int) -> list[TrainConfig]:
    """Return the settings of Weir's ways. ConfigError for those that do not fit."""
    extent = EXTENTS[model]
    common: dict[str, Any] = {
        "epochs": extent.epochs,
        "max_steps": extent.max_steps,
        "evaluate_every": extent.evaluate_every,
        "links": extent.links,
        **{key: value for key, value in plan.given.items() if value is not None},
        "mode": "ps",
        "model": model,
        "workers": plan.workers,
        "seed": seed,
    }
    filters = {"method": "dense", "push_filter": plan.rule, "pull_filter": plan.rule}
    found = [make_config(**common, method=method) for method in plan.methods]
    found += [make_config(**common, method=method, overlap=False) for method in plan.methods[:1]]
    if plan.rule:
        found.append(make_config(**common, **filters))
    flow = filters if plan.rule else {"method": "dense"}
    found += [make_config(**common, **flow, consistency=consistency) for consistency in plan.consistencies]
    return found


def measure(plan: Plan, models: Sequence[Model], seeds: Sequence[int], target: float | None) -> None:
    """Train everything, and print a table for each model; says so where namespaces are not to be had."""
    every = {model: [ways(configs(plan, model, seed), PEERS_HERE) for seed in seeds] for model in models}
    if (reason := gain_root()) is not None:
        console.print(f"not trained: {reason}")
        return
    for model, of_seeds in every.items():
        outcomes = []
        for seed, these in zip(seeds, of_seeds, strict=True):
            console.print(f"{model}, seed {seed}")
            outcomes.append(list(trained(these)))
        report(outcomes, target)


@dataclass(frozen=True)
class Row:
    """One way's figures. times: to the target, by seed; None: not reached. x_ps: the dense parameter server's
    time by its own. data: bytes of a worker's link a step, both directions, by those of that server.
    processor: seconds of the machine for each GB of gradients.
    """

    name: str
    step_s: float
    accuracy: float
    times: Sequence[float | None]
    x_ps: Sequence[float]
    x_ring: Sequence[float]
    data: float
    bytes_a_step: float
    processor: float | None


def rows(outcomes: Sequence[Sequence[WayResult]], target: float | None) -> list[Row]:
    """Return a row for each way. outcomes: by seed, each the same ways in the same order.

    target: the accuracy to reach; None: as ``targets_of`` has it.
    """
    found = []
    targets = targets_of(outcomes, target)
    peers = {kind: _index_of(outcomes[0], kind) for kind in PEERS_HERE}
    for index, first in enumerate(outcomes[0]):
        own = [of_seed[index] for of_seed in outcomes]
        times = [run.time_to(goal) for run, goal in zip(own, targets, strict=True)]
        ratios = {
            kind: [
                theirs / ours
                for ours, of_seed, goal in zip(times, outcomes, targets, strict=True)
                if ours and (theirs := of_seed[place].time_to(goal)) is not None
            ]
            for kind, place in peers.items()
        }
        bytes_a_step = median(map(_bytes_a_step, own))
        theirs = median(_bytes_a_step(of_seed[peers["ps"]]) for of_seed in outcomes)
        found.append(
            Row(
                first.name,
                median(run.step_s for run in own),
                median(run.record.accuracy or 0.0 for run in own),
                times,
                ratios["ps"],
                ratios["gloo"],
                bytes_a_step / theirs,
                bytes_a_step,
                mean_known(
                    used.machine for run in own if (used := run.record.processor_per_gigabyte()) is not None
                ),
            )
        )
    return found


def targets_of(outcomes: Sequence[Sequence[WayResult]], target: float | None) -> list[float]:
    """Return the accuracy to reach in each seed: ``target``, else the best that all its runs reach but those
    that never come near the peers' best.
    """
    return [target if target is not None else _common(of_seed) for of_seed in outcomes]


def report(outcomes: Sequence[Sequence[WayResult]], target: float | None) -> None:
    """Print one model's table."""
    config = outcomes[0][0].way.config
    show(
        f"{config.model}, {config.workers} workers, {config.servers} server, {links_line(config)}, "
        f"{len(outcomes)} seeds",
        (
            "",
            "step",
            "to target",
            "x PS over TCP",
            "less time",
            "x ring",
            "bytes",
            "less data",
            "CPU",
            "accuracy",
        ),
        [
            (
                row.name,
                duration(row.step_s),
                _time(row.times),
                _spread(row.x_ps),
                f"{1 - 1 / median(row.x_ps):.1%}" if row.x_ps else "-",
                _spread(row.x_ring),
                byte_count(round(row.bytes_a_step)),
                f"{1 - row.data:.1%}",
                NOT_KNOWN if row.processor is None else f"{row.processor:.0f}",
                f"{row.accuracy:.1%}",
            )
            for row in rows(outcomes, target)
        ],
        [
            "medians of the seeds, least and greatest in brackets; target: "
            + ", ".join(f"{goal:.1%}" for goal in targets_of(outcomes, target))
            + (
                ""
                if target is not None
                else f", by seed: the best accuracy that all runs reach, but those below {NEAR:.0%} of the "
                "peers' best"
            )
            + "; at the first evaluation that has it",
            "time: of training, evaluations left out",
            "bytes: of a worker's link in a step, both directions, headers included; less time, less data: "
            f"than {PEERS['ps']} over TCP; CPU: seconds of the whole machine for each GB of a worker's "
            "gradients, forward and backward pass, servers and switches included",
        ],
    )


def _common(of_seed: Sequence[WayResult]) -> float:
    best = {run.name: max(e.accuracy for e in run.record.evaluations) for run in of_seed}
    least = NEAR * max(best[run.name] for run in of_seed if run.way.kind in PEERS_HERE)
    return min(accuracy for accuracy in best.values() if accuracy >= least)


def _index_of(of_seed: Sequence[WayResult], kind: TraceKind) -> int:
    return next(index for index, run in enumerate(of_seed) if run.way.kind == kind)


def _bytes_a_step(run: WayResult) -> float:
    traffic = run.record.mean_traffic
    return (traffic.bytes_up + traffic.bytes_down) / max(1, len(run.record.steps))


def _time(times: Sequence[float | None]) -> str:
    known = [seconds for seconds in times if seconds is not None]
    if len(known) < len(times):
        return f"in {len(known)} of {len(times)}"
    return duration(median(known))


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return "-"
    return f"{factor(median(ratios))} ({factor(min(ratios))}-{factor(max(ratios))})"
