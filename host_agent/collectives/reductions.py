# SPDX-License-Identifier: Apache-2.0
"""All-reduce for every operator and dtype, on lanes with ADD, MAX and OR.

Each function takes a flat contiguous tensor, may use its memory for the result, and returns a flat tensor of
the same dtype, bit-identical on every rank. Where it raises, the tensor has kept its values.
``docs/collectives.md`` has the table of costs.
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from weir.host_agent.collectives import data_movement, dtypes
from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import FLOATS, NARROW_INTEGERS, Lanes
from weir.host_agent.collectives.float_sum import Namer, sum_float32, sum_float64
from weir.host_agent.collectives.limbs import join_int64, split_int64
from weir.wire.definition import Op

ReduceOp = dist.ReduceOp
RedOpType = dist.ReduceOp.RedOpType


def all_reduce(communicator: Communicator, flat: torch.Tensor, op: RedOpType, name: Namer) -> torch.Tensor:
    """Return the reduction of ``flat`` over all workers by a torch.distributed operator; may overwrite
    ``flat``.

    ``name`` describes an element by flat index, for errors. TypeError when the operator is not defined for
    the dtype, NonFiniteError when a float sum meets NaN or infinity.
    """
    check_supported(op, flat.dtype)
    return _REDUCTIONS[op](communicator, flat, name)


def check_supported(op: RedOpType, dtype: torch.dtype) -> None:
    """Raise TypeError unless ``all_reduce`` can do this."""
    if op not in _REDUCTIONS:
        raise TypeError(f"the weir backend has no reduction {op}; it has {', '.join(map(str, _REDUCTIONS))}")
    if dtype not in dtypes.REDUCIBLE:
        known = ", ".join(sorted(str(known) for known in dtypes.REDUCIBLE))
        raise TypeError(f"the weir backend cannot reduce {dtype}; it reduces {known}")
    if op in _BITWISE and dtype in FLOATS:
        raise TypeError(f"{op} is defined for integers and bool, not for {dtype}")
    if op == ReduceOp.AVG and dtype not in FLOATS:
        raise TypeError(f"{op} is defined for floats, not for {dtype}: use SUM and divide as you mean it")


def _sum(communicator: Communicator, flat: torch.Tensor, name: Namer) -> torch.Tensor:
    """Return integers modulo 2^k, exactly; floats within the bound of ``collectives.quantize``; bool as
    "any".
    """
    if flat.dtype == torch.bool:
        return _bit_or(communicator, flat, name)
    if flat.dtype in NARROW_INTEGERS:
        return dtypes.narrow(communicator.reduce(dtypes.widen(flat), Op.ADD), flat.dtype)
    if flat.dtype == torch.int64:
        return torch.from_numpy(join_int64(communicator.reduce(split_int64(flat.numpy()), Op.ADD)))
    if flat.dtype == torch.float64:
        sum_float64(communicator, flat.numpy(), name)
        return flat
    wide = flat.to(torch.float32)
    sum_float32(communicator, wide.numpy(), name)
    return wide.to(flat.dtype)


def _average(communicator: Communicator, flat: torch.Tensor, name: Namer) -> torch.Tensor:
    """Return the sum divided by the number of workers; narrow floats are rounded once, after the division."""
    wide = flat if flat.dtype == torch.float64 else flat.to(torch.float32)
    return _sum(communicator, wide, name).div_(communicator.size).to(flat.dtype)


def _maximum(communicator: Communicator, flat: torch.Tensor, _name: Namer) -> torch.Tensor:
    """Return the largest value; NaN when any worker has one."""
    if flat.element_size() == 8:
        keys = _max64(communicator, dtypes.ordered_keys64(flat))
        return dtypes.from_ordered_keys64(keys, flat.dtype)
    return dtypes.from_ordered_keys(communicator.reduce(dtypes.ordered_keys(flat), Op.MAX), flat.dtype)


def _minimum(communicator: Communicator, flat: torch.Tensor, _name: Namer) -> torch.Tensor:
    """Return the smallest value, as the maximum of complemented keys; NaN when any worker has one."""
    if flat.element_size() == 8:
        keys = ~_max64(communicator, ~dtypes.ordered_keys64(flat, nan_highest=False))
        return dtypes.from_ordered_keys64(keys, flat.dtype)
    keys32 = ~communicator.reduce(~dtypes.ordered_keys(flat, nan_highest=False), Op.MAX)
    return dtypes.from_ordered_keys(keys32, flat.dtype)


def _max64(communicator: Communicator, keys: dtypes.Keys64) -> dtypes.Keys64:
    """Return the maximum of 64-bit keys: of the high halves, then of the low halves that tie for it."""
    high = (keys >> np.uint64(32)).astype(np.uint32)
    low = keys.astype(np.uint32)
    mine = high.copy()
    communicator.reduce(high, Op.MAX)
    low[mine != high] = 0
    communicator.reduce(low, Op.MAX)
    return (high.astype(np.uint64) << np.uint64(32)) | low


def _product(communicator: Communicator, flat: torch.Tensor, _name: Namer) -> torch.Tensor:
    """Gather every worker's values and multiply them here, in rank order; narrow floats in float32."""
    wide = torch.float32 if flat.dtype in FLOATS and flat.dtype != torch.float64 else flat.dtype
    return _fold(communicator, flat, lambda a, b: torch.mul(a.to(wide), b)).to(flat.dtype)


def _bit_or(communicator: Communicator, flat: torch.Tensor, _name: Namer) -> torch.Tensor:
    lanes = data_movement.publish(communicator, dtypes.lanes_for(dtypes.byte_count(flat)), [(0, flat)])
    return _bytes_as(lanes, flat)


def _bit_and(communicator: Communicator, flat: torch.Tensor, name: Namer) -> torch.Tensor:
    """Return the conjunction by De Morgan's law: a and b = not (not a or not b)."""
    return torch.bitwise_not(_bit_or(communicator, torch.bitwise_not(flat), name))


def _bit_xor(communicator: Communicator, flat: torch.Tensor, _name: Namer) -> torch.Tensor:
    """Gather and fold here: no lane operator of the network gives parity."""
    return _fold(communicator, flat, torch.bitwise_xor)


def _fold(
    communicator: Communicator,
    flat: torch.Tensor,
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    everyone = [torch.empty_like(flat) for _ in range(communicator.size)]
    data_movement.all_gather(communicator, everyone, flat)
    total = everyone[0]
    for other in everyone[1:]:
        total = combine(total, other)
    return total


def _bytes_as(lanes: Lanes, like: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(like)
    dtypes.read_bytes(lanes, 0, result)
    return result


_BITWISE = frozenset({ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR})
_REDUCTIONS: dict[RedOpType, Callable[[Communicator, torch.Tensor, Namer], torch.Tensor]] = {
    ReduceOp.SUM: _sum,
    ReduceOp.AVG: _average,
    ReduceOp.MAX: _maximum,
    ReduceOp.MIN: _minimum,
    ReduceOp.PRODUCT: _product,
    ReduceOp.BAND: _bit_and,
    ReduceOp.BOR: _bit_or,
    ReduceOp.BXOR: _bit_xor,
}
