# SPDX-License-Identifier: Apache-2.0
"""Training with parameter servers over real links: time and bytes to equal accuracy, over several seeds.

Every way trains every model from every seed, one after the other, on links of the same rate: Gloo's ring, a
dense parameter server over TCP, and Weir's: dense, with methods, with filters, asynchronous. Each seed is
compared with itself. A step in virtual time: ``weir.bench.simulated.servers``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, cast

from weir.bench.case import Run, parameter
from weir.bench.results import Column, Row, Table, share
from weir.bench.training.links import trained, ways
from weir.bench.training.ways import PEERS, Kind, WayResult
from weir.netns.namespace import NamespaceError, gain_root
from weir.report.words import byte_count, duration
from weir.train.config import Model, TrainConfig, make_config
from weir.train.record import mean_known
from weir.train.words import links_line

PEERS_HERE: Final[tuple[Kind, ...]] = ("gloo", "ps")


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
"""Chosen here: far enough that all ways learn much of what there is to learn, over links on which a dense
server over TCP spends most of a step; a few minutes a model and seed on two cores.
"""

NEAR: Final = 0.95
"""Of the peers' best accuracy: a way that never comes so far has not learnt the same, and sets no target."""


@dataclass(frozen=True)
class Parameters:
    """The trainings. The first method's twin pushes after the backward pass."""

    models: tuple[str, ...] = parameter(("mlp",), "that are trained", choices=EXTENTS)
    workers: int = parameter(4, "workers", least=1, most=31)
    epochs: int | None = parameter(None, "passes over the data; none: as suits the model", least=1)
    max_steps: int | None = parameter(None, "of each epoch at most", least=1)
    methods: tuple[str, ...] = parameter(("dense", "dfs"), "over Weir's synchronous server")
    density: float = parameter(0.05, "of methods that send a share", above=0, most=1)
    filter: str = parameter("0.003:lr", "in both directions, synchronous and not; empty: none")
    consistencies: tuple[str, ...] = parameter(("async",), "also trained, with the filter: ssp:S, async")
    links: str | None = parameter(None, "rate of every link; none: as suits the model")
    evaluate_every: int | None = parameter(None, "steps between evaluations; none: as suits", least=1)
    target: float | None = parameter(
        None,
        "accuracy to reach; none: the best that all reach but those far from the peers' best",
        least=0,
        most=1,
    )


def configs(parameters: Parameters, model: Model, seed: int) -> list[TrainConfig]:
    """Return the settings of Weir's ways. ConfigError for those that do not fit."""
    extent = EXTENTS[model]
    given = ("epochs", "max_steps", "evaluate_every", "links")
    common: dict[str, Any] = {
        **{name: getattr(parameters, name) or getattr(extent, name) for name in given},
        "density": parameters.density,
        "mode": "ps",
        "model": model,
        "workers": parameters.workers,
        "seed": seed,
    }
    methods, rule = parameters.methods, parameters.filter
    filters = {"method": "dense", "push_filter": rule, "pull_filter": rule}
    found = [make_config(**common, method=method) for method in methods]
    found += [make_config(**common, method=method, overlap=False) for method in methods[:1]]
    if rule:
        found.append(make_config(**common, **filters))
    flow = filters if rule else {"method": "dense"}
    found += [make_config(**common, **flow, consistency=each) for each in parameters.consistencies]
    return found


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Train everything, and yield a table for each model."""
    models = cast(tuple[Model, ...], parameters.models)
    every = {m: [ways(configs(parameters, m, seed), PEERS_HERE) for seed in run.seeds] for m in models}
    if (reason := gain_root()) is not None:
        raise NamespaceError(f"not trained: {reason}")
    for model, of_seeds in every.items():
        outcomes = []
        for seed, these in zip(run.seeds, of_seeds, strict=True):
            run.say(f"{model}, seed {seed}")
            outcomes.append(list(trained(these, run.say)))
        yield report(outcomes, parameters.target)


@dataclass(frozen=True)
class Compared:
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


def rows(outcomes: Sequence[Sequence[WayResult]], target: float | None) -> list[Compared]:
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
            Compared(
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


def report(outcomes: Sequence[Sequence[WayResult]], target: float | None) -> Table:
    """Return one model's table."""
    config = outcomes[0][0].way.config
    goals = ", ".join(f"{goal:.1%}" for goal in targets_of(outcomes, target))
    return Table(
        f"{config.model}, {config.workers} workers, {config.servers} server, {links_line(config)}",
        (
            Column("to target", duration, "of training, evaluations left out; –: not in every seed"),
            Column("step", duration),
            Column("less time", share, f"than {PEERS['ps']} over TCP, median of the seeds"),
            Column("least, most", str, f"times as fast as {PEERS['ps']} over TCP, of the seeds"),
            Column("x ring", lambda n: f"{n:.2f}", "times as fast as Gloo, median of the seeds"),
            Column("bytes", byte_count, "of a worker's link in a step, both directions, headers included"),
            Column("less data", share, f"than {PEERS['ps']} over TCP"),
            Column(
                "CPU",
                lambda n: f"{n:.0f}",
                "seconds of the whole machine for each GB of a worker's gradients",
            ),
            Column("accuracy", share),
        ),
        tuple(_row(one) for one in rows(outcomes, target)),
        peers=(PEERS["ps"],),
        notes=(
            f"{len(outcomes)} seeds, medians; target, by seed: {goals}"
            + (
                ""
                if target is not None
                else f": the best that all reach, but those below {NEAR:.0%} of the peers' best"
            ),
        ),
    )


def _row(one: Compared) -> Row:
    known = [seconds for seconds in one.times if seconds is not None]
    spread = f"{min(one.x_ps):.2f}-{max(one.x_ps):.2f}" if one.x_ps else None
    return Row(
        one.name,
        {
            "to target": known if len(known) == len(one.times) else None,
            "step": one.step_s,
            "less time": 1 - 1 / median(one.x_ps) if one.x_ps else None,
            "least, most": spread,
            "x ring": median(one.x_ring) if one.x_ring else None,
            "bytes": one.bytes_a_step,
            "less data": 1 - one.data,
            "CPU": one.processor,
            "accuracy": one.accuracy,
        },
    )


def _common(of_seed: Sequence[WayResult]) -> float:
    best = {run.name: max(e.accuracy for e in run.record.evaluations) for run in of_seed}
    least = NEAR * max(best[run.name] for run in of_seed if run.way.kind in PEERS_HERE)
    return min(accuracy for accuracy in best.values() if accuracy >= least)


def _index_of(of_seed: Sequence[WayResult], kind: Kind) -> int:
    return next(index for index, run in enumerate(of_seed) if run.way.kind == kind)


def _bytes_a_step(run: WayResult) -> float:
    traffic = run.record.mean_traffic
    return (traffic.bytes_up + traffic.bytes_down) / max(1, len(run.record.steps))
