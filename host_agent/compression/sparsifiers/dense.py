# SPDX-License-Identifier: Apache-2.0
"""Sends everything."""

import torch

from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.sparsifiers.base import Sparsifier, register


@register
class Dense(Sparsifier):
    """Every element travels at every step."""

    name = "dense"
    summary = "Every element, every step."
    uses = ()
    promises_density = False
    sends_all = True

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """Return the gradient itself."""
        return gradient
