# SPDX-License-Identifier: Apache-2.0
"""Meters: two-rate three-colour markers (RFC 2698), colour-blind, as BMv2 has them.

A meter that is not configured finds every packet green. The clock is that of the packets: what `now` says.
"""

from collections.abc import Callable, Sequence
from typing import Final

from weir.softswitch.bindings import Library
from weir.softswitch.errors import Code, ControlError
from weir.softswitch.program.types import Meter, Program
from weir.softswitch.state.entry import Count, Marked, MeterConfig

_MOST: Final = (1 << 63) - 1  # of a rate or burst, as in P4Runtime


def meter_words(config: MeterConfig | None, where: str) -> list[int]:
    """C ``sw_meter_config``. Raises ControlError INVALID_ARGUMENT for rates that make no meter."""
    if config is None:
        return [0] * 5
    for name, value in vars(config).items():
        if not 0 <= value <= _MOST:
            raise ControlError(Code.INVALID_ARGUMENT, f"{where}: {name} is {value}")
    if config.cir > config.pir:
        raise ControlError(
            Code.INVALID_ARGUMENT, f"{where}: the committed rate {config.cir} is above the peak {config.pir}"
        )
    return [1, config.cir, config.cburst, config.pir, config.pburst]


def marked_of(words: Sequence[int]) -> Marked:
    """From C ``sw_cell[SW_COLOURS]``."""
    green, yellow, red = (Count(*words[at : at + 2]) for at in (0, 2, 4))
    return Marked(green, yellow, red)


class MeterArrays:
    """The indirect meters of a switch. A call that cannot be done raises ControlError and changes nothing.

    Args:
        library: the compiled program.
        switch: gives the switch's address; raises when it is closed.
        program: what is running.
    """

    def __init__(self, library: Library, switch: Callable[[], int], program: Program) -> None:
        self._library = library
        self._switch = switch
        self._arrays: dict[str, tuple[int, Meter]] = {
            name: (number, meter)
            for number, (name, meter) in enumerate(program.meters.items())
            if meter.table is None
        }

    def configure(self, name: str, config: MeterConfig | None, index: int | None = None) -> None:
        """Configure the meter at `index`, or all of the array; None finds every packet green.

        Buckets begin full.
        """
        number, first, count = self._cells(name, index)
        self._library.set_meters(self._switch(), number, first, count, meter_words(config, name))

    def config(self, name: str, index: int) -> MeterConfig | None:
        """Return how a meter is configured, if it is."""
        number, at, _ = self._cells(name, index)
        configured, *values = self._library.meter(self._switch(), number, at)[0]
        return MeterConfig(*values) if configured else None

    def marked(self, name: str, index: int) -> Marked:
        """Return what a meter has found green, yellow and red."""
        number, at, _ = self._cells(name, index)
        return marked_of(self._library.meter(self._switch(), number, at)[1])

    def clear_marked(self, name: str, index: int | None = None) -> None:
        """Set these counters of one meter, or of all of the array, to zero."""
        self._library.clear_marked(self._switch(), *self._cells(name, index))

    def _cells(self, name: str, index: int | None) -> tuple[int, int, int]:
        if name not in self._arrays:
            raise ControlError(Code.NOT_FOUND, f"the program has no indirect meter {name}")
        number, meter = self._arrays[name]
        if index is None:
            return number, 0, meter.size
        if not 0 <= index < meter.size:
            raise ControlError(Code.OUT_OF_RANGE, f"meter {name} has cells 0..{meter.size - 1}, not {index}")
        return number, index, 1
