# SPDX-License-Identifier: Apache-2.0
"""Packets put together to rounds, as `weir pcap show` prints them. What is wrong with them, `audit` says."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from weir.pcap.frames import CapturedFrame
from weir.pcap.packets import SlotPacket
from weir.wire.definition import NO_BLOCK, Op, PacketType


@dataclass(frozen=True)
class ColumnSeen:
    """A column of a packet: its block and next (None when there is none), and whether its lanes are there."""

    block: int | None
    next: int | None
    lanes: bool


@dataclass(frozen=True)
class PacketSeen:
    """A packet without its lanes. ``copy``: 1 for a worker's first of this round, 2 for its second..."""

    time: float
    port: str
    size: int
    worker: int
    columns: tuple[ColumnSeen, ...]
    included: int
    copy: int


@dataclass
class Round:
    """One round of one slot at one switch: contributions and results in the order of the capture.

    point: the switch's aggregation address.
    """

    point: str
    job: int
    slot: int
    number: int
    op: Op
    block: int
    contributions: list[PacketSeen] = field(default_factory=list)
    results: list[PacketSeen] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, int, int, int]:
        """Return what findings of an audit know the round by."""
        return self.point, self.job, self.slot, self.number

    @property
    def began(self) -> float:
        """Return time of the first packet, seconds."""
        return min(p.time for p in (*self.contributions[:1], *self.results[:1]))

    @property
    def complete(self) -> bool:
        """Return whether a result was seen."""
        return bool(self.results)

    @property
    def took(self) -> float | None:
        """Return seconds from the first contribution to the first result; None when one of them is
        missing.
        """
        if not (self.contributions and self.results):
            return None
        return self.results[0].time - self.contributions[0].time


class Trace:
    """All rounds of a capture.

    Attributes:
        rounds: in order of their first packet.
        other: frames that are not of the slot protocol.
        malformed: frames that should be, each with the reason.
    """

    def __init__(self) -> None:
        self._rounds: dict[tuple[str, int, int, int], Round] = {}
        self.other = 0
        self.malformed: list[tuple[float, str]] = []

    @classmethod
    def of(cls, frames: Iterable[CapturedFrame]) -> "Trace":
        """Return the trace of all these frames."""
        trace = cls()
        for seen in frames:
            trace.add(seen)
        return trace

    @property
    def rounds(self) -> list[Round]:
        """Rounds in the order of their first packets."""
        return list(self._rounds.values())

    def add(self, seen: CapturedFrame) -> None:
        """Take in one more frame."""
        if seen.problem is not None:
            self.malformed.append((seen.time, seen.problem))
        elif seen.packet is None or seen.udp is None:
            self.other += 1
        elif seen.packet.type is PacketType.CONTRIBUTION:
            found = self._round(seen.udp.destination, seen.packet)
            found.contributions.append(_note(seen, seen.packet, found.contributions))
        elif seen.packet.type is PacketType.RESULT:
            found = self._round(seen.udp.source, seen.packet)
            found.results.append(_note(seen, seen.packet, found.results))

    def _round(self, point: str, packet: SlotPacket) -> Round:
        key = (point, packet.job, packet.slot, packet.round)
        found = self._rounds.get(key)
        if found is None:
            found = self._rounds[key] = Round(*key, op=packet.op, block=1 << packet.block_log2)
        return found


def _note(seen: CapturedFrame, packet: SlotPacket, before: list[PacketSeen]) -> PacketSeen:
    columns = tuple(
        ColumnSeen(
            block=None if column.block == NO_BLOCK else column.block,
            next=None if column.next == NO_BLOCK else column.next,
            lanes=packet.has_lanes(index),
        )
        for index, column in enumerate(packet.columns)
    )
    copy = 1 + sum(other.worker == packet.worker for other in before)
    return PacketSeen(seen.time, seen.port, seen.size, packet.worker, columns, packet.included, copy)
