# SPDX-License-Identifier: Apache-2.0
"""Sends the blocks with the largest norms."""

import math

import torch

from host_agent.sparsifiers.base import Span, Sparsifier, register


@register
class TopKBlock(Sparsifier):
    """Keeps the ``density`` fraction of blocks that have the largest L2 norm, at least one.

    Blocks are the network's own (``block`` lanes, the last one may be shorter), so what is not kept costs
    nothing on the wire. Reference: Fei et al., "Efficient Sparse Collective Communication and its application
    to Accelerate Distributed Deep Learning" (OmniReduce), SIGCOMM 2021, block-based sparsification.
    """

    name = "topk-block"
    summary = "The blocks of largest norm of each parameter (OmniReduce's block top-k, 2021)."

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """``ceil(density * blocks)`` blocks of ``gradient``; one with a NaN or infinity counts as largest."""
        block = self.options.block
        blocks = -(-gradient.numel() // block)
        kept = math.ceil(self.density * blocks)
        if kept == blocks:
            return gradient
        whole = gradient.numel() // block
        body, tail = gradient[: whole * block].view(whole, block), gradient[whole * block :]
        norms = torch.linalg.vector_norm(body, dim=1)
        if tail.numel():
            norms = torch.cat([norms, torch.linalg.vector_norm(tail).view(1)])
        chosen = torch.topk(norms, kept, sorted=False).indices
        sent = torch.zeros_like(gradient)
        rows = chosen[chosen < whole]
        sent[: whole * block].view(whole, block)[rows] = body[rows]
        if len(rows) < kept:
            sent[whole * block :] = tail
        return sent
