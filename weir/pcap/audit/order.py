# SPDX-License-Identifier: Apache-2.0
"""Rules about what comes before what, which each capture is asked by itself.

Within a capture the order of frames is that in which its writer saw them. Between captures there are only
times, which several writers took: a result may seem to be older than what it is made of. A capture may have
one direction of a link only, as BMv2 writes them: who is sent no result in it is not asked what came first.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from weir.pcap.audit.report import Report
from weir.pcap.audit.rules import Rule
from weir.pcap.audit.serial import follows, oldest, successor
from weir.pcap.audit.tree import Tree
from weir.pcap.frames import CapturedFrame
from weir.pcap.packets import Datagram, SlotPacket
from weir.wire.definition import PacketType

_KEPT: Final = 4  # rounds of a slot that are remembered
_ENOUGH: Final = 8  # rounds, from which on is judged whether a child must ask for every result


@dataclass
class _Round:
    """A round at a point: children that have come, whether sums have left, whether a result came to it.

    given: children that a result was sent to. asked: those that came again when others had one.
    """

    came: set[int] = field(default_factory=set)
    given: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    left: bool = False
    answered: bool = False


class Order:
    """Checks that rounds follow one another, and that nothing leaves a point before all have come."""

    def __init__(self, report: Report, tree: Tree) -> None:
        self._report, self._tree = report, tree
        self._rounds: dict[tuple[str, str, int, int], dict[int, _Round]] = defaultdict(dict)
        self._children: dict[tuple[str, str, int], set[int]] = defaultdict(set)  # by file, point and job
        self._answered: dict[
            tuple[str, str, int, int], int
        ] = {}  # newest result to (file, address, job, slot)
        # By file, point, job and child: rounds with a result, those it asked for, and the first of these.
        self._asked: dict[tuple[str, str, int, int], tuple[int, int, str]] = {}
        self._newest: dict[tuple[str, str, int, int], int] = {}  # newest round sent by these
        self._hear: set[tuple[str, str, int]] = set()  # files, and who is sent results of a job in them
        self._early: dict[tuple[str, str, int], Callable[[], None]] = {}  # said once they are among these

    def add(self, seen: CapturedFrame, udp: Datagram, packet: SlotPacket) -> None:
        """Take in a packet, in the order of its capture."""
        if packet.type is PacketType.CONTRIBUTION:
            self._sent(seen, udp, packet)
            self._children[seen.file, udp.destination, packet.job].add(packet.worker)
            here = self._round(seen, udp.destination, packet)
            if here.given and packet.worker in here.came:
                here.asked.add(packet.worker)
            if packet.counts:
                here.came.add(packet.worker)
            if self._tree.is_point(udp.source):
                self._leaves(seen, udp.source, packet)
        elif packet.type is PacketType.RESULT:
            key = (seen.file, udp.destination, packet.job, packet.slot)
            if key not in self._answered or follows(packet.round, self._answered[key]):
                self._answered[key] = packet.round
            self._hears(key[:3])
            if self._tree.is_point(udp.destination):
                self._round(seen, udp.destination, packet).answered = True
            if not self._tree.climbs(udp.source, udp.destination, packet.job):
                self._leaves(seen, udp.source, packet)
                self._answers(seen, udp.source, packet)

    def finish(self) -> None:
        """Look for children that get results only when they ask again: no link loses as many."""
        for (_, point, job, child), (rounds, asked, place) in self._asked.items():
            text = (
                f"{point} sends results of job {job:#x} to child {child} only after that has asked again, in "
                f"{asked} of {rounds} rounds"
            )
            self._report.check(Rule.DELIVERY, rounds < _ENOUGH or 2 * asked <= rounds, text, place)

    def _answers(self, seen: CapturedFrame, point: str, packet: SlotPacket) -> None:
        """Note whether the child of a result had to ask for it."""
        here, child = self._round(seen, point, packet), packet.worker
        if child in here.came and child not in here.given:
            key = (seen.file, point, packet.job, child)
            rounds, asked, place = self._asked.get(key, (0, 0, ""))
            again = child in here.asked
            self._asked[key] = rounds + 1, asked + again, place or (seen.place if again else "")
        here.given.add(child)

    def _round(self, seen: CapturedFrame, point: str, packet: SlotPacket) -> _Round:
        rounds = self._rounds[seen.file, point, packet.job, packet.slot]
        found = rounds.setdefault(packet.round, _Round())
        if len(rounds) > _KEPT:
            del rounds[oldest(rounds)]
        return found

    def _sent(self, seen: CapturedFrame, udp: Datagram, packet: SlotPacket) -> None:
        key = (seen.file, udp.source, packet.job, packet.slot)
        newest = self._newest.get(key)
        if newest is not None and follows(packet.round, newest):
            answered = self._answered.get(key)
            check = partial(
                self._report.check,
                Rule.ROUND_ORDER,
                answered is not None and not follows(packet.round, successor(answered)),
                f"{udp.source} sends it before a result of the round before was sent to it",
                seen,
                round_=_key(udp.destination, packet),
            )
            if key[:3] in self._hear:
                check()
            else:
                self._early.setdefault(key[:3], check)  # the first says enough
        if newest is None or follows(packet.round, newest):
            self._newest[key] = packet.round

    def _hears(self, who: tuple[str, str, int]) -> None:
        """Note who is sent results, and say what that one sent before any of them came."""
        if who not in self._hear:
            self._hear.add(who)
            if check := self._early.pop(who, None):
                check()

    def _leaves(self, seen: CapturedFrame, point: str, packet: SlotPacket) -> None:
        """Check the first that leaves a point in a round, unless it comes of what another point had."""
        here = self._round(seen, point, packet)
        first, here.left = not here.left, True
        if first and here.came and not here.answered:
            missing = sorted(self._children[seen.file, point, packet.job] - here.came)
            text = f"sums or a result left before children {missing} were seen"
            self._report.check(Rule.COMPLETE, not missing, text, seen, round_=_key(point, packet))


def _key(point: str, packet: SlotPacket) -> tuple[str, int, int, int]:
    return point, packet.job, packet.slot, packet.round
