# SPDX-License-Identifier: Apache-2.0
"""The results of a comparison: for each method, figures from all of its trainings."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median, stdev
from typing import Any, Final

from weir.compare.config import Comparison
from weir.train.config import PRESETS, Model, TrainConfig
from weir.train.record import RunRecord, Status, mean_known
from weir.train.wirebytes import dense_bytes
from weir.train.words import method_words

SCHEMA: Final = 1
DENSE: Final = ("dense", "gloo")
"""Dense training, the first of these that was trained."""

FLOOR: Final = "alone"


@dataclass
class Run:
    """One training: its record, and why it failed if it did."""

    method: str
    seed: int
    config: TrainConfig
    record: RunRecord
    problem: str = ""


@dataclass(frozen=True)
class Row:
    """One method's figures.

    status: the worst of its trainings'. losses, accuracies: on held-out data, one for each seed that has got
    so far; accuracies 0 to 1. kept: share of dense training's gain over one worker alone. bytes_up,
    bytes_down: on the wire per worker and step, all headers included; up_of_dense, down_of_dense: shares of
    those of dense training. density: share of the values that a worker sends, mean.
    build_up: values that some worker sent, over those that one sent on average. imbalance: what the busiest
    worker chose, over the average. selection_s: per step, to choose; step_s: median step; communication_s:
    per step, time in which something was under way, also beside the backward pass. None: not known, or
    without meaning for this method.
    """

    method: str
    settings: str
    status: Status
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    kept: float | None
    bytes_up: float | None
    bytes_down: float | None
    up_of_dense: float | None
    down_of_dense: float | None
    density: float | None
    build_up: float | None
    imbalance: float | None
    selection_s: float | None
    step_s: float | None
    communication_s: float | None
    problem: str = ""

    @property
    def loss(self) -> float | None:
        """Mean over the seeds."""
        return fmean(self.losses) if self.losses else None

    @property
    def accuracy(self) -> float | None:
        """Mean over the seeds."""
        return fmean(self.accuracies) if self.accuracies else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; None of a single one."""
        return stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def as_json(self) -> dict[str, Any]:
        """Return the row for compare.json."""
        return {**asdict(self), "loss": self.loss, "accuracy": self.accuracy, "spread": self.spread}


def make_rows(comparison: Comparison, runs: Sequence[Run]) -> list[Row]:
    """Return a row for each method that was begun, in the order asked for."""
    of_method = {name: [run for run in runs if run.method == name] for name in comparison.methods}
    dense = _dense(of_method.get(DENSE[0], []), runs)
    rows = {name: _row(name, found, dense) for name, found in of_method.items() if found}
    summing, floor = next((rows[name] for name in DENSE if name in rows), None), rows.get(FLOOR)
    if summing is None or floor is None:
        return list(rows.values())
    figures = {name: _figure(row, comparison.any.model) for name, row in rows.items()}
    ends = figures[summing.method], figures[floor.method]
    return [replace(row, kept=share_of_gain(figures[name], *ends)) for name, row in rows.items()]


def share_of_gain(figure: float | None, dense: float | None, alone: float | None) -> float | None:
    """Return which share of dense training's gain over one worker alone is kept. All are figures of which
    less is better. None: there is no gain, or a figure is not known.
    """
    if figure is None or dense is None or alone is None or not dense < alone:
        return None
    return (alone - figure) / (alone - dense)


def _figure(row: Row, model: Model) -> float | None:
    """Return the figure by which runs of a model are compared, of which less is better."""
    if PRESETS[model].metric == "loss":
        return row.loss
    return None if row.accuracy is None else -row.accuracy


def dense_source(rows: Sequence[Row]) -> str:
    """Return the source of dense training's bytes, of which the shares are."""
    measured = any(row.method == DENSE[0] and row.bytes_up is not None for row in rows)
    return "the method dense, measured" if measured else "all values in full packets, calculated"


def summarize(comparison: Comparison, runs: Sequence[Run], status: Status, problem: str) -> dict[str, Any]:
    """Return what compare.json holds."""
    rows = make_rows(comparison, runs)
    return {
        "schema": SCHEMA,
        "status": status,
        "problem": problem or None,
        "config": comparison.as_json(),
        "shares_are_of": dense_source(rows),
        "methods": {row.method: row.as_json() for row in rows},
        "runs": [_run(run) for run in runs],
    }


def _run(run: Run) -> dict[str, Any]:
    record = run.record
    return {
        "method": run.method,
        "seed": run.seed,
        "status": record.status,
        "problem": run.problem or None,
        "steps": len(record.steps),
        "parameters": record.ready.parameters if record.ready else None,
        "epochs": [
            {"epoch": e.epoch, "step": e.step, "loss": e.loss, "accuracy": e.accuracy}
            for e in record.evaluations
        ],
        "per_worker": asdict(record.mean_traffic),
        "training_s": record.training_s,
        "replicas": {
            "identical_after_every_step": record.identical_in_steps or None,
            "identical_at_end": record.identical_at_end or None,
        },
    }


def _row(method: str, runs: Sequence[Run], dense: tuple[float, float] | None) -> Row:
    records = [run.record for run in runs if run.record.steps]
    steps = [step for record in records for step in record.steps]
    up, down = _bytes_per_step(records)
    statuses = {run.record.status for run in runs}
    order: tuple[Status, ...] = ("failed", "interrupted", "running", "complete")
    return Row(
        method=method,
        settings=method_words(runs[0].config),
        status=next(status for status in order if status in statuses),
        losses=tuple(record.evaluations[-1].loss for record in records if record.evaluations),
        accuracies=tuple(record.accuracy for record in records if record.accuracy is not None),
        kept=None,
        bytes_up=up,
        bytes_down=down,
        up_of_dense=up / dense[0] if up is not None and dense else None,
        down_of_dense=down / dense[1] if down is not None and dense else None,
        density=mean_known(record.density for record in records),
        build_up=mean_known(record.build_up for record in records),
        imbalance=mean_known(record.imbalance for record in records),
        selection_s=mean_known(record.selection_s for record in records),
        step_s=median(step.seconds for step in steps) if steps else None,
        communication_s=mean_known(step.communication_s for step in steps),
        problem=next((run.problem for run in runs if run.problem), ""),
    )


def _dense(measured: Sequence[Run], runs: Sequence[Run]) -> tuple[float, float] | None:
    """Return bytes up and down per worker and step of dense training: measured, else calculated, else
    None.
    """
    up, down = _bytes_per_step([run.record for run in measured if run.record.steps])
    if up is not None and down is not None:
        return up, down
    parameters = next((run.record.ready.parameters for run in runs if run.record.ready), None)
    return (float(dense_bytes(parameters)),) * 2 if parameters else None


def _bytes_per_step(records: Sequence[RunRecord]) -> tuple[float | None, float | None]:
    """Return bytes up and down per step; those that make the replicas equal in the end are part of them."""
    steps = sum(len(record.steps) for record in records)
    if not steps:
        return None, None
    traffic = [record.mean_traffic for record in records]
    return sum(t.bytes_up for t in traffic) / steps, sum(t.bytes_down for t in traffic) / steps
