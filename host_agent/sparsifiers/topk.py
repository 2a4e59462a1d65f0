# SPDX-License-Identifier: Apache-2.0
"""Sends the largest elements."""

import math

import torch

from host_agent.sparsifiers.base import Span, Sparsifier, register


@register
class TopK(Sparsifier):
    """Keeps the ``density`` fraction of elements that are largest in magnitude, at least one.

    Reference: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.
    The switch skips whole blocks, not elements, so scattered elements cost more wire than their number says:
    use the smallest block with it, or ``topk-block``.
    """

    name = "topk"
    summary = "The largest elements of each parameter (Aji and Heafield 2017)."

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """``ceil(density * length)`` elements of ``gradient``; NaN counts as largest."""
        kept = math.ceil(self.density * gradient.numel())
        if kept == gradient.numel():
            return gradient
        indices = torch.topk(gradient.abs(), kept, sorted=False).indices
        sent = torch.zeros_like(gradient)
        sent[indices] = gradient[indices]
        return sent
