# SPDX-License-Identifier: Apache-2.0
"""64-bit numbers as three 32-bit lanes ("limbs") each, so that a switch with 32-bit lanes can add them.

The limbs hold sums over n <= 2^h workers, with h = 5 for up to 32 workers.

*Integers.* With b = 32 - h, v = l0 + 2^b l1 + 2^(2b) l2 modulo 2^64 with digits l0, l1 in [-2^(b-1), 2^(b-1))
and l2 the rest. The digits of 2^h workers sum into a signed 32-bit lane; l2 may wrap, by multiples of
2^32 * 2^(2b) = 0 modulo 2^64, since b >= 16. So sums are exact modulo 2^64, as int64 addition is. Digits are
balanced so that small numbers of either sign have zero upper limbs, whose blocks are then never sent.

*Floats.* With |x| < 2^E in a block (a shared exponent, agreed on by MAX as in host_agent.quantize; the biased
one here is that of float64, E = e - 1022) and b = 31 - h, x / 2^(E - P) is rounded to l0 + 2^b l1 + 2^(2b)
l2, where P = 92 - 3h and |l0|, |l1|, |l2| <= 2^(b-1): the digits of 2^h workers sum to at most 2^30. Each
worker's error is at most 2^(E - P - 1), that of the sum over n workers at most 2^(E - P - 1 + h), plus half a
unit in the last place of the result. Up to 32 workers P = 77, up to 512 P = 65: the error is below one unit
in the last place of the block's largest value, which is 2^(E - 53). For 1,024 workers (P = 62) it may be one
and a half.

Lanes come limb by limb, least significant first: uint32[3, count].
"""

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives import bindings
from weir.host_agent.collectives.quantize import (
    Exponents,
    block_count,
    check_exponents,
    exponents_address,
    sized,
)
from weir.host_agent.transport.arrays import address_of, contiguous

Limbs = npt.NDArray[np.uint32]

LIMBS = 3
NOT_FINITE64 = 2047


def headroom(workers: int) -> int:
    """Return h of the module's derivation: the limbs hold the sums of 2^h workers, 32 at least."""
    return max(5, (workers - 1).bit_length())


def split_int64(x: npt.NDArray[np.int64] | npt.NDArray[np.uint64], workers: int) -> Limbs:
    """Return the limbs of 64-bit integers, to be added over ``workers``: uint32[3, x.size]."""
    address = contiguous(x, "x", np.int64, np.uint64)
    lanes = np.empty((LIMBS, x.size), np.uint32)
    bindings.library().weir_split_int64(address, x.size, headroom(workers), address_of(lanes))
    return lanes


def join_int64(lanes: Limbs, workers: int) -> npt.NDArray[np.int64]:
    """Return the integers, modulo 2^64, that (sums of) limbs stand for. lanes: uint32[3, count] or flat."""
    count = _count(lanes)
    x = np.empty(count, np.int64)
    address = sized(lanes, "lanes", LIMBS * count, np.uint32)
    bindings.library().weir_join_int64(address, count, headroom(workers), address_of(x))
    return x


def exponents64(x: npt.NDArray[np.float64], scale_block: int) -> Exponents:
    """Return the biased exponent of the largest magnitude in each block: uint32[block_count].

    0 for an all-zero block, NOT_FINITE64 for one with NaN or infinity.
    """
    address = contiguous(x, "x", np.float64)
    found = np.empty(block_count(x.size, scale_block), np.uint32)
    bindings.library().weir_exponents64(address, x.size, scale_block, address_of(found))
    return found


def split_float64(x: npt.NDArray[np.float64], exps: Exponents, scale_block: int, workers: int) -> Limbs:
    """Return the limbs of floats, with the exponents that all ``workers`` agreed on: uint32[3, x.size].

    Raises ValueError when some block holds a value too large for its exponent.
    """
    lanes = np.empty((LIMBS, x.size), np.uint32)
    too_large = bindings.library().weir_split_float64(
        contiguous(x, "x", np.float64),
        x.size,
        scale_block,
        exponents_address(exps, x.size, scale_block),
        headroom(workers),
        address_of(lanes),
    )
    check_exponents(too_large, exps)
    return lanes


def join_float64(lanes: Limbs, exps: Exponents, scale_block: int, workers: int) -> npt.NDArray[np.float64]:
    """Return the floats that (sums of) limbs stand for; NaN throughout blocks of exponent NOT_FINITE64."""
    count = _count(lanes)
    x = np.empty(count, np.float64)
    bindings.library().weir_join_float64(
        sized(lanes, "lanes", LIMBS * count, np.uint32),
        count,
        scale_block,
        exponents_address(exps, count, scale_block),
        headroom(workers),
        address_of(x),
    )
    return x


def _count(lanes: Limbs) -> int:
    if lanes.size % LIMBS:
        raise ValueError(f"{lanes.size} lanes are no multiple of {LIMBS} limbs")
    return lanes.size // LIMBS
