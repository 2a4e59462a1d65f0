# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors that go chunk by chunk: what the copies of their chunks are, and where they wait."""

from collections.abc import Callable, Sequence

import torch

from weir.host_agent.collectives.chunks import in_chunks
from weir.host_agent.collectives.long_collectives import LongCollectives
from weir.host_agent.collectives.reductions import Operator, is_sum
from weir.host_agent.compression.transfer import begin_copy, mark, pinned_like
from weir.host_agent.torch.staging import to_device

_NARROW = frozenset({torch.float16, torch.bfloat16})


def is_on_device(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on a CUDA device."""
    return tensor.is_cuda


def are_long(*tensors: torch.Tensor) -> bool:
    """Return whether all tensors are on a device, of one length and dtype, and long enough to go chunk by
    chunk.
    """
    first = tensors[0]
    return in_chunks(first.numel() * (2 if first.is_complex() else 1)) and all(
        is_on_device(one) and one.numel() == first.numel() and one.dtype == first.dtype for one in tensors
    )


def are_long_parts(part: torch.Tensor, whole: torch.Tensor, count: int) -> bool:
    """Return whether ``whole`` holds ``count`` tensors such as ``part``, and these ``are_long``."""
    fits = is_on_device(whole) and whole.dtype == part.dtype and whole.numel() == count * part.numel()
    return fits and are_long(part)


class DeviceVector:
    """A CUDA tensor as ``collectives.chunks`` knows it. All it begins, it begins on the current stream.

    Sums of float16 and bfloat16 are made in float32, to which the device converts, and from it.

    Args:
        tensor: of any strides; overwritten chunk by chunk.
        op: how it is reduced; None: it is not.
    """

    def __init__(self, tensor: torch.Tensor, op: Operator | None = None) -> None:
        self.tensor = target = tensor.detach()
        self._target = torch.view_as_real(target) if target.is_complex() else target
        self._flat = self._target.reshape(-1)
        self._wide = torch.float32 if is_sum(op) and target.dtype in _NARROW else self._flat.dtype

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

    def room(self, part: slice) -> torch.Tensor:
        """See ``Remote.room``."""
        return pinned_like(self._flat[part])

    def replace(self, part: slice, copy: torch.Tensor, result: torch.Tensor) -> None:
        """See ``Remote.replace``."""
        if result.data_ptr() != copy.data_ptr():
            copy.copy_(result)
        to_device(self._flat[part], copy)
        if part.stop == self.count and self._flat.data_ptr() != self._target.data_ptr():
            to_device(self._target, self._flat.view(self._target.shape))


class DeviceCollectives:
    """The collectives of one group for tensors that ``are_long``, by their names in ``Collectives``."""

    def __init__(self, collectives: LongCollectives) -> None:
        self._collectives = collectives

    def all_reduce(self, tensor: torch.Tensor, op: Operator) -> None:
        """Overwrite a tensor by its reduction over all ranks."""
        self._collectives.all_reduce_in_chunks(DeviceVector(tensor, op), op)

    def reduce(self, tensor: torch.Tensor, root: int, op: Operator) -> None:
        """Overwrite the root's tensor by the reduction."""
        self._collectives.reduce_in_chunks(DeviceVector(tensor, op), root, op)

    def reduce_scatter(self, output: torch.Tensor, inputs: Sequence[torch.Tensor], op: Operator) -> None:
        """Overwrite ``output`` by this rank's part of the reduction."""
        vectors = [DeviceVector(part, op) for part in inputs]
        self._collectives.reduce_scatter_in_chunks(DeviceVector(output, op), vectors, op)

    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, op: Operator) -> None:
        """Do ``reduce_scatter`` with the inputs one after another in ``whole``."""
        self.reduce_scatter(output, torch.split(whole.detach().reshape(-1), output.numel()), op)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Overwrite a tensor by the root's."""
        self._collectives.broadcast_in_chunks(DeviceVector(tensor), root)

    def all_gather(self, outputs: Sequence[torch.Tensor], own: torch.Tensor) -> None:
        """Overwrite ``outputs[r]`` by rank r's ``own``."""
        self._collectives.all_gather_in_chunks([DeviceVector(one) for one in outputs], DeviceVector(own))

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor) -> None:
        """Do ``all_gather`` with the outputs one after another in ``output``."""
        target = output.detach()
        flat = target.reshape(-1)
        self.all_gather(torch.split(flat, own.numel()), own)
        if flat.data_ptr() != target.data_ptr():
            to_device(target, flat.view(target.shape))


def _copied(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Begin to copy a CUDA tensor to the host; the call returned waits for the copy."""
    copy, done = begin_copy(tensor), mark(tensor.device)

    def wait() -> torch.Tensor:
        done.synchronize()
        return copy

    return wait
