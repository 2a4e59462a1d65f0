# SPDX-License-Identifier: Apache-2.0
"""Methods and peers on models that nobody tuned for, each at its best learning rate.

Every training is a run of ``weir train``'s workers, over Weir or over Gloo, with the same number of steps.
The first seed tells a way's best rate; while that is the lowest or highest tried, a further one is tried. The
other seeds train at the best rate alone. Dense training ends better than one worker alone; the table says
which share of this gain each way keeps, and its bytes.
"""

import contextlib
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final, Literal

from softp4.native.scratch import scratch_folder
from weir.bench.case import ParameterError, Run, parameter
from weir.bench.grid import Journal
from weir.bench.results import Column, Row, Table, Value, share
from weir.bench.training.ways import settings_of
from weir.compare.results import share_of_gain
from weir.process.child import ChildError
from weir.report.words import byte_count, duration
from weir.train.config import LARGE_MODELS, PRESETS, SGD_MODELS, ConfigError, Model, TrainConfig, make_config
from weir.train.deployment import Deployment, deploy
from weir.train.messages import Evaluated, WorkerSpec, backend_of
from weir.train.record import RunRecord, StepSummary
from weir.train.running import WorkerError, run_workers

DENSE: Final = "gloo"
FLOOR: Final = "alone"
WAYS: Final = (
    FLOOR,
    DENSE,
    "gloo-fp16",
    "gloo-bf16",
    *(f"gloo-powersgd:powersgd_rank={rank}" for rank in (1, 2, 4, 8)),
    "gloo-local:local_steps=10",
    "dense",
    "powersgd:powersgd_rank=4",
    "powersgd:powersgd_rank=4:lane_bits=8",
    "compress",
    "compress:update_share=0.5",
    "compress:update_share=0.32",
    "compress:update_share=0.16",
    "dfs:density=0.05",
    "topk-block:density=0.05",
)
"""Methods, each with those of its settings that are not ``weir train``'s own."""

_UNTUNED: Final = tuple(name for name in PRESETS if name not in SGD_MODELS and name not in LARGE_MODELS)
_LINE_EVERY_S: Final = 10.0
_DIVERGED: Final = re.compile(r"\b(NaN|infinity|diverged)\b")
_EDGE: Final = "a best rate that is the lowest or highest tried (marked <, >) may not be the best there is"


@dataclass(frozen=True)
class Parameters:
    """The models, the ways to train them, and for how long."""

    models: tuple[str, ...] = parameter(_UNTUNED, "models", choices=PRESETS)
    ways: tuple[str, ...] = parameter(WAYS, "methods and peers: METHOD, or METHOD:SETTING=VALUE:...")
    rates: tuple[float, ...] = parameter((0.5, 1.0, 2.0), "learning rates, in those of the model", above=0)
    further: int = parameter(
        2, "rates tried beyond the lowest or highest, by factors of 2, while that is the best", least=0
    )
    workers: int = parameter(4, "workers", least=1, most=32)
    steps: int = parameter(300, "of each training", least=1)

    def __post_init__(self) -> None:
        for way in self.ways:
            try:
                settings_of(way)
            except ValueError as error:
                raise ParameterError(f"ways: {error}") from None


@dataclass(frozen=True)
class Training:
    """One of the trainings. rate: in the model's own."""

    model: Model
    way: str
    rate: float
    seed: int
    workers: int
    steps: int

    @property
    def config(self) -> TrainConfig:
        """Return its settings, as ``weir train`` would be told them. Raises ConfigError."""
        preset = PRESETS[self.model]
        per_epoch = max(1, preset.samples // (preset.batch_size * self.workers))
        epochs = math.ceil(self.steps / per_epoch)
        return make_config(
            model=self.model,
            lr=self.rate * preset.lr,
            seed=self.seed,
            workers=self.workers,
            epochs=epochs,
            max_steps=math.ceil(self.steps / epochs),
            reference=False,
            **settings_of(self.way),
        )

    def __str__(self) -> str:
        return f"{self.model}, {self.way}, rate {self.config.lr:g}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """The end of a training: figures on held-out data, bytes of a worker and step with all headers.

    loss: infinite, and accuracy 0, where training diverged. late_up, late_down: bytes in the second half of
    the steps.
    """

    loss: float
    accuracy: float
    up: float
    down: float
    late_up: float
    late_down: float

    def metric(self, model: Model) -> float:
        """Return the figure by which runs of a model are compared."""
        return self.loss if PRESETS[model].metric == "loss" else self.accuracy


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Train each model in every way: from the first seed at several rates, from others at the best."""
    first, *others = run.seeds
    begun = {
        model: [
            Training(model, way, rate, first, parameters.workers, parameters.steps)
            for way in parameters.ways
            for rate in parameters.rates
        ]
        for model in PRESETS
        if model in parameters.models
    }
    _check([training for each in begun.values() for training in each])
    with _Trainer(run) as trainer:
        for model, trainings in begun.items():
            found = {way: Found() for way in parameters.ways}
            for training in trainings:
                found[training.way][training] = trainer.outcome(training)
            for own in found.values():
                for _ in range(parameters.further):
                    if (beyond := own.further) is not None:
                        own[beyond] = trainer.outcome(beyond)
            for seed in others:
                for own in found.values():
                    training = replace(own.best, seed=seed)
                    own[training] = trainer.outcome(training)
            yield table(model, parameters, found)


class Found(dict[Training, Outcome]):
    """Outcomes of one way to train a model, those of the first seed first."""

    @property
    def best(self) -> Training:
        """Training of the first seed at the best rate."""
        first = next(iter(self))
        metrics = {
            each: outcome.metric(each.model) for each, outcome in self.items() if each.seed == first.seed
        }
        return (min if _less(first.model) else max)(metrics, key=lambda each: metrics[each])

    @property
    def edge(self) -> Literal["", "<", ">"]:
        """Return where the best rate may not be the best there is: < at the lowest, > at the highest."""
        rates, best = {training.rate for training in self}, self.best.rate
        if len(rates) == 1:
            return ""
        return "<" if best == min(rates) else ">" if best == max(rates) else ""

    @property
    def further(self) -> Training | None:
        """Training beyond the best rate, where that is the lowest or highest."""
        if not self.edge:
            return None
        return replace(self.best, rate=self.best.rate * (0.5 if self.edge == "<" else 2))

    def metrics(self, rate: float) -> list[float]:
        """Return the metric of all trainings at a rate."""
        return [outcome.metric(each.model) for each, outcome in self.items() if each.rate == rate]

    @property
    def middle(self) -> float:
        """Median of the metric at the best rate."""
        return median(self.metrics(self.best.rate))

    def bytes(self, which: Literal["up", "down", "late_up", "late_down"]) -> float:
        """Return the median of bytes up or down at the best rate."""
        rate = self.best.rate
        found: list[float] = [getattr(outcome, which) for each, outcome in self.items() if each.rate == rate]
        return median(found)


def _less(model: Model) -> bool:
    return PRESETS[model].metric == "loss"


def _check(trainings: Sequence[Training]) -> None:
    """Raise ConfigError for settings that cannot be, before anything is trained."""
    for training in trainings:
        try:
            _ = training.config
        except ConfigError as error:
            raise ConfigError(f"{training.model}, {training.way}: {error}") from None


class _Trainer(contextlib.ExitStack):
    """Makes trainings, but for those whose outcomes the journal has."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run, self._book = run, Journal(run.journal)
        self._deployment: Deployment | None = None
        self._done = 0

    def outcome(self, training: Training) -> Outcome:
        """Return the outcome of a training."""
        if (known := self._book.get((training,))) is not None:
            return Outcome(**known)
        if self._deployment is None:
            self._deployment = self.enter_context(deploy(training.config))
            self._logs = self.enter_context(scratch_folder("bench"))
        self._done += 1
        outcome = self._train(training, self._deployment, self._logs / str(self._done))
        self._book.put((training,), outcome)
        return outcome

    def _train(self, training: Training, deployment: Deployment, logs: Path) -> Outcome:
        """Train, and say how far it is and what came out. Raises ChildError."""
        config, began = training.config, time.monotonic()
        backend = backend_of(config)
        record = RunRecord(backend, deployment.ranks, config.epochs)
        spec = WorkerSpec(config=config, backend=backend, init_method=deployment.init_method(logs.name))
        title = str(training)
        said = began

        def news(record: RunRecord, news: StepSummary | Evaluated) -> None:
            nonlocal said
            if isinstance(news, StepSummary) and time.monotonic() - said > _LINE_EVERY_S:
                said = time.monotonic()
                self._run.say(f"{title}: step {news.step} of {record.total_steps}, loss {news.loss:.4g}")

        try:
            run_workers(spec, deployment, record, logs, news)
        except WorkerError as error:
            if _DIVERGED.search(str(error)) is None:
                raise ChildError(f"{title}: {error}") from None
            self._run.say(f"{title}: diverged")
            return Outcome(math.inf, 0.0, *_bytes(record))
        last = record.evaluations[-1]
        outcome = Outcome(last.loss, last.accuracy, *_bytes(record))
        words = f"loss {outcome.loss:.4g}, accuracy {outcome.accuracy:.2%}, {byte_count(outcome.up)} up"
        self._run.say(f"{title}: {words}, in {duration(time.monotonic() - began)}")
        return outcome


def _bytes(record: RunRecord) -> tuple[float, float, float, float]:
    """Return the bytes up and down of a worker and step: of all steps, and of their second half."""
    traffic, steps = record.mean_traffic, max(1, len(record.steps))
    late = record.steps[len(record.steps) // 2 :]
    return (
        traffic.bytes_up / steps,
        traffic.bytes_down / steps,
        sum(step.bytes_up for step in late) / max(1, len(late)),
        sum(step.bytes_down for step in late) / max(1, len(late)),
    )


def table(model: Model, parameters: Parameters, found: Mapping[str, Found]) -> Table:
    """Return the table of a model: each way at its best rate."""
    preset, less = PRESETS[model], _less(model)
    dense, floor = found.get(DENSE) or found.get("dense"), found.get(FLOOR)
    sign = 1 if less else -1
    show = (lambda n: f"{n:.3f}") if less else (lambda n: f"{n:.1%}")
    rates = sorted({training.rate for own in found.values() for training in own})

    def kept(own: Found) -> float | None:
        if not (dense and floor):
            return None
        return share_of_gain(sign * own.middle, sign * dense.middle, sign * floor.middle)

    def values(own: Found) -> dict[str, Value]:
        up, down, best = own.bytes("up"), own.bytes("down"), own.best.rate
        return {
            preset.metric: own.metrics(best),
            "kept": kept(own),
            "up": up,
            "down": down,
            "up, of dense": up / dense.bytes("up") if dense else None,
            "down, of dense": down / dense.bytes("down") if dense else None,
            "late up, of dense": own.bytes("late_up") / dense.bytes("late_up") if dense else None,
            "late down, of dense": own.bytes("late_down") / dense.bytes("late_down") if dense else None,
            "best rate": f"{own.edge}{best * preset.lr:g}",
            **{f"at {rate * preset.lr:g}": own.metrics(rate) or None for rate in rates},
        }

    notes = [f"{parameters.workers} workers, batches of {preset.batch_size}, {preset.optimizer}", _EDGE]
    if dense and floor and kept(dense) is None:
        notes.append("dense training gains nothing over one worker here: nothing can be kept of that")
    return Table(
        f"{model}, {parameters.steps} steps",
        (
            Column(preset.metric, show, "on held-out data, by which the first seed chose the rate; median"),
            Column("kept", lambda n: f"{n:.0%}", "share of dense training's gain over one worker alone"),
            Column("up", byte_count, "of a worker and step, all headers included; so is down"),
            Column("down", byte_count),
            Column("up, of dense", share),
            Column("down, of dense", share),
            Column("late up, of dense", share, "in the second half of the steps; so is down"),
            Column("late down, of dense", share),
            Column("best rate"),
            *(Column(f"at {rate * preset.lr:g}", show) for rate in rates),
        ),
        tuple(Row(way, values(own)) for way, own in found.items()),
        better="less" if less else "more",
        notes=tuple(notes),
    )
