# SPDX-License-Identifier: Apache-2.0
"""Rules about forwarded packets: what a device may change on their way from one link to the next.

A device is known where an interface of the capture is one direction of one link, called ``A > B``, or where
the capture says which way each frame went, as that of a switch does.
"""

from dataclasses import replace
from typing import Final, Generic, TypeVar

from weir.pcap.audit.report import Report
from weir.pcap.audit.rules import Rule
from weir.pcap.frames import CapturedFrame
from weir.pcap.packets import Datagram, FlowPacket, SlotPacket
from weir.wire.definition import CE, NOT_ECT, RELIABLE_DSCP, Flag, FlowType

_WAITING: Final = 8  # sendings of one packet that a device is believed to hold at a time


_MOST: Final = 1 << 18  # as many packets as long captures have under way

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Values of the last ``most`` keys that were new: memory that does not grow with a capture."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._values: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """Return the value of a key; None when there is none, or when it was forgotten."""
        return self._values.get(key)

    def setdefault(self, key: Key, value: Value) -> Value:
        """Return the value of a key, which becomes ``value`` when there is none."""
        found = self._values.get(key)
        if found is not None:
            return found
        self._values[key] = value
        if len(self._values) > self._most:
            del self._values[next(iter(self._values))]
        return value


class Hops:
    """Finds for each packet that leaves a device the frame in which it came."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._came: Recent[tuple[object, ...], list[CapturedFrame]] = Recent()

    def add(self, seen: CapturedFrame, udp: Datagram) -> CapturedFrame | None:
        """Take in a frame, from every link; return the one with which it came to the device it leaves."""
        came, left = _devices(seen)
        if (came is None and left is None) or seen.problem is not None:
            return None
        key = _identity(udp, seen.packet, seen.flow)
        before = self._leave(seen, (left, *key)) if left is not None else None
        if came is not None:
            waiting = self._came.setdefault((came, *key), [])
            waiting.append(seen)
            del waiting[:-_WAITING]
        return before

    def _leave(self, seen: CapturedFrame, key: tuple[object, ...]) -> CapturedFrame | None:
        """Return the frame with which the packet came, the one from which it differs least."""
        waiting = self._came.get(key)
        if not waiting:
            return None
        changes = [_changes(before, seen) for before in waiting]
        best = min(range(len(waiting)), key=lambda number: len(changes[number]))
        before = waiting.pop(best)
        self._report.check(Rule.ON_THE_WAY, not changes[best], "; ".join(changes[best]), before, seen)
        return before


def _devices(seen: CapturedFrame) -> tuple[str | None, str | None]:
    """Return the device to which a frame came, and the one that it left."""
    if seen.ends is not None:
        return f"> {seen.ends[1]}", f"> {seen.ends[0]}"
    if seen.incoming is None:
        return None, None
    return (seen.file, None) if seen.incoming else (None, seen.file)


def _identity(udp: Datagram, packet: SlotPacket | None, flow: FlowPacket | None) -> tuple[object, ...]:
    """Return what no device may change, and what tells one packet from another."""
    if packet is not None:
        return *udp.ends, packet.type, packet.job, packet.worker, packet.slot, packet.round
    if flow is not None:
        first = 0 if flow.type is FlowType.CHUNK else flow.first  # of a chunk, its account
        return *udp.ends, flow.type, flow.flow, flow.tensor, flow.index, first
    return *udp.ends, udp.payload


def _changes(before: CapturedFrame, after: CapturedFrame) -> list[str]:
    """Return what a device has changed and may not."""
    a, b = before.udp, after.udp
    if a is None or b is None:
        return []
    trimmed = _trimmed(after) and not _trimmed(before)
    found = []
    routed = (a.source_mac, a.destination_mac) != (b.source_mac, b.destination_mac)
    if b.ttl != a.ttl - routed:
        found.append(f"the TTL was {a.ttl} and is {b.ttl} {'behind a router' if routed else 'in one subnet'}")
    if b.dscp != a.dscp and not (trimmed and b.dscp == RELIABLE_DSCP):
        found.append(f"DSCP {a.dscp} became {b.dscp}")
    if b.ecn != a.ecn and not (a.ecn not in (NOT_ECT, CE) and b.ecn == CE):
        found.append(f"ECN {a.ecn} became {b.ecn}")
    if _cut(before) != (after.packet or after.flow) if trimmed else _content(before) != _content(after):
        found.append("the payload was changed")
    return found


def _trimmed(seen: CapturedFrame) -> bool:
    packet = seen.packet or seen.flow
    return packet is not None and packet.trimmed


def _content(seen: CapturedFrame) -> SlotPacket | FlowPacket | bytes | None:
    return seen.packet or seen.flow or (seen.udp.payload if seen.udp is not None else None)


def _cut(seen: CapturedFrame) -> SlotPacket | FlowPacket | None:
    """Return the packet as a device leaves it that cuts its lanes or data off."""
    if seen.packet is not None:
        flags = seen.packet.flags | Flag.TRIMMED
        return replace(seen.packet, flags=flags, groups=0, included=0, count=0, body=b"")
    if seen.flow is not None:
        return replace(seen.flow, flags=seen.flow.flags | Flag.TRIMMED, data=b"")
    return None
