# SPDX-License-Identifier: Apache-2.0
"""Second moments of the mean gradient, from samples of it.

A worker's own second moments hold the noise of its small batch, so a step divided by them is too short where
the mean of all workers is known well. Of the mean gradient only samples are known: a row that was last
sampled a steps ago weighs

    v <- b^a v + (1 - b^a) g^2

for the decay b of a step. After its last sample at step t the weights of a row sum to 1 - b^t, which is its
bias correction. A row that has not been sampled for long may have grown meanwhile, and few bits may have
made a small value zero. So the root is taken to be half of own / sqrt(n) at least, for this worker's own
second moments and n workers: twice that is what noise alone would have. A row that was never sampled has the
worker's own. Where all rows are sampled at every
step and in full, nothing of this is needed: v is that of the dense optimizer.
"""

from typing import Any, Final

import torch

from weir.host_agent.compression.updates.layout import UpdateLayout
from weir.host_agent.compression.updates.samples import Sample

_LEAST: Final = 0.5  # of own / sqrt(n)


class MeanSquares:
    """Second moments of the mean gradient, the same on all workers, and of this worker's own.

    Args:
        layout: of the parameters.
        workers: how many the mean is of.
        exact: all rows are sampled at every step, at full width.
    """

    def __init__(self, layout: UpdateLayout, workers: int, *, exact: bool) -> None:
        self._workers = workers
        self._mean = layout.empty()
        self._own = None if exact else layout.empty()
        self._last = torch.zeros(
            layout.rows, dtype=torch.int64
        )  # steps of a row's parameter at its last sample

    def add(self, sample: Sample, own: torch.Tensor, steps: torch.Tensor, decay: torch.Tensor) -> None:
        """Take a step's gradients in.

        Args:
            sample: of the mean gradient.
            own: this worker's gradient.
            steps: int64[rows], how many steps each row's parameter has made, this one included. Of a
                parameter that is not in the step they are those of its last sample or less.
            decay: float64[rows, 1]; 1: the row is not in the step.
        """
        rows = sample.rows
        stepped = decay[rows].flatten() < 1
        rows, mean = rows[stepped], sample.mean[stepped]
        age = (steps[rows] - self._last[rows]).unsqueeze(1)
        kept = decay[rows].pow(age)
        self._mean[rows] = self._mean[rows] * kept.float() + mean.square() * (1 - kept).float()
        self._last[rows] = steps[rows]
        if self._own is not None:
            self._own.lerp_(own.square(), (1 - decay).float())

    def roots(self, steps: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
        """Return the roots of the second moments, their bias corrected: float32[rows, ROW].

        steps, decay: see ``add``.
        """
        roots = self._mean * (1 / _weights(decay, self._last)).float()
        if self._own is not None:
            least = torch.where(self._last == 0, 1.0, _LEAST**2 / self._workers).unsqueeze(1)
            torch.maximum(roots, self._own * (least / _weights(decay, steps)).float(), out=roots)
        return roots.sqrt_()

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step needs."""
        return {"mean": self._mean, "own": self._own, "last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same layout."""
        self._mean.copy_(state["mean"])
        self._last.copy_(state["last"])
        if self._own is not None:
            self._own.copy_(state["own"])


def _weights(decay: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Return the sum of the weights that so many steps have, float64[rows, 1]; 1 where there was none."""
    weights = 1 - decay.pow(steps.unsqueeze(1))
    return torch.where(weights > 0, weights, 1.0)
