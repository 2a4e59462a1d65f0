# SPDX-License-Identifier: Apache-2.0
"""Block floating point: float32 vectors as 32-bit integers that a switch can add.

A *scale block* of lanes shares one exponent e, the greatest of its values' *biased* exponents over all
workers (the MAX operator agrees on it), so |x| < 2^E with E = e - 126. Subnormal values count as exponent 1;
0 says that the block is all zero, 255 that it holds a NaN or an infinity, on some worker.

*Encoding* for n workers, h = ceil(log2 n), from 129 workers on ceil(log2 (n + 1)): q = round(x / u), to
nearest, ties to even, with the quantum u = 2^(E + h - 31). Division by a power of two is exact, so the
rounding is the only error: |u q - x| <= u / 2, and 0 when x is a multiple of u: a value in the block's top
binade has its last mantissa bit at 2^(E - 24), so values less than 7 - h binades below the largest are exact.

*No overflow*: a float32 below 2^E is at most 2^E (1 - 2^-24), thus |x / u| <= 2^(31 - h) (1 - 2^-24). Up to h
= 7 that bound is a whole number, so |q| is not above it, and the sum of n <= 2^h of them is at most 2^31 -
2^7 in magnitude. For greater h, q may be rounded up to 2^(31 - h), and there n <= 2^h - 1: the sum is at most
2^31 - 2^(31 - h).

*Decoding* rounds the integer sum times u to float32, once.

*Error bound* of a sum of n workers, element by element, before that last rounding:

    |decoded - exact| <= n u / 2 = n 2^(E + h - 32) <= n 2^(h - 31) max|x|

since max|x| >= 2^(E - 1): for 4 workers 2^-27 of the largest value of the block on any worker. (Subnormal
blocks are exact: their quantum is below the least subnormal.) Decoding adds half a unit in the last place of
the result. Quanta are powers of two even where n is not (u could be n 2^(E - 31), up to twice finer),
because then scaling itself is exact and every worker computes the same bits.

All replicas decode the same integers with the same exponents by the same IEEE 754 operations: bit-identical.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives import bindings
from weir.host_agent.transport.arrays import address_of, contiguous
from weir.wire.definition import MAX_WORKERS

Floats = npt.NDArray[np.float32]
Fixed = npt.NDArray[np.int32]
Exponents = npt.NDArray[np.uint32]
Rows = npt.NDArray[np.uint32]

NOT_FINITE = 255
LOOKED_AT: Final = 256
"""Chosen here: what all of a long vector would say, at a cost that does not count."""


def block_count(count: int, scale_block: int) -> int:
    """Return how many blocks ``count`` lanes make; the last may be partial."""
    return -(-count // scale_block)


def headroom(workers: int) -> int:
    """Return how many bits stay free so that the sum over ``workers`` workers fits: h of the module's
    derivation.
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise ValueError(f"headroom is for 1 to {MAX_WORKERS} workers, not {workers}")
    return (workers - 1 if workers <= 128 else workers).bit_length()


def exponents(x: Floats, scale_block: int) -> Exponents:
    """Return the biased exponent of the largest magnitude in each block of the flattened ``x``.

    Returns uint32[block_count]: 0 for an all-zero block, NOT_FINITE for one with NaN or infinity.
    """
    address = contiguous(x, "x", np.float32)
    found = np.empty(block_count(x.size, scale_block), np.uint32)
    bindings.library().weir_exponents(address, x.size, scale_block, address_of(found))
    return found


def to_fixed(x: Floats, exps: Exponents, scale_block: int, workers: int, out: Fixed | None = None) -> Fixed:
    """Encode ``x`` with the exponents that all workers agreed on.

    Returns int32 lanes of x's shape, in ``out`` if given (it must not overlap x). Blocks of exponent 0 or
    NOT_FINITE are all zero. Raises ValueError when some block holds a value too large for its exponent,
    which means that ``exps`` is not the maximum over all workers.
    """
    out = np.empty(x.shape, np.int32) if out is None else out
    too_large = bindings.library().weir_to_fixed(
        contiguous(x, "x", np.float32),
        x.size,
        scale_block,
        exponents_address(exps, x.size, scale_block),
        headroom(workers),
        sized(out, "out", x.size, np.int32),
    )
    check_exponents(too_large, exps)
    return out


def from_fixed(
    lanes: Fixed, exps: Exponents, scale_block: int, workers: int, out: Floats | None = None
) -> Floats:
    """Decode sums of ``workers`` workers' lanes; NaN throughout blocks of exponent NOT_FINITE.

    Returns float32 of the lanes' shape, in ``out`` if given (it must not overlap lanes).
    """
    out = np.empty(lanes.shape, np.float32) if out is None else out
    bindings.library().weir_from_fixed(
        contiguous(lanes, "lanes", np.int32),
        lanes.size,
        scale_block,
        exponents_address(exps, lanes.size, scale_block),
        headroom(workers),
        sized(out, "out", lanes.size, np.float32),
    )
    return out


def to_fixed_rows(
    x: Floats, rows: Rows, exps: Exponents, scale_block: int, workers: int, out: Fixed
) -> Fixed:
    """Do ``to_fixed`` for the blocks ``rows`` of ``x`` alone, packed into ``out``, and return that.

    rows: uint32, indexes of blocks. exps: of these blocks. out: int32, a whole block for each of them.
    """
    too_large = bindings.library().weir_to_fixed_rows(
        contiguous(x, "x", np.float32),
        x.size,
        scale_block,
        rows_address(rows, x.size, scale_block),
        rows.size,
        sized(exps, "exps", rows.size, np.uint32),
        headroom(workers),
        sized(out, "out", rows.size * scale_block, np.int32),
    )
    check_exponents(too_large, exps)
    return out


def from_fixed_rows(
    lanes: Fixed, rows: Rows, exps: Exponents, scale_block: int, workers: int, out: Floats
) -> Floats:
    """Overwrite the blocks ``rows`` of ``out`` by what ``to_fixed_rows`` encoded, and return ``out``."""
    bindings.library().weir_from_fixed_rows(
        sized(lanes, "lanes", rows.size * scale_block, np.int32),
        out.size,
        scale_block,
        rows_address(rows, out.size, scale_block),
        rows.size,
        sized(exps, "exps", rows.size, np.uint32),
        headroom(workers),
        contiguous(out, "out", np.float32),
    )
    return out


def rows_address(rows: Rows, count: int, scale_block: int) -> int:
    """Return the address of ``rows``, checked to be blocks of a vector of ``count``."""
    address = contiguous(rows, "rows", np.uint32)
    if rows.size and int(rows.max()) >= block_count(count, scale_block):
        raise ValueError(
            f"row {rows.max()} is beyond the {block_count(count, scale_block)} blocks of {count} lanes"
        )
    return address


def coarse_block(
    x: Floats, sums: Fixed, rows: Rows | None, exps: Exponents, scale_block: int, workers: int
) -> int | None:
    """Return the first block that a sum of lanes is too coarse for; None when there is none.

    That is: of its values that are not zero here, an eighth or more and their sums are below 64 n quanta,
    where the error can be 1/128 of them. Of many blocks some are looked at, LOOKED_AT to twice as many.

    Args:
        x: this worker's values.
        sums: lanes of the blocks ``rows`` of it, None: of all, after the sum.
        exps: of these blocks.
        scale_block: values in a block.
        workers: n, how many were summed.
    """
    blocks = block_count(x.size, scale_block) if rows is None else rows.size
    found = bindings.library().weir_coarse_block(
        contiguous(x, "x", np.float32),
        contiguous(sums, "sums", np.int32),
        x.size,
        scale_block,
        None if rows is None else rows_address(rows, x.size, scale_block),
        blocks,
        max(1, blocks // LOOKED_AT),
        sized(exps, "exps", blocks, np.uint32),
        workers,
        headroom(workers),
    )
    if found == blocks:
        return None
    return int(found if rows is None else rows[found])


class Sample:
    """Some blocks of a worker's values, for ``coarse_block`` once sums have taken their place.

    Args:
        x: the values, before.
        exps: of all blocks, of all workers.
        scale_block: values in a block.
        workers: how many are summed.
    """

    def __init__(self, x: Floats, exps: Exponents, scale_block: int, workers: int) -> None:
        self._block, self._workers = scale_block, workers
        whole = x.size // scale_block
        self._rows = np.arange(0, whole, max(1, whole // LOOKED_AT))
        self._rows = self._rows[exps[self._rows] + headroom(workers) < NOT_FINITE]
        self._exps = np.ascontiguousarray(exps[self._rows])
        self._values = self._of(x)

    def _of(self, x: Floats) -> Floats:
        whole = x.size // self._block
        return np.ascontiguousarray(x[: whole * self._block].reshape(whole, self._block)[self._rows].ravel())

    def coarse_block(self, sums: Floats) -> int | None:
        """Return the first of them that the sum in ``x``'s place is too coarse for; None if there is none."""
        wide = self._exps + np.uint32(headroom(self._workers))  # of the sums: the same quantum
        lanes = to_fixed(self._of(sums), wide, self._block, 1)
        found = coarse_block(self._values, lanes, None, self._exps, self._block, self._workers)
        return None if found is None else int(self._rows[found])


def error_bound(exps: Exponents, scale_block: int, workers: int, count: int) -> npt.NDArray[np.float64]:
    """Return the bound derived above, per element: n u / 2, before the final rounding to float32.
    float64[count].
    """
    quantum = np.ldexp(1.0, exps.astype(np.int32) - 126 + headroom(workers) - 31)
    return np.repeat(np.where(exps == 0, 0.0, workers * quantum / 2), scale_block)[:count]


def check_exponents(too_large: int, exps: Exponents) -> None:
    """Raise ValueError when the encoder found ``too_large`` blocks beyond their exponents."""
    if too_large:
        raise ValueError(
            f"{too_large} of {exps.size} blocks hold a value above their shared exponent: "
            "pass the maximum of the exponents over all workers, of the same vector and block size"
        )


def exponents_address(exps: Exponents, count: int, scale_block: int) -> int:
    """Return the address of ``exps``, checked to have one exponent per block of ``count`` lanes."""
    return sized(exps, "exps", block_count(count, scale_block), np.uint32)


def sized(array: npt.NDArray[np.generic], what: str, size: int, dtype: type[np.generic]) -> int:
    """Return the address of a contiguous array, checked to have ``size`` elements of ``dtype``."""
    address = contiguous(array, what, dtype)
    if array.size != size:
        raise ValueError(f"{what} has {array.size} elements, {size} are needed")
    return address
