# SPDX-License-Identifier: Apache-2.0
"""Compressed training: updates in few bits, ahead of the wire (``weir.host_agent.compression.updates``)."""

from weir.host_agent.torch.compress.compressed import CompressedUpdates, compress

__all__ = ["CompressedUpdates", "compress"]
