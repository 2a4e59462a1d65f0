# SPDX-License-Identifier: Apache-2.0
"""Rules about one round at one point: what the switch makes of what it gets."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from weir.pcap.audit.point import Point, Sent
from weir.pcap.audit.report import Report
from weir.pcap.audit.rules import Rule
from weir.pcap.audit.serial import successor
from weir.pcap.audit.tree import Place
from weir.pcap.packets import Lanes, combined
from weir.wire.definition import (
    AUDIENCE_ALL,
    AUDIENCE_EXCEPT,
    NO_BLOCK,
    PATH_BITS,
    TIERS,
    Op,
)


@dataclass(frozen=True)
class Past:
    """A round before, as far as it decides what the next one at a point is.

    requested: the blocks asked for, by column; () when the result is not known. announced: by child.
    """

    round: int
    requested: tuple[int, ...] = ()
    announced: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, round_: int, point: Point) -> "Past":
        """Return what a round says of the next one."""
        first = next(iter(point.results), None)
        known = first is not None and not first.packet.disagree
        return cls(
            round_,
            tuple(column.next for column in first.packet.columns) if first is not None and known else (),
            {
                number: tuple(column.next for column in child.first.packet.columns)
                for number, child in point.children.items()
            },
        )

    def leads_to(self, round_: int) -> bool:
        """Return whether a round is the next one, of the same operation."""
        return round_ == successor(self.round) and any(block != NO_BLOCK for block in self.requested)


class Check:
    """The rules for one round at one point.

    children: those that have ever contributed, in this capture.
    """

    def __init__(
        self,
        report: Report,
        key: tuple[str, int, int, int],
        point: Point,
        children: set[int],
    ) -> None:
        self._report = report
        self._key = key
        self._point = point
        self._children = children

    def run(self, place: Place | None, past: Past | None) -> None:
        """Check the round.

        place: the point's in the tree, if that is known. past: what is known of a round before.
        """
        point = self._point
        agreed = self._operation()
        if agreed and past is not None and past.leads_to(self._key[3]):
            self._requested(past)
        for sent in point.up:
            self._partial(sent)
        if not point.results:
            return
        root = place is not None and place.whole and not place.above and not point.down
        first = point.results[0]
        for sent in point.results:
            self._replica(first, sent)
            self._audience(sent, place)
            if agreed:
                self._belongs(sent)
        if not first.packet.disagree:
            self._next(first, root)
            self._included(first, root)
        whole = next(
            (sent for sent in point.results if not (sent.packet.elsewhere or sent.packet.disagree)), None
        )
        if whole is not None:
            self._sums(whole, root)

    def _that(self, rule: Rule, kept: bool, text: str, *sent: Sent) -> None:
        self._report.check(rule, kept, text, *(s.frame for s in sent), round_=self._key)

    # -- operations and blocks ---------------------------------------------------------------------------

    def _operation(self) -> bool:
        """Check that all are in one operation; return whether they are."""
        point = self._point
        firsts = [child.first for child in point.children.values()]
        checks = {(sent.packet.check, sent.packet.op) for sent in firsts}
        told = any(sent.packet.disagree for sent in (*point.results, *point.up, *point.down))
        if len(checks) > 1 and (point.results or point.up):
            text = f"children are in {len(checks)} operations, and no result says so"
            self._that(Rule.OPERATION, told, text, *firsts)
        for sent in point.results:
            if sent.packet.disagree:
                self._that(Rule.OPERATION, False, "the workers are in different operations", sent)
                return False
            self._that(Rule.OPERATION, True, "")
        return len(checks) <= 1 and not told

    def _belongs(self, sent: Sent) -> None:
        """Check that a result is of the operation, the blocks and the audience of what it is made of."""
        packet = sent.packet
        for child in self._point.children.values():
            asked = child.first.packet
            wrong = [
                f"its {name} is {got:#x}, child {asked.worker}'s {wanted:#x}"
                for name, got, wanted in (
                    ("fingerprint", packet.check, asked.check),
                    ("operator", packet.op, asked.op),
                    ("audience", packet.audience, asked.audience),
                )
                if got != wanted
            ]
            blocks = [column.block for column in packet.columns], [column.block for column in asked.columns]
            if blocks[0] != blocks[1]:
                wrong.append(
                    f"it is of blocks {_blocks(blocks[0])}, child {asked.worker}'s of {_blocks(blocks[1])}"
                )
            self._that(Rule.OPERATION, not wrong, "a result: " + "; ".join(wrong), sent, child.first)
            if wrong:
                return

    def _requested(self, past: Past) -> None:
        """Check that what is sent is what the result before asked for."""
        for child in self._point.children.values():
            blocks = tuple(column.block for column in child.first.packet.columns)
            self._that(
                Rule.NEXT,
                blocks == past.requested,
                f"child {child.first.packet.worker} sends blocks {_blocks(blocks)}; "
                f"{_blocks(past.requested)} were asked for",
                child.first,
            )

    def _next(self, first: Sent, root: bool) -> None:
        point = self._point
        everybody = root and self._children <= point.children.keys()
        for index, column in enumerate(first.packet.columns):
            columns = [child.first.packet.columns for child in point.children.values()]
            nexts = [those[index].next for those in columns if index < len(those)]
            if not nexts:
                return
            least = min(nexts)
            kept = column.next == least if everybody else column.next <= least
            text = f"column {index} asks for {_block(column.next)} next, {_block(least)} was announced"
            self._that(Rule.NEXT, kept, text, first)

    # -- who is in it ------------------------------------------------------------------------------------

    def _partial(self, sent: Sent) -> None:
        """Check sums on their way up."""
        packet = sent.packet
        if not sent.full or packet.disagree:
            return
        self._members(sent)
        self._count(sent)
        self._given_up(sent)
        self._congestion(sent)
        self._adds_up(sent)
        if not packet.protected:
            kept = [number for number in _bits(packet.included) if self._keeps(number)]
            text = f"sums that may be shed hold lanes of children {kept}, which gave up nothing"
            self._that(Rule.BUDGET, not kept, text, sent)

    def _keeps(self, number: int) -> bool:
        """Return whether a child sent lanes in this round, and never such as may be given up."""
        child = self._point.children.get(number)
        return child is not None and child.full is not None and not child.gave_up

    def _included(self, first: Sent, root: bool) -> None:
        """Check the mask of a result: of the root, or of a point that got it from above."""
        point, packet = self._point, first.packet
        if root:
            self._count(first)
            self._given_up(first)
            self._congestion(first)
        if not point.down:
            self._members(first)
            return
        above = point.down[0].packet
        if not above.elsewhere:  # else it left the count of this point's own sums
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

    def _members(self, sent: Sent) -> None:
        """Check that who is included sent lanes, as far as the capture has it, and is counted."""
        children, members = self._point.children, _bits(sent.packet.included)
        without = [number for number in members if number in children and children[number].full is None]
        full = [children[number].full for number in members if number in children]
        counted = sum(one.packet.count for one in full if one is not None)
        unseen = [number for number in members if number not in children]
        text = f"includes children {without or unseen}, which sent no lanes, and counts {sent.packet.count}"
        self._that(Rule.MASK, not without and sent.packet.count >= counted + len(unseen), text, sent)

    def _given_up(self, sent: Sent) -> None:
        """Check that who is not included had given its lanes up."""
        for number, child in self._point.children.items():
            if child.full is not None and not sent.packet.included >> number & 1:
                text = f"lacks the lanes of child {number}, although all its packets were protected"
                self._that(Rule.BUDGET, child.gave_up, text, sent, child.full)

    def _congestion(self, sent: Sent) -> None:
        """Check that congestion is handed on, of children whose only packet met it: that one was counted."""
        if sent.packet.congested or not self._children <= self._point.children.keys():
            return
        met = [child.first for child in self._point.children.values() if child.marked and child.packets == 1]
        text = (
            f"does not say that packets of children {[one.packet.worker for one in met]} met congestion (CE)"
        )
        self._that(Rule.CLASS, not met, text, sent, *met)

    def _count(self, sent: Sent) -> None:
        children = [self._point.children.get(number) for number in _bits(sent.packet.included)]
        full = [child.full for child in children if child is not None and child.full is not None]
        if len(full) < len(children):
            return
        count = sum(one.packet.count for one in full)
        text = f"counts {sent.packet.count} workers instead of {count}"
        self._that(Rule.MASK, sent.packet.count == count, text, sent)

    # -- what is in it -----------------------------------------------------------------------------------

    def _sums(self, whole: Sent, root: bool) -> None:
        if root:
            self._adds_up(whole)
        above = next((sent for sent in self._point.down if sent.full), None)
        if above is not None:
            wrong = _differences(whole.lanes, above.lanes)
            self._that(Rule.SUMS, not wrong, f"{wrong} lanes differ from the result above", whole, above)

    def _adds_up(self, sent: Sent) -> None:
        children = [self._point.children.get(number) for number in _bits(sent.packet.included)]
        known = [child.full for child in children if child is not None and child.full is not None]
        if len(known) < len(children):
            return
        op = sent.packet.op
        # Where sizes differ the contributions disagree: these are not their sums.
        alike = [child for child in known if child.lanes.size == sent.lanes.size]
        expected = combined(op, (child.lanes for child in alike), sent.lanes.size)
        wrong = _differences(sent.lanes, expected)
        text = f"{wrong} lanes are not {op.name} of the contributions'"
        if wrong:
            text += _reason(sent, alike, expected)
        self._that(Rule.SUMS, not wrong, text, sent, *known)

    def _replica(self, first: Sent, sent: Sent) -> None:
        a, b = first.packet, sent.packet
        same = (a.columns, a.included, a.count) == (b.columns, b.included, b.count)
        if not (a.elsewhere or b.elsewhere or a.disagree or b.disagree):
            same = same and (a.groups, a.body) == (b.groups, b.body)
        text = f"the result for child {b.worker} differs from that for {a.worker}"
        self._that(Rule.REPLICAS, same, text, first, sent)

    def _audience(self, sent: Sent, place: Place | None) -> None:
        packet = sent.packet
        if packet.audience == AUDIENCE_ALL or packet.disagree:
            text = "lanes for everybody are elsewhere"
            self._that(Rule.AUDIENCE, not packet.elsewhere, text, sent)
            return
        if place is None:
            return
        tiers = TIERS if place.whole else place.tier + place.above + 1
        mask = (1 << PATH_BITS * tiers) - (1 << PATH_BITS * place.tier)
        there = (packet.audience ^ (place.path | packet.worker << PATH_BITS * place.tier)) & mask == 0
        if there and not place.whole:
            return  # perhaps: what is above is not known
        wanted = not (there and place.tier == 0) if packet.audience & AUDIENCE_EXCEPT else there
        if packet.elsewhere:
            text = f"child {packet.worker} is of the audience, without lanes"
            self._that(Rule.AUDIENCE, not wanted, text, sent)
        elif sent.full:
            text = f"child {packet.worker} is not of the audience, and has lanes"
            self._that(Rule.AUDIENCE, wanted, text, sent)


def _reason(sent: Sent, known: list[Sent], expected: Lanes) -> str:
    """Return what the difference looks like, when it looks like something."""
    for op in Op:
        other = combined(op, (child.lanes for child in known), sent.lanes.size)
        if op is not sent.packet.op and not _differences(sent.lanes, other):
            return f"; they are their {op.name}"
    if sent.packet.op is Op.ADD and sent.lanes.size == expected.size:
        for child in known:
            if np.array_equal(sent.lanes, expected + child.lanes):
                return f"; those of child {child.packet.worker} are added twice"
            if np.array_equal(sent.lanes, expected - child.lanes):
                return f"; those of child {child.packet.worker} are missing"
    return ""


def _differences(a: Lanes, b: Lanes) -> int:
    """Return how many lanes differ; all of those of packets that do not have as many."""
    if a.size != b.size:
        return max(a.size, b.size)
    return int((a != b).sum())


def _bits(mask: int) -> list[int]:
    return [child for child in range(mask.bit_length()) if mask >> child & 1]


def _block(block: int) -> str:
    return "nothing" if block == NO_BLOCK else str(block)


def _blocks(blocks: Iterable[int]) -> str:
    return ", ".join(map(_block, blocks))
