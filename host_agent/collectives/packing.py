# SPDX-License-Identifier: Apache-2.0
"""Packed lanes: two to four narrow values of a float32 sum in each 32-bit lane, added by the switch unawares.

A lane has f fields of w bits: two of 16, three of 10 or four of 8. A worker's field holds an integer q of
either sign, |q| <= m with

    m = floor((2^(w-1) - 1) / n)    for n workers,

and its lane is q_0 + q_1 2^w + ... + q_(f-1) 2^(w(f-1)) modulo 2^32. That is linear in the q: where the
switch adds lanes modulo 2^32, each field's sum Q_k stands in the same place of the result.

*No field reaches into the next.* |Q_k| <= n m < 2^(w-1), whichever workers are included. So with the bias
2^(w-1) added to every field, which the reader does once, each is an integer from 1 to 2^w - 1, all of them
together are below 2^(wf) <= 2^32, and they are the digits of that number to the base 2^w: no carry, no wrap,
one way to read them. No input can do otherwise: |q| <= m is what rounding leaves of it (below). Workers add
no bias themselves, so that values of zero are a lane of zero, which is not sent, and a worker that is left
out adds nothing.

*Quantum.* The values of a block share the largest magnitude a of all workers, as the bits of a float32, whose
order is that of the numbers (the MAX operator agrees on it); 0 is a block of zeros, NOT_FINITE and more one
that holds NaN or infinity. The quantum u is the least number of 8 significant bits with u m >= a, and
q = round(x / u), to nearest, ties to even. |x| / u <= m, and the two float32 roundings on the way to it are
off by less than m 2^-22 < 1/2: so |q| <= m. Sums are exact: Q has at most 15 bits, so that Q u fits float32
as it is. (Where m u is beyond float32's largest number, one worker's value stands for that number.) The
largest magnitude is shared, not its exponent alone as in ``weir.host_agent.collectives.quantize``: of so few
bits one is much, and it costs no further lane.

*Error bound*, element by element, of a sum of n workers:

    |decoded - exact| <= n u / 2 <= n a (1 + 2^-7) / (2 m).

That of the average, relative to the block's largest magnitude, is ``PackedLanes.error``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives import bindings, quantize
from weir.host_agent.collectives.quantize import Fixed, Floats, Rows, block_count, check_exponents, sized
from weir.host_agent.transport.arrays import address_of, contiguous
from weir.wire.definition import GROUP_LANES

Scales = quantize.Exponents
Factors = tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]

LaneBits = Literal[32, 16, 8, "auto"]
LANE_BITS: Final[tuple[LaneBits, ...]] = (32, 16, 8, "auto")
NonFinite = Literal["deliver", "raise"]
NON_FINITE: Final[tuple[NonFinite, ...]] = ("deliver", "raise")

NOT_FINITE: Final = 0x7F800000
LEAST_STEPS: Final = 15
"""Chosen here: the least m of ``LaneBits`` 16 and 8; values are off by 3.4 % of the largest at most."""


LANE_ERROR: Final = 0.02
"""The default of what "auto" allows: 8 bits for 3 workers, and so on. See ``PackedLanes.error``."""

_FIELDS: Final[dict[Literal[16, 8], tuple[int, ...]]] = {16: (2,), 8: (4, 3)}


class LaneFormat(Protocol):
    """The form that the values of a float32 sum have in lanes, for a number of workers.

    Scales are one number per block of values, of which the workers take the maximum.

    Attributes:
        fields: values to a lane.
        not_finite: scales from this one on say that a block holds NaN or infinity.
        error: the most that the average over the workers is off, relative to the largest magnitude of its
            block on any of them.
    """

    @property
    def fields(self) -> int: ...
    @property
    def not_finite(self) -> int: ...
    @property
    def error(self) -> float: ...

    def lanes(self, values: int) -> int:
        """Return how many lanes a block of this many values takes."""

    def scales(self, x: Floats, scale_block: int) -> Scales:
        """Return the scale of each block of ``x``, 0 where all of it is zero."""

    def encode(
        self,
        x: Floats,
        rows: Rows | None,
        scales: Scales,
        scale_block: int,
        take: Callable[[int], Fixed],
    ) -> Fixed:
        """Return lanes of the blocks ``rows`` of ``x``, None: of all, in memory from ``take``.

        ValueError when some block holds a value too large for its scale, one of which there is per block.
        """

    def decode(self, lanes: Fixed, rows: Rows | None, scales: Scales, scale_block: int, out: Floats) -> None:
        """Overwrite the blocks ``rows`` of ``out``, None: all, by what (sums of) lanes stand for."""

    def factors(self, scales: Scales) -> "Factors":
        """Return how the values of blocks with these scales become integers, for devices that do so.

        Returns:
            float32[blocks, 2], by which a value is multiplied, one after the other, before it is rounded; and
            float64[blocks], what one of the integers stands for. Zero where a block is zero or not finite.
        """


@dataclass(frozen=True)
class WholeLanes:
    """One value to a lane, by block floating point: see ``weir.host_agent.collectives.quantize``."""

    workers: int
    fields: ClassVar[int] = 1
    not_finite: ClassVar[int] = quantize.NOT_FINITE

    @property
    def error(self) -> float:
        """Return half a quantum, of a block whose largest value is at the bottom of its binade."""
        return 2.0 ** (quantize.headroom(self.workers) - 31)

    def lanes(self, values: int) -> int:
        """Return one for each value."""
        return values

    def scales(self, x: Floats, scale_block: int) -> Scales:
        """Return exponents."""
        return quantize.exponents(x, scale_block)

    def encode(
        self, x: Floats, rows: Rows | None, scales: Scales, scale_block: int, take: Callable[[int], Fixed]
    ) -> Fixed:
        """Return fixed-point lanes."""
        if rows is None:
            return quantize.to_fixed(x, scales, scale_block, self.workers, out=take(x.size))
        out = take(rows.size * scale_block)
        return quantize.to_fixed_rows(x, rows, scales, scale_block, self.workers, out=out)

    def decode(self, lanes: Fixed, rows: Rows | None, scales: Scales, scale_block: int, out: Floats) -> None:
        """Overwrite by fixed-point lanes."""
        if rows is None:
            quantize.from_fixed(lanes, scales, scale_block, self.workers, out=out)
        else:
            quantize.from_fixed_rows(lanes, rows, scales, scale_block, self.workers, out=out)

    def factors(self, scales: Scales) -> Factors:
        """Return powers of two."""
        return _factors(bindings.library().weir_fixed_factors, scales, quantize.headroom(self.workers))


@dataclass(frozen=True)
class PackedLanes:
    """Several values to a lane, as derived above.

    Every 32 lanes hold 32 f values in a row, so that blocks of lanes are runs of values; a block of values
    begins on a multiple of 32 lanes.

    Args:
        fields: 2, 3 or 4.
        workers: how many may be added.

    Raises:
        ValueError: too many workers for fields of that width to hold any value.
    """

    fields: int
    workers: int
    not_finite: ClassVar[int] = NOT_FINITE

    def __post_init__(self) -> None:
        if not 2 <= self.fields <= 4:
            raise ValueError(f"a lane has 2, 3 or 4 fields, not {self.fields}")
        if not 1 <= self.workers <= (1 << self.width - 1) - 1:
            raise ValueError(
                f"fields of {self.width} bits hold sums of 1 to {(1 << self.width - 1) - 1} workers, "
                f"not {self.workers}"
            )

    @property
    def width(self) -> int:
        """Bits of a field."""
        return 32 // self.fields

    @property
    def steps(self) -> int:
        """Return m, the greatest magnitude of one worker's field."""
        return ((1 << self.width - 1) - 1) // self.workers

    @property
    def error(self) -> float:
        """Most that an average is off, relative to its block's largest magnitude."""
        return (1 + 2**-7) / (2 * self.steps)

    def lanes(self, values: int) -> int:
        """Return the lanes of whole groups that hold this many values."""
        return -(-values // (GROUP_LANES * self.fields)) * GROUP_LANES

    def scales(self, x: Floats, scale_block: int) -> Scales:
        """Return the bits of largest magnitudes."""
        address = contiguous(x, "x", np.float32)
        found = np.empty(block_count(x.size, scale_block), np.uint32)
        bindings.library().weir_largest(address, x.size, scale_block, address_of(found))
        return found

    def encode(
        self, x: Floats, rows: Rows | None, scales: Scales, scale_block: int, take: Callable[[int], Fixed]
    ) -> Fixed:
        """Return packed lanes, of every block the same number."""
        blocks = block_count(x.size, scale_block) if rows is None else rows.size
        out = take(blocks * self.lanes(scale_block))
        too_large = bindings.library().weir_pack(
            contiguous(x, "x", np.float32),
            x.size,
            scale_block,
            *self._blocks(x.size, rows, scales, scale_block),
            self.fields,
            self.steps,
            sized(out, "out", blocks * self.lanes(scale_block), np.int32),
        )
        check_exponents(too_large, scales)
        return out

    def decode(self, lanes: Fixed, rows: Rows | None, scales: Scales, scale_block: int, out: Floats) -> None:
        """Overwrite by packed lanes."""
        blocks = block_count(out.size, scale_block) if rows is None else rows.size
        bindings.library().weir_unpack(
            sized(lanes, "lanes", blocks * self.lanes(scale_block), np.int32),
            out.size,
            scale_block,
            *self._blocks(out.size, rows, scales, scale_block),
            self.fields,
            self.steps,
            contiguous(out, "out", np.float32),
        )

    def factors(self, scales: Scales) -> Factors:
        """Return the inverse of each block's quantum in two factors, and the quantum."""
        return _factors(bindings.library().weir_pack_factors, scales, self.steps)

    def _blocks(
        self, count: int, rows: Rows | None, scales: Scales, scale_block: int
    ) -> tuple[int | None, int, int]:
        """Return what the C side takes for the blocks, checked: address of rows, their number, scales."""
        blocks = block_count(count, scale_block) if rows is None else rows.size
        address = None if rows is None else quantize.rows_address(rows, count, scale_block)
        return address, blocks, sized(scales, "scales", blocks, np.uint32)


def _factors(native: Callable[..., None], scales: Scales, most: int) -> Factors:
    factors, quanta = np.empty((scales.size, 2), np.float32), np.empty(scales.size, np.float64)
    address = contiguous(scales, "scales", np.uint32)
    native(address, scales.size, most, address_of(factors), address_of(quanta))
    return factors, quanta


def lane_format(bits: LaneBits, error: float, workers: int) -> LaneFormat:
    """Return the form for ``bits`` and this many workers.

    32: whole lanes. 16: two fields. 8: four fields of 8 bits for up to 8 workers, three of 10 for up to 34.
    "auto": the most fields whose error is no more than ``error``; otherwise whole lanes.

    Raises:
        ValueError: this many workers leave too few bits, or there are no such bits; says what there is.
    """
    if bits not in LANE_BITS:
        raise ValueError(f"lane bits {bits!r}: there are {', '.join(map(str, LANE_BITS))}")
    if bits == 32:
        return WholeLanes(workers)
    if bits == "auto":
        if not 0 < error < 1:
            raise ValueError(f"lane error {error!r}: it is a share of the largest value, above 0 and below 1")
        fitting = (packed for packed in _possible(workers) if packed.error <= error)
        return next(fitting, WholeLanes(workers))
    for packed in _possible(workers):
        if packed.fields in _FIELDS[bits] and packed.steps >= LEAST_STEPS:
            return packed
    raise ValueError(_too_many(bits, workers))


@dataclass(frozen=True)
class Precision:
    """Says how sums of float32, float16 and bfloat16 are made where their caller does not.

    Args:
        lane_bits, lane_error: the form in lanes, see ``lane_format``.
        exact: three limbs a value instead, as of float64: every sum is the exact one, rounded once, but for
            values below 2^-50 of the largest of their block.
        non_finite: of these sums and those of float64: "deliver" NaN and infinity to all workers, where some
            worker has them, or "raise" NonFiniteError on all of them.

    Raises:
        ValueError: ``non_finite`` is neither.
    """

    lane_bits: LaneBits = 32
    lane_error: float = LANE_ERROR
    exact: bool = False
    non_finite: NonFinite = "deliver"

    def __post_init__(self) -> None:
        if self.non_finite not in NON_FINITE:
            raise ValueError(f"non_finite {self.non_finite!r}: it must be {' or '.join(NON_FINITE)}")

    def __str__(self) -> str:
        """Return the options as text: "lane_bits=8"."""
        words = ["exact" if self.exact else f"lane_bits={self.lane_bits}"]
        if self.lane_bits == "auto" and not self.exact:
            words.append(f"lane_error={self.lane_error:g}")
        if self.non_finite != "deliver":
            words.append(f"non_finite={self.non_finite}")
        return ", ".join(words)

    @property
    def delivers(self) -> bool:
        """Return whether NaN and infinity are delivered."""
        return self.non_finite == "deliver"

    def form(self, workers: int) -> LaneFormat:
        """Return the form for this many workers. Raises ValueError where there is none."""
        return lane_format(self.lane_bits, self.lane_error, workers)


def _possible(workers: int) -> Iterator[PackedLanes]:
    """Yield the packed forms that can hold sums of this many workers, the narrowest first."""
    for fields in (4, 3, 2):
        if PackedLanes(fields, 1).steps >= workers:
            yield PackedLanes(fields, workers)


def _too_many(bits: Literal[16, 8], workers: int) -> str:
    most = {bits: PackedLanes(min(fields), 1).steps // LEAST_STEPS for bits, fields in _FIELDS.items()}
    narrower = f"16 (up to {most[16]} workers), " if bits == 8 and workers <= most[16] else ""
    return (
        f"lane bits {bits} are for up to {most[bits]} workers: sums of {workers} take "
        f"{(workers - 1).bit_length()} bits of every field, which leaves too few for the values. "
        f"Choose {narrower}32 or auto"
    )
