# SPDX-License-Identifier: Apache-2.0
"""Sends elements drawn at random, the same on every worker."""

import numpy as np
import torch

from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.sparsifiers.base import Sparsifier, register
from weir.host_agent.compression.sparsifiers.density import keep_non_finite, rounded


@register
class RandomK(Sparsifier):
    """Keeps a random ``density`` fraction of each parameter's elements, whatever their values.

    All workers draw the same ones (from the seed, the step and the parameter's place), so nothing is sent
    that only one of them has. Residuals make every element arrive in the end.

    Reference: Stich et al., "Sparsified SGD with Memory", NeurIPS 2018. There every subset is as likely as
    any other; here one element is drawn from each of ``density * length`` equal stretches, which each element
    is as likely to be in, at no cost that grows with the length.
    """

    name = "random-k"
    summary = "Elements drawn at random, the same on every worker."
    reference = "Stich et al., NeurIPS 2018"
    uses = ("density", "seed")
    mask_block = 1

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """Return about ``density * length`` elements of ``gradient``, and what is not finite."""
        kept = rounded(self.density * span.length, self.step, self.density * span.start)
        drawn = self._draw(kept, span).to(gradient.device)
        sent = keep_non_finite(gradient)
        sent[drawn] = gradient[drawn]
        return sent

    def _draw(self, count: int, span: Span) -> torch.Tensor:
        """Draw ``count`` places of ``span``, ascending; on the CPU, so that all devices have the same."""
        mixed = np.random.SeedSequence([self.options.seed, self.step, span.start]).generate_state(1)
        generator = torch.Generator().manual_seed(int(mixed[0]))
        edges = torch.arange(count + 1) * span.length // max(count, 1)
        spread = torch.rand(count, generator=generator, dtype=torch.float64)
        return edges[:-1] + (spread * edges.diff()).long()
