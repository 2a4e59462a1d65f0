# SPDX-License-Identifier: Apache-2.0
"""torch's optimizers as the steps that compressed updates know: which one, its parameters, its options."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from weir.host_agent.compression.updates.rules import OPTIONS, RuleName
from weir.host_agent.torch.replicas import trained_parameters

_RULES: Final[Mapping[type[torch.optim.Optimizer], RuleName]] = {
    torch.optim.SGD: "sgd",
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adam",
}
_UNKNOWN: Final = ("amsgrad", "maximize", "differentiable")


def rule_of(optimizer: torch.optim.Optimizer) -> RuleName:
    """Return which steps an optimizer makes. Raises TypeError, with the reason, for one that is not "
    "supported."""
    name = type(optimizer).__name__
    if type(optimizer) not in _RULES:
        known = ", ".join(kind.__name__ for kind in _RULES)
        raise TypeError(f"compress supports torch.optim's {known}, not {name}")
    for group in optimizer.param_groups:
        for option in _UNKNOWN:
            if group.get(option):
                raise TypeError(f"compress does not make steps with {name}({option}=True)")
    return _RULES[type(optimizer)]


def parameters_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.nn.Parameter]:
    """Return what an optimizer trains of a model by name: a tied parameter once, none that is frozen.

    Raises:
        TypeError: a parameter is not float32.
        ValueError: a parameter is none of the model's, or the optimizer has already made steps.
    """
    if optimizer.state:
        raise ValueError(
            "the optimizer has already made steps, and compress begins without its state: make it before the "
            "first step, or go on with CompressedUpdates.load_state_dict"
        )
    found = trained_parameters(model, optimizer)
    for name, parameter in found.items():
        if parameter.dtype is not torch.float32:
            raise TypeError(
                f"{name} is {parameter.dtype}: compress keeps unsent values in the weights, so they must "
                f"be float32. Train under torch.autocast, which keeps weights in float32"
            )
    return found


def options_of(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter], rule: RuleName
) -> dict[str, list[float]]:
    """Return the options of every parameter as they are now: those of this step.

    Raises:
        ValueError: the optimizer has other parameters than it had.
    """
    of: dict[torch.nn.Parameter, list[float]] = {}
    for group in optimizer.param_groups:
        of.update(dict.fromkeys(group["params"], _numbers(group, rule)))
    if unknown := {one for one in of if one.requires_grad} - set(parameters.values()):
        raise ValueError(
            f"the optimizer trains {len(unknown)} more parameters than when compress was called: call "
            f"compress again"
        )
    rows = [of[parameter] for parameter in parameters.values()]
    return {name: list(column) for name, column in zip(OPTIONS[rule], zip(*rows, strict=True), strict=True)}


def _numbers(group: Mapping[str, Any], rule: RuleName) -> list[float]:
    """Return a group's options in the order of OPTIONS."""
    if rule == "sgd":
        return [float(group[name]) for name in OPTIONS["sgd"]]
    beta1, beta2 = group["betas"]
    decoupled = float(group["decoupled_weight_decay"])
    return [*map(float, (group["lr"], beta1, beta2, group["eps"], group["weight_decay"])), decoupled]
