# SPDX-License-Identifier: Apache-2.0
"""Sends what is large enough."""

import torch

from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.sparsifiers.base import Sparsifier, register
from weir.host_agent.compression.sparsifiers.density import keep_from


@register
class Threshold(Sparsifier):
    """Keeps every element whose magnitude is at least ``threshold``; how many that is varies.

    Reference: Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing",
    Interspeech 2015 (here the values are sent, not just their signs).
    """

    name = "threshold"
    summary = "Elements of at least a given magnitude, however many there are."
    reference = "Strom, Interspeech 2015"
    uses = ("threshold",)
    promises_density = False

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """Return the elements of ``gradient`` with ``|x| >= threshold``, and every NaN."""
        return keep_from(gradient, self.options.threshold)
