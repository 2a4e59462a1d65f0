# SPDX-License-Identifier: Apache-2.0
"""The audit: frames of all links, in the order of time, to all rules."""

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from weir.pcap.audit.classes import Classes
from weir.pcap.audit.exchanges import Exchanges
from weir.pcap.audit.flows import Flows
from weir.pcap.audit.links import Links
from weir.pcap.audit.order import Order
from weir.pcap.audit.report import Report, Rule
from weir.pcap.frames import CapturedFrame, Datagram, read_frames


class PacketAudit:
    """Checks captures against the protocol's rules, from packets alone.

    Each link must be captured; what a capture lacks is not held against anybody, nor is its clock. A frame
    that was captured at both ends of a link is taken once. Not for several threads.

    Example::

        audit = PacketAudit.of_files([Path("leaf1.pcapng"), Path("spine1.pcapng")])
        assert not audit.findings, audit.findings[0]
    """

    def __init__(self) -> None:
        self.report = Report()
        self._exchanges = Exchanges(self.report)
        self._order = Order(self.report, self._exchanges.is_point, self._exchanges.climbs)
        self._classes = Classes(self.report)
        self._flows = Flows(self.report)
        self._links = Links(self.report)
        self._copies: dict[bytes, Counter[str]] = {}  # of a frame, on each interface

    @classmethod
    def of_files(cls, paths: Iterable[Path]) -> Self:
        """Return the audit of these captures together. Raises CaptureError for a file that is none."""
        audit = cls()
        for seen in heapq.merge(*(read_frames(path) for path in paths), key=lambda seen: seen.time):
            audit.add(seen)
        audit.finish()
        return audit

    @property
    def findings(self) -> list[str]:
        """Return each breach of a rule, in words."""
        return [str(finding) for finding in self.report.findings]

    def add(self, seen: CapturedFrame) -> None:
        """Take in the next frame."""
        self.report.frames += 1
        udp = seen.udp
        if udp is None:
            return
        self.report.weir += 1
        if seen.flow is not None:
            self._links.add(seen, udp)
            self._flows.passed(seen, udp, seen.flow)
        if not self._known(seen, udp):
            self._first_sight(seen, udp)
        if seen.packet is not None:
            self._order.add(seen, udp, seen.packet)

    def _first_sight(self, seen: CapturedFrame, udp: Datagram) -> None:
        self.report.check(Rule.WELL_FORMED, seen.problem is None, seen.problem or "", seen)
        if seen.packet is not None:
            self._classes.slot_packet(seen, udp, seen.packet, self._exchanges.is_point(udp.source))
            self._exchanges.add(seen, udp, seen.packet)
        elif seen.flow is not None:
            self._classes.flow_packet(seen, udp, seen.flow)
            self._flows.add(seen, udp, seen.flow)

    def finish(self) -> None:
        """Check what can be checked only when all frames are known."""
        self._exchanges.finish()
        self._classes.finish()
        self._links.finish()

    def _known(self, seen: CapturedFrame, udp: Datagram) -> bool:
        """Return whether the frame was captured before, on another link of its way or at this one's other
        end: the k-th copy of it on one interface is the k-th on another.
        """
        what = f"{udp.source} {udp.destination} {udp.dscp} {udp.ecn} ".encode() + udp.payload
        copies = self._copies.setdefault(hashlib.blake2b(what, digest_size=16).digest(), Counter())
        known = max(copies.values(), default=0)
        where = f"{seen.file} {seen.port}"
        copies[where] += 1
        return copies[where] <= known
