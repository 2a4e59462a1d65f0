# SPDX-License-Identifier: Apache-2.0
"""Small tables and packed lanes between main memory and a device, through pinned buffers.

Nothing here makes a synchronising call of CUDA: copies are queued on the current stream, and a thread that
needs what was copied waits for an event.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device, behind what the current stream has under way.

    uint32 becomes int32 of the same bits: torch has few operations for the former.
    """
    signed = array.view(np.int32) if array.dtype == np.uint32 else array
    host = torch.from_numpy(signed)
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def pinned(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Copy a device's tensors to pinned memory, and wait until all copies are there.

    Returns tensors that nobody else writes to, but for those that were in main memory already.
    """
    copies = tuple(_begin_copy(tensor) for tensor in tensors)
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).record_event().synchronize()
    return copies


def to_host(*tensors: torch.Tensor) -> list[npt.NDArray[Any]]:
    """Copy tensors as ``pinned`` does, and return them as arrays that nobody else writes to."""
    return [
        tensor.numpy().copy() if tensor.is_cpu else copy.numpy()
        for tensor, copy in zip(tensors, pinned(*tensors), strict=True)
    ]


def _begin_copy(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor.cpu()
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    with torch.cuda.device(tensor.device):
        return copy.copy_(tensor, non_blocking=True)
