# SPDX-License-Identifier: Apache-2.0
"""The audit: frames of all links, in the order of time, to all rules."""

import heapq
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Self

from weir.pcap.audit.budgets import Budgets
from weir.pcap.audit.classes import Classes
from weir.pcap.audit.envelope import Envelope
from weir.pcap.audit.exchanges import Exchanges
from weir.pcap.audit.flows import Flows
from weir.pcap.audit.hops import Hops, Recent
from weir.pcap.audit.links import Links
from weir.pcap.audit.order import Order
from weir.pcap.audit.report import Note, Report
from weir.pcap.audit.rules import Rule
from weir.pcap.audit.tree import Tree
from weir.pcap.frames import CapturedFrame, read_frames
from weir.pcap.packets import Datagram

_STEP: Final = 5_000  # frames between two words of progress
_OF_HEADERS: Final = {Rule.CHECKSUM, Rule.LENGTH, Rule.ADDRESS}  # rules that need no payload


class PacketAudit:
    """Checks captures against the protocol's rules, from packets alone.

    Each link must be captured; what a capture lacks is not held against anybody, nor is its clock. A frame
    that was captured at both ends of a link is taken once. Not for several threads.

    Example::

        audit = PacketAudit.of_files([Path("leaf1.pcapng"), Path("spine1.pcapng")])
        assert not audit.findings, audit.findings[0]
    """

    def __init__(self, loss_budget: float | None = None) -> None:
        """Begin without frames.

        loss_budget: the share of a worker's lanes in one operation that may be missing in results; None: not
        checked.
        """
        self.report = Report()
        self._tree = Tree()
        self._exchanges = Exchanges(self.report, self._tree, Budgets(self.report, loss_budget))
        self._order = Order(self.report, self._tree)
        self._classes = Classes(self.report)
        self._envelope = Envelope(self.report)
        self._flows = Flows(self.report)
        self._hops = Hops(self.report)
        self._links = Links(self.report)
        self._copies: Recent[int, dict[str, int]] = Recent()  # of a frame, on each interface

    @classmethod
    def of_files(
        cls,
        paths: Iterable[Path],
        loss_budget: float | None = None,
        progress: Callable[[int], None] = lambda frames: None,
    ) -> Self:
        """Return the audit of these captures together.

        loss_budget: as of the constructor. progress: is told now and then how many frames were looked at.

        Raises:
            CaptureError: a file is no capture.
        """
        audit = cls(loss_budget)
        for seen in heapq.merge(*(read_frames(path) for path in paths), key=lambda seen: seen.time):
            audit.add(seen)
            if audit.report.frames % _STEP == 0:
                progress(audit.report.frames)
        audit.finish()
        return audit

    @property
    def findings(self) -> list[str]:
        """Return each breach of a rule, as text."""
        return [str(finding) for finding in self.report.findings]

    def add(self, seen: CapturedFrame) -> None:
        """Take in the next frame."""
        udp, notes = seen.udp, self.report.notes
        self.report.frames += seen.part == 0
        if udp is None:
            return
        self.report.weir += seen.part == 0
        notes[Note.TRAIN] += seen.part > 0
        self._envelope.add(seen, udp)
        if not udp.whole:
            notes[Note.CUT_SHORT] += 1
            return
        before = self._hops.add(seen, udp)
        if seen.flow is not None:
            self._flows.passed(seen, udp, seen.flow)
            if before is not None:
                self._links.add(seen, udp, before)
        if not self._known(seen, udp):
            self._first_sight(seen, udp)
        if seen.packet is not None:
            self._order.add(seen, udp, seen.packet)

    def _first_sight(self, seen: CapturedFrame, udp: Datagram) -> None:
        self.report.check(Rule.WELL_FORMED, seen.problem is None, seen.problem or "", seen)
        if seen.packet is not None:
            self._envelope.slot_packet(seen, udp, seen.packet)
            self._classes.slot_packet(seen, udp, seen.packet, self._tree.is_point(udp.source))
            self._exchanges.add(seen, udp, seen.packet)
        elif seen.flow is not None:
            self._classes.flow_packet(seen, udp, seen.flow)
            self._flows.add(seen, udp, seen.flow)

    def finish(self) -> None:
        """Check what can be checked only when all frames are known."""
        self._exchanges.finish()
        self._order.finish()
        self._classes.finish()
        self._envelope.finish()
        self._links.finish()
        if self.report.notes[Note.CUT_SHORT]:
            self.report.forget(set(Rule) - _OF_HEADERS)
        if self.report.frames and not self.report.weir:
            self.report.notes[Note.NOTHING] = self.report.frames

    def _known(self, seen: CapturedFrame, udp: Datagram) -> bool:
        """Return whether the frame was captured before, on another link of its way or at this one's other
        end: the k-th copy of it on one interface is the k-th on another.
        """
        what = hash((udp.ends, udp.dscp, udp.ecn, seen.part, udp.payload))
        copies = self._copies.setdefault(what, {})
        known = max(copies.values(), default=0)
        where = f"{seen.file} {seen.port}"
        copies[where] = copies.get(where, 0) + 1
        return copies[where] <= known
