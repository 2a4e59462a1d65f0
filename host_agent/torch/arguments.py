# SPDX-License-Identifier: Apache-2.0
"""Checks of what the collectives of a group object are called with, before anything is sent.

The words are those of torch's own backends, which users and their tests look for.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

Tensors = Sequence[torch.Tensor]


class ArgumentError(ValueError, RuntimeError):
    """A collective was called with tensors, lists or ranks that do not fit. Torch's own backends raise a
    RuntimeError then; in Python it is a ValueError.
    """


class Arguments:
    """Checks of the arguments of a group's collectives, in methods of the same names.

    A list of tensors to reduce, broadcast or gather has one dtype, layout, size and device, as with Gloo.
    More than Gloo can, ``allgather`` and ``reduce_scatter`` take other sizes from other ranks.

    Raises:
        ArgumentError: by every method.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def allreduce(self, tensors: Tensors, _opts: Any) -> None:
        """Check one tensor, or several that are alike."""
        _alike("allreduce", tensors)

    def allreduce_coalesced(self, tensors: Tensors, _opts: Any) -> None:
        """Check tensors of one dtype, on one device."""
        what = "allreduce_coalesced"
        _not_empty(what, tensors)
        if any(one.dtype != tensors[0].dtype for one in tensors):
            _refuse(what, f"tensors must all have the same type, these are {_names(tensors)}")
        if any(one.device != tensors[0].device for one in tensors):
            _refuse(what, f"tensors must all be on the same device, these are on {_places(tensors)}")

    def broadcast(self, tensors: Tensors, opts: Any) -> None:
        """Check tensors that are alike, and the root."""
        self._root("broadcast", opts.rootRank)
        _root_tensor("broadcast", opts.rootTensor, len(tensors))
        _alike("broadcast", tensors)

    def reduce(self, tensors: Tensors, opts: Any) -> None:
        """Check one tensor, and the root."""
        self._root("reduce", opts.rootRank)
        _single("reduce", "tensor list", tensors)
        _root_tensor("reduce", opts.rootTensor, len(tensors))

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], _opts: Any) -> None:
        """Check outputs, and beside each the list of all ranks' parts."""
        what = "reduce_scatter"
        _not_empty(what, outputs)
        _same_length(what, outputs, inputs)
        for output, parts in zip(outputs, inputs, strict=True):
            if len(parts) != self._size:
                _refuse(
                    what, f"invalid input tensor list size, must be world size {self._size}, not {len(parts)}"
                )
            _same_types(what, output, parts)
            _same_elements(what, parts[self._rank], self._rank, output)

    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, _opts: Any) -> None:
        """Check an output, and a tensor of all ranks' parts."""
        self._parts("reduce_scatter", output, whole)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, wholes: Tensors, _opts: Any) -> None:
        """Check several of both."""
        self._parts_of_each("reduce_scatter", outputs, wholes)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, _opts: Any) -> None:
        """Check one input, or several that are alike, and for each a list of all ranks' outputs."""
        what, count = "allgather", len(inputs)
        _not_empty(what, inputs, "input tensor list")
        _same_length(what, outputs, inputs)
        _alike(what, inputs)
        for index, parts in enumerate(outputs):
            if len(parts) != self._size * count:
                words = f"(expected length {self._size * count}, got {len(parts)})"
                _refuse(what, f"invalid output tensor list at index {index} {words}")
            _same_types(what, inputs[0], parts)
            for at in range(self._rank * count, (self._rank + 1) * count):
                _same_elements(what, parts[at], at, inputs[0])

    def allgather_coalesced(self, lists: Sequence[Tensors], inputs: Tensors, _opts: Any) -> None:
        """Check inputs, and for each rank a list of outputs, one for each input."""
        what = "allgather_coalesced"
        _not_empty(what, inputs)
        if len(lists) != self._size:
            _refuse(what, f"output lists should be equal to world size {self._size}, not {len(lists)}")
        for outputs in lists:
            if len(outputs) != len(inputs):
                _refuse(what, f"invalid output size: (expected length {len(inputs)}, got {len(outputs)})")
            for output, own in zip(outputs, inputs, strict=True):
                _same_types(what, own, [output])

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, _opts: Any) -> None:
        """Check an input, and a tensor of all ranks' parts."""
        self._parts("allgather", own, output)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, _opts: Any) -> None:
        """Check several of both."""
        self._parts_of_each("allgather", inputs, outputs)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> None:
        """Check one input, and at the root a list of all ranks' outputs."""
        self._root("gather", opts.rootRank)
        _single("gather", "input tensor list", inputs)
        self._at_root("gather", "output", opts.rootRank, outputs, inputs[0])

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> None:
        """Check one output, and at the root a list of all ranks' inputs."""
        self._root("scatter", opts.rootRank)
        _single("scatter", "output tensor list", outputs)
        self._at_root("scatter", "input", opts.rootRank, inputs, outputs[0])

    def alltoall(self, outputs: Tensors, inputs: Tensors, _opts: Any) -> None:
        """Check a list for all ranks, and one from them."""
        for name, tensors in (("input", inputs), ("output", outputs)):
            if len(tensors) != self._size:
                words = f"{name} tensor list size {len(tensors)} does not match world size {self._size}"
                _refuse("alltoall", words)
        _same_types("alltoall", inputs[0], [*inputs, *outputs])

    def all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        _opts: Any,
    ) -> None:
        """Check both tensors, and how they are cut."""
        _same_types("alltoall_base", whole, [output])
        for name, tensor, splits in (("output", output, output_splits), ("input", whole, input_splits)):
            self._splits(name, tensor.shape[0] if tensor.dim() else 0, splits)

    def barrier(self, _opts: Any) -> None:
        """Check nothing."""

    def _root(self, what: str, root: int) -> None:
        if not 0 <= root < self._size:
            _refuse(what, f"invalid root rank: {root} (the group has ranks 0 to {self._size - 1})")

    def _parts(self, what: str, part: torch.Tensor, whole: torch.Tensor) -> None:
        _same_types(what, part, [whole])
        if whole.numel() != part.numel() * self._size:
            words = f"(expected {self._size} times {tuple(part.shape)}, got {tuple(whole.shape)})"
            _refuse(what, f"invalid tensor size at index 0 {words}")

    def _parts_of_each(self, what: str, parts: Tensors, wholes: Tensors) -> None:
        _not_empty(f"{what}_coalesced", parts)
        _same_length(f"{what}_coalesced", parts, wholes)
        for part, whole in zip(parts, wholes, strict=True):
            self._parts(f"{what}_coalesced", part, whole)

    def _at_root(self, what: str, name: str, root: int, lists: Sequence[Tensors], own: torch.Tensor) -> None:
        """Check what the root of a gather or scatter has beside ``own``, and that others have nothing."""
        if self._rank != root:
            if any(lists):
                _refuse(what, f"requires empty {name} on non-root")
            return
        if len(lists) != 1:
            words = f"requires a single-element {name} list containing a list with {self._size} tensors"
            _refuse(what, words)
        if len(lists[0]) != self._size:
            _refuse(
                what,
                f"Incorrect {name} list size {len(lists[0])}. {name.capitalize()} list size should be "
                f"{self._size}, same as size of the process group",
            )
        _same_types(what, own, lists[0])
        for index, one in enumerate(lists[0]):
            _same_elements(what, one, index, own)

    def _splits(self, name: str, rows: int, splits: Sequence[int]) -> None:
        what = f"alltoall_base, {name}"
        if not splits:
            if rows % self._size:
                words = f"(dim 0 is {rows}, the group has {self._size} ranks)"
                _refuse(what, f"Tensor's dim 0 does not divide equally across group size {words}")
        elif len(splits) != self._size:
            words = f"({len(splits)} splits, {self._size} ranks)"
            _refuse(what, f"Number of tensor splits not equal to group size {words}")
        elif sum(splits) != rows:
            words = f"(they sum to {sum(splits)}, dim 0 is {rows})"
            _refuse(what, f"Split sizes doesn't match total dim 0 size {words}")


def waited(value: Any) -> Any:
    """Return an argument, or nested lists of some, with results of functional collectives waited for.

    They stand for a tensor that a collective still writes, and have no memory of their own.
    """
    if isinstance(value, AsyncCollectiveTensor):
        return value.trigger_wait()  # type: ignore[no-untyped-call]
    return [waited(one) for one in value] if isinstance(value, list | tuple) else value


def only(what: str, tensors: Tensors) -> torch.Tensor:
    """Return the one tensor of a message.

    Raises:
        ArgumentError: they are several, or none.
    """
    if len(tensors) != 1:
        _refuse(what, f"takes a single tensor, not {len(tensors)}")
    return tensors[0]


def _refuse(what: str, words: str) -> NoReturn:
    raise ArgumentError(f"{what}: {words}")


def _not_empty(what: str, tensors: Sequence[Any], name: str = "tensor list") -> None:
    if not tensors:
        _refuse(what, f"requires non-empty {name}")


def _single(what: str, name: str, tensors: Sequence[Any]) -> None:
    if len(tensors) != 1:
        _refuse(what, f"requires a single-element {name}, not one of {len(tensors)}")


def _same_length(what: str, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    if len(outputs) != len(inputs):
        lengths = f"not {len(inputs)} and {len(outputs)}"
        _refuse(what, f"requires input/output tensor lists to have the same length, {lengths}")


def _alike(what: str, tensors: Tensors) -> None:
    _not_empty(what, tensors)
    if len(tensors) == 1:
        return
    first = tensors[0]
    _same_layout(what, tensors)
    _same_types(what, first, tensors)
    for index, one in enumerate(tensors):
        if one.shape != first.shape:
            _refuse_size(what, index, first, one)
        if one.device != first.device:
            _refuse(what, f"tensors should be on the same device, these are on {_places(tensors)}")


def _same_layout(what: str, tensors: Tensors) -> None:
    for index, one in enumerate(tensors):
        if one.layout != tensors[0].layout:
            words = f"(expected {tensors[0].layout}, got {one.layout})"
            _refuse(what, f"invalid tensor layout at index {index} {words}")


def _same_types(what: str, wanted: torch.Tensor, tensors: Tensors) -> None:
    for index, one in enumerate(tensors):
        if one.dtype != wanted.dtype:
            words = f"(expected {wanted.dtype}, got {one.dtype})"
            _refuse(what, f"invalid tensor type at index {index} {words}")


def _same_elements(what: str, tensor: torch.Tensor, index: int, wanted: torch.Tensor) -> None:
    if tensor.numel() != wanted.numel():
        _refuse_size(what, index, wanted, tensor)


def _refuse_size(what: str, index: int, wanted: torch.Tensor, found: torch.Tensor) -> NoReturn:
    words = f"(expected {tuple(wanted.shape)}, got {tuple(found.shape)})"
    _refuse(what, f"invalid tensor size at index {index} {words}")


def _root_tensor(what: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        _refuse(what, f"invalid root tensor: {index}")


def _names(tensors: Tensors) -> str:
    return ", ".join(sorted({str(one.dtype) for one in tensors}))


def _places(tensors: Tensors) -> str:
    return ", ".join(sorted({str(one.device) for one in tensors}))
