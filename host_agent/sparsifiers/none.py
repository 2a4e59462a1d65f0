# SPDX-License-Identifier: Apache-2.0
"""Sends everything."""

import torch

from host_agent.sparsifiers.base import Sparsifier, register


@register
class SendAll(Sparsifier):
    """The dense case: every element travels at every step."""

    name = "none"
    sends_all = True

    def encode(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient itself."""
        return gradient
