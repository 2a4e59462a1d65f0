# SPDX-License-Identifier: Apache-2.0
"""Values of expressions bit by bit: each bit is a certain bit of the frame, a constant, or unknown.

A value is unsigned and has as many bits as it is long, the lowest first; all above are 0. None is a value of
which nothing is known, not even its length.
"""

from itertools import zip_longest
from typing import Final

from softp4.program.ir import FieldRef

FrameBit = tuple[
    FieldRef, int
]  # a field of the frame as it was parsed, and which of its bits, from the lowest
Bit = FrameBit | int | None  # of the frame; 0 or 1; unknown
Bits = tuple[Bit, ...]

_MOST: Final = 4096  # bits of a value; a longer one is unknown


def constant(value: int) -> Bits | None:
    """Return a constant's bits."""
    return None if value < 0 else tuple(value >> place & 1 for place in range(value.bit_length()))


def number(bits: Bits | None) -> int | None:
    """Return the number that a value is; None when one of its bits is not known."""
    if bits is None or not all(isinstance(bit, int) for bit in bits):
        return None
    return sum(bit << place for place, bit in enumerate(bits) if isinstance(bit, int))


def fitted(bits: Bits | None, width: int) -> Bits:
    """Return the lowest `width` bits."""
    return unknown(width) if bits is None else (bits + (0,) * (width - len(bits)))[:width]


def unknown(width: int) -> Bits:
    """Return a value of `width` bits, each of them unknown."""
    return (None,) * width


def either(a: Bits | None, b: Bits | None) -> Bits | None:
    """Return what is known of a value that is `a` or `b`."""
    if a is None or b is None or a == b:
        return a if a == b else None
    return tuple(x if x == y else None for x, y in zip_longest(a, b, fillvalue=0))


def both(a: Bits | None, b: Bits | None) -> Bits | None:
    """Return the bits of ``a & b``."""
    if a is None or b is None:
        known = b if a is None else a
        return None if known is None else tuple(0 if bit == 0 else None for bit in known)
    return tuple(
        0 if 0 in (x, y) else y if x == 1 else x if y in (1, x) else None for x, y in zip(a, b, strict=False)
    )


def any_of(a: Bits | None, b: Bits | None) -> Bits | None:
    """Return the bits of ``a | b``."""
    if a is None or b is None:
        return None
    pairs = zip_longest(a, b, fillvalue=0)
    return tuple(1 if 1 in (x, y) else y if x == 0 else x if y in (0, x) else None for x, y in pairs)


def added(a: Bits | None, b: Bits | None) -> Bits | None:
    """Return the bits of ``a + b``."""
    if a is None or b is None:
        return None
    found: list[Bit] = []
    carry: Bit = 0
    for x, y in zip_longest(a, b, fillvalue=0):
        total, carry = _sum((x, y, carry))
        found.append(total)
    return (*found, carry)


def _sum(bits: tuple[Bit, Bit, Bit]) -> tuple[Bit, Bit]:
    """Return sum and carry of three bits."""
    known = [bit for bit in bits if isinstance(bit, int)]
    ones = sum(known)
    if len(known) == 3:
        return ones & 1, ones >> 1
    if len(known) == 2 and ones != 1:
        return next(bit for bit in bits if not isinstance(bit, int)), ones >> 1
    return None, None


def shifted_left(bits: Bits | None, by: int) -> Bits | None:
    """Return the bits of ``bits << by``."""
    return None if bits is None or by > _MOST else (0,) * by + bits


def shifted_right(bits: Bits | None, by: int) -> Bits | None:
    """Return the bits of ``bits >> by``."""
    return None if bits is None else bits[by:]


def differ(a: Bits | None, b: Bits | None) -> bool:
    """Return whether two values are certainly different."""
    return (
        a is not None and b is not None and any({x, y} == {0, 1} for x, y in zip_longest(a, b, fillvalue=0))
    )
