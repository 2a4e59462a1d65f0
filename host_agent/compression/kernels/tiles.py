# SPDX-License-Identifier: Apache-2.0
"""Tables that tell each program of a kernel which part of which parameter is its own."""

import functools

import numpy as np
import torch

from weir.host_agent.compression.transfer import shared_on_device


@functools.lru_cache(maxsize=128)
def tiles(counts: tuple[int, ...], size: int, device: torch.device) -> torch.Tensor:
    """Cut rows of ``counts`` items into tiles of ``size`` items.

    Returns int64[tiles, 2] on the device: the row of each tile, and the first item of it. It is the same from
    step to step, so it is kept.
    """
    numbers = -(-np.array(counts, np.int64) // size)
    before = np.cumsum(numbers) - numbers
    rows = np.repeat(np.arange(len(counts)), numbers)
    firsts = (np.arange(rows.size) - before[rows]) * size
    return shared_on_device(np.stack([rows, firsts], axis=1), device)
