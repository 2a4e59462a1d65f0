# SPDX-License-Identifier: Apache-2.0
"""Keeping a given share: exact selection of the largest elements, and rounding that promises the share.

Nothing here sorts a whole vector: a sample tells from which magnitude on something comes into question, one
pass finds it, and only that is compared (Floyd and Rivest, "Expected time bounds for selection", 1975).
"""

import math
from typing import Final

import numpy as np
import torch

from weir.host_agent.compression import bindings
from weir.host_agent.compression.vectors import is_native

SAMPLE: Final = 1 << 13
"""Values looked at to see where the largest ones begin; as in choice.c."""

_MARGIN: Final = 4.0  # of the rank in the sample, in standard deviations
_TINIEST: Final = 2.0**-149
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_LARGEST: Final = float(torch.finfo(torch.float32).max)


def keep_from(values: torch.Tensor, threshold: float) -> torch.Tensor:
    """Return ``values`` (float32) where ``|x| >= threshold`` or x is NaN, zero elsewhere; a new tensor.

    An infinite or NaN threshold keeps infinities and NaNs alone.
    """
    if threshold <= 0.0:
        return values.clone()
    just_below = float(np.nextafter(np.float32(threshold), np.float32(0.0)))
    return torch.nn.functional.hardshrink(
        values, min(just_below, _LARGEST) if threshold < math.inf else _LARGEST
    )


def keep_non_finite(values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` (float32) where they are infinite or NaN, zero elsewhere."""
    return torch.nn.functional.hardshrink(values, _LARGEST)


def keep_largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return ``values`` (flat float32) with all but the ``count`` largest magnitudes zero, a new tensor.

    Of equal magnitudes the first are kept. What is not finite is kept in any case, beyond the count, too.
    """
    if count >= values.numel():
        return values.clone()
    if count <= 0:
        return keep_non_finite(values)
    kept, chosen = torch.zeros_like(values), worthiest(values, count)
    return kept.index_copy_(0, chosen, values.index_select(0, chosen))


def worthiest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return where the ``count`` values are (flat float32) of largest magnitude: int64, ascending.

    Of equal ones the first. NaN and infinities are there in any case, zeros never.
    """
    if not is_native(values):
        return worthiest_torch(values, count)
    room = max(2 * SAMPLE, 3 * count)  # all of what is too short for a sample
    while True:
        found, scratch = torch.empty(room, dtype=torch.int64), torch.empty(2 * room)
        there = bindings.library().weir_worthiest(
            values.data_ptr(), values.numel(), count, found.data_ptr(), scratch.data_ptr(), room
        )
        if there <= room:
            return found[:there]
        room = there


def worthiest_torch(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the same on any device."""
    scores = values.abs().nan_to_num_(nan=math.inf, posinf=math.inf)
    found = positions(scores >= max(_floor(values, count) if count else math.inf, _TINIEST))
    if found.numel() < count:  # the sample misled
        found = positions(scores >= _TINIEST)
    if found.numel() <= count:
        return found
    sizes = scores.index_select(0, found)
    cut = float(torch.kthvalue(sizes, sizes.numel() - count + 1).values) if count else math.inf
    taken = sizes >= cut
    surplus = int(torch.count_nonzero(taken)) - count
    if surplus and cut < math.inf:  # several are as large: the last ones are left
        taken[(sizes == cut).nonzero().squeeze(1)[-surplus:]] = False
    return found[taken]


def _floor(values: torch.Tensor, count: int) -> float:
    """Return a magnitude that at least ``count`` values reach, almost certainly, and not many more; 0:
    unknown.
    """
    step = values.numel() // SAMPLE
    if step < 2:
        return 0.0
    while math.gcd(step, 210) != 1:  # the sample must not follow the rhythm of kernels and channels
        step += 1
    looked_at = -(-values.numel() // step)
    expected = count / values.numel() * looked_at
    rank = math.ceil(expected + _MARGIN * math.sqrt(expected) + 2.0)
    if rank >= looked_at:
        return 0.0
    floor = ranked(values, rank, step)
    return floor if math.isfinite(floor) else 0.0


def ranked(values: torch.Tensor, rank: int, step: int = 1) -> float:
    """Return the magnitude that is number ``rank``, from 1, the largest first, of every ``step``-th value.

    values: flat, float32. NaN counts as infinity.
    """
    looked_at = -(-values.numel() // step)
    if not 1 <= rank <= looked_at:
        raise ValueError(f"rank is {rank}: it must be 1 to {looked_at}, the number of values")
    if not is_native(values):
        sizes = values[::step].abs().nan_to_num_(nan=math.inf, posinf=math.inf)
        return float(torch.kthvalue(sizes, looked_at - rank + 1).values)
    scratch = torch.empty(looked_at)
    return float(
        bindings.library().weir_ranked(values.data_ptr(), values.numel(), step, rank, scratch.data_ptr())
    )


def positions(mask: torch.Tensor) -> torch.Tensor:
    """Return where a flat bool tensor is true, int64, ascending; made for few: passes by eight others at a
    time.
    """
    if mask.storage_offset() % 8:
        return mask.nonzero().squeeze(1)
    whole = mask.numel() // 8
    rows = mask[: whole * 8].view(torch.int64).nonzero()
    each = (rows * 8 + torch.arange(8, device=mask.device)).view(-1)
    return torch.cat([each[mask[each]], mask[whole * 8 :].nonzero().squeeze(1) + whole * 8])


def rounded(expected: float, step: int, place: float = 0.0) -> int:
    """Return ``expected``, how much to keep, as a whole number: rounded up in some steps, down in others.

    Rounding up always would send several times too much of a model with many small parameters, rounding down
    would never send anything of these. Here the mean over steps is ``expected``. place: the sum of what is
    expected of all parameters before this one; where it is given, the sum over all parameters is kept in
    every single step, too (systematic sampling with a golden-ratio start).
    """
    start = place + step * _GOLDEN
    start -= math.floor(start)
    return min(math.floor(start + expected), math.ceil(expected))
