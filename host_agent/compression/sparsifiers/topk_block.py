# SPDX-License-Identifier: Apache-2.0
"""Sends the blocks with the largest norms."""

from collections.abc import Sequence

import torch

from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.sparsifiers.base import Sparsifier, register
from weir.host_agent.compression.sparsifiers.density import rounded
from weir.host_agent.compression.sparsifiers.dfs_blocks import copy_largest


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
        sent = torch.empty_like(gradient)
        self.encode_all([gradient], [span], [sent])
        return sent

    def encode_all(
        self, gradients: Sequence[torch.Tensor], spans: Sequence[Span], outs: Sequence[torch.Tensor]
    ) -> None:
        """Write what ``encode`` returns of several parameters."""
        copy_largest(gradients, self.options.block, [self._quota(span) for span in spans], outs)

    def encode_into(self, gradient: torch.Tensor, span: Span, out: torch.Tensor) -> None:
        """Write what ``encode`` returns to memory that is there already."""
        self.encode_all([gradient], [span], [out])

    def _quota(self, span: Span) -> int:
        """Return how many blocks are kept."""
        block = self.options.block
        return rounded(self.density * -(-span.length // block), self.step, self.density * span.start / block)
