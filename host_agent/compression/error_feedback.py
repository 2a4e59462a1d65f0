# SPDX-License-Identifier: Apache-2.0
"""Error feedback: what was not delivered at one step is added to the gradient of the next.

Reference: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
ICML 2019. Residuals belong to parameters, not to buckets, and to this worker alone.
"""

from collections.abc import Mapping
from typing import Any

import torch

from weir.host_agent.compression.bucket_layout import BucketLayout


class ErrorFeedback:
    """The residual of every parameter: what its gradients had that no sum has included yet."""

    def __init__(self) -> None:
        self._residuals: dict[str, torch.Tensor] = {}

    @property
    def residuals(self) -> Mapping[str, torch.Tensor]:
        """Return them by parameter, to be added to the next gradients."""
        return self._residuals

    def keep(self, layout: BucketLayout, undelivered: torch.Tensor) -> None:
        """Take ``undelivered``, compensated minus delivered, as the new residuals of these parameters.

        It must not change any more: the residuals are parts of it.
        """
        for segment in layout:
            self._residuals[segment.name] = undelivered[segment.in_vector]

    def forget(self, layout: BucketLayout) -> None:
        """Drop the residuals of these parameters."""
        for segment in layout:
            self._residuals.pop(segment.name, None)

    def __getstate__(self) -> dict[str, Any]:
        """Return each residual by itself: a part of a vector would take the whole of it along."""
        return {"_residuals": self.state_dict()}

    def residual(self, name: str) -> torch.Tensor | None:
        """Return one parameter's residual, flat in the order of its memory; None before its first step."""
        return self._residuals.get(name)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all residuals by parameter name."""
        return {name: residual.clone() for name, residual in self._residuals.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all residuals by a copy of saved ones."""
        self._residuals = {name: residual.clone() for name, residual in state.items()}
