# SPDX-License-Identifier: Apache-2.0
"""OmniReduce: blocks of one fixed size are chosen, sent and skipped."""

from weir.host_agent.compression.sparsifiers.base import register
from weir.host_agent.compression.sparsifiers.topk_block import TopKBlock


@register
class OmniReduce(TopKBlock):
    """Block top-k, and on the wire blocks of the same fixed size, in both directions.

    The baseline to compare with. Its open code has one block size for a run, 256 elements unless told
    otherwise; a choice at run time ("adaptive_blocksize") is a stub there.

    Reference: Fei et al., "Efficient Sparse Collective Communication and its application to Accelerate
    Distributed Deep Learning", SIGCOMM 2021; sands-lab/omnireduce.
    """

    name = "omnireduce"
    summary = "The blocks of largest norm, sent in blocks of that size."
    reference = "Fei et al., SIGCOMM 2021"

    @property
    def encoding(self) -> str:
        """Return blocks of the size that is chosen by."""
        return f"blocks:{self.options.block}"
