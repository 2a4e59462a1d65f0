# SPDX-License-Identifier: Apache-2.0
"""Collectives of many tensors as few operations: small tensors travel together.

A tensor of a few values costs a round trip, as one of a thousand does. Only tensors of one dtype travel
together, and they have no more values than are summed exactly: so sums of float32 and narrower ones have the
bits that they have alone. Those of float64 are as near to the exact sum as in any tensor of that length; of
the fewest values (``GATHERED_LANES``) they are nearer alone.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from weir.host_agent.collectives.collectives import Collectives
from weir.host_agent.collectives.float_sum import EXACT_VALUES
from weir.host_agent.collectives.reductions import Operator
from weir.host_agent.collectives.tensor_memory import overwrite

Tensors = Sequence[torch.Tensor]
Collective = Callable[[Any, Any], None]


def batches(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices of what travels together, of vectors of one dtype and of these many values; the same
    on every rank.
    """
    batch: list[int] = []
    values = 0
    for index, size in enumerate(sizes):
        if size > EXACT_VALUES:
            yield [index]
            continue
        if values + size > EXACT_VALUES:
            yield batch
            batch, values = [], 0
        batch.append(index)
        values += size
    if batch:
        yield batch


def coalesced(outputs: Tensors, inputs: Tensors, one: Collective, together: Collective) -> None:
    """Make a collective of each output and the input beside it.

    Args:
        outputs, inputs: in host memory. The same object: in place.
        one: makes the collective of one pair.
        together: makes those of several pairs of one dtype.
    """
    in_place = outputs is inputs
    sizes = [max(pair) for pair in zip(_sizes(outputs), _sizes(inputs), strict=True)]
    for dtype in dict.fromkeys(output.dtype for output in outputs):
        alike = [index for index, output in enumerate(outputs) if output.dtype == dtype]
        for batch in batches([sizes[index] for index in alike]):
            taken = [outputs[alike[each]] for each in batch]
            given = taken if in_place else [inputs[alike[each]] for each in batch]
            if len(batch) == 1:
                one(taken[0], given[0])
            else:
                together(taken, given)


def distinct(tensors: Tensors) -> list[torch.Tensor]:
    """Return the tensors without those that are a tensor before them again: these would be reduced twice."""
    found: dict[Any, torch.Tensor] = {}
    for tensor in tensors:
        has_memory = tensor.layout == torch.strided and tensor.numel()
        where = (tensor.data_ptr(), tensor.shape, tensor.stride()) if has_memory else id(tensor)
        found.setdefault(where, tensor)
    return list(found.values())


def all_reduce(collectives: Collectives, tensors: Tensors, op: Operator) -> None:
    """Overwrite tensors of one dtype by their reductions, in one operation."""
    packed = torch.cat([tensor.reshape(-1) for tensor in tensors])
    collectives.all_reduce(packed, op)
    _unpack(packed, tensors)


def all_gather_single(collectives: Collectives, outputs: Tensors, inputs: Tensors) -> None:
    """Overwrite each output by all ranks' input beside it, all of one dtype, in one operation."""
    ranks = collectives.communicator.size
    packed = torch.cat([own.reshape(-1) for own in inputs])
    gathered = packed.new_empty(ranks, packed.numel())
    collectives.all_gather_single(gathered, packed)
    parts = torch.split(gathered, _sizes(inputs), dim=1)
    for output, part in zip(outputs, parts, strict=True):
        overwrite(output, part.reshape(output.shape))


def reduce_scatter_single(collectives: Collectives, outputs: Tensors, wholes: Tensors, op: Operator) -> None:
    """Overwrite each output by this rank's part of the reduction of the tensor beside it, in one operation.

    All have one dtype.
    """
    ranks = collectives.communicator.size
    packed = torch.cat([whole.reshape(ranks, -1) for whole in wholes], dim=1)
    reduced = packed.new_empty(packed.shape[1])
    collectives.reduce_scatter_single(reduced, packed, op)
    _unpack(reduced, outputs)


def _sizes(tensors: Tensors) -> list[int]:
    return [tensor.numel() for tensor in tensors]


def _unpack(packed: torch.Tensor, tensors: Tensors) -> None:
    for tensor, part in zip(tensors, torch.split(packed, _sizes(tensors)), strict=True):
        overwrite(tensor, part.view(tensor.shape))
