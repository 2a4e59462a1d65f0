# SPDX-License-Identifier: Apache-2.0
"""``weir bench training``: time to equal accuracy of Gloo and of Weir, lossless and with a loss budget.

All train the same model from the same seed over the same network, one after the other: racks and spines of
soft switches in network namespaces, links with a rate, random loss and incast. Gloo's TCP and Weir's UDP come
from the kernels of the hosts' namespaces, and our switches forward, queue and lose both alike.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console

from bench import training_virtual
from bench.table import show
from bench.training_plot import draw
from bench.training_virtual import Reduced
from weir.netns import NetworkCluster, network_cluster
from weir.train.config import TrainConfig
from weir.train.messages import Failed
from weir.train.models import parameter_count
from weir.train.netrows import links_line
from weir.train.record import RunRecord, StepSummary
from weir.train.spec import BackendName, WorkerSpec
from weir.train.watch import NetworkCounts, read_counts
from weir.train.words import byte_count, duration
from weir.train.workers import Exited, Workers, worker_environment

_TICK_S: Final = 0.5
_LINE_EVERY_S: Final = 10.0
_MIN_STEPS: Final = 3  # that many are taken at least, however slow they are

console = Console(stderr=True)


@dataclass(frozen=True)
class Outcome:
    """One way to train: how far it came. ``counts``: what the switches counted meanwhile."""

    name: str
    record: RunRecord
    counts: NetworkCounts

    @property
    def complete(self) -> bool:
        """Did it take all its steps in the time it had?"""
        return self.record.status == "complete"

    @property
    def step_s(self) -> float:
        """Median time of a step; the first of them warms up."""
        return median(step.seconds for step in self.record.steps[1:] or self.record.steps)

    def curve(self) -> list[tuple[float, float]]:
        """(seconds of training, accuracy) at each evaluation; evaluating itself takes no time."""
        per_epoch = self.record.ready.steps_per_epoch if self.record.ready else 1
        return [
            (sum(step.seconds for step in self.record.steps[: e.epoch * per_epoch]), e.accuracy)
            for e in self.record.evaluations
        ]


def run(
    config: TrainConfig, budget: float, gloo_minutes: float, plot: Path, *, virtual: bool, real: bool
) -> None:
    """Measure, print and draw. virtual: a step's all-reduce in virtual time; real: the training itself.

    The latter only as root, and said if not.
    """
    if virtual:
        _virtual(config, budget)
    if not real:
        return
    if os.geteuid() != 0:
        console.print("not trained: the links are made of network namespaces, which need root")
        return
    lossless = config.model_copy(update={"loss_budget": 0.0})
    lossy = config.model_copy(update={"loss_budget": budget})
    ways: list[tuple[str, BackendName, TrainConfig, float]] = [
        (f"Weir, budget {budget:g}", "weir", lossy, float("inf")),
        ("Weir, lossless", "weir", lossless, float("inf")),
        ("Gloo", "gloo", lossless, 60 * gloo_minutes),
    ]
    outcomes = []
    for name, backend, one, limit_s in ways:
        console.print(f"{name} ...")
        with network_cluster(config.workers, network=config.network) as cluster:
            outcomes.append(_train(name, backend, one, cluster, limit_s))
    outcomes.reverse()
    target = min(max(accuracy for _, accuracy in o.curve()) for o in outcomes if o.complete)
    reached = {o.name: time_to(target, o, outcomes) for o in outcomes}
    _print(outcomes, reached, target, config)
    draw(plot, outcomes, reached, target, config)
    Console().print(f"drawn: {plot}", style="dim", highlight=False)


def _virtual(config: TrainConfig, budget: float) -> None:
    """What one step waits for, free of this machine's load."""
    from weir.train.task import make_task

    parameters = parameter_count(make_task(config).model)
    spec, workers = config.network, config.workers
    ways: list[tuple[str, Callable[[], Reduced]]] = [
        ("ring over TCP", lambda: training_virtual.ring(spec, workers, parameters)),
        ("Weir, lossless", lambda: training_virtual.weir(spec, workers, parameters, 0.0)),
        (f"Weir, budget {budget:g}", lambda: training_virtual.weir(spec, workers, parameters, budget)),
    ]
    found = {}
    for name, reduce in ways:
        console.print(f"{name}, in virtual time ...")
        found[name] = reduce()
    peer, lossless, _ = found.values()
    show(
        f"All-reduce of {config.model}'s gradient in virtual time, {workers} workers, {links_line(config)}",
        ("", "time", "missing", "x ring", "x lossless"),
        [
            (
                name,
                duration(one.seconds),
                "–" if one is peer else f"{one.missing:.2%}",
                f"{peer.seconds / one.seconds:.2f}",
                f"{lossless.seconds / one.seconds:.2f}",
            )
            for name, one in found.items()
        ],
        [
            "dense gradient; simulated links and TCP, everything of Weir's real: no figure depends on this "
            "machine's load",
            f"the rate alone allows {duration(4 * 8 * parameters / (spec.rate_bps or 1))} for Weir's lanes",
        ],
    )


def time_to(target: float, outcome: Outcome, others: list[Outcome]) -> float:
    """Seconds of training to an accuracy of ``target``.

    Of a run that was cut short: the steps that lossless Weir needs, which takes the same ones (its sums are
    Gloo's but for rounding), at this run's time per step.
    """
    if outcome.complete:
        return next(seconds for seconds, accuracy in outcome.curve() if accuracy >= target)
    model = next(o for o in others if o.complete and not o.record.delivery.missing)
    epoch = next(e.epoch for e in model.record.evaluations if e.accuracy >= target)
    per_epoch = model.record.ready.steps_per_epoch if model.record.ready else 1
    return epoch * per_epoch * outcome.step_s


def _print(outcomes: list[Outcome], reached: dict[str, float], target: float, config: TrainConfig) -> None:
    gloo = reached["Gloo"]
    lossless = reached["Weir, lossless"]
    rows, notes = [], []
    for outcome in outcomes:
        seconds, record, done = reached[outcome.name], outcome.record, outcome.record.delivery
        rows.append(
            (
                outcome.name,
                duration(outcome.step_s),
                "–" if record.accuracy is None else f"{record.accuracy:.1%}",
                f"{done.missing_share:.2%}" if record.run == "weir" else "–",
                ("" if outcome.complete else "~") + duration(seconds),
                f"{gloo / seconds:.2f}",
                f"{lossless / seconds:.2f}",
            )
        )
        counts, mean, steps = outcome.counts, record.mean_traffic, max(1, len(record.steps))
        notes.append(
            f"{outcome.name}: {len(record.steps)} of {record.total_steps} steps, "
            f"{byte_count(mean.bytes_up / steps)} up per worker and step, "
            f"{mean.retransmissions:,} retransmissions, {done.releases:,} releases; switches trimmed "
            f"{counts.trims:,} packets, marked {counts.marks:,}, found no room for "
            f"{counts.congestion_drops:,}, lost {counts.lost:,} on purpose"
        )
    notes += [
        f"time to {target:.1%}: training time at the first evaluation with that accuracy, the highest that "
        "all complete runs reach; step: median, of the slowest worker",
    ]
    if any(not o.complete for o in outcomes):
        notes.append(
            "~: cut short; time from its own time per step and the number of steps lossless Weir needed, "
            "whose sums are Gloo's but for rounding"
        )
    show(
        f"{config.model}, {config.workers} workers, {config.sparsifier}, {links_line(config)}",
        ("", "step", "accuracy", "missing", f"to {target:.1%}", "x Gloo", "x lossless"),
        rows,
        notes,
    )


def _train(
    name: str, backend: BackendName, config: TrainConfig, cluster: NetworkCluster, limit_s: float
) -> Outcome:
    """One run to its end, or until ``limit_s`` seconds of training are over.

    Raises RuntimeError with what a failed worker said.
    """
    ranks = range(config.workers)
    record, ticker = RunRecord(backend, ranks, config.epochs), _Ticker(name)
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        spec = WorkerSpec(config=config, backend=backend, init_method=f"file://{folder}/store")
        environment = {rank: {**worker_environment(), **cluster.environment(rank)} for rank in ranks}
        with Workers(
            spec.model_dump_json(),
            ranks,
            config.workers,
            environment,
            Path(folder),
            prefix=cluster.lab.at_worker,
        ) as workers:
            for news in _steps(workers, record):
                ticker.tell(record, news)
                if len(record.steps) >= _MIN_STEPS and record.training_s > limit_s:
                    record.status = "interrupted"
                    break
            else:
                record.status = "complete"
    return Outcome(name, record, _counts(cluster))


def _steps(workers: Workers, record: RunRecord) -> Iterator[StepSummary]:
    """Every step as all workers have taken it, until all have left."""
    left = set(record.ranks)
    while left:
        match workers.next_event(_TICK_S):
            case None:
                pass
            case Failed(rank=rank, traceback=text):
                raise RuntimeError(f"worker {rank} failed:\n{text}")
            case Exited(rank=rank, reason=reason):
                if reason:
                    raise RuntimeError(f"worker {rank} failed: {reason}")
                left.discard(rank)
            case message:
                if isinstance(news := record.add(message), StepSummary):
                    yield news


class _Ticker:
    """Prints a line every few seconds."""

    def __init__(self, name: str) -> None:
        self._name, self._last = name, 0.0

    def tell(self, record: RunRecord, news: StepSummary) -> None:
        """Where the run is, when it is time again."""
        if time.monotonic() - self._last > _LINE_EVERY_S:
            self._last = time.monotonic()
            accuracy = "" if record.accuracy is None else f", accuracy {record.accuracy:.2%}"
            at = f"step {news.step} of {record.total_steps}, {duration(news.seconds)}"
            console.print(f"{self._name}: {at}{accuracy}")


def _counts(cluster: NetworkCluster) -> NetworkCounts:
    from controller.client import AgentClient

    with AgentClient(cluster.controller) as client:
        return read_counts(client.status(), NetworkCounts(), {})
