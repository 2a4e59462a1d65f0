# SPDX-License-Identifier: Apache-2.0
"""Sends what is large enough."""

import torch

from host_agent.sparsifiers.base import Span, Sparsifier, register


@register
class Threshold(Sparsifier):
    """Keeps every element whose magnitude is at least ``threshold``; how many that is varies.

    Reference: Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing",
    Interspeech 2015 (here the values are sent, not just their signs).
    """

    name = "threshold"
    summary = "Elements of at least a given magnitude (Strom 2015)."

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """The elements of ``gradient`` with ``|x| >= threshold``, and every NaN."""
        small = gradient.abs() < self.options.threshold
        return gradient.masked_fill(small, 0.0)
