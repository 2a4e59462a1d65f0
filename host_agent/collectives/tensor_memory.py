# SPDX-License-Identifier: Apache-2.0
"""Tensors' memory as arrays, and tensors overwritten, without a trace on what is the caller's.

``Tensor.numpy()`` marks a storage for ever: it cannot be resized any more. FSDP frees parameters by resizing
theirs, so nothing here or above calls it.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

_CODES: Final = {
    torch.bool: "|b1",
    torch.uint8: "|u1",
    torch.int8: "|i1",
    torch.int16: "<i2",
    torch.int32: "<i4",
    torch.int64: "<i8",
    torch.uint16: "<u2",
    torch.uint32: "<u4",
    torch.uint64: "<u8",
    torch.float16: "<f2",
    torch.float32: "<f4",
    torch.float64: "<f8",
    torch.complex64: "<c8",
    torch.complex128: "<c16",
}
"""NumPy's dtypes of torch's, as in its array interface; others, such as bfloat16, are read as bytes."""


class _Memory:
    """A tensor's memory as NumPy asks for it; an array made from it keeps it, and so the tensor, alive."""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
        self._tensor = tensor
        address = tensor.data_ptr()
        if not address and tensor.numel():
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} has no memory: its storage was resized to "
                f"{tensor.untyped_storage().nbytes()} bytes, as FSDP does with parameters not in use"
            )
        self.__array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "strides": strides,
            "typestr": _CODES[tensor.dtype],
            "version": 3,
        }


def array_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a CPU tensor's memory as an array of its shape and strides, shared, to be written to as well.

    Args:
        tensor: of a dtype that NumPy has, without a lazy conjugation or negation. It lives as long as the
            array does.

    Raises:
        TypeError: the tensor is not such a one.
        ValueError: its storage was freed.
    """
    if not tensor.is_cpu or tensor.dtype not in _CODES or tensor.is_conj() or tensor.is_neg():
        raise TypeError(f"NumPy cannot read the memory of a {tensor.dtype} tensor on {tensor.device}")
    shape = tuple(tensor.shape)
    if tensor.is_contiguous():
        return np.asarray(_Memory(tensor, shape, None))
    size = tensor.element_size()
    return np.asarray(_Memory(tensor, shape, tuple(size * step for step in tensor.stride())))


def byte_view(contiguous: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the memory of a contiguous tensor of any dtype, shared, as bytes."""
    # A tensor of one element, or none, may be called contiguous with any stride: state the stride.
    flat = contiguous.detach().as_strided((contiguous.numel(),), (1,))
    return array_of(flat.view(torch.uint8))


def written_anywhere(contiguous: torch.Tensor) -> torch.Tensor:
    """Return a contiguous CPU tensor, or another one of its memory, that any thread may write to.

    Torch lets tensors made in ``torch.inference_mode`` be changed only in threads that are in it.
    """
    if not contiguous.is_inference():
        return contiguous
    return torch.from_numpy(byte_view(contiguous)).view(contiguous.dtype).view(contiguous.shape)


def overwrite(target: torch.Tensor, values: torch.Tensor, *, non_blocking: bool = False) -> None:
    """Overwrite a tensor of any strides, on a device or not, whichever thread's mode it was made in.

    A sparse one, of which no gradients may be recorded here, has the indices of ``values`` then.
    """
    with torch.inference_mode(target.is_inference()):
        # What detach() returns of a sparse tensor would get its new rows alone.
        kept = target if target.is_sparse else target.detach()
        kept.copy_(values, non_blocking=non_blocking)
