# SPDX-License-Identifier: Apache-2.0
"""Meters: two-rate three-colour markers (RFC 2698), colour-blind, as BMv2 has them.

A meter that is not configured finds every packet green. The clock is that of the packets: what `now` says.
"""

from collections.abc import Sequence
from typing import Final

from softp4.errors import Code, ControlError
from softp4.program.types import Meter
from softp4.runtime.bindings import NativeSwitch, exclusive
from softp4.state.cells import check_index
from softp4.state.entry import Count, Marked, MeterConfig

_MOST: Final = (1 << 63) - 1  # of a rate or burst, as in P4Runtime


def meter_words(config: MeterConfig | None, where: str) -> list[int]:
    """Return a C ``sw_meter_config``. Raises ControlError INVALID_ARGUMENT for rates that make no meter."""
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
    """Return what a C ``sw_cell[SW_COLOURS]`` says."""
    green, yellow, red = (Count(*words[at : at + 2]) for at in (0, 2, 4))
    return Marked(green, yellow, red)


class MeterArray:
    """The meters of one array, that is, those of no table.

    Thread-safe. A call that cannot be done raises ControlError and changes nothing.
    """

    def __init__(self, native: NativeSwitch, number: int, meter: Meter) -> None:
        self._native = native
        self._number = number
        self._meter = meter

    @exclusive
    def configure(self, config: MeterConfig | None, index: int | None = None) -> None:
        """Configure the meter at `index`, or all of the array; None finds every packet green.

        Buckets begin full.
        """
        cells = self._cells(index)
        self._native.set_meters(self._number, *cells, meter_words(config, self._meter.name))

    @exclusive
    def config(self, index: int) -> MeterConfig | None:
        """Return how a meter is configured, if it is."""
        configured, *values = self._read(index)[0]
        return MeterConfig(*values) if configured else None

    @exclusive
    def marked(self, index: int) -> Marked:
        """Return what a meter has found green, yellow and red."""
        return marked_of(self._read(index)[1])

    @exclusive
    def clear_marked(self, index: int | None = None) -> None:
        """Set these counters of one meter, or of all of the array, to zero."""
        self._native.clear_marked(self._number, *self._cells(index))

    def _read(self, index: int) -> tuple[list[int], list[int]]:
        self._cells(index)
        return self._native.meter(self._number, index)

    def _cells(self, index: int | None) -> tuple[int, int]:
        """Return the first of the cells that are meant, and how many they are."""
        if index is None:
            return 0, self._meter.size
        check_index("meter", self._meter, index)
        return index, 1
