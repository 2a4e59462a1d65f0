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

from weir.host_agent.transport.codec import Packet
from weir.pcap.audit.report import Report, Rule
from weir.pcap.frames import CapturedFrame, Datagram
from weir.wire.definition import PacketType

_KEPT: Final = 4  # rounds of a slot that are remembered


@dataclass
class _Round:
    """A round at a point: children that have come, whether sums have left, whether a result came to it."""

    came: set[int] = field(default_factory=set)
    left: bool = False
    answered: bool = False


class Order:
    """Checks that rounds follow one another, and that nothing leaves a point before all have come.

    is_point: tells whether an address is an aggregation point's; climbs: whether sums go from the first of
    two addresses to the second, in a job.
    """

    def __init__(
        self, report: Report, is_point: Callable[[str], bool], climbs: Callable[[str, str, int], bool]
    ) -> None:
        self._report = report
        self._is_point, self._climbs = is_point, climbs
        self._rounds: dict[tuple[str, str, int, int], dict[int, _Round]] = defaultdict(dict)
        self._children: dict[tuple[str, str, int], set[int]] = defaultdict(set)  # by file, point and job
        self._answered: dict[
            tuple[str, str, int, int], int
        ] = {}  # newest result to (file, address, job, slot)
        self._newest: dict[tuple[str, str, int, int], int] = {}  # newest round sent by these
        self._hear: set[tuple[str, str, int]] = set()  # files, and who is sent results of a job in them
        self._early: dict[tuple[str, str, int], Callable[[], None]] = {}  # said once they are among these

    def add(self, seen: CapturedFrame, udp: Datagram, packet: Packet) -> None:
        """Take in a packet, in the order of its capture."""
        if packet.type is PacketType.CONTRIBUTION:
            self._sent(seen, udp, packet)
            self._children[seen.file, udp.destination, packet.job].add(packet.worker)
            self._round(seen, udp.destination, packet).came.add(packet.worker)
            if self._is_point(udp.source):
                self._leaves(seen, udp.source, packet)
        elif packet.type is PacketType.RESULT:
            key = (seen.file, udp.destination, packet.job, packet.slot)
            self._answered[key] = max(self._answered.get(key, 0), packet.round)
            self._hears(key[:3])
            if self._is_point(udp.destination):
                self._round(seen, udp.destination, packet).answered = True
            if not self._climbs(udp.source, udp.destination, packet.job):
                self._leaves(seen, udp.source, packet)

    def _round(self, seen: CapturedFrame, point: str, packet: Packet) -> _Round:
        rounds = self._rounds[seen.file, point, packet.job, packet.slot]
        found = rounds.setdefault(packet.round, _Round())
        if len(rounds) > _KEPT:
            del rounds[min(rounds)]
        return found

    def _sent(self, seen: CapturedFrame, udp: Datagram, packet: Packet) -> None:
        key = (seen.file, udp.source, packet.job, packet.slot)
        newest = self._newest.get(key)
        if newest is not None and packet.round > newest:
            check = partial(
                self._report.check,
                Rule.ROUND_ORDER,
                self._answered.get(key, 0) >= packet.round - 1,
                f"{udp.source} sends it before a result of the round before was sent to it",
                seen,
                round_=_key(udp.destination, packet),
            )
            if key[:3] in self._hear:
                check()
            else:
                self._early.setdefault(key[:3], check)  # the first says enough
        self._newest[key] = max(newest or 0, packet.round)

    def _hears(self, who: tuple[str, str, int]) -> None:
        """Note who is sent results, and say what that one sent before any of them came."""
        if who not in self._hear:
            self._hear.add(who)
            if check := self._early.pop(who, None):
                check()

    def _leaves(self, seen: CapturedFrame, point: str, packet: Packet) -> None:
        """Check the first that leaves a point in a round, unless it comes of what another point had."""
        here = self._round(seen, point, packet)
        first, here.left = not here.left, True
        if first and here.came and not here.answered:
            missing = sorted(self._children[seen.file, point, packet.job] - here.came)
            text = f"sums or a result left before children {missing} were seen"
            self._report.check(Rule.COMPLETE, not missing, text, seen, round_=_key(point, packet))


def _key(point: str, packet: Packet) -> tuple[str, int, int, int]:
    return point, packet.job, packet.slot, packet.round
