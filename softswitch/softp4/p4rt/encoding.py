# SPDX-License-Identifier: Apache-2.0
"""Protobuf's encoding of a message within another (https://protobuf.dev/programming-guides/encoding)."""


def varint(value: int) -> bytes:
    """Return a non-negative integer: seven bits a byte, lowest first; all but the last have the eighth."""
    if value <= 0x7F:
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def tag(number: int) -> bytes:
    """Return what stands before a message that is field ``number`` of another."""
    return varint(number << 3 | 2)


def head(field: bytes, length: int) -> bytes:
    """Return what stands before a message of this many bytes that is a field of another: tag and length."""
    return field + varint(length)
