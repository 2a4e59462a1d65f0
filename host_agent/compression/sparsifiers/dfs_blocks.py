# SPDX-License-Identifier: Apache-2.0
"""The blocks of one parameter, as DFS sees them: how much they hold, and which are worth their wire.

Vectors are cut into blocks of ``size`` elements, a power of two, from their start; the last one may be
shorter.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.compression import bindings
from weir.host_agent.compression.encodings.shared_mask import check_words
from weir.host_agent.compression.sparsifiers.density import SAMPLE, ranked, worthiest
from weir.host_agent.compression.vectors import has_kernels, is_native
from weir.host_agent.transport.arrays import address_of

_BINS: Final = 1 << 15  # exponents and 7 bits of significand of a float32 that is not negative
_NORMAL: Final = 2.0**-126
_LOOKED_AT: Final = 4096  # blocks, about, of a parameter
_NOT_CHOSEN: Final = (1 << 64) - 1  # as in choice.c
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
    if not is_native(vector):
        return energies_torch(vector, size)
    found = torch.empty(-(-vector.numel() // size))
    bindings.library().weir_energies(vector.data_ptr(), vector.numel(), size, found.data_ptr())
    return found


def energies_torch(vector: torch.Tensor, size: int) -> torch.Tensor:
    """Return the same on any device."""
    squares = vector.square()
    whole = squares.numel() // size
    found = squares[: whole * size].view(whole, size) @ squares.new_ones(size)
    if whole * size < squares.numel():
        found = torch.cat([found, squares[whole * size :].sum().view(1)])
    return found


def copy_blocks(vector: torch.Tensor, chosen: torch.Tensor, size: int, out: torch.Tensor) -> None:
    """Write the chosen blocks (ascending indices) of ``vector`` to ``out``, and zeros elsewhere."""
    if not is_native(vector, out):
        copy_blocks_torch(vector, chosen, size, out)
        return
    blocks = chosen.contiguous()
    bindings.library().weir_copy_blocks(
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


def mark_largest(
    vectors: Sequence[torch.Tensor], sizes: Sequence[int], counts: Sequence[int], masks: Sequence[Lanes]
) -> list[int | None]:
    """Set the bits of each vector's ``count`` blocks of largest ``norms``, and of those that are not finite.

    Returns how many elements of these are not zero; None: not done, ``worthiest`` of ``norms`` does.

    Args:
        vectors: flat float32, all of them native or on a device with kernels; of others nothing is done.
        sizes: of the blocks of each.
        counts: of the blocks that are wanted of each.
        masks: words, zero.

    Raises:
        ValueError: a mask is too short.
    """
    for vector, size, words in zip(vectors, sizes, masks, strict=True):
        check_words(words, vector.numel(), size)
    if not is_native(*vectors):
        return _mark_on_device(vectors, sizes, counts, masks)
    rows = [
        (vector.data_ptr(), vector.numel(), size, count, address_of(words), 0)
        for vector, size, count, words in zip(vectors, sizes, counts, masks, strict=True)
    ]
    choices = np.array(rows, np.uint64).reshape(-1, 6)
    room = max(2 * SAMPLE, 3 * max(counts, default=0))  # all of what is too short for a sample
    spare = torch.empty(
        max((-(-v.numel() // size) for v, size in zip(vectors, sizes, strict=True) if size > 1), default=1)
    )
    found, scratch = torch.empty(room, dtype=torch.int64), torch.empty(2 * room)
    bindings.library().weir_choose(
        address_of(choices), len(rows), spare.data_ptr(), found.data_ptr(), scratch.data_ptr(), room
    )
    return [None if elements == _NOT_CHOSEN else elements for elements in choices[:, -1].tolist()]


def _mark_on_device(
    vectors: Sequence[torch.Tensor], sizes: Sequence[int], counts: Sequence[int], masks: Sequence[Lanes]
) -> list[int | None]:
    if not all(has_kernels(vector) for vector in vectors):
        return [None] * len(vectors)
    from weir.host_agent.compression.kernels import choice

    return choice.mark_largest(vectors, sizes, counts, masks)


def copy_largest(
    vectors: Sequence[torch.Tensor], size: int, counts: Sequence[int], outs: Sequence[torch.Tensor]
) -> None:
    """Write each vector's ``count`` blocks of largest ``norms``, and those that are not finite, and zeros
    elsewhere.
    """
    left = list(range(len(vectors)))
    if any(vector.numel() for vector in vectors) and all(has_kernels(vector) for vector in vectors):
        from weir.host_agent.compression.kernels import choice

        left = choice.copy_largest(vectors, size, counts, outs)
    for i in left:
        copy_blocks(vectors[i], worthiest(norms(vectors[i], size), counts[i]), size, outs[i])


def marginals(travelled: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[float]:
    """Return ``marginal`` of vectors that are native, in blocks of these sizes."""
    rows = [(own.data_ptr(), own.numel() // size, size) for own, size in zip(travelled, sizes, strict=True)]
    parts, found = np.array(rows, np.uint64).reshape(-1, 3), np.empty(len(rows), np.float32)
    scratch = np.empty(2 * _LOOKED_AT, np.uint32)
    bindings.library().weir_marginals(
        address_of(parts), len(rows), _LOOKED_AT, address_of(scratch), address_of(found)
    )
    return found.tolist()


def marginal(travelled: torch.Tensor, size: int = 1) -> float:
    """Return the root mean square that about three in four of the blocks of ``travelled`` have; 0 of none.

    Everything is exact, or added in one order: the same on every machine.
    """
    if not travelled.numel():
        return 0.0
    if is_native(travelled):
        return marginals([travelled], [size])[0]
    every = max(1, travelled.numel() // size // _LOOKED_AT)
    if size > 1:
        energies = travelled.view(-1, size)[::every].double().square()  # exact: twice as many bits
        while energies.shape[1] > 1:
            energies = energies[:, ::2] + energies[:, 1::2]
        travelled, every = energies.squeeze(1).div_(size).sqrt_().float(), 1
    looked_at = -(-travelled.numel() // every)
    return ranked(travelled, looked_at - -(-looked_at // 4) + 1, every)


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
