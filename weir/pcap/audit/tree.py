# SPDX-License-Identifier: Apache-2.0
"""The tree of aggregation points that a job's packets are summed along, as far as captures show it."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from weir.pcap.audit.point import Point
from weir.pcap.packets import SlotPacket, combined
from weir.wire.definition import PATH_BITS


class Place(NamedTuple):
    """A point's place in the tree.

    path: the bits of its children's paths that are known, but for their own numbers; above: how many tiers
    these are. tier: of its children, 0 for workers. whole: whether there is nothing above what is known.
    """

    path: int
    above: int
    tier: int
    whole: bool


class Tree:
    """Learns from contributions who is whose child.

    A capture of some links alone does not show all tiers. A switch is known by its mask of children, which
    workers' packets do not have; the root, by results that count as many workers as its children do, or are
    their sums.
    """

    def __init__(self) -> None:
        self._points: set[str] = set()
        self._parents: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)  # and its number there
        self._switches: dict[tuple[str, int], set[str]] = defaultdict(set)  # children that are switches
        self._roots: dict[tuple[str, int], int] = defaultdict(int)  # rounds for it, less those against
        self._places: dict[tuple[str, int], Place | None] = {}

    def is_point(self, address: str) -> bool:
        """Return whether contributions are sent to this address."""
        return address in self._points

    def climbs(self, source: str, destination: str, job: int) -> bool:
        """Return whether a point's sums go to another one in a job: a result on that way is relayed."""
        return destination in self._parents.get((source, job), ())

    def contribution(self, source: str, destination: str, packet: SlotPacket) -> None:
        """Take in a contribution."""
        job = packet.job
        if destination not in self._points:
            self._points.add(destination)
            self._places.clear()
        if packet.included and source not in self._switches[destination, job]:
            self._switches[destination, job].add(source)
            self._places.clear()
        if source in self._points and not self.climbs(source, destination, job):
            self._parents[source, job][destination] = packet.worker
            self._places.clear()

    def round(self, address: str, job: int, point: Point) -> None:
        """Take in a round that is over: whether its result looks like the root's."""
        first = next((sent for sent in point.results if sent.packet.included), None)
        if first is None or first.packet.disagree:
            return
        included = first.packet.included
        members = [child.full for number, child in point.children.items() if included >> number & 1]
        full = [one for one in members if one is not None]
        if len(full) < included.bit_count():
            return
        root = sum(one.packet.count for one in full) == first.packet.count
        if not root and first.full and all(one.lanes.size == first.lanes.size for one in full):
            total = combined(first.packet.op, (one.lanes for one in full), first.lanes.size)
            root = np.array_equal(total, first.lanes)
        before = self._roots[address, job]
        self._roots[address, job] = before + (1 if root else -1)
        if (before > 0) != (self._roots[address, job] > 0):
            self._places.clear()

    def place(self, address: str, job: int) -> Place | None:
        """Return where a point is; None when it is not known of which tier its children are."""
        key = (address, job)
        if key not in self._places:
            self._places[key] = self._find(address, job)
        return self._places[key]

    def _find(self, address: str, job: int) -> Place | None:
        tier, level = 0, {address}
        while True:
            if any(self._switches.get((point, job), set()) - self._points for point in level):
                return None
            level = {
                child
                for (child, of), parents in self._parents.items()
                if of == job and level & parents.keys()
            }
            if not level:
                break
            tier += 1
        path, above, at = 0, 0, address
        while parents := self._parents.get((at, job)):
            at, number = next(iter(parents.items()))  # the same number at each of them
            above += 1
            path |= number << PATH_BITS * (tier + above)
        return Place(path, above, tier, self._roots[at, job] > 0)
