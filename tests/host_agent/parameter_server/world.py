# SPDX-License-Identifier: Apache-2.0
"""Optimizers and tables for the tests of parameter servers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from weir.host_agent.parameter_server.routing import Integers, ParameterInfo, Table
from weir.host_agent.parameter_server.server_machine import ServerMachine

Floats = npt.NDArray[np.float32]


def alone(size: int) -> Table:
    """Return the table of one server that has all."""
    return Table.shares([ParameterInfo("p", (size,))], 1)


class Sum:
    """Subtracts every gradient from the model: what entered can be read from it."""

    def __init__(self, parameters: Floats) -> None:
        self.parameters = parameters
        self.steps = 0

    def step(
        self, gradient: Floats, touched: Integers | None, lr: float, share: float, settings: str
    ) -> None:
        self.parameters -= gradient
        self.steps += 1

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {"steps": np.array([self.steps])}

    def load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.steps = int(arrays["steps"][0])

    @property
    def _state(self) -> list[Floats]:
        return []

    def rows(self, places: Integers) -> Floats:
        return np.stack([self.parameters, *self._state])[:, places]

    def rearrange(self, units: Integers, source: Integers, rows: Floats, steps: int) -> None:
        everything = np.concatenate([np.stack([self.parameters, *self._state]), rows], axis=1)[:, source]
        self.parameters, *state = (row.copy() for row in everything)
        self.steps = max(self.steps, steps)
        self._take(state)

    def _take(self, state: list[Floats]) -> None:
        pass


class Momentum(Sum):
    """SGD with momentum: an optimizer with a state, whose rounding depends on the order of steps."""

    def __init__(self, parameters: Floats, momentum: float = 0.9) -> None:
        super().__init__(parameters)
        self._buffer = np.zeros_like(parameters)
        self._momentum = np.float32(momentum)

    @property
    def _state(self) -> list[Floats]:
        return [self._buffer]

    def _take(self, state: list[Floats]) -> None:
        (self._buffer,) = state

    def step(
        self, gradient: Floats, touched: Integers | None, lr: float, share: float, settings: str
    ) -> None:
        self._buffer *= self._momentum
        self._buffer += gradient
        self.parameters -= np.float32(lr * share) * self._buffer
        self.steps += 1

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {**super().arrays(), "buffer": self._buffer}

    def load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        super().load(arrays)
        self._buffer[:] = arrays["buffer"]


class Exact(ServerMachine):
    """A server that steps by sums instead of averages: of whole numbers they are exact."""

    def _average(self, total: Floats, touched: Integers | None, pushes: int) -> None:
        pass
