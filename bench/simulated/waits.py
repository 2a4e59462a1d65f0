# SPDX-License-Identifier: Apache-2.0
"""Waits of hosts for answers: one setting for Weir and its peers, so that no gain is a timer's."""

from dataclasses import dataclass
from typing import Final, TypedDict

from weir.simulator.clock import SECOND
from weir.simulator.stream import OVERHEAD
from weir.simulator.tcp import MSS, TcpConfig

HOST_TIMER: Final = 0.0002
"""Seconds: hosts keep no shorter time."""

_ROUND_TRIPS: Final = 3
_LINKS: Final = 4  # from a host over leaf, spine and leaf to another


class SumTimers(TypedDict):
    """Of `TransportConfig`."""

    initial_rto: float
    min_rto: float
    min_probe: float
    reordering: float


class FlowTimers(TypedDict):
    """Of `FlowConfig`."""

    initial_rto: float
    min_probe: float


@dataclass(frozen=True)
class Waits:
    """Times in seconds.

    least: by how much longer than a round trip to wait for an answer, at least, before one asks (probe) or
    repeats (time-out). first: before a round trip was measured.
    """

    least: float
    first: float = 0.02

    @classmethod
    def of(cls, rate: int | None, delay: float) -> "Waits":
        """Return waits of three round trips through empty queues, or the least that hosts can wait.

        Args:
            rate: bit/s of every link; None: packets take no time.
            delay: seconds of every link.
        """
        there = (8 * (MSS + OVERHEAD) / rate if rate else 0) + delay
        back = (8 * OVERHEAD / rate if rate else 0) + delay
        return cls(max(HOST_TIMER, _ROUND_TRIPS * _LINKS * (there + back)))

    def tcp(self) -> TcpConfig:
        """Return TCP with these."""
        least, first = round(self.least * SECOND), round(self.first * SECOND)
        return TcpConfig(min_rto=least, initial_rto=first, min_probe=least)

    def sums(self) -> SumTimers:
        """Return the timers of Weir's sums. Packets count as overtaken after half as long."""
        return SumTimers(
            initial_rto=self.first, min_rto=self.least, min_probe=self.least, reordering=self.least / 2
        )

    def flows(self) -> FlowTimers:
        """Return the timers of Weir's flows."""
        return FlowTimers(initial_rto=self.first, min_probe=self.least)
