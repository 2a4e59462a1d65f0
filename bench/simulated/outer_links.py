# SPDX-License-Identifier: Apache-2.0
"""Slow links of an outer step's peers, and what a step took on them."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from weir.simulator.clock import SECOND
from weir.simulator.network import Network


@dataclass(frozen=True)
class Links:
    """A peer's link to the switch. round_trip: seconds, between a peer and the switch and back."""

    up_bps: int
    down_bps: int
    round_trip: float


@dataclass(frozen=True)
class Outcome:
    """Virtual seconds of an outer step, and the bytes of its first peer with all headers."""

    seconds: float
    up: int
    down: int


@contextlib.contextmanager
def counted(network: Network, host: str) -> Iterator[Callable[[], Outcome]]:
    """Count a host's bytes, and the time; the function that is yielded returns them, also afterwards."""
    switch = network.stations[host].host.switch
    totals, began, ended = [0, 0], network.clock.now, [0]

    def count(direction: int, _time: int, frame: bytes) -> None:
        totals[direction] += len(frame)

    ways = (network.link(host, switch), network.link(switch, host))
    for direction, way in enumerate(ways):
        way.tap = partial(count, direction)
    yield lambda: Outcome((ended[0] - began) / SECOND, *totals)
    ended[0] = network.clock.now
    for way in ways:
        way.tap = None
