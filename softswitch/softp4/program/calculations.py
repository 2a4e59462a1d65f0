# SPDX-License-Identifier: Apache-2.0
"""Calculations: hashes and checksums over parts of a packet."""

from dataclasses import dataclass
from enum import Enum

from softp4.program.ir import FieldRef


class Algorithm(Enum):
    """Hash and checksum algorithms, by BMv2's names."""

    CRC16 = "crc16"
    CRC32 = "crc32"
    CRC_CCITT = "crc_ccitt"
    CRC_CUSTOM = "crc_custom"
    CSUM16 = "csum16"
    XOR16 = "xor16"
    XOR32 = "xor32"
    IDENTITY = "identity"
    ROUND_ROBIN = "round_robin"

    @property
    def stateful(self) -> bool:
        """Return whether a calculation has parameters or a counter that live in the switch."""
        return self in (Algorithm.CRC_CUSTOM, Algorithm.ROUND_ROBIN)


@dataclass(frozen=True)
class CrcParameters:
    """A custom CRC, as BMv2 has it: `polynomial` as it is written, highest power first.

    `initial` and `final_xor` are the remainder before the first and the mask after the last byte;
    `reflect_data` takes every byte lowest bit first, `reflect_remainder` turns the result round.
    """

    polynomial: int
    initial: int = 0
    final_xor: int = 0
    reflect_data: bool = False
    reflect_remainder: bool = False


@dataclass(frozen=True)
class InputField:
    """A field's bits; skipped when its header is not valid."""

    field: FieldRef


@dataclass(frozen=True)
class InputConst:
    """A constant of `bits` bits."""

    value: int
    bits: int


@dataclass(frozen=True)
class InputHeader:
    """A whole header; skipped when not valid."""

    header: str


CalculationInput = InputField | InputConst | InputHeader


@dataclass(frozen=True)
class Calculation:
    """A named calculation over a concatenation of bits, then (`payload`) what was not parsed.

    A custom CRC has `crc_bits` bits and starts out with the parameters `crc`.
    """

    name: str
    algorithm: Algorithm
    inputs: tuple[CalculationInput, ...]
    payload: bool
    crc_bits: int = 0
    crc: CrcParameters | None = None
