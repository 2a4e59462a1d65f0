# SPDX-License-Identifier: Apache-2.0
"""Rules about rounds: what switches make of what they get, at every aggregation point on the way."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.transport.codec import Packet
from weir.pcap.audit.report import Report, Rule, Shares
from weir.pcap.frames import CapturedFrame, Datagram
from weir.wire.definition import (
    AUDIENCE_ALL,
    AUDIENCE_EXCEPT,
    GROUPS,
    NO_BLOCK,
    PATH_BITS,
    WHOLE_PATH,
    Flag,
    Op,
    PacketType,
    group_lanes,
)

Lanes = npt.NDArray[np.uint32]
_COMBINE: Final = {Op.ADD: np.add, Op.MAX: np.maximum, Op.OR: np.bitwise_or}
_KEPT: Final = 3  # rounds of a slot that are not checked yet: two versions, and one for what is late


@dataclass(frozen=True)
class Sent:
    """A packet as captured. lanes: of all groups, zero where the packet has none."""

    frame: CapturedFrame
    packet: Packet
    lanes: Lanes

    @property
    def full(self) -> bool:
        """Return whether the packet has any lanes."""
        return bool(self.packet.groups)


@dataclass
class Point:
    """A round at one aggregation point.

    first: of each child, its first packet. full: its first with lanes. up: what the point sent to its parent.
    down: what came back from there, or, at a new spine, from a rack that had the result. results: what the
    point answered its children.
    """

    first: dict[int, Sent] = field(default_factory=dict)
    full: dict[int, Sent] = field(default_factory=dict)
    up: list[Sent] = field(default_factory=list)
    down: list[Sent] = field(default_factory=list)
    results: list[Sent] = field(default_factory=list)


Number = tuple[int, int, int]  # job, slot, round
Exchange = dict[str, Point]  # by aggregation address


class Exchanges:
    """Puts packets together to rounds, and checks each when the slot has gone on, or at the end."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._open: dict[tuple[int, int], dict[int, Exchange]] = defaultdict(dict)  # by job and slot
        self._points: set[str] = set()
        self._children: dict[tuple[str, int], set[int]] = defaultdict(set)  # of a point in a job
        self._receivers: dict[tuple[str, int], set[int]] = defaultdict(set)  # of a point's results in a job
        self._parents: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)  # and its number there

    def is_point(self, address: str) -> bool:
        """Return whether contributions are sent to this address."""
        return address in self._points

    def climbs(self, source: str, destination: str, job: int) -> bool:
        """Return whether a point's sums go to another one in a job: a result on that way is relayed."""
        return destination in self._parents[source, job]

    def add(self, seen: CapturedFrame, udp: Datagram, packet: Packet) -> None:
        """Take in a packet, in the order of the capture."""
        sent = Sent(seen, packet, _lanes(packet))
        if packet.type is PacketType.CONTRIBUTION:
            self._contribution(sent, udp)
        elif packet.type is PacketType.RESULT:
            self._result(sent, udp)
        rounds = self._open[packet.job, packet.slot]
        if len(rounds) > _KEPT:
            self._close(packet.job, packet.slot, min(rounds))

    def finish(self) -> None:
        """Check the rounds that are still open."""
        for (job, slot), rounds in self._open.items():
            for number in sorted(rounds):
                self._close(job, slot, number)

    def _point(self, address: str, packet: Packet) -> Point:
        exchange = self._open[packet.job, packet.slot].setdefault(packet.round, {})
        return exchange.setdefault(address, Point())

    # -- as packets come ---------------------------------------------------------------------------------

    def _contribution(self, sent: Sent, udp: Datagram) -> None:
        packet, child = sent.packet, sent.packet.worker
        self._points.add(udp.destination)
        self._children[udp.destination, packet.job].add(child)
        point = self._point(udp.destination, packet)
        point.first.setdefault(child, sent)
        if sent.full:
            before = point.full.setdefault(child, sent)
            self._report.check(
                Rule.SAME_LANES,
                np.array_equal(before.lanes, sent.lanes),
                f"child {child} sends other lanes than before in {_name(packet)}",
                before.frame,
                sent.frame,
            )
        if udp.source in self._points:
            self._parents[udp.source, packet.job][udp.destination] = child
            self._point(udp.source, packet).up.append(sent)

    def _result(self, sent: Sent, udp: Datagram) -> None:
        packet = sent.packet
        if udp.destination in self._points:
            self._point(udp.destination, packet).down.append(sent)
        if not self.climbs(udp.source, udp.destination, packet.job):
            point = self._point(udp.source, packet)
            point.results.append(sent)
            self._receivers[udp.source, packet.job].add(packet.worker)

    # -- when a round is over ----------------------------------------------------------------------------

    def _close(self, job: int, slot: int, number: int) -> None:
        exchange = self._open[job, slot].pop(number)
        for address, point in exchange.items():
            children = self._children[address, job]
            known = children | self._receivers[address, job]
            check = _Check(self._report, (address, job, slot, number), point, children, known)
            check.run(self._place(address, job))
        self._shares(job, exchange)

    def _place(self, address: str, job: int) -> tuple[int, int]:
        """Return the bits of a path that are known of this point's children, but for their own number, and
        the tier of these: 0 for workers.
        """
        tier, below = 0, self._below({address}, job)
        while below:
            tier, below = tier + 1, self._below(below, job)
        value, shift, at = 0, tier + 1, address
        while parents := self._parents.get((at, job)):
            at, number = next(iter(parents.items()))  # the same number at each of them
            value |= number << PATH_BITS * shift
            shift += 1
        return value, tier

    def _below(self, points: set[str], job: int) -> set[str]:
        """Return the points whose sums go to one of these."""
        return {
            child for (child, of), parents in self._parents.items() if of == job and points & parents.keys()
        }

    def _shares(self, job: int, exchange: Exchange) -> None:
        """Add up what became of the workers' lanes."""
        for point in exchange.values():
            for child, sent in point.full.items():
                udp = sent.frame.udp
                if udp is None or udp.source in self._points:
                    continue
                share = self._report.worker_lanes.setdefault((job, udp.source), Shares())
                lanes = group_lanes(sent.packet.block_log2) * len(sent.packet.groups)
                share.entered += lanes
                mine = [result for result in point.results if result.packet.worker == child]
                if not mine:
                    share.unknown += lanes
                elif mine[0].packet.included >> child & 1:
                    share.included += lanes


class _Check:
    """The rules for one round at one point.

    children: those that have ever contributed, in this capture; known: and those that got results.
    """

    def __init__(
        self,
        report: Report,
        key: tuple[str, int, int, int],
        point: Point,
        children: set[int],
        known: set[int],
    ) -> None:
        self._report = report
        self._key = key
        self._point = point
        self._children = children
        self._known = known

    def run(self, place: tuple[int, int]) -> None:
        point = self._point
        self._operation()
        for sent in point.up:
            self._partial(sent)
        if not point.results:
            return
        first = point.results[0]
        for sent in point.results:
            self._replica(first, sent)
            self._audience(sent, place)
        if not first.packet.flags & Flag.DISAGREE:
            self._next(first)
            self._included(first)
        whole = next(
            (sent for sent in point.results if not sent.packet.flags & (Flag.ELSEWHERE | Flag.DISAGREE)), None
        )
        if whole is not None:
            self._sums(whole)

    def _that(self, rule: Rule, kept: bool, text: str, *sent: Sent) -> None:
        self._report.check(rule, kept, text, *(s.frame for s in sent), round_=self._key)

    def _operation(self) -> None:
        point = self._point
        checks = {sent.packet.check for sent in point.first.values()}
        told = any(sent.packet.flags & Flag.DISAGREE for sent in (*point.results, *point.up, *point.down))
        if len(checks) > 1 and (point.results or point.up):
            self._that(
                Rule.OPERATION,
                told,
                f"children are in {len(checks)} operations and nobody is told",
                *point.first.values(),
            )
        for sent in point.results:
            if sent.packet.flags & Flag.DISAGREE:
                self._that(Rule.OPERATION, False, "the workers are in different operations", sent)
                return
            self._that(Rule.OPERATION, True, "")

    def _partial(self, sent: Sent) -> None:
        """Check sums on their way up."""
        packet = sent.packet
        if not sent.full or packet.flags & Flag.DISAGREE:
            return
        self._members(sent, packet.included)
        self._count(sent, packet.included)
        self._adds_up(sent, packet.included)

    def _included(self, first: Sent) -> None:
        """Check the mask of a result: of the root, or of a point that got it from above."""
        point, packet = self._point, first.packet
        if not point.down:
            self._members(first, packet.included)
            self._count(first, packet.included)
            return
        above = point.down[0].packet
        if not above.flags & Flag.ELSEWHERE:  # else it left the count of this point's own sums
            text = f"counts {packet.count} workers, the one above {above.count}"
            self._that(Rule.MASK, packet.count == above.count, text, first, point.down[0])
        if not point.up:
            return  # relayed by a switch that has not summed
        own = {sent.packet.included for sent in point.up if sent.full} or {0}
        wanted = own if above.included >> point.up[0].packet.worker & 1 else {0}
        self._that(
            Rule.MASK,
            packet.included in wanted,
            f"includes {packet.included:#x}; of the sums {' or '.join(map(hex, sorted(own)))}, with "
            f"{above.included:#x} in the one above, {' or '.join(map(hex, sorted(wanted)))} is right",
            first,
            point.down[0],
        )

    def _members(self, sent: Sent, included: int) -> None:
        point = self._point
        without = [child for child in _bits(included) if child in point.first and child not in point.full]
        strangers = [child for child in _bits(included) if child not in self._known]
        self._that(
            Rule.MASK,
            not without and not strangers,
            f"includes children {without + strangers}, who sent no lanes",
            sent,
        )

    def _count(self, sent: Sent, included: int) -> None:
        children = [self._point.full.get(child) for child in _bits(included)]
        if None in children:
            return
        count = sum(child.packet.count for child in children if child is not None)
        self._that(
            Rule.MASK,
            sent.packet.count == count,
            f"counts {sent.packet.count} workers instead of {count}",
            sent,
        )

    def _sums(self, whole: Sent) -> None:
        if not self._point.down:
            self._adds_up(whole, whole.packet.included)
            return
        above = next((sent for sent in self._point.down if sent.full), None)
        if above is not None:
            wrong = _differences(whole.lanes, above.lanes)
            self._that(Rule.SUMS, not wrong, f"{wrong} lanes differ from the result above", whole, above)

    def _adds_up(self, sent: Sent, included: int) -> None:
        point = self._point
        children = [point.full.get(child) for child in _bits(included)]
        known = [child for child in children if child is not None]
        if len(known) < len(children):
            return
        op = sent.packet.op
        expected = np.zeros(sent.lanes.size, np.uint32)
        for child in known:
            if child.lanes.size == expected.size:  # else the contributions disagree: these are not their sums
                expected = _COMBINE[op](expected, child.lanes)
        wrong = _differences(sent.lanes, expected)
        self._that(
            Rule.SUMS, not wrong, f"{wrong} lanes are not {op.name} of the contributions'", sent, *known
        )

    def _replica(self, first: Sent, sent: Sent) -> None:
        a, b = first.packet, sent.packet
        same = (a.columns, a.included, a.count) == (b.columns, b.included, b.count)
        if not (a.flags | b.flags) & (Flag.ELSEWHERE | Flag.DISAGREE):
            same = same and np.array_equal(first.lanes, sent.lanes)
        self._that(
            Rule.REPLICAS,
            same,
            f"the result for child {b.worker} differs from that for {a.worker}",
            first,
            sent,
        )

    def _next(self, first: Sent) -> None:
        point = self._point
        everybody = self._children <= point.first.keys() and not point.down
        for index, column in enumerate(first.packet.columns):
            nexts = [sent.packet.columns[index].next for sent in point.first.values()]
            if not nexts:
                return
            least = min(nexts)
            kept = column.next == least if everybody else column.next <= least
            self._that(
                Rule.NEXT,
                kept,
                f"column {index} asks for {_block(column.next)} next, {_block(least)} was announced",
                first,
            )

    def _audience(self, sent: Sent, place: tuple[int, int]) -> None:
        packet, (above, tier) = sent.packet, place
        if packet.audience == AUDIENCE_ALL or packet.flags & Flag.DISAGREE:
            self._that(
                Rule.AUDIENCE, not packet.flags & Flag.ELSEWHERE, "lanes for everybody are elsewhere", sent
            )
            return
        path = above | packet.worker << PATH_BITS * tier
        mask = WHOLE_PATH & ~((1 << PATH_BITS * tier) - 1)
        there = packet.audience & mask == path & mask
        wanted = not (there and tier == 0) if packet.audience & AUDIENCE_EXCEPT else there
        if packet.flags & Flag.ELSEWHERE:
            self._that(
                Rule.AUDIENCE, not wanted, f"child {packet.worker} is of the audience, without lanes", sent
            )
        elif sent.full:
            self._that(
                Rule.AUDIENCE, wanted, f"child {packet.worker} is not of the audience, and has lanes", sent
            )


def _lanes(packet: Packet) -> Lanes:
    """Return the lanes of all groups, uint32[256], of a wide packet [1024]; zero where it has none."""
    width = group_lanes(packet.block_log2)
    lanes = np.zeros(width * GROUPS, np.uint32)
    for group, values in packet.groups.items():
        lanes[group * width : (group + 1) * width] = values
    return lanes


def _differences(a: Lanes, b: Lanes) -> int:
    """Return how many lanes differ; all of those of packets that do not have as many."""
    if a.size != b.size:
        return max(a.size, b.size)
    return int((a != b).sum())


def _bits(mask: int) -> Iterable[int]:
    return [child for child in range(mask.bit_length()) if mask >> child & 1]


def _block(block: int) -> str:
    return "nothing" if block == NO_BLOCK else str(block)


def _name(packet: Packet) -> str:
    return f"job {packet.job:#x} slot {packet.slot} round {packet.round}"
