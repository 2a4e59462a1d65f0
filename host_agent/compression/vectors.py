# SPDX-License-Identifier: Apache-2.0
"""Vectors of gradients as native code sees them, and sums that every worker makes for itself."""

from collections.abc import Iterable
from functools import reduce
from operator import add

import torch

from weir.host_agent.compression import kernels
from weir.host_agent.compression.transfer import to_host


def is_native(*vectors: torch.Tensor) -> bool:
    """Return whether the C side can read and write these vectors: float32, in one piece, in main memory."""
    if kernels.interpreted():
        return False
    for vector in vectors:  # without a generator: asked many times in a step
        if not (vector.is_cpu and vector.dtype is torch.float32 and vector.is_contiguous()):
            return False
    return True


def has_kernels(vector: torch.Tensor) -> bool:
    """Return whether ``kernels`` can read and write a vector: in one piece, on a device that has them."""
    return vector.is_contiguous() and kernels.available(vector.device)


def in_main_memory(vector: torch.Tensor) -> torch.Tensor:
    """Return a vector, or a copy of it, where the C side reads it."""
    return vector if vector.is_cpu else torch.from_numpy(to_host(vector)[0])


def sum_in_order(numbers: Iterable[float]) -> float:
    """Return the sum, each step of it rounded to a double: alike on all workers.

    Python's own ``sum`` rounds in another way from version 3.12 on.
    """
    return reduce(add, numbers, 0.0)
