# SPDX-License-Identifier: Apache-2.0
"""Vectors of gradients as native code sees them, and sums that every worker makes for itself."""

from collections.abc import Iterable
from functools import reduce
from operator import add

import torch


def is_native(*vectors: torch.Tensor) -> bool:
    """Return whether the C side can read and write these vectors: float32, in one piece, in main memory."""
    for vector in vectors:  # without a generator: asked many times in a step
        if not (vector.is_cpu and vector.dtype is torch.float32 and vector.is_contiguous()):
            return False
    return True


def sum_in_order(numbers: Iterable[float]) -> float:
    """Return the sum, each step of it rounded to a double: alike on all workers.

    Python's own ``sum`` rounds in another way from version 3.12 on.
    """
    return reduce(add, numbers, 0.0)
