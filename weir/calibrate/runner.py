# SPDX-License-Identifier: Apache-2.0
"""Carries a calibration out: training runs in processes of their own, searches side by side."""

from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from weir.calibrate import trial
from weir.calibrate.config import CalibrateConfig
from weir.calibrate.search import (
    Finding,
    Measurement,
    Question,
    bisect,
    combined,
    policy,
    questions,
    whole_budget,
)
from weir.calibrate.trial import Trial, TrialOutcome
from weir.host_agent.compression.classes import LayerClasses
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.methods import load_plugin
from weir.process.pool import one_thread, process_pool
from weir.train.task import make_task

# Of the shares that the classes tolerate one by one, how much they tolerate all at once.
SCALES = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)


class Listener(Protocol):
    """Hears how a calibration goes; from several threads."""

    def expect(self, runs: int) -> None:
        """Hear that this many more training runs may have to be made."""

    def ran(self, question: Question | None, p: float, outcome: TrialOutcome) -> None:
        """Hear that a run is over; question None: a lossless one."""

    def found(self, finding: Finding, spared: int) -> None:
        """Hear that a search is over; this many of the runs that were expected need not be made."""


@dataclass(frozen=True)
class Calibration:
    """All that was found. lossless: accuracy by seed. parameters: how many each layer class has."""

    config: CalibrateConfig
    lossless: tuple[float, ...]
    parameters: tuple[int, ...]
    findings: tuple[Finding, ...]
    whole: Finding

    @property
    def policy(self) -> LossPolicy:
        """Return what ``weir train --set loss_policy=FILE`` reads."""
        return policy(self.whole, self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Return how the policy was found."""
        return {
            "settings": self.config.model_dump(mode="json", exclude={"processes", "out"}),
            "lossless_accuracies": self.lossless,
            "parameters_by_layer_class": self.parameters,
            "findings": [finding.as_json() for finding in (*self.findings, self.whole)],
        }


def calibrate(config: CalibrateConfig, listener: Listener) -> Calibration:
    """Measure everything. Ends all processes before it returns or raises, also on an interrupt."""
    parameters = LayerClasses.of(make_task(config.training(seed=1)).model).counts()
    present = [layer for layer, count in enumerate(parameters) if count]
    asked = list(questions(present, config.error_feedback))
    begin = partial(_begin, config.plugin)
    # When the processes end before their time, all searches fail, and end, too.
    with ThreadPoolExecutor(len(asked)) as searches, process_pool(config.processes, begin) as processes:
        runs = _Runs(config, processes, listener)
        listener.expect(config.seeds * (1 + len(asked) * _longest(config.grid) + _longest(SCALES)))
        lossless = tuple(outcome.accuracy for outcome in runs.of(None, 0.0))
        findings = list(searches.map(lambda question: runs.answer(question, lossless), asked))
        whole = runs.answer(combined(findings), lossless, SCALES)
    return Calibration(config, lossless, tuple(parameters), tuple(findings), whole)


@dataclass(frozen=True)
class Check:
    """The cost of a loss budget in accuracy. lossless: by seed, without loss."""

    config: CalibrateConfig
    lossless: tuple[float, ...]
    lossy: Measurement

    @property
    def tolerated(self) -> bool:
        """Return whether it costs no more than the tolerance."""
        return self.lossy.drop <= self.config.tolerance

    def as_json(self) -> dict[str, Any]:
        """Return the figures for ``--json``."""
        return {
            "settings": self.config.model_dump(mode="json", exclude={"processes", "out"}),
            "lossless_accuracies": self.lossless,
            "lossy_accuracies": self.lossy.accuracies,
            "points_lost": self.lossy.drop,
            "share_of_blocks_lost": self.lossy.lost,
            "tolerated": self.tolerated,
        }


def check(config: CalibrateConfig, listener: Listener) -> Check:
    """Train without loss, and with all the loss that a budget allows. Ends all processes, as ``calibrate``.

    Args:
        config: With a ``loss_budget``.
        listener: Hears how it goes.
    """
    assert config.loss_budget is not None
    question = whole_budget(config.loss_budget, config.error_feedback)
    listener.expect(2 * config.seeds)
    with process_pool(config.processes, partial(_begin, config.plugin)) as processes:
        runs = _Runs(config, processes, listener)
        lossless = tuple(outcome.accuracy for outcome in runs.of(None, 0.0))
        return Check(config, lossless, Measurement.of(1.0, runs.of(question, 1.0), lossless))


def _begin(plugin: tuple[Path, ...]) -> None:
    """Prepare a training process."""
    one_thread()
    for path in plugin:
        load_plugin(path)


class _Runs:
    """Makes the runs that a search asks for, all seeds at once."""

    def __init__(self, config: CalibrateConfig, processes: ProcessPoolExecutor, listener: Listener) -> None:
        self._config, self._processes, self._listener = config, processes, listener

    def answer(
        self, question: Question, lossless: tuple[float, ...], grid: tuple[float, ...] | None = None
    ) -> Finding:
        grid = grid or self._config.grid
        finding = bisect(question, grid, self._config.tolerance, self._measured(question, lossless))
        spared = self._config.seeds * (_longest(grid) - len(finding.measurements))
        self._listener.found(finding, spared)
        return finding

    def _measured(self, question: Question, lossless: tuple[float, ...]) -> Callable[[float], Measurement]:
        return lambda p: Measurement.of(p, self.of(question, p), lossless)

    def of(self, question: Question | None, p: float) -> list[TrialOutcome]:
        """Return the outcomes by seed; question None: without loss."""
        losses = LossPolicy.from_budget(0) if question is None else question.losses(p)
        feedback = question is None or question.error_feedback
        futures: list[Future[TrialOutcome]] = []
        for seed in range(1, self._config.seeds + 1):
            wanted = Trial(self._config.training(seed), losses, feedback, self._config.momentum)
            future = self._processes.submit(trial.run, wanted)
            future.add_done_callback(lambda done: self._tell(question, p, done))
            futures.append(future)
        return [future.result() for future in futures]

    def _tell(self, question: Question | None, p: float, done: "Future[TrialOutcome]") -> None:
        if not done.cancelled() and done.exception() is None:
            self._listener.ran(question, p, done.result())


def _longest(grid: tuple[float, ...]) -> int:
    """Return how many measurements a bisection of ``grid`` takes at most."""
    return len(grid).bit_length()


def mean_accuracy(accuracies: tuple[float, ...]) -> float:
    """Return the mean in per cent."""
    return 100 * fmean(accuracies)
