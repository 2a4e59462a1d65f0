# SPDX-License-Identifier: Apache-2.0
"""Rules about links: who goes first, and how what is sprayed is spread.

They need to know where links lead: an interface of the capture is one direction of one link, and called
``A > B``. Other interfaces are left out.
"""

from collections import Counter, defaultdict
from typing import Final

from weir.pcap.audit.report import Report
from weir.pcap.audit.rules import Rule
from weir.pcap.frames import CapturedFrame
from weir.pcap.packets import Datagram
from weir.wire.definition import RELIABLE_DSCP, FlowType

_ENOUGH: Final = 200  # sprayed packets, from which on shares are judged
_UNEQUAL: Final = 1.5  # times the mean share: too much for one link


class Links:
    """Follows forwarded packets from link to link.

    A switch serves queues in strict order of their class, each first come, first served: so of two packets
    that come by one link and leave by one link, the first leaves first unless the second has a higher class.
    (Packets that come by different links are not compared: a capture has when they were sent, not when they
    came.) Looked at are those of flows that are neither trimmed nor given another class at this switch, over
    links that reorder nothing.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._left: dict[tuple[str, str], list[tuple[float, int, float, CapturedFrame]]] = defaultdict(list)
        self._loads: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def add(self, seen: CapturedFrame, udp: Datagram, before: CapturedFrame) -> None:
        """Take in a packet of a flow that leaves a node. before: the frame in which it came there."""
        if seen.ends is None or seen.flow is None or before.udp is None:
            return
        if before.udp.dscp == udp.dscp and before.udp.payload == udp.payload:
            self._left[before.port, seen.port].append((before.time, _urgency(udp.dscp), seen.time, seen))
        if seen.flow.type is FlowType.CHUNK:
            self._loads[seen.ends[0], udp.destination][seen.port] += 1

    def finish(self) -> None:
        """Check every link."""
        for (_, link), packets in self._left.items():
            self._order(link, packets)
        for (node, destination), loads in self._loads.items():
            total = sum(loads.values())
            if len(loads) > 1 and total >= _ENOUGH:
                worst, most = loads.most_common(1)[0]
                text = f"{most} of {total} packets from {node} to {destination} took {worst}, of {len(loads)}"
                self._report.check(Rule.SPRAY, most * len(loads) <= _UNEQUAL * total, text)

    def _order(self, link: str, packets: list[tuple[float, int, float, CapturedFrame]]) -> None:
        """Look for packets that left after one which came later and has no higher a class."""
        packets.sort(key=lambda packet: packet[0])  # as they came
        latest: dict[int, tuple[float, CapturedFrame]] = {}  # of those that came so far, by class
        for _, urgency, left, seen in packets:
            passed = [late for of, late in latest.items() if of >= urgency and late[0] > left]
            first = max(passed, key=lambda late: late[0])[1] if passed else seen
            self._report.check(
                Rule.PRIORITY,
                not passed,
                f"a packet of class {urgency} overtakes one of its own or a higher class on {link}",
                first,
                seen,
            )
            if urgency not in latest or left > latest[urgency][0]:
                latest[urgency] = (left, seen)


def _urgency(dscp: int) -> int:
    """Return a class's place in the order of service, as an AF class or CS7's number: x of AFxy."""
    return 7 if dscp == RELIABLE_DSCP else dscp >> 3
