# SPDX-License-Identifier: Apache-2.0
"""MiCRO: each worker chooses in an equal part of the model, by one threshold."""

from collections.abc import Sequence

from weir.host_agent.compression.sparsifiers.base import register
from weir.host_agent.compression.sparsifiers.exclusive import Exclusive


@register
class Micro(Exclusive):
    """Equal contiguous partitions that go round, and a threshold steered towards the density.

    Reference: Yoon and Oh, "MiCRO: Near-Zero Cost Gradient Sparsification for Scaling and Accelerating
    Distributed DNN Training", HiPC 2023; ``MicroReducer`` in kljp/micro.
    """

    name = "micro"
    summary = "Each worker chooses by threshold in an equal part of the model. Keeps the density."
    reference = "Yoon and Oh, HiPC 2023"

    def edges(self, total: int) -> Sequence[int]:
        """Return equal parts."""
        return [number * total // self.workers for number in range(self.workers + 1)]


@register
class MicroPublished(Micro):
    """MiCRO with first threshold and scaling as its code has them."""

    name = "micro-published"
    summary = "MiCRO as its code has it. Settles near 0.93 of the density."
    promises_density = False
    published = True
