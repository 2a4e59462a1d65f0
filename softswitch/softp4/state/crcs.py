# SPDX-License-Identifier: Apache-2.0
"""Custom CRCs: calculations whose parameters change while the program runs."""

from softp4.errors import Code, ControlError
from softp4.program.calculations import CrcParameters
from softp4.program.types import Program
from softp4.runtime.bindings import NativeSwitch, exclusive


class CustomCrcs:
    """The custom CRCs of a program (``crc16_custom`` and its like), by the calculation's name.

    Thread-safe.
    """

    def __init__(self, native: NativeSwitch, program: Program) -> None:
        self._native = native
        self._program = program
        self._parameters = {
            name: each.crc for name, each in program.calculations.items() if each.crc is not None
        }

    @exclusive
    def set(self, calculation: str, parameters: CrcParameters) -> None:
        """Change what a calculation computes from the next packet on, as BMv2's Thrift interface does.

        Args:
            calculation: its name in the BMv2 JSON, such as ``calc_0``.
            parameters: of the CRC that takes its place.
        """
        found = self._program.calculations.get(calculation)
        if found is None:
            raise ControlError(Code.NOT_FOUND, f"the program has no calculation {calculation}")
        if found.crc is None:
            raise ControlError(Code.INVALID_ARGUMENT, f"{calculation} is no custom CRC")
        values = (parameters.polynomial, parameters.initial, parameters.final_xor)
        for value in values:
            if not 0 <= value < 1 << found.crc_bits:
                message = f"{calculation}: {value:#x} does not fit {found.crc_bits} bits"
                raise ControlError(Code.OUT_OF_RANGE, message)
        number = self._program.stateful_calculations.index(found)
        reflections = (int(parameters.reflect_data), int(parameters.reflect_remainder))
        self._native.set_crc(number, (*values, *reflections))
        self._parameters[calculation] = parameters

    @exclusive
    def all(self) -> dict[str, CrcParameters]:
        """Return what every custom CRC computes."""
        return dict(self._parameters)
