# SPDX-License-Identifier: Apache-2.0
"""The blocks of one parameter, as DFS sees them: how much they hold, and which are worth their wire.

Vectors are cut into blocks of ``size`` elements, a power of two, from their start; the last one may be
shorter. Nothing here sorts a whole vector: a sample tells from which magnitude on something comes into
question, one pass finds it, and only that is compared.
"""

import math
from typing import Final

import torch

from weir.host_agent.compression.sparsifiers.density import positions, select_threshold
from weir.host_agent.transport import engine

_SAMPLE: Final = 1 << 14
_SAMPLED: Final = 64  # at most so many values to one of the sample
_MARGIN: Final = 4.0  # of the rank in the sample, in standard deviations
_ROOM: Final = 1 << 12
_TINIEST: Final = 2.0**-149
_BINS: Final = 1 << 15  # exponents and 7 bits of significand of a float32 that is not negative
_NORMAL: Final = 2.0**-126
_LEAST: Final = 2.0**-80  # of a parameter's largest energy: below, squares of what matters would vanish


def norms(vector: torch.Tensor, size: int) -> torch.Tensor:
    """Return the L2 norm of each block of a flat float32 vector, up to a common factor.

    NaN where an element is not finite. For blocks of one element: the vector itself, with its signs.
    """
    if size == 1:
        return vector
    found = energies(vector, size)
    peak = float(found.max())
    if peak < _LEAST or peak == math.inf:  # squares have half a float's range
        found = energies(vector / vector.abs().max().clamp_min_(_NORMAL), size)
    return found.sqrt_()


def energies(vector: torch.Tensor, size: int) -> torch.Tensor:
    """Return the sum of squares of each block of a flat float32 vector."""
    if vector.device.type != "cpu" or not vector.is_contiguous():
        return energies_torch(vector, size)
    found = torch.empty(-(-vector.numel() // size))
    engine.library().weir_energies(vector.data_ptr(), vector.numel(), size, found.data_ptr())
    return found


def energies_torch(vector: torch.Tensor, size: int) -> torch.Tensor:
    """Return the same on any device."""
    squares = vector.square()
    whole = squares.numel() // size
    found = squares[: whole * size].view(whole, size) @ squares.new_ones(size)
    if whole * size < squares.numel():
        found = torch.cat([found, squares[whole * size :].sum().view(1)])
    return found


def worthiest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return where the ``count`` values are (flat float32) of largest magnitude: int64, ascending.

    Of equal ones the first. NaN and infinities are there in any case, zeros never.
    """
    if values.device.type != "cpu" or not values.is_contiguous():
        return worthiest_torch(values, count)
    room, count = max(2 * count, _ROOM), max(count, 0)
    while True:
        found, sizes = torch.empty(room, dtype=torch.int64), torch.empty(room)
        keys = torch.empty(max(room, 2 * _SAMPLE + values.numel() // _SAMPLED), dtype=torch.int32)
        places = found.data_ptr(), sizes.data_ptr(), keys.data_ptr()
        there = engine.library().weir_worthiest(values.data_ptr(), values.numel(), count, room, *places)
        if there <= room:
            return found[:there]
        room = there


def worthiest_torch(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the same on any device."""
    if count <= 0:
        return candidates(values, math.inf, 0)[0]
    floor = _sampled_floor(values, count)
    found, sizes = candidates(values, floor, 2 * count)
    if found.numel() < count and floor > 0.0:  # the sample misled
        found, sizes = candidates(values, 0.0, values.numel())
    if found.numel() <= count:
        return found
    cut = select_threshold(sizes, count)
    taken = sizes >= cut
    surplus = int(torch.count_nonzero(taken)) - count
    if surplus and cut < math.inf:  # several are as large: the last ones are left
        taken[(sizes == cut).nonzero().squeeze(1)[-surplus:]] = False
    return found[taken]


def copy_blocks(vector: torch.Tensor, chosen: torch.Tensor, size: int, out: torch.Tensor) -> None:
    """Write the chosen blocks (ascending indices) of ``vector`` to ``out``, and zeros elsewhere."""
    if vector.device.type != "cpu" or not (vector.is_contiguous() and out.is_contiguous()):
        copy_blocks_torch(vector, chosen, size, out)
        return
    blocks = chosen.contiguous()
    engine.library().weir_copy_blocks(
        vector.data_ptr(), vector.numel(), size, blocks.data_ptr(), blocks.numel(), out.data_ptr()
    )


def copy_blocks_torch(vector: torch.Tensor, chosen: torch.Tensor, size: int, out: torch.Tensor) -> None:
    """Do the same on any device."""
    out.zero_()
    whole = vector.numel() // size
    if size == 1:
        out.index_copy_(0, chosen, vector.index_select(0, chosen))
        return
    rows, body = chosen[chosen < whole], slice(0, whole * size)
    blocks = vector[body].view(whole, size).index_select(0, rows)
    out[body].view(whole, size).index_copy_(0, rows, blocks)
    if rows.numel() < chosen.numel():
        out[whole * size :] = vector[whole * size :]


def enough(norms: torch.Tensor, share: float) -> int:
    """Return how many blocks, largest norms first, must be kept so that others have at most this share of
    energy.

    A histogram over the norms' leading bits finds the bin in which the limit lies; it alone is sorted.
    """
    scores = torch.nan_to_num(norms.abs(), nan=0.0, posinf=0.0)
    energies = scores.double().square_()
    limit = share * energies.sum()
    bins = scores.view(torch.int32) >> 16
    below = torch.bincount(bins, weights=energies, minlength=_BINS).cumsum(0)
    cut = int(torch.count_nonzero(below <= limit))
    if cut >= below.numel():
        return 0
    dropped = int(torch.count_nonzero(bins < cut))
    left = limit - (below[cut - 1] if cut else 0.0)
    dropped += int(torch.count_nonzero(energies[bins == cut].sort().values.cumsum(0) <= left))
    return norms.numel() - dropped


def _sampled_floor(values: torch.Tensor, count: int) -> float:
    """Return a magnitude that at least ``count`` values reach, almost certainly, and not many more; 0:
    unknown.
    """
    step = min(values.numel() // _SAMPLE, _SAMPLED)
    if step < 2:
        return 0.0
    while math.gcd(step, 210) != 1:  # the sample must not follow the rhythm of kernels and channels
        step += 1
    sample = values[::step].abs()
    expected = count / values.numel() * sample.numel()
    rank = math.ceil(expected + _MARGIN * math.sqrt(expected) + 2.0)
    if rank >= sample.numel():
        return 0.0
    floor = float(torch.topk(sample, rank, sorted=False).values.min())
    return floor if math.isfinite(floor) else 0.0


def candidates(values: torch.Tensor, floor: float, expected: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where values have at least the magnitude ``floor``, ascending, and their magnitudes.

    Zeros are not there, what is not finite is, as infinity. expected: how many there may be.
    """
    if values.device.type != "cpu" or not values.is_contiguous():
        return candidates_torch(values, floor)
    room = max(expected, _ROOM)
    while True:
        found, sizes = torch.empty(room, dtype=torch.int64), torch.empty(room)
        there = engine.library().weir_candidates(
            values.data_ptr(), values.numel(), floor, found.data_ptr(), sizes.data_ptr(), room
        )
        if there <= room:
            return found[:there], sizes[:there]
        room = there


def candidates_torch(values: torch.Tensor, floor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same on any device."""
    found = positions((values.abs() < (floor or _TINIEST)).logical_not_())
    return found, values.index_select(0, found).abs_().nan_to_num_(nan=math.inf, posinf=math.inf)
