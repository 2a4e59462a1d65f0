# SPDX-License-Identifier: Apache-2.0
"""A round at one aggregation point, as its packets make it."""

from dataclasses import dataclass, field
from functools import cached_property

from weir.pcap.frames import CapturedFrame
from weir.pcap.packets import Lanes, SlotPacket


@dataclass(frozen=True)
class Sent:
    """A packet as captured."""

    frame: CapturedFrame
    packet: SlotPacket

    @property
    def full(self) -> bool:
        """Return whether the packet has any lanes."""
        return bool(self.packet.groups)

    @cached_property
    def lanes(self) -> Lanes:
        """Lanes of all groups, zero where the packet has none."""
        return self.packet.lanes


@dataclass
class Child:
    """A child's packets to a point in a round.

    first: its first packet. full: its first with lanes. packets: how many. gave_up: whether one of them may
    be shed, or gives its lanes up. marked: whether one met congestion, or says so. asked: packets since
    others were sent the result.
    """

    first: Sent
    full: Sent | None = None
    packets: int = 0
    gave_up: bool = False
    marked: bool = False
    asked: int = 0


@dataclass
class Point:
    """A round at one aggregation point.

    up: what the point sent to its parent. down: what came back from there, or, at a new spine, from a rack
    that had the result. results: what the point answered its children; answered: who got one.
    """

    children: dict[int, Child] = field(default_factory=dict)
    up: list[Sent] = field(default_factory=list)
    down: list[Sent] = field(default_factory=list)
    results: list[Sent] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)
