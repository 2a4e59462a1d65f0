# SPDX-License-Identifier: Apache-2.0
"""Rules about what is around a packet: checksums, lengths, TTL, and who is where."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from weir.pcap.audit.report import Note, Report
from weir.pcap.audit.rules import Rule
from weir.pcap.frames import CapturedFrame
from weir.pcap.packets import Checksum, Datagram, SlotPacket
from weir.wire.definition import PacketType

_VIRTUAL_ROUTERS: Final = ("00:00:5e:00:01:", "00:00:5e:00:02:")  # VRRP: not where its packets come from


@dataclass(slots=True)
class _Sightings:
    """Frames that say the same of an address: how many, how many of those it sent itself, and the first."""

    first: CapturedFrame
    count: int = 0
    sent: int = 0


_Seen = dict[str, _Sightings]


class Envelope:
    """Checks every frame by itself, and, when all are known, the addresses.

    Which address is right is what most frames say, and of equally many those that it sent itself.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._macs: dict[tuple[str, str], _Seen] = defaultdict(dict)  # of (link, IP address), by MAC address
        self._contributions: dict[tuple[int, str, int, str, int], _Sightings] = {}
        self._answers: dict[tuple[int, str, int, str, int], _Sightings] = {}

    def add(self, seen: CapturedFrame, udp: Datagram) -> None:
        """Take in a frame, from every link."""
        check = self._report.check
        if seen.part == 0:
            wrong = udp.checksum
            if udp.udp_checksum is Checksum.WRONG:
                wrong = " and ".join(filter(None, (wrong, "UDP's is neither missing nor right")))
            check(Rule.CHECKSUM, not wrong, wrong, seen)
            check(Rule.LENGTH, not udp.length, udp.length, seen)
            check(Rule.ON_THE_WAY, udp.ttl > 0, "a packet with an expired TTL is still forwarded", seen)
            if udp.udp_checksum is Checksum.PARTIAL:
                self._report.notes[Note.OFFLOADED] += 1
        link = f"{seen.file} {' '.join(sorted(seen.ends)) if seen.ends else f'{seen.port} {udp.ttl}'}"
        self._note(self._macs[link, udp.source], udp.source_mac, seen, sent=True)
        self._note(self._macs[link, udp.destination], udp.destination_mac, seen, sent=False)

    def slot_packet(self, seen: CapturedFrame, udp: Datagram, packet: SlotPacket) -> None:
        """Take in who a packet of the slot protocol is from and to."""
        if packet.type is PacketType.CONTRIBUTION:
            where = self._contributions
            key = packet.job, udp.destination, packet.worker, udp.source, udp.source_port
        else:
            where = self._answers
            key = packet.job, udp.source, packet.worker, udp.destination, udp.destination_port
        if key not in where:
            where[key] = _Sightings(seen)
        where[key].count += 1

    @staticmethod
    def _note(found: _Seen, mac: str, seen: CapturedFrame, *, sent: bool) -> None:
        sightings = found.get(mac)
        if sightings is None:
            sightings = found[mac] = _Sightings(seen)
        sightings.count += 1
        sightings.sent += sent

    def finish(self) -> None:
        """Check what can be checked only when all frames are known."""
        for (_, ip), found in self._macs.items():
            self._one_mac(ip, found)
        senders: dict[tuple[int, str, int], list[tuple[int, str, int, _Sightings]]] = defaultdict(list)
        points: dict[tuple[int, str], set[str]] = defaultdict(set)  # to which an address contributes in a job
        for (job, point, child, ip, port), sightings in self._contributions.items():
            senders[job, point, child].append((sightings.count, ip, port, sightings))
            points[job, ip].add(point)
        homes = {who: max(ends, key=lambda one: one[0])[1:3] for who, ends in senders.items()}
        for (job, point, child), ends in senders.items():
            for count, ip, port, sightings in ends:
                home = homes[job, point, child]
                text = (
                    f"child {child} of {point} in job {job:#x} is {_at(home)}; {count} packets of it are "
                    f"from {_at((ip, port))}"
                )
                self._report.check(Rule.ADDRESS, (ip, port) == home, text, sightings.first)
        for (job, point, child, ip, port), sightings in self._answers.items():
            if ip in points.get((job, point), ()):
                continue  # a switch's result that the one above lacks
            self._answer(job, point, child, (ip, port), points[job, ip], homes, sightings)

    def _answer(
        self,
        job: int,
        point: str,
        child: int,
        to: tuple[str, int],
        contributes: set[str],
        homes: dict[tuple[int, str, int], tuple[str, int]],
        sightings: _Sightings,
    ) -> None:
        """Check whom a point sends results and questions."""
        home = homes.get((job, point, child))
        text = ""
        if contributes and point not in contributes:
            others = " or ".join(sorted(contributes))
            text = f"results of job {job:#x} to {to[0]} come from {point}; it contributes to {others}"
        elif home is not None and to != home:
            text = f"results for child {child} of {point} in job {job:#x} go to {_at(to)}; it is {_at(home)}"
        self._report.check(Rule.ADDRESS, not text, f"{text} ({sightings.count} frames)", sightings.first)

    def _one_mac(self, ip: str, found: _Seen) -> None:
        """Check that an address is at one MAC address of a link."""
        macs = {mac: seen for mac, seen in found.items() if not mac.startswith(_VIRTUAL_ROUTERS)}
        if not macs:
            return
        right = max(macs, key=lambda mac: (macs[mac].count, macs[mac].sent))
        for mac, seen in macs.items():
            text = f"{ip} is at {right}, and {seen.count} frames from or to it have {mac}"
            self._report.check(Rule.ADDRESS, mac == right, text, seen.first)


def _at(where: tuple[str, int]) -> str:
    return f"{where[0]}:{where[1]}"
