# SPDX-License-Identifier: Apache-2.0
"""Rules about one packet: its class, and what a trimmed one may still hold."""

from collections import Counter

from weir.host_agent.flows.codec import Bitmap, Chunk, FlowPacket, Probe
from weir.host_agent.transport.codec import Packet
from weir.pcap.audit.report import Report, Rule
from weir.pcap.frames import CapturedFrame, Datagram
from weir.wire.definition import NOT_ECT, RELIABLE_DSCP, Flag, PacketType, dscp


class Classes:
    """Checks DSCP, ECN and flags of each packet.

    What is sent again goes before what is sent first. Where the capture lacks the first sending, which a link
    lost before the place of the capture, a packet is believed; a worker who says so of more than half of its
    packets is not, since no link loses as many.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lanes_sent: Counter[tuple[str, int, int, int]] = Counter()
        self._first_sendings: Counter[str] = Counter()
        self._believed: dict[str, list[CapturedFrame]] = {}

    def finish(self) -> None:
        """Check what the workers say of packets that the capture lacks."""
        for worker, frames in self._believed.items():
            self._report.check(
                Rule.CLASS,
                2 * len(frames) <= self._first_sendings[worker],
                f"{worker} sends {len(frames)} of {self._first_sendings[worker]} packets with DSCP "
                f"{RELIABLE_DSCP}, as if again, and none of them was sent before",
                frames[0],
            )

    def slot_packet(self, seen: CapturedFrame, udp: Datagram, packet: Packet, by_switch: bool) -> None:
        """Check a packet of the slot protocol; ``by_switch``: a switch made it."""
        self._trimmed(seen, udp, bool(packet.flags & Flag.TRIMMED), bool(packet.groups))
        if packet.type is PacketType.REPEAT:
            self._is(seen, udp, {RELIABLE_DSCP}, "a request to repeat")
            return
        protected = bool(packet.flags & Flag.PROTECTED)
        if not packet.groups:
            if packet.type is PacketType.CONTRIBUTION and not by_switch:
                self._is(seen, udp, {RELIABLE_DSCP}, "a packet without lanes")
            return
        what = f"layer class {packet.layer}, magnitude class {packet.magnitude}"
        wanted = {dscp(packet.layer) if protected else dscp(packet.layer, packet.magnitude)}
        if packet.type is PacketType.CONTRIBUTION:
            key = (udp.source, packet.job, packet.slot, packet.round)
            self._lanes_sent[key] += 1
            if not by_switch:
                wanted.add(RELIABLE_DSCP)  # again; else the network has made two of it
                if self._lanes_sent[key] == 1 and not packet.flags & Flag.ANSWER:
                    self._first_sendings[udp.source] += 1
                    if udp.dscp == RELIABLE_DSCP:
                        self._believed.setdefault(udp.source, []).append(seen)
        self._is(seen, udp, wanted, what)
        self._ecn(seen, udp, protected)

    def flow_packet(self, seen: CapturedFrame, udp: Datagram, packet: FlowPacket) -> None:
        """Check a packet of a flow."""
        if not isinstance(packet, Chunk):
            if isinstance(packet, Probe):
                wanted = {RELIABLE_DSCP, dscp(packet.head.layer)}
                wanted.add(dscp(packet.head.layer, packet.head.magnitude))
            else:
                wanted = {RELIABLE_DSCP}
            self._is(seen, udp, wanted, "a bitmap" if isinstance(packet, Bitmap) else "a probe or stop")
            return
        head = packet.head
        self._trimmed(seen, udp, packet.trimmed, bool(packet.data))
        if packet.trimmed:
            return
        if not packet.protected:
            self._is(
                seen, udp, {dscp(head.layer, head.magnitude)}, f"a chunk of magnitude class {head.magnitude}"
            )
        else:
            self._is(seen, udp, {dscp(head.layer), RELIABLE_DSCP}, "a protected chunk")
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
        self._report.check(
            Rule.CLASS,
            (udp.ecn != NOT_ECT) == protected,
            f"a packet that may{' not' if protected else ''} be shed has ECN {udp.ecn}",
            seen,
        )
