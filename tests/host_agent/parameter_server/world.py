# SPDX-License-Identifier: Apache-2.0
"""Optimizers for the tests of the update-centric parameter server."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Momentum:
    """SGD with momentum: an optimizer with a state, whose rounding depends on the order of steps."""

    def __init__(self, parameters: Floats, momentum: float = 0.9) -> None:
        self.parameters = parameters
        self._buffer = np.zeros_like(parameters)
        self._momentum = np.float32(momentum)

    def step(self, gradient: Floats, lr: float, share: float, settings: str) -> None:
        self._buffer *= self._momentum
        self._buffer += gradient
        self.parameters -= np.float32(lr * share) * self._buffer

    def arrays(self) -> dict[str, Floats]:
        return {"buffer": self._buffer}

    def load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._buffer[:] = arrays["buffer"]


class Sum:
    """Subtracts every gradient from the model: what entered can be read from it."""

    def __init__(self, parameters: Floats) -> None:
        self.parameters = parameters

    def step(self, gradient: Floats, lr: float, share: float, settings: str) -> None:
        self.parameters -= gradient

    def arrays(self) -> dict[str, Floats]:
        return {}

    def load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        pass
