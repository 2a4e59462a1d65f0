# SPDX-License-Identifier: Apache-2.0
"""Limits of programs: a switch must not fail later, or take all memory, because of its program."""

from collections.abc import Iterable
from typing import Final

from softp4.program.errors import ProgramError, UnsupportedConstruct
from softp4.program.types import Program

_HEADER_BITS: Final = 8 * 4216  # as long as a frame can be
_PACKET_BITS: Final = 8 << 18  # of all headers together
_STATE_BYTES: Final = 1 << 32
_NUMBERS: Final = (1 << 32) - 1


def check_limits(program: Program) -> None:
    """Raise UnsupportedConstruct, or ProgramError for numbers that BMv2 could not hold either."""
    total = 0
    for header in program.headers.values():
        if header.type.fixed_bits > _HEADER_BITS:
            raise UnsupportedConstruct(
                f"a header of more than {_HEADER_BITS // 8} bytes", f"header {header.name}"
            )
        total += header.type.bits
    if total > _PACKET_BITS:
        raise UnsupportedConstruct(f"headers and metadata of more than {_PACKET_BITS // 8} bytes", "headers")
    cells = [(each.size, (each.bits + 7) // 8) for each in program.registers.values()]
    cells += ((each.size, 16) for each in program.counters.values())
    if sum(count * size for count, size in cells) > _STATE_BYTES:
        raise UnsupportedConstruct(f"registers and counters of more than {_STATE_BYTES >> 30} GiB", "program")
    _check_numbers(program.actions, "action")
    _check_numbers(program.field_lists, "field list")
    _check_numbers(program.errors.values(), "error")


def _check_numbers(numbers: Iterable[int], what: str) -> None:
    for number in numbers:
        if not 0 <= number < _NUMBERS:
            raise ProgramError(f"program: {what} {number} is not in 0..{_NUMBERS - 1}")
