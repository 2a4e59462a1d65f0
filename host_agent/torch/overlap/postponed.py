# SPDX-License-Identifier: Apache-2.0
"""An optimizer's step, made for some of its parameters at a time, when their gradients are there."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

Optimizer = torch.optim.Optimizer


class PostponedStep:
    """One call of ``optimizer.step()``, with the options that its groups had then.

    Args:
        optimizer: its step must treat every parameter by itself, as all of torch's but LBFGS do.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._options = [
            {name: value for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        self._groups = [set(group["params"]) for group in optimizer.param_groups]

    def make(self, gradients: Mapping[torch.nn.Parameter, torch.Tensor]) -> None:
        """Make the step for these parameters, with these gradients; their own stay as they are.

        Raises RuntimeError when the optimizer changes its groups' options in a step: it has no parts, then.
        """
        parts = [
            {**options, "params": [parameter for parameter in gradients if parameter in group]}
            for options, group in zip(self._options, self._groups, strict=True)
        ]
        parts = [part for part in parts if part["params"]]
        expected = [_options(part) for part in parts]
        own = {parameter: parameter.grad for parameter in gradients}
        groups, self.optimizer.param_groups = self.optimizer.param_groups, parts
        try:
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            type(self.optimizer).step(self.optimizer)
        finally:
            self.optimizer.param_groups = groups
            for parameter, before in own.items():
                parameter.grad = before
        if [_options(part) for part in parts] != expected:
            raise RuntimeError(
                f"{type(self.optimizer).__name__} counts in its groups, so its step cannot be made layer by "
                "layer: train it without LayersFirst"
            )


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain ones among a group's options."""
    return {
        name: value for name, value in group.items() if isinstance(value, int | float | str | bool | tuple)
    }


def refuse_closure(optimizer: Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError where a step is called with a closure, which would compute gradients again."""
    if any(value is not None for value in (*args, *kwargs.values())):
        raise TypeError(
            f"{type(optimizer).__name__}.step() takes no closure with LayersFirst: gradients are summed "
            "while the next forward pass runs"
        )
