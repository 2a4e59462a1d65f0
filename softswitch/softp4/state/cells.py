# SPDX-License-Identifier: Apache-2.0
"""Indirect counters and registers: arrays of cells that the control plane reads and writes by index."""

from typing import Protocol

from softp4.codegen.widths import storage_bits
from softp4.errors import Code, ControlError
from softp4.program.types import Counter, Register
from softp4.runtime.bindings import NativeSwitch, exclusive
from softp4.state.entry import Count


class _Array(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...


def check_index(kind: str, array: _Array, index: int) -> None:
    """Raise ControlError OUT_OF_RANGE unless an array has a cell with this index."""
    if not 0 <= index < array.size:
        raise ControlError(
            Code.OUT_OF_RANGE, f"{kind} {array.name} has cells 0..{array.size - 1}, not {index}"
        )


class CounterArray:
    """The cells of an indirect counter. Thread-safe."""

    def __init__(self, native: NativeSwitch, number: int, counter: Counter) -> None:
        self._native = native
        self._number = number
        self._counter = counter

    @exclusive
    def read(self, index: int) -> Count:
        """Return what one cell has counted."""
        check_index("counter", self._counter, index)
        return Count(*self._native.read_counter(self._number, index))

    @exclusive
    def write(self, index: int, count: Count) -> None:
        """Set one cell."""
        check_index("counter", self._counter, index)
        self._native.write_counter(self._number, index, count.packets, count.bytes)


class RegisterArray:
    """The cells of a register. Thread-safe."""

    def __init__(self, native: NativeSwitch, number: int, register: Register) -> None:
        self._native = native
        self._number = number
        self._register = register
        self._width = storage_bits(register.bits) // 8

    @exclusive
    def read(self, index: int) -> int:
        """Return the value of one cell."""
        check_index("register", self._register, index)
        return self._native.read_register(self._number, index, self._width)

    @exclusive
    def write(self, index: int, value: int) -> None:
        """Set one cell. OUT_OF_RANGE for a value that does not fit its width."""
        check_index("register", self._register, index)
        if not 0 <= value < 1 << self._register.bits:
            raise ControlError(
                Code.OUT_OF_RANGE,
                f"{value} does not fit the {self._register.bits} bits of {self._register.name}",
            )
        self._native.write_register(self._number, index, value, self._width)
