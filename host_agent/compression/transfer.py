# SPDX-License-Identifier: Apache-2.0
"""Copies between main memory and a device, through pinned buffers.

Nothing here makes a synchronising call of CUDA: copies are queued on the current stream, and a thread that
needs what was copied waits for an event.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.transport.memory_port import spin_ns


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device, behind what the current stream has under way.

    uint32 becomes int32 of the same bits: torch has few operations for the former.
    """
    signed = array.view(np.int32) if array.dtype == np.uint32 else array
    host = torch.from_numpy(signed)
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def shared_on_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array as ``to_device`` does, and wait until it is there: every stream may use the copy."""
    tensor = to_device(array, device)
    if tensor.is_cuda:
        mark(device).synchronize()
    return tensor


def mark(device: torch.device) -> "torch.cuda.Event":
    """Return an event of this thread's current stream, for a thread to wait for.

    The thread sleeps meanwhile, but where there are processors for threads that look instead (ring.h).
    """
    sleeps = not spin_ns()
    event = torch.cuda.Event(blocking=sleeps)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor of a shape and dtype in pinned memory, of any content."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def begin_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Begin to copy a CUDA tensor on the current stream, and return the copy, in pinned memory."""
    return pinned_like(tensor).copy_(tensor, non_blocking=True)


def pinned(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Copy a device's tensors to pinned memory, and wait until all copies are there.

    Returns tensors that nobody else writes to, but for those that were in main memory already.
    """
    copies = tuple(begin_copy(tensor) if tensor.is_cuda else tensor for tensor in tensors)
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        mark(device).synchronize()
    return copies


def to_host(*tensors: torch.Tensor) -> list[npt.NDArray[Any]]:
    """Copy tensors as ``pinned`` does, and return them as arrays that nobody else writes to."""
    return [
        array_of(tensor).copy() if tensor.is_cpu else array_of(copy)
        for tensor, copy in zip(tensors, pinned(*tensors), strict=True)
    ]
