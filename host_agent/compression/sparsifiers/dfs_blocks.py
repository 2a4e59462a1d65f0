# SPDX-License-Identifier: Apache-2.0
"""The blocks of one parameter, as DFS sees them: how much they hold, and which are worth their wire.

Vectors are cut into blocks of ``size`` elements, a power of two, from their start; the last one may be
shorter. Nothing here sorts a whole vector: a sample tells from which magnitude on something comes into
question, one pass finds it, and only that is compared.
"""

import ctypes
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
_WORD_LOG2: Final = 5  # bits in a word of the mask
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


def worthiest(values: torch.Tensor, count: int, favour: float = 1.0) -> torch.Tensor:
    """Return where the ``count`` values are (flat float32) that are worth most: int64, ascending.

    Those are that are largest in magnitude, but for this: what is taken only with others of its word of the
    mask, 32 values, may be so many times (favour, at least 1) smaller than what is alone in it. Precisely,
    the score of a value is ``min(favour * |value|, the greatest |value| in its word)``. NaN and infinities
    are there in any case, zeros never.
    """
    if count <= 0:
        return candidates(values, math.inf, 1.0, 0)[0]
    floor = _sampled_floor(values, count)
    found, scores, reaching = candidates(values, floor, favour, 2 * count)
    if reaching < count and floor > 0.0:  # the sample misled
        found, scores, _ = candidates(values, 0.0, favour, values.numel())
    if found.numel() <= count:
        return found
    cut = select_threshold(scores, count)
    taken = scores >= cut
    surplus = int(torch.count_nonzero(taken)) - count
    if surplus and cut < math.inf:  # several score the same: the last ones are left
        taken[(scores == cut).nonzero().squeeze(1)[-surplus:]] = False
    return found[taken]


def copy_blocks(vector: torch.Tensor, chosen: torch.Tensor, size: int, out: torch.Tensor) -> None:
    """Write the chosen blocks (ascending indices) of ``vector`` to ``out``, and zeros elsewhere."""
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


def candidates(
    values: torch.Tensor, floor: float, favour: float, expected: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return where values are that may have a score (see ``worthiest``) of at least ``floor``.

    Those are there of which there is no doubt, some others may be; zeros are not. Returns the places,
    ascending, their scores, and how many of these values have at least this magnitude. expected: how many
    there may be.
    """
    if values.device.type != "cpu" or not values.is_contiguous():
        return candidates_torch(values, floor, favour)
    room = max(expected, _ROOM)
    while True:
        found, scores = torch.empty(room, dtype=torch.int64), torch.empty(room)
        reaching = ctypes.c_uint64()
        there = engine.library().weir_candidates(
            values.data_ptr(),
            values.numel(),
            floor,
            favour,
            found.data_ptr(),
            scores.data_ptr(),
            room,
            ctypes.byref(reaching),
        )
        if there <= room:
            return found[:there], scores[:there], reaching.value
        room = there


def candidates_torch(
    values: torch.Tensor, floor: float, favour: float
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the same on any device."""
    found = positions((values.abs() < (floor / favour or _TINIEST)).logical_not_())
    sizes = values.index_select(0, found).abs_().nan_to_num_(nan=math.inf, posinf=math.inf)
    word = found >> _WORD_LOG2
    peaks = sizes.new_zeros((values.numel() >> _WORD_LOG2) + 1).scatter_reduce_(0, word, sizes, "amax")
    scores = torch.minimum(sizes * favour, peaks.index_select(0, word))
    return found, scores, int(torch.count_nonzero(sizes >= floor))
