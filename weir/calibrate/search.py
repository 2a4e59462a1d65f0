# SPDX-License-Identifier: Apache-2.0
"""The questions asked of a model, and the search for the largest share that it can miss."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Final, Literal

from weir.calibrate.trial import TrialOutcome
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES

Kind = Literal["all", "layer", "magnitude", "policy", "budget"]
NOT_SENT_AGAIN: Final = ", not sent again"
Table = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Question:
    """A question: the blocks that are lost.

    index: of the class. shape: what a share of 1 means for each class. error_feedback: whether what is lost
    is sent again with the next step.
    """

    kind: Kind
    index: int
    shape: Table
    error_feedback: bool = True

    @property
    def name(self) -> str:
        """Return its name in tables."""
        name = f"{self.kind} {self.index}" if self.kind in {"layer", "magnitude"} else self.kind
        return name if self.error_feedback else name + NOT_SENT_AGAIN

    def losses(self, p: float) -> LossPolicy:
        """Return the losses that a share ``p`` stands for."""
        budgets = tuple(tuple(min(1.0, p * share) for share in row) for row in self.shape)
        return LossPolicy(budgets=budgets, tensor=(1.0,) * LAYER_CLASSES)


def questions(layer_classes: Sequence[int], error_feedback: bool = True) -> Iterator[Question]:
    """Yield loss of all blocks, with and without error feedback, of each layer and magnitude class."""
    again = error_feedback
    everything = _table(lambda _layer, _magnitude: True)
    yield Question("all", 0, everything)
    yield Question("all", 0, everything, error_feedback=False)
    for index in layer_classes:
        yield Question("layer", index, _table(partial(_in_layer, index)), again)
    for index in range(MAGNITUDE_CLASSES):
        yield Question("magnitude", index, _table(partial(_of_magnitude, index)), again)


def whole_budget(budget: float, error_feedback: bool = True) -> Question:
    """Return what ``LossPolicy.from_budget`` allows to be lost, all of it in every step, by lot.

    A share of 1 is the whole budget: the classes that may be lost lose what a tensor may.
    """
    allowed = LossPolicy.from_budget(budget)
    shape = tuple(
        tuple(min(1.0, tensor * MAGNITUDE_CLASSES * share / sum(row)) for share in row)
        for row, tensor in zip(allowed.budgets, allowed.tensor, strict=True)
    )
    return Question("budget", 0, shape, error_feedback)


def _in_layer(index: int, layer: int, _magnitude: int) -> bool:
    return layer == index


def _of_magnitude(index: int, _layer: int, magnitude: int) -> bool:
    return magnitude == index


def _table(lost: Callable[[int, int], bool]) -> Table:
    return tuple(
        tuple(float(lost(layer, magnitude)) for magnitude in range(MAGNITUDE_CLASSES))
        for layer in range(LAYER_CLASSES)
    )


@dataclass(frozen=True)
class Measurement:
    """One share, over all seeds. accuracies: 0 to 1, by seed; lost: share of all blocks; drop: in points."""

    p: float
    accuracies: tuple[float, ...]
    lost: float
    drop: float

    @classmethod
    def of(cls, p: float, outcomes: Sequence[TrialOutcome], lossless: Sequence[float]) -> "Measurement":
        """Return what the outcomes of the same seeds with this share mean, by the accuracies without loss.

        A seed gives parameters and an order of the data; both runs share its luck, so it must not count.
        """
        accuracies = tuple(outcome.accuracy for outcome in outcomes)
        drop = 100 * (fmean(lossless) - fmean(accuracies))
        return cls(p, accuracies, fmean(outcome.lost for outcome in outcomes), drop)


@dataclass(frozen=True)
class Finding:
    """The answer. tolerated: the largest share that was measured within the tolerance, 0 if none was.

    beyond: the next one tried, which was not; None when even the largest was tolerated.
    """

    question: Question
    tolerated: float
    beyond: float | None
    measurements: tuple[Measurement, ...]

    @property
    def at(self) -> Measurement | None:
        """Return what was measured at the tolerated share."""
        return next((m for m in self.measurements if m.p == self.tolerated), None)

    def as_json(self) -> dict[str, Any]:
        """Return the finding for the calibration record in a policy file."""
        return {
            "lost": self.question.kind,
            "class": self.question.index,
            "sent_again": self.question.error_feedback,
            "tolerated": self.tolerated,
            "beyond": self.beyond,
            "measured": [
                {
                    "p": m.p,
                    "points_lost": round(m.drop, 3),
                    "lost": round(m.lost, 5),
                    "accuracies": m.accuracies,
                }
                for m in self.measurements
            ],
        }


def bisect(
    question: Question, grid: Sequence[float], tolerance: float, measure: Callable[[float], Measurement]
) -> Finding:
    """Return the answer to a question, assuming that more loss is never better. grid: ascending."""
    measured = []
    low, high = -1, len(grid)  # grid[low] holds, grid[high] does not: losing nothing, and more than all
    while high - low > 1:
        middle = (low + high) // 2
        measured.append(measure(grid[middle]))
        if measured[-1].drop <= tolerance:
            low = middle
        else:
            high = middle
    return Finding(
        question,
        tolerated=grid[low] if low >= 0 else 0.0,
        beyond=grid[high] if high < len(grid) else None,
        measurements=tuple(sorted(measured, key=lambda m: m.p)),
    )


def combined(findings: Sequence[Finding]) -> Question:
    """Return all classes at once: what each block's layer and magnitude class tolerate by themselves, the
    smaller.

    A layer class that the model has no parameter in gets the smaller of its neighbours' shares.
    """
    found = {(f.question.kind, f.question.index): f.tolerated for f in findings}
    present = sorted(index for kind, index in found if kind == "layer")
    layers = []
    for layer in range(LAYER_CLASSES):
        before = max((index for index in present if index <= layer), default=present[0])
        after = min((index for index in present if index >= layer), default=present[-1])
        layers.append(min(found["layer", before], found["layer", after]))
    shape = tuple(
        tuple(min(layer, found["magnitude", magnitude]) for magnitude in range(MAGNITUDE_CLASSES))
        for layer in layers
    )
    return Question(
        "policy", 0, shape, all(f.question.error_feedback for f in findings if f.question.kind != "all")
    )


def policy(finding: Finding, calibration: dict[str, Any]) -> LossPolicy:
    """Return the policy that the answer to ``combined`` stands for."""
    budgets = finding.question.losses(finding.tolerated).budgets
    return LossPolicy(budgets=budgets, tensor=tuple(fmean(row) for row in budgets), calibration=calibration)
