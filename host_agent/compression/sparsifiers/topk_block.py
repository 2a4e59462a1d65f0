# SPDX-License-Identifier: Apache-2.0
"""Sends the blocks with the largest norms."""

import torch

from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.sparsifiers.base import Sparsifier, register
from weir.host_agent.compression.sparsifiers.density import rounded


@register
class TopKBlock(Sparsifier):
    """Keeps the ``density`` fraction of each parameter's blocks that has the largest L2 norm.

    Blocks are the network's own (``block`` lanes, the last one may be shorter), so what is not kept costs
    nothing on the wire. What is not a whole number of blocks is rounded up in some steps and down in others.

    Reference: Fei et al., "Efficient Sparse Collective Communication and its application to Accelerate
    Distributed Deep Learning" (OmniReduce), SIGCOMM 2021, block-based sparsification.
    """

    name = "topk-block"
    summary = "The blocks of largest norm of each parameter."
    reference = "Fei et al., SIGCOMM 2021 (OmniReduce's block top-k)"
    uses = ("density", "block")

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """Return about ``density * blocks`` blocks, and those with anything that is not finite."""
        block = self.options.block
        whole, rest = divmod(gradient.numel(), block)
        body, tail = gradient[: whole * block].view(whole, block), gradient[whole * block :]
        norms = torch.linalg.vector_norm(body, dim=1)
        if rest:
            norms = torch.cat([norms, torch.linalg.vector_norm(tail).view(1)])
        kept = rounded(self.density * len(norms), self.step, self.density * span.start / block)
        chosen = norms.isfinite().logical_not_()
        chosen[torch.topk(norms, kept, sorted=False).indices] = True
        sent = torch.zeros_like(gradient)
        rows = chosen[:whole].nonzero().squeeze(1)
        sent[: whole * block].view(whole, block)[rows] = body[rows]
        if rest and chosen[whole]:
            sent[whole * block :] = tail
        return sent
