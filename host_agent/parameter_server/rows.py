# SPDX-License-Identifier: Apache-2.0
"""Optimizers of placed servers: they change the elements that were pushed, and no others."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.parameter_server.payload import Words
from weir.host_agent.parameter_server.terms import OptimizerSpec
from weir.host_agent.parameter_server.units import Integers
from weir.host_agent.parameter_server.value_filter import Floats

NAMES: Final = ("SGD", "Adagrad")


class Rows:
    """A flat model, float32, with SGD or Adagrad (Duchi et al., 2011) as torch has them.

    Both leave alone what has no gradient, so that a step costs what was pushed. Memory of elements that are
    never touched is never taken.
    """

    def __init__(self, size: int, spec: OptimizerSpec) -> None:
        check(spec)
        self.values: Floats = np.zeros(size, np.float32)
        self._total: Floats = np.zeros(size, np.float32)
        self._adagrad = spec.name == "Adagrad"
        self._eps = np.float32(spec.groups[0].get("eps", 1e-10))
        self._squares: Floats = np.zeros(size if self._adagrad else 0, np.float32)

    def step(
        self, changed: Integers, places: Sequence[Integers], gradients: Sequence[Floats], lr: float
    ) -> None:
        """Make a step with the sum of gradients, each at places of its own; changed: all of these."""
        for where, gradient in zip(places, gradients, strict=True):
            self._total[where] += gradient
        total = self._total[changed]
        self._total[changed] = 0
        if self._adagrad:
            self._squares[changed] += total * total
            total /= np.sqrt(self._squares[changed]) + self._eps
        self.values[changed] -= np.float32(lr) * total

    def give(self, elements: Integers) -> Words:
        """Return values and state of elements, which are not to be used here any more."""
        found = np.concatenate([array[elements] for array in self._parts])
        for array in self._parts:
            array[elements] = np.nan
        return found.view(np.uint32)

    def take(self, elements: Integers, given: Words) -> None:
        """Take over what ``give`` returned."""
        for array, part in zip(
            self._parts, given.view(np.float32).reshape(len(self._parts), -1), strict=True
        ):
            array[elements] = part

    @property
    def _parts(self) -> list[Floats]:
        return [self.values, self._squares] if self._adagrad else [self.values]

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state, by name."""
        return {"values": self.values, "squares": self._squares}

    def load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over a state that ``arrays`` gave."""
        self.values[:], self._squares[:] = arrays["values"], arrays["squares"]


def words_of_move(spec: OptimizerSpec) -> int:
    """Return the words that an element takes when it moves."""
    return 2 if spec.name == "Adagrad" else 1


def check(spec: OptimizerSpec) -> None:
    """Raise ValueError for an optimizer that placed servers do not have."""
    odd = [
        key
        for group in spec.groups
        for key in ("momentum", "weight_decay", "lr_decay", "initial_accumulator_value")
        if group.get(key)
    ]
    if spec.name not in NAMES or odd or len(spec.groups) != 1:
        raise ValueError(
            f"optimizer {spec.name}{' with ' + ', '.join(odd) if odd else ''}: servers of a placement have "
            f"{' and '.join(NAMES)}, plain and with one group of parameters"
        )
