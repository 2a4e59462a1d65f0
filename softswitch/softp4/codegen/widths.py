# SPDX-License-Identifier: Apache-2.0
"""Widths of values in C: `storage_bits`, `c_type`."""


def storage_bits(bits: int) -> int:
    """Return the narrowest C width that holds `bits` bits; beyond 128, whole bytes in an array."""
    return next((width for width in (8, 16, 32, 64, 128) if bits <= width), (bits + 7) // 8 * 8)


def c_type(storage: int) -> str:
    """Return the unsigned C type of a storage width."""
    return "sw_u128" if storage == 128 else f"uint{storage}_t"
