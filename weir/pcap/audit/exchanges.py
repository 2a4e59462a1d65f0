# SPDX-License-Identifier: Apache-2.0
"""Puts packets together to rounds, at every aggregation point, and has each checked when it is over."""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from weir.pcap.audit.budgets import Budgets
from weir.pcap.audit.checks import Check, Past
from weir.pcap.audit.point import Child, Point, Sent
from weir.pcap.audit.report import Report, Shares
from weir.pcap.audit.rules import Rule
from weir.pcap.audit.serial import oldest
from weir.pcap.audit.tree import Tree
from weir.pcap.frames import CapturedFrame
from weir.pcap.packets import Datagram, SlotPacket
from weir.wire.definition import CE, NO_BLOCK, PacketType, group_lanes

_KEPT: Final = 3  # rounds of a slot that are not checked yet: two versions, and one for what is late
_REMEMBERED: Final = 32  # rounds of a slot that are checked, and to which something may still be sent
_ASKED: Final = 4  # times that a child asks before it counts as not answered


@dataclass
class _Over:
    """The memory of a round at a point: its result, and a fingerprint of each child's lanes."""

    result: dict[str, Hashable] = field(default_factory=dict)
    place: str = ""
    lanes: dict[int, tuple[int, str]] = field(default_factory=dict)


@dataclass
class _Slot:
    """Rounds of a slot by number, and in each the points by their aggregation addresses.

    past: of each point, what the round that was checked last asks for, and what its children announced.
    """

    rounds: dict[int, dict[str, Point]] = field(default_factory=dict)
    over: dict[int, dict[str, _Over]] = field(default_factory=dict)
    past: dict[str, Past] = field(default_factory=dict)


class Exchanges:
    """Follows every round of every slot."""

    def __init__(self, report: Report, tree: Tree, budgets: Budgets) -> None:
        self._report, self._tree, self._budgets = report, tree, budgets
        self._slots: dict[tuple[int, int], _Slot] = defaultdict(_Slot)  # by job and slot
        self._children: dict[tuple[str, int], set[int]] = defaultdict(set)  # of a point in a job
        self._receivers: dict[tuple[str, int], set[int]] = defaultdict(set)  # of a point's results in a job

    def add(self, seen: CapturedFrame, udp: Datagram, packet: SlotPacket) -> None:
        """Take in a packet, in the order of the capture."""
        slot = self._slots[packet.job, packet.slot]
        if packet.type is PacketType.CONTRIBUTION:
            self._tree.contribution(udp.source, udp.destination, packet)
            self._children[udp.destination, packet.job].add(packet.worker)
        if packet.round in slot.over:
            self._late(seen, udp, packet, slot.over[packet.round])
            return
        exchange = slot.rounds.setdefault(packet.round, {})
        if packet.type is PacketType.CONTRIBUTION:
            self._contribution(Sent(seen, packet), udp, exchange)
        elif packet.type is PacketType.RESULT:
            self._result(Sent(seen, packet), udp, exchange)
        if len(slot.rounds) > _KEPT:
            self._close(packet.job, packet.slot, oldest(slot.rounds))

    def finish(self) -> None:
        """Check the rounds that are still open, and what can be said of all together."""
        for (job, number), slot in self._slots.items():
            while slot.rounds:
                number_of_round = oldest(slot.rounds)
                self._unanswered(job, number, number_of_round, slot.rounds[number_of_round])
                self._close(job, number, number_of_round)
        self._budgets.finish()

    # -- as packets come ---------------------------------------------------------------------------------

    def _contribution(self, sent: Sent, udp: Datagram, exchange: dict[str, Point]) -> None:
        packet = sent.packet
        point = exchange.setdefault(udp.destination, Point())
        child = point.children.get(packet.worker)
        if child is None:
            child = point.children[packet.worker] = Child(sent)
        child.packets += 1
        child.gave_up |= not packet.protected
        child.marked |= udp.ecn == CE or packet.congested
        if point.results and packet.worker not in point.answered:
            child.asked += 1
        if sent.full:
            if child.full is None:
                child.full = sent
            before = child.full
            same = before.packet.groups == packet.groups and before.packet.body == packet.body
            self._same_lanes(same, packet, before.frame.place, sent.frame)
        if self._tree.is_point(udp.source):
            exchange.setdefault(udp.source, Point()).up.append(sent)

    def _result(self, sent: Sent, udp: Datagram, exchange: dict[str, Point]) -> None:
        packet = sent.packet
        if self._tree.is_point(udp.destination):
            exchange.setdefault(udp.destination, Point()).down.append(sent)
        if self._tree.climbs(udp.source, udp.destination, packet.job):
            return
        point = exchange.setdefault(udp.source, Point())
        point.results.append(sent)
        self._receivers[udp.source, packet.job].add(packet.worker)
        point.answered.add(packet.worker)

    def _late(self, seen: CapturedFrame, udp: Datagram, packet: SlotPacket, points: dict[str, _Over]) -> None:
        """Compare a packet of a round that was checked with those before it."""
        if packet.type is PacketType.CONTRIBUTION and packet.groups:
            known = points.get(udp.destination, _Over()).lanes.get(packet.worker)
            if known is not None:
                self._same_lanes(known[0] == hash((packet.groups, packet.body)), packet, known[1], seen)
        elif packet.type is PacketType.RESULT and not self._tree.climbs(
            udp.source, udp.destination, packet.job
        ):
            over = points.get(udp.source)
            if over is None or not over.result:
                return
            parts = _fingerprint(packet)
            same = all(over.result.get(part, value) == value for part, value in parts.items())
            text = f"the result for child {packet.worker}, sent late, differs from the round's first"
            key = (udp.source, packet.job, packet.slot, packet.round)
            self._report.check(Rule.REPLICAS, same, text, over.place, seen, round_=key)

    def _same_lanes(self, same: bool, packet: SlotPacket, before: str, seen: CapturedFrame) -> None:
        name = f"job {packet.job:#x} slot {packet.slot} round {packet.round}"
        text = f"child {packet.worker} sends other lanes than before in {name}"
        self._report.check(Rule.SAME_LANES, same, text, before, seen)

    # -- when a round is over ----------------------------------------------------------------------------

    def _close(self, job: int, number: int, round_: int) -> None:
        slot = self._slots[job, number]
        exchange = slot.rounds.pop(round_)
        for address, point in exchange.items():
            children = self._children[address, job]
            past = slot.past.get(address)
            self._tree.round(address, job, point)
            check = Check(self._report, (address, job, number, round_), point, children)
            check.run(self._tree.place(address, job), past)
            slot.past[address] = Past.of(round_, point)
            self._shares(job, point, past if past is not None and past.leads_to(round_) else None)
        slot.over[round_] = {address: _remembered(point) for address, point in exchange.items()}
        if len(slot.over) > _REMEMBERED:
            del slot.over[next(iter(slot.over))]

    def _unanswered(self, job: int, slot: int, round_: int, exchange: dict[str, Point]) -> None:
        """Look for children that ask in vain at the capture's end."""
        for address, point in exchange.items():
            for number, child in point.children.items():
                if point.results and number in self._receivers[address, job]:
                    text = f"child {number} has asked {child.asked} times for the result that others have"
                    self._report.check(
                        Rule.DELIVERY,
                        number in point.answered or child.asked < _ASKED,
                        text,
                        point.results[0].frame,
                        child.first.frame,
                        round_=(address, job, slot, round_),
                    )

    def _shares(self, job: int, point: Point, past: Past | None) -> None:
        """Add up what became of the workers' lanes."""
        for number, child in point.children.items():
            udp = child.first.frame.udp
            if udp is None or self._tree.is_point(udp.source):
                continue
            lanes = _offered(number, child, past)
            if not lanes:
                continue
            share = self._report.worker_lanes.setdefault((job, udp.source), Shares())
            share.entered += lanes
            mine = next((result for result in point.results if result.packet.worker == number), None)
            included = mine is not None and bool(mine.packet.included >> number & 1)
            if mine is None:
                share.unknown += lanes
            elif included:
                share.included += lanes
            missing = mine is not None and not included and not mine.packet.disagree
            self._budgets.add(udp.source, child.first, lanes, missing)


def _offered(number: int, child: Child, past: Past | None) -> int:
    """Return how many lanes a child has in a round: those that it sent, or else had announced."""
    packet = child.first.packet
    if child.full is not None:
        return group_lanes(packet.block_log2) * child.full.packet.groups.bit_count()
    if past is None:
        return 0
    announced = past.announced.get(number, ())
    asked = [column.block for column in packet.columns]
    mine = [block for block, other in zip(asked, announced, strict=False) if block == other != NO_BLOCK]
    return len(mine) << packet.block_log2


def _fingerprint(packet: SlotPacket) -> dict[str, Hashable]:
    """Return what all results of a round have in common; those that go elsewhere have no lanes."""
    parts: dict[str, Hashable] = {"head": (packet.columns, packet.included, packet.count)}
    if not (packet.elsewhere or packet.disagree or packet.trimmed):
        parts["lanes"] = hash((packet.groups, packet.body))
    return parts


def _remembered(point: Point) -> _Over:
    over = _Over()
    for sent in point.results:
        over.place = over.place or sent.frame.place
        over.result = {**_fingerprint(sent.packet), **over.result}
    for number, child in point.children.items():
        if child.full is not None:
            packet = child.full.packet
            over.lanes[number] = hash((packet.groups, packet.body)), child.full.frame.place
    return over
