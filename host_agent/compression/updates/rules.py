# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers, of one worker's gradient, in one pass over the memory of the parameters.

Each is linear in the gradient once the second moments are given, and these are the same on all workers. So
the mean of the workers' steps is the step of their mean gradient: momentum may stay with the worker.

Weight decay is no part of a worker's step, but for Adam's, which is not linear. It acts on the shared point,
where all workers know it: decay that waited with pending values would come late, and cost bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import torch

from weir.host_agent.compression import bindings
from weir.host_agent.compression.updates.harm import Sums
from weir.host_agent.compression.updates.layout import UpdateLayout
from weir.host_agent.compression.updates.moments import LEAST, MeanSquares
from weir.host_agent.compression.updates.parts import Parts, pointer
from weir.host_agent.compression.updates.samples import Sample

RuleName = Literal["sgd", "adam"]
Options = Mapping[str, torch.Tensor]
"""Options of an optimizer as float64[parameters], as torch names them. Those with two states are 0 or 1."""

OPTIONS: Final[Mapping[RuleName, tuple[str, ...]]] = {
    "sgd": ("lr", "momentum", "dampening", "nesterov", "weight_decay"),
    "adam": ("lr", "beta1", "beta2", "eps", "weight_decay", "decoupled"),
}
"""Names of what ``Options`` hold."""


@dataclass(frozen=True)
class Step:
    """Options of a step, and the parameters that make it; the same on all workers.

    Attributes:
        options: of the optimizer.
        stepping: bool[parameters], those in the step.
        steps: int64[parameters], steps that each has made, this one included.
        clip: a factor of all gradients.
    """

    options: Options
    stepping: torch.Tensor
    steps: torch.Tensor
    clip: float = 1.0

    def columns(self, *values: torch.Tensor | float) -> torch.Tensor:
        """Return numbers of each parameter side by side, float32: first whether it is in the step."""
        like = self.stepping.double()
        columns = [torch.as_tensor(value, dtype=torch.float64).expand_as(like) for value in values]
        return torch.stack([like, *columns], 1).float()


class Rule(Protocol):
    """Steps of an optimizer, and its state on one worker."""

    def update(self, parts: Parts, step: Step, sample: Sample | None, shared: torch.Tensor) -> Sums:
        """Overwrite every parameter by what is pending of it once the step is made.

        Args:
            parts: of this worker: weights, and gradients.
            step: how it is made.
            sample: of the mean gradient.
            shared: the shared point, float32[rows, ROW].

        Returns:
            Sums of what is pending, and of the step.
        """

    def decay(self, parts: Parts, step: Step, shared: torch.Tensor) -> torch.Tensor:
        """Return factors that weight decay multiplies the shared point by: float32[parameters].

        Where it is no factor, it is taken off ``shared`` here.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step needs."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same layout."""


class Sgd:
    """SGD with momentum. Its decay has a momentum of its own, which is the same on all workers."""

    def __init__(self, layout: UpdateLayout) -> None:
        self._momentum = layout.empty()
        self._of_decay = layout.empty()

    def update(self, parts: Parts, step: Step, sample: Sample | None, shared: torch.Tensor) -> Sums:
        """Make the step of this worker's gradient."""
        sums, given = torch.empty(len(shared), len(Sums._fields)), _of_sgd(step)
        bindings.library().weir_updates_sgd(
            parts.address,
            parts.count,
            pointer(given),
            pointer(shared),
            pointer(self._momentum),
            pointer(sums),
        )
        return Sums(*sums.t().contiguous())

    def decay(self, parts: Parts, step: Step, shared: torch.Tensor) -> torch.Tensor:
        """Make the step of the gradient of weight decay, at the shared point."""
        if bool(step.options["weight_decay"].any()):
            given = _of_sgd(step)
            bindings.library().weir_updates_sgd_decay(
                parts.address, parts.count, pointer(given), pointer(shared), pointer(self._of_decay)
            )
        return torch.ones(parts.count)

    def state_dict(self) -> dict[str, Any]:
        """Return both momenta."""
        return {"momentum": self._momentum, "of_decay": self._of_decay}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from both momenta."""
        self._momentum.copy_(state["momentum"])
        self._of_decay.copy_(state["of_decay"])


def _of_sgd(step: Step) -> torch.Tensor:
    """Return ``sgd`` of updates.c."""
    options, momentum = step.options, step.options["momentum"]
    taken = torch.where((step.steps == 1) | (momentum == 0), 1.0, 1 - options["dampening"])
    return step.columns(
        step.clip, taken, momentum, options["nesterov"], momentum, options["lr"], options["weight_decay"]
    )


class Adam:
    """Adam and AdamW, with the second moments of the mean gradient."""

    def __init__(self, layout: UpdateLayout, workers: int, *, exact: bool) -> None:
        self._workers = workers
        self._first = layout.empty()
        self._squares = MeanSquares(layout, exact=exact)

    def update(self, parts: Parts, step: Step, sample: Sample | None, shared: torch.Tensor) -> Sums:
        """Make the step of this worker's momentum over the shared second moments."""
        assert sample is not None
        options, made = step.options, step.steps.clamp_min(1)
        pull = options["weight_decay"] * (1 - options["decoupled"])
        pulls = bool(pull.any())
        for rows, mean in sample.pieces():
            if pulls:  # into both moments, as Adam has it
                mean.add_(pull[parts.layout.owner[rows]].float().unsqueeze(1) * shared[rows])
            self._squares.add(rows, mean, step.steps, step.stepping, options["beta2"])
        whole = 1 / (1 - options["beta2"].pow(made))
        given = step.columns(
            step.clip,
            pull,
            1 - options["beta1"],
            1 - options["beta2"],
            whole,
            whole * LEAST**2 / self._workers,
            options["eps"],
            -options["lr"] / (1 - options["beta1"].pow(made)),
        )
        sums = torch.empty(len(shared), len(Sums._fields))
        bindings.library().weir_updates_adam(
            parts.address,
            parts.count,
            pointer(given),
            pointer(shared),
            pointer(self._first),
            pointer(self._squares.mean),
            pointer(self._squares.own),
            pointer(self._squares.corrections),
            pointer(sums),
        )
        return Sums(*sums.t().contiguous())

    def decay(self, parts: Parts, step: Step, shared: torch.Tensor) -> torch.Tensor:
        """Return AdamW's factors."""
        options = step.options
        return (1 - options["lr"] * options["weight_decay"] * options["decoupled"] * step.stepping).float()

    def state_dict(self) -> dict[str, Any]:
        """Return both moments."""
        return {"first": self._first, "squares": self._squares.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from both moments."""
        self._first.copy_(state["first"])
        self._squares.load_state_dict(state["squares"])


def make_rule(name: RuleName, layout: UpdateLayout, workers: int, *, exact: bool) -> Rule:
    """Return the steps of an optimizer. exact: every sample is of all rows, at full width."""
    if name == "sgd":
        return Sgd(layout)
    return Adam(layout, workers, exact=exact)
