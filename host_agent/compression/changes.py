# SPDX-License-Identifier: Apache-2.0
"""Changes between two versions of a vector: which values have other bits now, and these values.

A trainer that publishes new weights finds what changed since the last time (``find``), and each engine puts
that into the version that it has (``apply``). Values are compared bit by bit: 0.0 and -0.0 differ, and a NaN
is equal to itself. A mask is as in ``encodings.shared_mask``: bit j, counted from the lowest bit of the first
word, is value j.

Few words of a mask have a bit where few values changed. The mask is a vector, too: ``find(None, mask)`` gives
a bit for each of its words that is not zero, and these words; ``apply`` to zeros gives the mask back.

    changes = find(published, weights, update=True)
    sent = changes.on_host()  # from a GPU to pinned memory
    apply(replica, sent.on(replica.device))

In main memory C does it (csrc/changes.c); on a GPU kernels do, and without Triton torch's operations. On a
GPU all work is on the current stream, and the host waits once, for the number of values.
"""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import torch

from weir.host_agent.collectives.dtypes import WORD_BITS
from weir.host_agent.compression import bindings, kernels
from weir.host_agent.compression.encodings.shared_mask import words_for
from weir.host_agent.compression.transfer import pinned

_INTEGERS: Final = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
}  # by bytes: torch has most operations for these
_CHUNK: Final = (
    1 << 24
)  # values that torch's operations take at once: they need 20 bytes a value, for a while


@dataclass(frozen=True)
class Changes:
    """The values of a vector that changed.

    mask: uint32, of the whole vector. count: values that changed. values: these, in order, in the vector's
    dtype.
    """

    mask: torch.Tensor
    count: int
    values: torch.Tensor

    def on_host(self) -> "Changes":
        """Return the same in main memory, when it is there: of a GPU's, in pinned memory."""
        mask, values = pinned(self.mask, self.values)
        return Changes(mask, self.count, values)

    def on(self, device: torch.device) -> "Changes":
        """Return the same on a device, to be applied there. From pinned memory: the host does not wait."""
        mask, values = (part.to(device, non_blocking=True) for part in (self.mask, self.values))
        return Changes(mask, self.count, values)


def find(old: torch.Tensor | None, new: torch.Tensor, *, update: bool = False) -> Changes:
    """Return the changes from an old version to a new one, on their device.

    Args:
        old: None: zeros.
        new: contiguous, of 1, 2 or 4 bytes a value; of the same dtype, length and device.
        update: make ``old`` the new version, too.

    Raises:
        TypeError: dtypes differ, or have another size.
        ValueError: lengths or devices differ, or a tensor is not contiguous; or ``update`` without ``old``.
    """
    if old is None and update:
        raise ValueError("there is no old version to update")
    if old is not None:
        _check_alike(old, new)
    after = _integers(new)
    before = None if old is None else _integers(old)
    mask = torch.empty(words_for(new.numel(), 1), dtype=torch.uint32, device=new.device)
    with _device_of(new):
        values = _implementation(new.device).find(before, after, update, mask)
    return Changes(mask, values.numel(), values.view(new.dtype))


def renew(old: torch.Tensor, new: torch.Tensor) -> tuple[Changes, torch.Tensor]:
    """Make an old version the new one.

    Args:
        old, new: as for ``find``.

    Returns:
        The changes, and the old values at their places, in order, on the device.

    Raises:
        TypeError, ValueError: as ``find`` does.
    """
    _check_alike(old, new)
    if old.device.type == "cpu":
        return _Native.renew(_integers(old), _integers(new), new.dtype)
    changes = find(old, new)
    before = take(old, changes)
    apply(old, changes)
    return changes, before


def apply(vector: torch.Tensor, changes: Changes) -> None:
    """Put changes into the old version of a vector, in place, which makes it the new one.

    Args:
        vector: contiguous, of the dtype and on the device of the changes.
        changes: with a mask for as many values. On a GPU what does not fit is left out: nobody waits to find
            out.

    Raises:
        TypeError: the dtype is not that of the values.
        ValueError: the mask does not fit the vector, or the values do not fit the mask.
    """
    if vector.dtype != changes.values.dtype:
        raise TypeError(f"values of {changes.values.dtype} for a vector of {vector.dtype}")
    if changes.mask.dtype != torch.uint32 or changes.mask.numel() != words_for(vector.numel(), 1):
        raise ValueError(f"a mask of {changes.mask.numel()} words for {vector.numel()} values")
    if not vector.device == changes.mask.device == changes.values.device:
        raise ValueError(f"changes on {changes.mask.device} for a vector on {vector.device}")
    if changes.values.numel() != changes.count:
        raise ValueError(f"{changes.values.numel()} values, not {changes.count}")
    if changes.count:
        with _device_of(vector):
            mask = changes.mask.contiguous()
            _implementation(vector.device).put(mask, _integers(changes.values), _integers(vector))


def take(vector: torch.Tensor, changes: Changes) -> torch.Tensor:
    """Return the values of a vector at the places of changes, in order, on its device.

    Args:
        vector: contiguous, as that of ``find``.
        changes: of ``find``, on the same device.
    """
    flat = _integers(vector)
    with _device_of(vector):
        values = _implementation(vector.device).take(changes.mask, flat, changes.count)
    return values.view(vector.dtype)


class _Native:
    """C, in main memory."""

    @staticmethod
    def renew(old: torch.Tensor, new: torch.Tensor, dtype: torch.dtype) -> tuple[Changes, torch.Tensor]:
        """Do it in one pass. Memory for all values is allocated, but only pages with changes are touched."""
        mask = torch.empty(words_for(new.numel(), 1), dtype=torch.uint32)
        before, after = torch.empty_like(new), torch.empty_like(new)
        count = bindings.library().weir_changes_renew(
            *(old.data_ptr(), new.data_ptr(), new.numel(), new.element_size()),
            *(mask.data_ptr(), before.data_ptr(), after.data_ptr()),
        )
        return Changes(mask, count, after[:count].view(dtype)), before[:count].view(dtype)

    @staticmethod
    def find(old: torch.Tensor | None, new: torch.Tensor, update: bool, mask: torch.Tensor) -> torch.Tensor:
        """Write the mask, and return the values that changed."""
        before = None if old is None else old.data_ptr()
        size = new.element_size()
        found = bindings.library().weir_changes_find(
            before, new.data_ptr(), new.numel(), size, update, mask.data_ptr()
        )
        return _Native.take(mask, new, found)

    @staticmethod
    def take(mask: torch.Tensor, vector: torch.Tensor, count: int) -> torch.Tensor:
        """Return the ``count`` values that a mask selects."""
        values = vector.new_empty(count)
        bindings.library().weir_changes_take(
            mask.data_ptr(), mask.numel(), vector.element_size(), vector.data_ptr(), values.data_ptr()
        )
        return values

    @staticmethod
    def put(mask: torch.Tensor, values: torch.Tensor, vector: torch.Tensor) -> None:
        """Put values into a vector. Raises ValueError where they do not fit the mask, or it the vector."""
        selected = bindings.library().weir_changes_count(mask.data_ptr(), mask.numel())
        beyond = int(mask[-1]) >> (vector.numel() - 1) % WORD_BITS + 1
        if selected != values.numel() or beyond:
            raise ValueError(f"{values.numel()} values for a mask that selects {selected}")
        bindings.library().weir_changes_put(
            mask.data_ptr(), mask.numel(), vector.element_size(), values.data_ptr(), vector.data_ptr()
        )


class _Kernels:
    """Triton, on a GPU."""

    @staticmethod
    def find(old: torch.Tensor | None, new: torch.Tensor, update: bool, mask: torch.Tensor) -> torch.Tensor:
        """Write the mask, and return the values that changed."""
        from weir.host_agent.compression.kernels import changes

        if not new.numel():
            return new.new_empty(0)
        counts = changes.find(old, new, update, mask)
        ends = counts.cumsum(0)
        values = new.new_empty(_read(ends[-1:]))
        changes.move(mask, counts, ends, new, values, into_vector=False)
        return values

    @staticmethod
    def take(mask: torch.Tensor, vector: torch.Tensor, count: int) -> torch.Tensor:
        """Return the ``count`` values that a mask selects."""
        from weir.host_agent.compression.kernels import changes

        values = vector.new_empty(count)
        if count:
            counts = changes.count(mask)
            changes.move(mask, counts, counts.cumsum(0), vector, values, into_vector=False)
        return values

    @staticmethod
    def put(mask: torch.Tensor, values: torch.Tensor, vector: torch.Tensor) -> None:
        """Put values into a vector, as far as they fit."""
        from weir.host_agent.compression.kernels import changes

        counts = changes.count(mask)
        changes.move(mask, counts, counts.cumsum(0), vector, values, into_vector=True)


class _Operations:
    """Torch's operations, on any device."""

    @classmethod
    def find(
        cls, old: torch.Tensor | None, new: torch.Tensor, update: bool, mask: torch.Tensor
    ) -> torch.Tensor:
        """Write the mask, and return the values that changed."""
        octets, powers = mask.view(torch.uint8), 1 << torch.arange(8, device=new.device, dtype=torch.uint8)
        counts = []
        for chunk in _chunks(new.numel()):
            changed = new[chunk] != (0 if old is None else old[chunk])
            counts.append(torch.count_nonzero(changed))
            whole = torch.nn.functional.pad(changed, (0, -changed.numel() % WORD_BITS)).view(-1, 8)
            at = chunk.start // 8
            octets[at : at + len(whole)] = (whole * powers).sum(1, dtype=torch.uint8)
        if not counts:
            return new.new_empty(0)
        ends = torch.stack(counts).cumsum(0)
        values = cls.take(mask, new, _read(ends[-1:]))
        if update and old is not None:
            old.copy_(new)
        return values

    @classmethod
    def take(cls, mask: torch.Tensor, vector: torch.Tensor, count: int) -> torch.Tensor:
        """Return the ``count`` values that a mask selects."""
        values = vector.new_empty(count + 1)  # what did not change goes to the last one
        for chunk, changed, rank in cls._ranks(mask, vector.numel()):
            values.scatter_(0, torch.where(changed, rank, count), vector[chunk])
        return values[:count]

    @classmethod
    def put(cls, mask: torch.Tensor, values: torch.Tensor, vector: torch.Tensor) -> None:
        """Put values into a vector, as far as they fit."""
        for chunk, changed, rank in cls._ranks(mask, vector.numel()):
            theirs = values[rank.clamp_(0, values.numel() - 1)]
            vector[chunk] = torch.where(changed, theirs, vector[chunk])

    @staticmethod
    def _ranks(mask: torch.Tensor, length: int) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Yield chunks: which of the values changed, and how many did before each."""
        octets, powers = mask.view(torch.uint8), 1 << torch.arange(8, device=mask.device, dtype=torch.uint8)
        before = torch.zeros(1, dtype=torch.int64, device=mask.device)
        for chunk in _chunks(length):
            bits = octets[chunk.start // 8 : -(-chunk.stop // 8), None] & powers != 0
            changed = bits.view(-1)[: chunk.stop - chunk.start]
            rank = changed.cumsum(0)
            yield chunk, changed, rank - 1 + before
            before = before + rank[-1:]


def _implementation(device: torch.device) -> type[_Native] | type[_Kernels] | type[_Operations]:
    if device.type == "cpu":
        return _Native
    return _Kernels if kernels.available(device) else _Operations


def _chunks(length: int) -> Iterator[slice]:
    for start in range(0, length, _CHUNK):
        yield slice(start, min(length, start + _CHUNK))


def _check_alike(old: torch.Tensor, new: torch.Tensor) -> None:
    if old.dtype != new.dtype:
        raise TypeError(f"an old version of {old.dtype} and a new one of {new.dtype}")
    if old.numel() != new.numel():
        raise ValueError(f"an old version of {old.numel()} values and a new one of {new.numel()}")
    if old.device != new.device:
        raise ValueError(f"an old version on {old.device} and a new one on {new.device}")


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as integers, flat."""
    if not tensor.is_contiguous():
        raise ValueError("a tensor is not contiguous")
    if tensor.element_size() not in _INTEGERS:
        raise TypeError(f"values of {tensor.dtype}: expected 1, 2 or 4 bytes each")
    return tensor.detach().view(-1).view(_INTEGERS[tensor.element_size()])


def _device_of(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Make a GPU's tensor's device the current one: kernels, streams and events are of the current one."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def _read(number: torch.Tensor) -> int:
    """Return a number that is on a device, when it is known there: the one thing that the host waits for."""
    (copy,) = pinned(number)
    return int(copy)
