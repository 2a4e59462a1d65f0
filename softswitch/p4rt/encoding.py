# SPDX-License-Identifier: Apache-2.0
"""How protobuf encodes a message within another: https://protobuf.dev/programming-guides/encoding"""


def varint(value: int) -> bytes:
    """Return a non-negative integer: seven bits a byte, lowest first; all but the last have the eighth."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def message_field(number: int, message: bytes) -> bytes:
    """Return an encoded message as field ``number`` of another: tag, length, message."""
    return b"".join((varint(number << 3 | 2), varint(len(message)), message))
