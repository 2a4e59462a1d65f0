# SPDX-License-Identifier: Apache-2.0
"""Sums of sparse tensors: the workers agree on the rows that some worker has, and sum these alone.

A row is what one index tuple names. The rows of all workers, in order, make a dense vector, in which a worker
has zeros where others have rows: those blocks it does not send. So a worker sends its own rows and gets those
of all, once each, however many workers have them. No memory and no packet is as long as the whole tensor, but
for a bit for each of its rows where that is worth it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from weir.host_agent.collectives import data_movement, dtypes
from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.float_sum import sum_float32
from weir.host_agent.collectives.operation import Call
from weir.host_agent.collectives.reductions import Operator, check_supported, reduce_tensor
from weir.host_agent.collectives.shared_scales import WORTH_A_ROUND_TRIP
from weir.host_agent.collectives.tensor_memory import array_of
from weir.wire.definition import GROUP_LANES, SLOT_LANES, Op

Rows = npt.NDArray[np.int64]

_NARROW_ROWS: Final = 1 << 32  # this many rows have numbers of one lane
_SUM: Final = dist.ReduceOp.SUM
_MEAN: Final = dist.ReduceOp.AVG


@dataclass(frozen=True)
class _Layout:
    """The lengths of a sparse tensor's dimensions: those that its indices name, and those of a row."""

    sparse: tuple[int, ...]
    dense: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "_Layout":
        shape, cut = tuple(tensor.shape), tensor.sparse_dim()
        return cls(shape[:cut], shape[cut:])

    @property
    def rows(self) -> int:
        """Number of rows, most of which no worker may have."""
        return int(np.prod(self.sparse, dtype=object)) if self.sparse else 1

    def numbers(self, indices: torch.Tensor) -> Rows:
        """Return the number of the row that each column of indices names."""
        found = torch.zeros(indices.shape[1], dtype=torch.int64)
        for length, index in zip(self.sparse, indices, strict=True):
            found = found * length + index
        return array_of(found)

    def indices(self, numbers: Rows) -> torch.Tensor:
        """Return the inverse of ``numbers``."""
        rest, found = torch.from_numpy(numbers), []
        for length in reversed(self.sparse):
            found.append(rest % length)
            rest = rest // length
        return torch.stack(found[::-1]) if found else torch.empty(0, rest.numel(), dtype=torch.int64)


def call_of(tensor: torch.Tensor, op: Operator) -> Call:
    """Return what all ranks must agree on; not how many rows each of them has."""
    facts = (tensor.dtype, "sparse", tuple(tensor.shape), tensor.sparse_dim(), op.value)
    return Call("all_reduce", facts, (tensor, op))


def all_reduce(
    communicator: Communicator, tensor: torch.Tensor, op: Operator, name: Callable[[int, int], str]
) -> torch.Tensor:
    """Return the sum over all workers of sparse tensors (COO) in host memory, coalesced.

    It has every row that some worker's tensor has, zeros that were written out included.

    Args:
        communicator: of all workers.
        tensor: of one shape and as many sparse dimensions on all; some may have no rows.
        op: SUM or AVG.
        name: describes a value by its row's number and its place there, for errors.

    Raises:
        TypeError: the operator is not defined for the dtype or for sparse tensors.
        NonFiniteError: a float sum meets NaN or infinity.
    """
    check_supported(op, tensor.dtype)
    if op not in (_SUM, _MEAN):
        raise TypeError(f"{op} is not defined for sparse tensors: use SUM or AVG, or call to_dense()")
    own, layout = tensor.detach().coalesce(), _Layout.of(tensor)
    rows = layout.numbers(own.indices())
    union = _union(communicator, rows, layout.rows)
    values = torch.zeros(union.size, *layout.dense, dtype=tensor.dtype)
    values[torch.from_numpy(np.searchsorted(union, rows))] = own.values()
    width = max(1, values[:1].numel())

    def name_value(index: int) -> str:
        return name(int(union[index // width]), index % width)

    total = _sum(communicator, values, width, op, name_value)
    return torch.sparse_coo_tensor(
        layout.indices(union), total, tensor.shape, is_coalesced=True, check_invariants=False
    )


def _union(communicator: Communicator, rows: Rows, count: int) -> Rows:
    """Return the rows of all workers in order, each once.

    By a bit for each row of the tensor, of which blocks without any are not sent; where those bits are many,
    a round trip tells first how many rows each worker has, and if these are few, their numbers are gathered.
    """
    if count // 8 <= WORTH_A_ROUND_TRIP:
        return _by_bits(communicator, rows, count)
    counts = np.zeros(communicator.size, np.uint32)
    counts[communicator.rank] = rows.size
    communicator.reduce_vector(counts, Op.OR)
    total = int(counts.sum(dtype=np.int64))
    dtype = np.uint32 if count <= _NARROW_ROWS else np.int64
    if total * np.dtype(dtype).itemsize >= count // 8:
        return _by_bits(communicator, rows, count)
    everyone = [np.empty(size, dtype).view(np.int32) for size in counts]
    outputs = [torch.from_numpy(numbers) for numbers in everyone]
    own = torch.from_numpy(rows.astype(dtype).view(np.int32))
    data_movement.all_gather(communicator, outputs, own)
    return np.unique(np.concatenate([numbers.view(dtype) for numbers in everyone])).astype(np.int64)


def _by_bits(communicator: Communicator, rows: Rows, count: int) -> Rows:
    present = np.zeros(count, np.bool_)
    present[rows] = True
    return np.flatnonzero(communicator.any_of(present))


def _sum(
    communicator: Communicator, values: torch.Tensor, width: int, op: Operator, name: Callable[[int], str]
) -> torch.Tensor:
    """Return the sum, or the average, of ``values``, rows of this many; may overwrite them."""
    dtype = values.dtype
    if values.is_complex():
        parts = _sum(communicator, torch.view_as_real(values), 2 * width, op, lambda index: name(index // 2))
        return torch.view_as_complex(parts)
    if dtype not in dtypes.FLOATS or dtype == torch.float64:
        return reduce_tensor(communicator, values.reshape(-1), op, name).view(values.shape)
    wide = values.to(torch.float32)
    sum_float32(communicator, array_of(wide.reshape(-1)), name, block=_block(width))
    return (wide.div_(communicator.size) if op == _MEAN else wide).to(dtype)


def _block(width: int) -> int:
    """Return lanes in a block where rows have this many: few blocks are of a row and its neighbour then."""
    block = SLOT_LANES
    while block > GROUP_LANES and width % block and width < 4 * block:
        block //= 2
    return block
