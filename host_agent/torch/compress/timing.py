# SPDX-License-Identifier: Apache-2.0
"""Time of a compressed step, and of the sum of whole gradients whose place it takes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
import torch

from weir.host_agent.collectives.communicator import Communicator

_TIMED: Final = 9  # steps
_PROBE: Final = 1 << 18  # values of the sum that is timed, at most
_SUMS: Final = 3


@dataclass(frozen=True)
class Timing:
    """Seconds of a compressed step, and of the sum that it takes the place of.

    Attributes:
        step_s: median, of the slowest worker's computing and all that is sent; with the optimizer's own work.
        dense_s: of a sum of all values in whole, of a sum of some of them.
    """

    step_s: float
    dense_s: float

    @property
    def pays(self) -> bool:
        """Return whether a compressed step takes less time."""
        return self.step_s < self.dense_s

    def __str__(self) -> str:
        """Return both as text."""
        return (
            f"a compressed step takes {1e3 * self.step_s:.3g} ms on this network, and a sum of whole "
            f"gradients would take about {1e3 * self.dense_s:.3g} ms"
        )


class StepClock:
    """Times some steps, then a sum of whole values, the same steps on every worker.

    Attributes:
        timing: the result; None before it is known.

    Args:
        skipped: first steps that do not count.
        values: of the model.
        all_reduce: sums a tensor over all workers.
    """

    def __init__(self, skipped: int, values: int, all_reduce: Callable[[torch.Tensor], object]) -> None:
        self._skipped, self._values, self._all_reduce = skipped, values, all_reduce
        self._steps = 0
        self._seconds: list[float] = []
        self.timing: Timing | None = None

    @contextlib.contextmanager
    def step(self, communicator: Communicator) -> Iterator[None]:
        """Time the block, a step, if it is one of those; workers begin it together then."""
        self._steps += 1
        if self.timing is not None or self._steps <= self._skipped:
            yield
            return
        communicator.any_of(np.zeros(1, np.bool_))
        began = time.perf_counter()
        yield
        self._seconds.append(time.perf_counter() - began)
        if len(self._seconds) == _TIMED:
            self.timing = Timing(median(self._seconds), self._dense())

    def _dense(self) -> float:
        """Return seconds of a sum of all values."""
        some = min(self._values, _PROBE)
        seconds = []
        for _ in range(_SUMS):
            values = torch.ones(some)  # blocks of zeros would not be sent
            began = time.perf_counter()
            self._all_reduce(values)
            seconds.append(time.perf_counter() - began)
        return min(seconds) * self._values / some
