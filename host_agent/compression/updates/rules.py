# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers, of one worker's gradient, in tensors of rows.

Each is linear in the gradient once the second moments are given, and these are the same on all workers. So
the mean of the workers' steps is the step of their mean gradient: momentum may stay with the worker.

Weight decay is no part of a worker's step, but for Adam's, which is not linear. It acts on the shared point,
where all workers know it: decay that waited with pending values would come late, and cost bits.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

import torch

from weir.host_agent.compression.updates.layout import UpdateLayout
from weir.host_agent.compression.updates.moments import MeanSquares
from weir.host_agent.compression.updates.samples import Sample

RuleName = Literal["sgd", "adam"]
Options = Mapping[str, torch.Tensor]
"""Options of an optimizer as float64[rows, 1], as torch names them. Those with two states are 0 or 1."""

OPTIONS: Final[Mapping[RuleName, tuple[str, ...]]] = {
    "sgd": ("lr", "momentum", "dampening", "nesterov", "weight_decay"),
    "adam": ("lr", "beta1", "beta2", "eps", "weight_decay", "decoupled"),
}
"""Names of what ``Options`` hold."""


class Rule(Protocol):
    """Steps of an optimizer, and its state on one worker.

    ``stepping`` is float64[rows, 1]: 1 where the row's parameter is in the step, else 0. ``steps`` is
    int64[rows]: steps that the row's parameter has made, this one included.
    """

    def update(
        self,
        gradient: torch.Tensor,
        sample: Sample | None,
        shared: torch.Tensor,
        options: Options,
        stepping: torch.Tensor,
        steps: torch.Tensor,
    ) -> torch.Tensor:
        """Return what is added to this worker's weights. gradient and sample may be overwritten."""

    def decay(
        self, shared: torch.Tensor, options: Options, stepping: torch.Tensor, steps: torch.Tensor
    ) -> None:
        """Overwrite the shared point by what weight decay leaves of it."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step needs."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same layout."""


class Sgd:
    """SGD with momentum. Its decay has a momentum of its own, which is the same on all workers."""

    def __init__(self, layout: UpdateLayout) -> None:
        self._momentum = layout.empty()
        self._of_decay = layout.empty()

    def update(
        self,
        gradient: torch.Tensor,
        sample: Sample | None,
        shared: torch.Tensor,
        options: Options,
        stepping: torch.Tensor,
        steps: torch.Tensor,
    ) -> torch.Tensor:
        """Return the step of this worker's gradient."""
        return _with_momentum(self._momentum, gradient, options, stepping, steps).mul_(-options["lr"].float())

    def decay(
        self, shared: torch.Tensor, options: Options, stepping: torch.Tensor, steps: torch.Tensor
    ) -> None:
        """Make the step of the gradient of weight decay, at the shared point."""
        if bool(options["weight_decay"].any()):
            pull = shared * options["weight_decay"].float()
            pull = _with_momentum(self._of_decay, pull, options, stepping, steps)
            shared.sub_(pull.mul_(options["lr"].float()))

    def state_dict(self) -> dict[str, Any]:
        """Return both momenta."""
        return {"momentum": self._momentum, "of_decay": self._of_decay}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from both momenta."""
        self._momentum.copy_(state["momentum"])
        self._of_decay.copy_(state["of_decay"])


def _with_momentum(
    buffer: torch.Tensor,
    gradient: torch.Tensor,
    options: Options,
    stepping: torch.Tensor,
    steps: torch.Tensor,
) -> torch.Tensor:
    """Take a gradient into a momentum, and return what a step of rate 1 subtracts."""
    momentum = options["momentum"]
    first = (steps == 1).unsqueeze(1) | (momentum == 0)
    taken = stepping * torch.where(first, 1.0, 1 - options["dampening"])
    kept = torch.where(stepping > 0, momentum, 1.0)
    buffer.mul_(kept.float()).add_(gradient * taken.float())
    ahead = torch.where(options["nesterov"] > 0, gradient + momentum.float() * buffer, buffer)
    return ahead.mul_(stepping.float())


class Adam:
    """Adam and AdamW, with the second moments of the mean gradient."""

    def __init__(self, layout: UpdateLayout, workers: int, *, exact: bool) -> None:
        self._first = layout.empty()
        self._squares = MeanSquares(layout, workers, exact=exact)

    def update(
        self,
        gradient: torch.Tensor,
        sample: Sample | None,
        shared: torch.Tensor,
        options: Options,
        stepping: torch.Tensor,
        steps: torch.Tensor,
    ) -> torch.Tensor:
        """Return the step of this worker's momentum over the shared second moments."""
        assert sample is not None
        pull = (options["weight_decay"] * (1 - options["decoupled"])).float()
        if bool(pull.any()):  # into both moments, as Adam has it
            gradient = gradient.add_(pull * shared)
            sample = sample._replace(mean=sample.mean + (pull * shared)[sample.rows])
        kept = torch.where(stepping > 0, options["beta1"], 1.0)
        self._first.lerp_(gradient, (1 - kept).float())
        decay = torch.where(stepping > 0, options["beta2"], 1.0)
        self._squares.add(sample, gradient, steps, decay)
        roots = self._squares.roots(steps, options["beta2"])
        weights = 1 - options["beta1"].pow(steps.unsqueeze(1))
        rate = options["lr"] / torch.where(weights > 0, weights, 1.0) * stepping
        return self._first.div(roots.add_(options["eps"].float())).mul_(-rate.float())

    def decay(
        self, shared: torch.Tensor, options: Options, stepping: torch.Tensor, steps: torch.Tensor
    ) -> None:
        """Multiply the shared point by AdamW's factor."""
        lost = options["lr"] * options["weight_decay"] * options["decoupled"] * stepping
        shared.mul_((1 - lost).float())

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
