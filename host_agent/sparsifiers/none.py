# SPDX-License-Identifier: Apache-2.0
"""Sends everything."""

import torch

from host_agent.sparsifiers.base import Span, Sparsifier, register


@register
class SendAll(Sparsifier):
    """The dense case: every element travels at every step."""

    name = "none"
    summary = "Dense: every element, every step."
    sends_all = True

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """The gradient itself."""
        return gradient
