# SPDX-License-Identifier: Apache-2.0
"""Many tensors as few long vectors, and the average of such vectors over a process group."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from weir.host_agent.torch.process_group import WeirProcessGroup


class Vectors:
    """Floating-point tensors, seen as one float32 vector (the narrow ones, too) and one float64 vector.

    A vector of no values is left out. Tensors keep their devices and strides; all are on one device.

    Raises:
        TypeError: a tensor of complex numbers or integers.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if not tensor.is_floating_point():
                raise TypeError(f"only floating-point tensors are averaged, this one is {tensor.dtype}")
        self.tensors = tuple(tensors)
        wide = [tensor for tensor in tensors if tensor.dtype == torch.float64]
        narrow = [tensor for tensor in tensors if tensor.dtype != torch.float64]
        self._parts = [
            (part, dtype) for part, dtype in ((narrow, torch.float32), (wide, torch.float64)) if part
        ]
        self._buffers: list[Tensor] = []

    @property
    def sizes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return type and shape of every tensor."""
        return tuple((str(tensor.dtype), tuple(tensor.shape)) for tensor in self.tensors)

    def read(self) -> list[Tensor]:
        """Return the vectors, in memory that the next ``read`` takes again."""
        if not self._buffers:
            self._buffers = [
                torch.empty(sum(t.numel() for t in part), dtype=dtype, device=part[0].device)
                for part, dtype in self._parts
            ]
        for (part, _), vector in zip(self._parts, self._buffers, strict=True):
            for tensor, piece in zip(part, self._pieces(part, vector), strict=True):
                piece.copy_(tensor.detach().reshape(-1))
        return list(self._buffers)

    def write(self, vectors: Sequence[Tensor]) -> None:
        """Give the tensors the vectors' values; each is rounded to its tensor's type."""
        for (part, _), vector in zip(self._parts, vectors, strict=True):
            for tensor, piece in zip(part, self._pieces(part, vector), strict=True):
                tensor.detach().copy_(piece.view(tensor.shape))

    def average(
        self, vectors: Sequence[Tensor], group: dist.ProcessGroup | None, weight: float | None = None
    ) -> list[Tensor]:
        """Return the mean over the group, the same bits on every member; may overwrite ``vectors``.

        weight: of this rank's vectors; all ranks' sum to 1. None: all ranks count the same.
        """
        assert group is not None
        on_host = isinstance(group, WeirProcessGroup)
        means = []
        for vector in vectors:
            scaled = vector if weight is None else vector.mul_(weight)
            total = scaled.cpu() if on_host else scaled
            dist.all_reduce(total, group=group)
            means.append((total if weight is not None else total.div_(group.size())).to(vector.device))
        return means

    def _pieces(self, part: Sequence[Tensor], vector: Tensor) -> Sequence[Tensor]:
        return torch.split(vector, [tensor.numel() for tensor in part])
