# SPDX-License-Identifier: Apache-2.0
"""Collectives that a group object is given several tensors of each rank for, as torch's ``ProcessGroup`` has
them: the tensors of a rank count as those of this many devices do.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import torch
import torch.distributed as dist

from weir.host_agent.collectives.reductions import Operator
from weir.host_agent.collectives.tensor_memory import overwrite

Tensors = Sequence[torch.Tensor]

_COMBINE: Final[Mapping[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}
"""By operator; all others are sums."""


def combined(tensors: Tensors, op: Operator) -> torch.Tensor:
    """Return a new tensor: the reduction of one rank's tensors. AVG adds them, as Gloo does."""
    return reduce(_COMBINE.get(op, torch.add), [one.detach() for one in tensors])


def overwrite_all(tensors: Tensors, values: torch.Tensor) -> None:
    """Overwrite each tensor that is another than ``values`` by it."""
    for tensor in tensors:
        if tensor is not values:
            overwrite(tensor, values)


def gathers(outputs: Sequence[Tensors], inputs: Tensors) -> tuple[list[Tensors], list[torch.Tensor]]:
    """Return the outputs and inputs of ``allgather`` as those of several, each of one tensor of a rank.

    Args:
        outputs: lists that each get all tensors of rank 0, then all of rank 1, and so on.
        inputs: the tensors of this rank.
    """
    count = len(inputs)
    if count == 1:
        return list(outputs), list(inputs)
    return [one[index::count] for one in outputs for index in range(count)], list(inputs) * len(outputs)
