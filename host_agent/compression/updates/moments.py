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

from weir.host_agent.compression import bindings
from weir.host_agent.compression.updates.layout import UpdateLayout
from weir.host_agent.compression.updates.parts import pointer

LEAST: Final = 0.5
"""Of own / sqrt(n): the least root."""


class MeanSquares:
    """Second moments of the mean gradient, the same on all workers, and room for this worker's own.

    Attributes:
        mean: float32[rows, ROW].
        own: likewise, which the optimizer's pass keeps; None: not needed.
        corrections: float32[rows], of the bias of ``mean``; 0: the row was never sampled.

    Args:
        layout: of the parameters.
        exact: all rows are sampled at every step, at full width.
    """

    def __init__(self, layout: UpdateLayout, *, exact: bool) -> None:
        self._owner = layout.owner
        self.mean = layout.empty()
        self.own = None if exact else layout.empty()
        self.corrections = torch.zeros(layout.rows)
        # Steps of a row's parameter at its last sample.
        self._last = torch.zeros(layout.rows, dtype=torch.int64)

    def add(
        self,
        rows: torch.Tensor,
        mean: torch.Tensor,
        steps: torch.Tensor,
        stepping: torch.Tensor,
        decay: torch.Tensor,
    ) -> None:
        """Take a piece of this step's sample of the mean gradient in.

        Args:
            rows: which, ascending.
            mean: of these rows.
            steps: int64[parameters], how many steps each parameter has made, this one included.
            stepping: bool[parameters], whether it makes one now; rows of others are left alone.
            decay: float64[parameters].
        """
        if not bool(stepping.all()):
            taken = stepping[self._owner[rows]]
            rows, mean = rows[taken], mean[taken]
        owner = self._owner[rows]
        steps, decay = steps[owner], decay[owner]
        kept = decay.pow(steps - self._last[rows])
        old, new = kept.float(), (1 - kept).float()
        bindings.library().weir_updates_squares(
            pointer(self.mean), pointer(rows), len(rows), pointer(mean), pointer(old), pointer(new)
        )
        self.corrections[rows] = (1 / (1 - decay.pow(steps))).float()
        self._last[rows] = steps

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step needs."""
        return {"mean": self.mean, "own": self.own, "last": self._last, "corrections": self.corrections}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same layout."""
        self.mean.copy_(state["mean"])
        self._last.copy_(state["last"])
        self.corrections.copy_(state["corrections"])
        if self.own is not None:
            self.own.copy_(state["own"])
