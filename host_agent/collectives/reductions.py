# SPDX-License-Identifier: Apache-2.0
"""Reductions for every operator and dtype, on lanes with ADD, MAX and OR.

Each function takes a flat contiguous tensor, may use its memory for the result, and returns a flat tensor of
the same dtype, bit-identical on every rank. Where the tensor is in parts, a rank finds only its own part
reduced. Where a function raises, the tensor has kept its values.
``docs/internals/collectives.md`` has the table of costs.
"""

import bisect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import torch
import torch.distributed as dist

from weir.host_agent.collectives import dtypes
from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import FLOATS, NARROW_INTEGERS
from weir.host_agent.collectives.float_sum import sum_float32, sum_float64
from weir.host_agent.collectives.limbs import LIMBS, join_int64, split_int64
from weir.host_agent.collectives.non_finite import Namer
from weir.host_agent.collectives.parts import Parts, reduce_parts
from weir.host_agent.collectives.tensor_memory import array_of
from weir.wire.definition import SLOT_LANES, Op

ReduceOp = dist.ReduceOp
RedOpType = dist.ReduceOp.RedOpType


@dataclass(frozen=True)
class PremulSum:
    """Torch's PREMUL_SUM: the sum of each rank's values times that rank's factor.

    Attributes:
        factor: of this rank; ranks may have different ones.
    """

    factor: float
    name: ClassVar[str] = ReduceOp.PREMUL_SUM.name
    value: ClassVar[int] = ReduceOp.PREMUL_SUM.value

    def __str__(self) -> str:
        """Return torch's name for the operator."""
        return str(ReduceOp.PREMUL_SUM)


Operator: TypeAlias = RedOpType | PremulSum


def reduce_tensor(
    communicator: Communicator, flat: torch.Tensor, op: Operator, name: Namer, parts: Parts | None = None
) -> torch.Tensor:
    """Return the reduction of ``flat`` over all workers by a torch.distributed operator; may overwrite
    ``flat``.

    Args:
        communicator: of all workers.
        flat: as ``parts`` lays it out; complex only without.
        op: how values are combined.
        name: describes an element by flat index, for errors.
        parts: who wants what; None: every rank wants all.

    Raises:
        TypeError: the operator is not defined for the dtype.
        NonFiniteError: a float sum meets NaN or infinity, and the communicator's precision does not deliver
            them.
    """
    check_supported(op, flat.dtype)
    if flat.is_complex():
        assert parts is None
        halves = torch.view_as_real(flat).reshape(-1)
        total = reduce_tensor(communicator, halves, op, lambda index: name(index // 2))
        return torch.view_as_complex(total.view(-1, 2))
    if isinstance(op, PremulSum):
        return _sum(communicator, addends(flat, op), name, parts).to(flat.dtype)
    return _REDUCTIONS[op](communicator, flat, name, parts)


def reduce_tensors(
    communicator: Communicator,
    tensors: Sequence[torch.Tensor],
    owners: Sequence[int],
    op: Operator,
    name: Callable[[int, int], str],
) -> torch.Tensor:
    """Return the flat reduction of the tensor that this worker owns; of no elements when it owns none.

    Of few values, which all workers' fit a packet, every worker gets all: that is one round trip for floats.

    Args:
        communicator: of all workers, which make the same call.
        tensors: of one dtype.
        owners: the rank that wants each.
        op: how values are combined.
        name: describes an element by its tensor's number and its flat index there, for errors.

    Raises:
        TypeError, NonFiniteError: as of ``reduce_tensor``.
    """
    check_supported(op, tensors[0].dtype)
    if tensors[0].is_complex():
        halves = [torch.view_as_real(dtypes.as_stored(tensor)) for tensor in tensors]
        found = reduce_tensors(communicator, halves, owners, op, lambda part, index: name(part, index // 2))
        return torch.view_as_complex(found.view(-1, 2))
    dtype, rank = tensors[0].dtype, communicator.rank
    counts = [tensor.numel() for tensor in tensors]
    if sum(counts) * dtypes.lanes_for(dtype.itemsize) * communicator.size <= SLOT_LANES:
        starts = [0, *itertools.accumulate(counts)]
        joined = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])

        def name_one(index: int) -> str:
            part = bisect.bisect_right(starts, index) - 1
            return name(part, index - starts[part])

        whole = reduce_tensor(communicator, joined, op, name_one)
        mine = owners.index(rank) if rank in owners else 0
        return whole[starts[mine] : starts[mine + 1]] if rank in owners else whole[:0]
    parts = Parts.of(counts, owners, dtype)
    joined = parts.join(tensors, dtype)
    whole = reduce_tensor(communicator, joined, op, lambda index: name(*parts.locate(index)), parts)
    return parts.part(whole, owners.index(rank)) if rank in owners else whole[:0]


def addends(values: torch.Tensor, op: Operator) -> torch.Tensor:
    """Return what a sum adds up of this worker's values: these, or with their factor, in float32 at least."""
    if not isinstance(op, PremulSum):
        return values
    wide = values if values.dtype == torch.float64 else values.to(torch.float32)
    return wide * op.factor


def is_sum(op: Operator | None) -> bool:
    """Return whether an operator is a sum, of complex numbers that of their parts."""
    return isinstance(op, PremulSum) or op in (ReduceOp.SUM, ReduceOp.AVG)


def check_supported(op: Operator, dtype: torch.dtype) -> None:
    """Raise TypeError unless tensors of a dtype can be reduced by an operator; every entrance asks here."""
    if not isinstance(op, PremulSum) and op not in _REDUCTIONS:
        raise TypeError(f"the weir backend has no reduction {op}; it has {', '.join(map(str, _REDUCTIONS))}")
    if dtype in dtypes.COMPLEX:
        if not is_sum(op):
            raise TypeError(
                f"{op} is not defined for {dtype}: complex numbers can only be summed or averaged. To reduce "
                "real and imaginary parts separately, reduce torch.view_as_real(tensor).clone()"
            )
        return
    if dtype not in dtypes.REDUCIBLE:
        known = ", ".join(sorted(str(known) for known in dtypes.REDUCIBLE | dtypes.COMPLEX))
        raise TypeError(f"the weir backend cannot reduce {dtype}; it reduces {known}")
    if op in _BITWISE and dtype in FLOATS:
        raise TypeError(f"{op} is defined for integers and bool, not for {dtype}")
    if op == ReduceOp.AVG and dtype == torch.bool:
        raise TypeError(f"{op} is defined for numbers, not for {dtype}: average tensor.float()")
    if isinstance(op, PremulSum) and dtype not in FLOATS:
        raise TypeError(
            f"{op} is defined for floats, not for {dtype}: multiply the tensor first, and use SUM"
        )


def _sum(communicator: Communicator, flat: torch.Tensor, name: Namer, parts: Parts | None) -> torch.Tensor:
    """Return integers modulo 2^k, exactly; floats within the bound of ``collectives.quantize``; bool as
    "any".
    """
    if flat.dtype == torch.bool:
        return _bit_or(communicator, flat, name, parts)
    if flat.dtype in NARROW_INTEGERS:
        return dtypes.narrow(reduce_parts(communicator, dtypes.widen(flat), Op.ADD, parts), flat.dtype)
    if flat.dtype == torch.int64:
        split = split_int64(array_of(flat), communicator.size)
        lanes = reduce_parts(communicator, split, Op.ADD, parts, LIMBS)
        return torch.from_numpy(join_int64(lanes, communicator.size))
    if flat.dtype == torch.float64:
        sum_float64(communicator, array_of(flat), name, parts)
        return flat
    wide = flat.to(torch.float32)
    sum_float32(communicator, array_of(wide), name, parts)
    return wide.to(flat.dtype)


def _average(
    communicator: Communicator, flat: torch.Tensor, name: Namer, parts: Parts | None
) -> torch.Tensor:
    """Return the sum divided by the number of workers; narrow floats are rounded once, after the division.

    Of integers as NCCL has it: the sum modulo 2^k, and its quotient rounded towards zero.
    """
    if flat.dtype not in FLOATS:
        return _sum(communicator, flat, name, parts).div_(communicator.size, rounding_mode="trunc")
    wide = flat if flat.dtype == torch.float64 else flat.to(torch.float32)
    return _sum(communicator, wide, name, parts).div_(communicator.size).to(flat.dtype)


def _maximum(
    communicator: Communicator, flat: torch.Tensor, _name: Namer, parts: Parts | None
) -> torch.Tensor:
    """Return the largest value; NaN when any worker has one."""
    if flat.element_size() == 8:
        keys = _max64(communicator, dtypes.ordered_keys64(flat), parts)
        return dtypes.from_ordered_keys64(keys, flat.dtype)
    keys32 = reduce_parts(communicator, dtypes.ordered_keys(flat), Op.MAX, parts)
    return dtypes.from_ordered_keys(keys32, flat.dtype)


def _minimum(
    communicator: Communicator, flat: torch.Tensor, _name: Namer, parts: Parts | None
) -> torch.Tensor:
    """Return the smallest value, as the maximum of complemented keys; NaN when any worker has one."""
    if flat.element_size() == 8:
        keys = ~_max64(communicator, ~dtypes.ordered_keys64(flat, nan_highest=False), parts)
        return dtypes.from_ordered_keys64(keys, flat.dtype)
    keys32 = ~reduce_parts(communicator, ~dtypes.ordered_keys(flat, nan_highest=False), Op.MAX, parts)
    return dtypes.from_ordered_keys(keys32, flat.dtype)


def _max64(communicator: Communicator, keys: dtypes.Keys64, parts: Parts | None) -> dtypes.Keys64:
    """Return the maximum of 64-bit keys: of the high halves, then of the low halves that tie for it.

    All ranks need all high halves, to know what ties.
    """
    high = (keys >> np.uint64(32)).astype(np.uint32)
    low = keys.astype(np.uint32)
    mine = high.copy()
    communicator.reduce_vector(high, Op.MAX)
    low[mine != high] = 0
    reduce_parts(communicator, low, Op.MAX, parts)
    return (high.astype(np.uint64) << np.uint64(32)) | low


def _product(
    communicator: Communicator, flat: torch.Tensor, _name: Namer, parts: Parts | None
) -> torch.Tensor:
    """Gather every worker's values and multiply them here, in rank order; narrow floats in float32."""
    wide = torch.float32 if flat.dtype in FLOATS and flat.dtype != torch.float64 else flat.dtype
    return _fold(communicator, flat, lambda a, b: torch.mul(a.to(wide), b), parts).to(flat.dtype)


def _bit_or(
    communicator: Communicator, flat: torch.Tensor, _name: Namer, parts: Parts | None
) -> torch.Tensor:
    lanes = np.zeros(dtypes.lanes_for(dtypes.byte_count(flat)), np.uint32)
    dtypes.write_bytes(lanes, 0, flat)
    result = torch.empty_like(flat)
    dtypes.read_bytes(reduce_parts(communicator, lanes, Op.OR, parts), 0, result)
    return result


def _bit_and(
    communicator: Communicator, flat: torch.Tensor, name: Namer, parts: Parts | None
) -> torch.Tensor:
    """Return the conjunction by De Morgan's law: a and b = not (not a or not b)."""
    return torch.bitwise_not(_bit_or(communicator, torch.bitwise_not(flat), name, parts))


def _bit_xor(
    communicator: Communicator, flat: torch.Tensor, _name: Namer, parts: Parts | None
) -> torch.Tensor:
    """Gather and fold here: no lane operator of the network gives parity."""
    return _fold(communicator, flat, torch.bitwise_xor, parts)


def _fold(
    communicator: Communicator,
    flat: torch.Tensor,
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    parts: Parts | None,
) -> torch.Tensor:
    """Combine every worker's values here, in rank order."""
    size = dtypes.lanes_for(dtypes.byte_count(flat))
    lanes = np.zeros(size * communicator.size, np.uint32)
    dtypes.write_bytes(lanes, size * communicator.rank, flat)
    reduce_parts(communicator, lanes, Op.OR, parts, communicator.size)
    total, other = torch.empty_like(flat), torch.empty_like(flat)
    dtypes.read_bytes(lanes, 0, total)
    for rank in range(1, communicator.size):
        dtypes.read_bytes(lanes, size * rank, other)
        total = combine(total, other)
    return total


_BITWISE = frozenset({ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR})
_REDUCTIONS: dict[RedOpType, Callable[[Communicator, torch.Tensor, Namer, Parts | None], torch.Tensor]] = {
    ReduceOp.SUM: _sum,
    ReduceOp.AVG: _average,
    ReduceOp.MAX: _maximum,
    ReduceOp.MIN: _minimum,
    ReduceOp.PRODUCT: _product,
    ReduceOp.BAND: _bit_and,
    ReduceOp.BOR: _bit_or,
    ReduceOp.BXOR: _bit_xor,
}
