# SPDX-License-Identifier: Apache-2.0
"""Tensors as unsigned 32-bit lanes, the only thing the network works on.

Three views are needed. *Bytes*: any tensor's memory, padded to whole lanes; what moves data uses it, bit for
bit. *Widened integers*: one lane per value, for sums modulo 2^k. *Ordered keys*: an order-preserving map
to unsigned numbers, for maxima; the smallest value has key 0, the operators' identity.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.tensor_memory import array_of, byte_view, overwrite, written_anywhere

Lanes = npt.NDArray[np.uint32]
Keys64 = npt.NDArray[np.uint64]

LANE_BYTES = 4
WORD_BITS = 32

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
NARROW_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32})  # fit one lane
INTEGERS = NARROW_INTEGERS | {torch.int64}
REDUCIBLE = FLOATS | INTEGERS | {torch.bool}
COMPLEX = frozenset({torch.complex32, torch.complex64, torch.complex128})  # their parts are of FLOATS

_SIGN32 = np.uint32(1 << 31)
_SIGN64 = np.uint64(1 << 63)


def lanes_for(nbytes: int) -> int:
    """Return how many lanes ``nbytes`` bytes take, the last one padded."""
    return -(-nbytes // LANE_BYTES)


def set_bits(words: Lanes, count: int | None = None) -> npt.NDArray[np.bool_]:
    """Return the bits as an array, ``count`` of them, by default all."""
    return np.unpackbits(words.view(np.uint8), count=count, bitorder="little").view(np.bool_)


def pack_bits(flags: npt.NDArray[np.bool_]) -> Lanes:
    """Return the words that have these bits, as many as needed: the opposite of ``set_bits``."""
    words = np.zeros(-(-flags.size // WORD_BITS), np.uint32)
    bits = np.packbits(flags, bitorder="little")
    words.view(np.uint8)[: bits.size] = bits
    return words


def byte_count(tensor: torch.Tensor) -> int:
    """Return how many bytes the tensor's values take, whatever its strides."""
    return tensor.numel() * tensor.element_size()


def as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose memory holds its values, one after another: the given one's, where it does so.

    Torch conjugates and negates lazily, by a mark on the tensor; its memory holds other values then.
    """
    return written_anywhere(tensor.detach().resolve_conj().resolve_neg().contiguous())


def write_bytes(lanes: Lanes, offset: int, tensor: torch.Tensor) -> None:
    """Copy the tensor's values into ``lanes`` from lane ``offset`` on; the padding is left as it is."""
    data = byte_view(as_stored(tensor))
    lanes[offset:].view(np.uint8)[: data.size] = data


def read_bytes(lanes: Lanes, offset: int, tensor: torch.Tensor) -> None:
    """Overwrite the tensor's values, whatever its strides, with the bytes from lane ``offset`` on."""
    target = tensor.detach()
    in_place = target.is_contiguous() and not (target.is_conj() or target.is_neg())
    packed = target if in_place else torch.empty(target.shape, dtype=target.dtype)
    data = byte_view(packed)
    data[:] = lanes[offset:].view(np.uint8)[: data.size]
    if packed is not target:
        overwrite(target, packed)


def widen(flat: torch.Tensor) -> Lanes:
    """Return one lane per value of a flat integer or bool tensor: the value modulo 2^32. A new array."""
    return array_of(flat.to(torch.int32, copy=True)).view(np.uint32)


def narrow(lanes: Lanes, dtype: torch.dtype) -> torch.Tensor:
    """Return the inverse of ``widen``: each lane modulo 2^k for a k-bit dtype, or lane != 0 for bool."""
    return torch.from_numpy(lanes.view(np.int32)).to(dtype)


def ordered_keys(flat: torch.Tensor, *, nan_highest: bool = True) -> Lanes:
    """Map values of at most 32 bits to lanes, preserving order; NaN is above (or below) every number.

    Floats go through float32, which holds float16 and bfloat16 exactly. Sign-magnitude becomes unsigned by
    the usual flip: negative numbers complement all bits, others set the top bit.
    """
    if flat.dtype in FLOATS:
        bits = array_of(canonical_nan(flat.to(torch.float32), positive=nan_highest)).view(np.uint32)
        negative = (bits & _SIGN32) != 0
        return np.where(negative, ~bits, bits | _SIGN32).astype(np.uint32, copy=False)
    return widen(flat) ^ _SIGN32


def from_ordered_keys(keys: Lanes, dtype: torch.dtype) -> torch.Tensor:
    """Return the inverse of ``ordered_keys``."""
    if dtype in FLOATS:
        positive = (keys & _SIGN32) != 0
        bits = np.where(positive, keys ^ _SIGN32, ~keys).astype(np.uint32, copy=False)
        return torch.from_numpy(bits.view(np.float32)).to(dtype)
    return narrow(keys ^ _SIGN32, dtype)


def ordered_keys64(flat: torch.Tensor, *, nan_highest: bool = True) -> Keys64:
    """Do ``ordered_keys`` for int64 and float64."""
    if flat.dtype == torch.float64:
        bits = array_of(canonical_nan(flat, positive=nan_highest)).view(np.uint64)
        negative = (bits & _SIGN64) != 0
        return np.where(negative, ~bits, bits | _SIGN64).astype(np.uint64, copy=False)
    return array_of(flat).view(np.uint64) ^ _SIGN64


def from_ordered_keys64(keys: Keys64, dtype: torch.dtype) -> torch.Tensor:
    """Return the inverse of ``ordered_keys64``."""
    if dtype == torch.float64:
        positive = (keys & _SIGN64) != 0
        bits = np.where(positive, keys ^ _SIGN64, ~keys).astype(np.uint64, copy=False)
        return torch.from_numpy(bits.view(np.float64))
    return torch.from_numpy((keys ^ _SIGN64).view(np.int64))


def canonical_nan(flat: torch.Tensor, *, positive: bool) -> torch.Tensor:
    """Return the tensor, contiguous, with the same sign bit on every NaN, so that all of them sort to one
    end.
    """
    nan = torch.isnan(flat)
    if not bool(nan.any()):
        return flat.contiguous()
    return flat.masked_fill(nan, math.copysign(math.nan, 1.0 if positive else -1.0))


def describe(tensor: torch.Tensor) -> str:
    """Return a tensor's description for an error message: dtype and shape."""
    dtype: Any = tensor.dtype
    return f"{str(dtype).removeprefix('torch.')} tensor of shape {tuple(tensor.shape)}"
