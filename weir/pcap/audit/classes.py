# SPDX-License-Identifier: Apache-2.0
"""Rules about one packet: its class, and what a trimmed one may still hold."""

from collections import Counter

from weir.pcap.audit.report import Report
from weir.pcap.audit.rules import Rule
from weir.pcap.frames import CapturedFrame
from weir.pcap.packets import Datagram, FlowPacket, SlotPacket
from weir.wire.definition import CE, ECT, NOT_ECT, RELIABLE_DSCP, FlowType, Op, PacketType, dscp


class Classes:
    """Checks DSCP, ECN and flags of each packet.

    What a worker or a switch sends again goes before what it sends first. Where the capture lacks the first
    sending, which a link lost before the place of the capture, a packet is believed; a sender that says so of
    more than half of its packets is not, since no link loses as many.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lanes_sent: Counter[tuple[str, str, PacketType, int, int, int]] = Counter()
        self._first_sendings: Counter[str] = Counter()
        self._believed: dict[str, list[CapturedFrame]] = {}

    def finish(self) -> None:
        """Check what senders say of packets that the capture lacks."""
        for sender, frames in self._believed.items():
            self._report.check(
                Rule.CLASS,
                2 * len(frames) <= self._first_sendings[sender],
                f"{sender} sends {len(frames)} of {self._first_sendings[sender]} packets with DSCP "
                f"{RELIABLE_DSCP}, as if again, and none of them was sent before",
                frames[0],
            )

    def slot_packet(self, seen: CapturedFrame, udp: Datagram, packet: SlotPacket, by_switch: bool) -> None:
        """Check a packet of the slot protocol; ``by_switch``: a switch made it."""
        self._trimmed(seen, udp, packet.trimmed, bool(packet.groups))
        if packet.type is PacketType.REPEAT:
            self._is(seen, udp, {RELIABLE_DSCP}, "a request to repeat")
            return
        protected = packet.protected
        if not packet.groups:
            if packet.type is PacketType.CONTRIBUTION and not by_switch:
                self._is(seen, udp, {RELIABLE_DSCP}, "a packet without lanes")
            return
        what = f"layer class {packet.layer}, magnitude class {packet.magnitude}"
        first = dscp(packet.layer) if protected else dscp(packet.layer, packet.magnitude)
        if packet.op is not Op.ADD:
            text = f"lanes of {packet.op.name} may be shed; only sums have a loss budget"
            self._report.check(Rule.BUDGET, protected, text, seen)
        key = (udp.source, udp.destination, packet.type, packet.job, packet.slot, packet.round)
        self._lanes_sent[key] += 1
        if self._lanes_sent[key] == 1 and not packet.answer:
            self._first_sendings[udp.source] += 1
            if udp.dscp == RELIABLE_DSCP:
                self._believed.setdefault(udp.source, []).append(seen)
        # The first class a second time: the network has made two of it.
        up = by_switch and packet.type is PacketType.CONTRIBUTION  # sums of a rack keep their class
        self._is(seen, udp, {first} if up else {first, RELIABLE_DSCP}, what)
        self._ecn(seen, udp, protected)

    def flow_packet(self, seen: CapturedFrame, udp: Datagram, packet: FlowPacket) -> None:
        """Check a packet of a flow."""
        layer, magnitude = packet.layer, packet.magnitude
        if packet.type is not FlowType.CHUNK:
            wanted = {RELIABLE_DSCP}
            if packet.type is FlowType.PROBE:
                wanted |= {dscp(layer), dscp(layer, magnitude)}
            self._is(seen, udp, wanted, f"a {packet.type.name.lower()}")
            return
        self._trimmed(seen, udp, packet.trimmed, bool(packet.data))
        if packet.trimmed:
            return
        if packet.protected:
            self._is(seen, udp, {dscp(layer), RELIABLE_DSCP}, "a protected chunk")
        else:
            self._is(seen, udp, {dscp(layer, magnitude)}, f"a chunk of magnitude class {magnitude}")
        self._ecn(seen, udp, packet.protected)

    def _trimmed(self, seen: CapturedFrame, udp: Datagram, trimmed: bool, full: bool) -> None:
        if trimmed:
            self._report.check(Rule.TRIMMED, not full, "a trimmed packet carries lanes or data", seen)
            self._report.check(
                Rule.TRIMMED,
                udp.dscp == RELIABLE_DSCP,
                f"a trimmed packet travels with DSCP {udp.dscp}",
                seen,
            )

    def _is(self, seen: CapturedFrame, udp: Datagram, wanted: set[int], what: str) -> None:
        ways = " or ".join(map(str, sorted(wanted)))
        self._report.check(Rule.CLASS, udp.dscp in wanted, f"{what}: DSCP {udp.dscp}, not {ways}", seen)

    def _ecn(self, seen: CapturedFrame, udp: Datagram, protected: bool) -> None:
        may = "may not" if protected else "may"
        wanted = (ECT, CE) if protected else (NOT_ECT,)
        text = f"a packet that {may} be shed has ECN {udp.ecn}, not {' or '.join(map(str, wanted))}"
        self._report.check(Rule.CLASS, udp.ecn in wanted, text, seen)
