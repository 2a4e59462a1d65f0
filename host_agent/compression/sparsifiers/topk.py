# SPDX-License-Identifier: Apache-2.0
"""Sends the largest elements."""

import torch

from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.sparsifiers.base import Sparsifier, register
from weir.host_agent.compression.sparsifiers.density import keep_largest, rounded


@register
class TopK(Sparsifier):
    """Keeps the ``density`` fraction of each parameter's elements that is largest in magnitude.

    What is not a whole number of elements is rounded up in some steps and down in others; over all
    parameters together the density holds in every step.

    Reference: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017 (there
    one threshold for the whole model; here each parameter has its share).
    """

    name = "topk"
    summary = "The largest elements of each parameter."
    reference = "Aji and Heafield, EMNLP 2017"

    def quota_of(self, span: Span) -> int:
        """Return how many elements a worker keeps."""
        return rounded(self.density * span.length, self.step, self.density * span.start)

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """Return about ``density * length`` elements of ``gradient``, and what is not finite."""
        return keep_largest(gradient, self.quota_of(span))
