# SPDX-License-Identifier: Apache-2.0
"""A shard of the model with torch's own optimizer over it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from weir.host_agent.parameter_server.shards import Piece
from weir.host_agent.parameter_server.terms import OptimizerSpec

_CLASSES: Final[dict[str, type[torch.optim.Optimizer]]] = {
    "SGD": torch.optim.SGD,
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
}
_HOW: Final = frozenset({"foreach", "fused", "capturable", "differentiable"})  # it is computed, not what


def spec_of(optimizer: torch.optim.Optimizer) -> OptimizerSpec:
    """Return what a server is to know of an optimizer. TypeError for one that servers do not have."""
    name = type(optimizer).__name__
    if _CLASSES.get(name) is not type(optimizer):
        raise TypeError(
            f"parameter servers have torch's {', '.join(_CLASSES)}, not {type(optimizer).__qualname__}"
        )
    return OptimizerSpec(name, tuple(_plain(group, optimizer) for group in optimizer.param_groups))


def _plain(group: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return a group's hyper-parameters as JSON has them."""
    found = {}
    for key in optimizer.defaults:
        if key not in _HOW and key in group:
            value = group[key]
            found[key] = (
                value.item()
                if isinstance(value, torch.Tensor)
                else list(value)
                if isinstance(value, tuple)
                else value
            )
    return found


class ShardOptimizer:
    """One server's pieces of the model, one after another in ``model``, and the optimizer that changes them.

    Args:
        pieces: of the server.
        spec: of the optimizer.

    Attributes:
        model: float32, flat; zeros at first.
    """

    def __init__(self, pieces: Sequence[Piece], spec: OptimizerSpec) -> None:
        self.model = torch.zeros(sum(piece.length for piece in pieces))
        self._places: dict[str, slice] = {}
        self._parameters: dict[str, torch.nn.Parameter] = {}
        members: dict[int, list[torch.nn.Parameter]] = {}
        start = 0
        for piece in pieces:
            place = self._places[piece.title] = slice(start, start + piece.length)
            parameter = self._parameters[piece.title] = torch.nn.Parameter(self.model[place])
            members.setdefault(piece.group, []).append(parameter)
            start += piece.length
        self._groups = sorted(members)
        make: Any = _CLASSES[spec.name]
        self._optimizer: torch.optim.Optimizer = make(
            [{"params": members[group], **_typed(spec.groups[group])} for group in self._groups]
        )

    def place(self, title: str) -> slice:
        """Return a piece's elements of ``model``."""
        return self._places[title]

    def view(self, title: str) -> torch.Tensor:
        """Return a piece's elements, in their memory."""
        return self.model[self._places[title]]

    def configure(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Take new hyper-parameters, of every group of the optimizer."""
        for index, own in zip(self._groups, self._optimizer.param_groups, strict=True):
            own.update(_typed(groups[index]))

    def apply(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Make one step with the gradients of some pieces, flat float32 by title; others stay as they are."""
        for title, gradient in gradients.items():
            self._parameters[title].grad = gradient
        self._optimizer.step()
        self._optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state by piece: tensors, in its own memory."""
        return {
            title: dict(self._optimizer.state[parameter])
            for title, parameter in self._parameters.items()
            if parameter in self._optimizer.state
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take what ``state_dict`` gave; pieces that it does not name begin anew."""
        self._optimizer.state.clear()
        for title, known in state.items():
            if title in self._parameters:
                self._optimizer.state[self._parameters[title]] = {
                    key: value.clone() if isinstance(value, torch.Tensor) else value
                    for key, value in known.items()
                }


def _typed(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyper-parameters as torch has them."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in group.items()}
