# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's byte strings (specification 8.4): big-endian, as short as the value allows."""

from softp4.errors import Code, ControlError


def encode(value: int) -> bytes:
    """Return the canonical byte string of a non-negative integer: no leading zero bytes, one byte for 0."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decode(data: bytes, bits: int, *what: str) -> int:
    """Return the value of a byte string for a ``bit<bits>``; leading zeros are accepted.

    Raises ControlError INVALID_ARGUMENT, naming ``what`` (parts of a name), for an empty string or a value
    too large: the specification says OUT_OF_RANGE here and INVALID_ARGUMENT in 9.1, and BMv2 goes by that.
    """
    value = int.from_bytes(data, "big")
    if data and not value >> bits:
        return value
    problem = f"{value:#x} does not fit into bit<{bits}>" if data else "an empty byte string is not a value"
    raise ControlError(Code.INVALID_ARGUMENT, f"{''.join(what)}: {problem}")


def encode_signed(pattern: int, bits: int) -> bytes:
    """Return the canonical byte string of an ``int<bits>`` given as its bit pattern: as few sign bits as will
    do.
    """
    value = pattern - (1 << bits) if pattern >> (bits - 1) else pattern
    magnitude = value if value >= 0 else ~value
    return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def decode_signed(data: bytes, bits: int, what: str) -> int:
    """Return the bit pattern of an ``int<bits>``. Raises ControlError, as decode does."""
    value = int.from_bytes(data, "big", signed=True)
    if not data or not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ControlError(
            Code.INVALID_ARGUMENT, f"{what}: {data.hex() or 'nothing'} does not fit into int<{bits}>"
        )
    return value & ((1 << bits) - 1)
