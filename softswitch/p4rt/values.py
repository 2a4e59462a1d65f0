# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's byte strings (specification 8.4): big-endian, as short as the value allows."""

from softswitch.errors import Code, ControlError


def encode(value: int) -> bytes:
    """The canonical byte string of a non-negative integer: no leading zero bytes, one byte for 0."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decode(data: bytes, bits: int, what: str) -> int:
    """The value of a byte string for a ``bit<bits>``; leading zeros are accepted.

    Raises ControlError OUT_OF_RANGE, naming ``what``, for an empty string or a value too large.
    """
    if not data:
        raise ControlError(Code.OUT_OF_RANGE, f"{what}: an empty byte string is not a value")
    value = int.from_bytes(data, "big")
    if value.bit_length() > bits:
        raise ControlError(Code.OUT_OF_RANGE, f"{what}: {value:#x} does not fit into bit<{bits}>")
    return value
