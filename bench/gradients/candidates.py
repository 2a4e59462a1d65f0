# SPDX-License-Identifier: Apache-2.0
"""Schemes that might replace ``compress`` or a part of it, each with the same training, in one process.

There are no packets: a scheme that is not better here need not be built. Model, data, schedule and clipping
are those of ``weir train``: ``training/methods`` makes the same training over a switch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean, median
from typing import Final, cast

import torch

from weir.bench.case import Run, parameter
from weir.bench.gradients.ahead import SCHEMES, Setting
from weir.bench.grid import simulate
from weir.bench.results import Column, Row, Table, share
from weir.compare.results import share_of_gain
from weir.host_agent.compression.updates.layout import ROW, UpdateLayout
from weir.train.config import PRESETS, Model, make_config
from weir.train.data import learning_rate
from weir.train.data import share as batches_of
from weir.train.task import make_task, mean_loss, measured

_DECAYS: Final = {"adam": 0.0, "adamw": 0.01}  # torch's own
_MODELS: Final = tuple(name for name, one in PRESETS.items() if one.optimizer in _DECAYS)


@dataclass(frozen=True)
class Parameters:
    """The training, and the schemes."""

    models: tuple[str, ...] = parameter(("gpt",), "models that are trained by Adam or AdamW", choices=_MODELS)
    schemes: tuple[str, ...] = parameter(tuple(SCHEMES), "what is compared", choices=SCHEMES)
    rates: tuple[float, ...] = parameter((1.0, 1.5, 2.0), "learning rates, in those of the model", above=0)
    share: float = parameter(0.2, "of the values in a step, of schemes that send blocks", above=0, most=1)
    workers: int = parameter(4, "workers", least=1, most=32)
    steps: int = parameter(300, "of each training", least=2)


@dataclass(frozen=True)
class Outcome:
    """The end of a training: held-out figures, infinite and 0 where it diverged, and the share of the values
    that a worker delivered in a step, on average.
    """

    loss: float
    accuracy: float
    sent: float


def train(
    model: Model, scheme: str, rate: float, share: float, workers: int, steps: int, seed: int
) -> Outcome:
    """Train, on one thread."""
    torch.set_num_threads(1)
    config = make_config(model=model, workers=workers, seed=seed, lr=rate * PRESETS[model].lr)
    task = make_task(config)
    named = [(name, one) for name, one in task.model.named_parameters() if one.requires_grad]
    parameters, shapes = [one for _, one in named], tuple(one.shape for _, one in named)
    place = UpdateLayout([name for name, _ in named], shapes)
    setting = Setting(place, shapes, workers, _DECAYS[config.trained_by], share, seed)
    way = SCHEMES[scheme](setting, place.gather(parameters, place.empty()))
    data, sent = task.data.train, 0.0
    gradients = torch.zeros(workers, place.rows, ROW)
    batches = _batches(len(data), workers, config.batch_size, seed)
    for number in range(steps):
        for worker, batch in enumerate(next(batches)):
            with torch.no_grad():
                place.scatter(way.weights(worker), parameters)
            task.model.zero_grad()
            mean_loss(task.model(data.inputs[batch]), data.targets[batch]).backward()  # type: ignore[no-untyped-call]
            if config.max_norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, config.max_norm)
            place.gather([one.grad for one in parameters], gradients[worker])
        way.step(gradients, learning_rate(config.lr, number, steps))
        sent += way.sent / steps
    with torch.no_grad():
        place.scatter(way.end(), parameters)
    loss, accuracy = measured(task.model, task.data.test)
    return Outcome(loss, accuracy, sent) if math.isfinite(loss) else Outcome(math.inf, 0.0, sent)


def _batches(samples: int, workers: int, size: int, seed: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the workers' batches of each step, without end."""
    epoch = 0
    while True:
        epoch += 1
        ranks = [batches_of(samples, rank, workers, size, seed, epoch) for rank in range(workers)]
        yield from zip(*ranks, strict=True)


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Train each model by every scheme at every rate, with each seed."""
    for name in parameters.models:
        model = cast(Model, name)
        cases = [
            (model, scheme, rate, parameters.share, parameters.workers, parameters.steps, seed)
            for scheme in parameters.schemes
            for rate in parameters.rates
            for seed in run.seeds
        ]
        outcomes = simulate(train, Outcome, cases, run, _said)
        found: dict[str, dict[float, list[Outcome]]] = {}
        for (_, scheme, rate, *_rest), outcome in zip(cases, outcomes, strict=True):
            found.setdefault(scheme, {}).setdefault(rate, []).append(outcome)
        yield table(model, parameters, found)


def _said(case: tuple[object, ...], outcome: Outcome) -> str:
    model, scheme, rate, *_, seed = case
    return f"{model}, {scheme}, rate {rate}, seed {seed}: loss {outcome.loss:.4g}, {outcome.accuracy:.2%}"


def table(model: Model, parameters: Parameters, found: dict[str, dict[float, list[Outcome]]]) -> Table:
    """Return the table of a model, each scheme at its best rate."""
    preset = PRESETS[model]
    less = preset.metric == "loss"
    sign = 1 if less else -1
    show = (lambda n: f"{n:.3f}") if less else (lambda n: f"{n:.1%}")

    def values(outcomes: list[Outcome]) -> list[float]:
        return [one.loss if less else one.accuracy for one in outcomes]

    def middle(outcomes: list[Outcome]) -> float:
        return median(values(outcomes))

    best = {
        scheme: min(rates, key=lambda rate: sign * middle(rates[rate])) for scheme, rates in found.items()
    }
    ends = {scheme: sign * middle(found[scheme][best[scheme]]) for scheme in found}

    def kept(scheme: str) -> float | None:
        if not {"dense", "alone"} <= ends.keys():
            return None
        return share_of_gain(ends[scheme], ends["dense"], ends["alone"])

    return Table(
        f"Schemes of compressed updates, {model}, {parameters.workers} workers, {parameters.steps} steps",
        (
            Column(preset.metric, show, "on held-out data, at the best rate; median"),
            Column("kept", lambda n: f"{n:.0%}", "share of dense training's gain over one worker alone"),
            Column("sent", share, "share of the values that a worker delivers in a step"),
            Column("best rate"),
        ),
        tuple(
            Row(
                scheme,
                {
                    preset.metric: values(rates[best[scheme]]),
                    "kept": kept(scheme),
                    "sent": mean(one.sent for one in rates[best[scheme]]),
                    "best rate": f"{best[scheme] * preset.lr:g}",
                },
            )
            for scheme, rates in found.items()
        ),
        better="less" if less else "more",
        notes=(f"{preset.optimizer}; one process, no packets",),
    )
