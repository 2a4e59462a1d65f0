# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors that are reduced chunk by chunk: what the copies of their chunks are, and where they wait."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from weir.host_agent.collectives.chunks import in_chunks
from weir.host_agent.collectives.reductions import RedOpType
from weir.host_agent.torch.staging import mark, to_device, to_host

_SUMS = frozenset({dist.ReduceOp.SUM, dist.ReduceOp.AVG})
_NARROW = frozenset({torch.float16, torch.bfloat16})


def is_long(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on a device, and long enough to be reduced chunk by chunk."""
    return tensor.is_cuda and in_chunks(tensor.numel() * (2 if tensor.is_complex() else 1))


class DeviceVector:
    """A CUDA tensor as ``collectives.chunks`` knows it. All it begins, it begins on the current stream.

    Sums of float16 and bfloat16 are made in float32, to which the device converts, and from it.

    Args:
        tensor: of any strides; overwritten chunk by chunk.
        op: how it is reduced.
    """

    def __init__(self, tensor: torch.Tensor, op: RedOpType) -> None:
        target = tensor.detach()
        self._target = torch.view_as_real(target) if target.is_complex() else target
        self._flat = self._target.reshape(-1)
        self._wide = torch.float32 if op in _SUMS and target.dtype in _NARROW else self._flat.dtype

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the values."""
        return self._flat.dtype

    @property
    def count(self) -> int:
        """Number of values."""
        return self._flat.numel()

    def bounds(self) -> Callable[[], torch.Tensor]:
        """See ``Remote.bounds``."""
        return _copied(torch.stack(torch.aminmax(self._flat)))

    def fetch(self, part: slice) -> Callable[[], torch.Tensor]:
        """See ``Remote.fetch``."""
        return _copied(self._flat[part].to(self._wide))

    def replace(self, part: slice, copy: torch.Tensor, result: torch.Tensor) -> None:
        """See ``Remote.replace``."""
        if result.data_ptr() != copy.data_ptr():
            copy.copy_(result)
        to_device(self._flat[part], copy)
        if part.stop == self.count and self._flat.data_ptr() != self._target.data_ptr():
            to_device(self._target, self._flat.view(self._target.shape))


def _copied(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Begin to copy a CUDA tensor to the host; the call returned waits for the copy."""
    copy, done = to_host(tensor), mark(tensor.device)

    def wait() -> torch.Tensor:
        done.synchronize()
        return copy

    return wait
