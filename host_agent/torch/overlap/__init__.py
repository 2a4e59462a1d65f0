# SPDX-License-Identifier: Apache-2.0
"""Layers first: gradients of one step are summed while the next forward pass runs, front layers first.

What ByteScheduler and P3 do for parameter servers, for a sum in the switch: ``layers_first`` is what users
see, ``postponed`` makes an optimizer's step layer by layer, ``exchange`` sums ``pieces`` of several buckets
in an order that all ranks agree on, ``bucket`` is one of them.
"""

from weir.host_agent.torch.overlap.layers_first import LayersFirst

__all__ = ["LayersFirst"]
