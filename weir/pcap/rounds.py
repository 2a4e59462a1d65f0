# SPDX-License-Identifier: Apache-2.0
"""Packets put together to rounds, each checked: is the result what its contributions make?"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.transport.codec import Packet
from weir.pcap.frames import CapturedFrame
from weir.wire.definition import GROUP_LANES, MAX_CHILDREN, NO_BLOCK, SLOT_LANES, Flag, Op, PacketType

_Lanes = npt.NDArray[np.uint32]
_COMBINE: Final = {Op.ADD: np.add, Op.MAX: np.maximum, Op.OR: np.bitwise_or}


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
    """One round of one slot: contributions and results in the order of the capture.

    ``wrong``: how the result breaks the protocol's promises; empty when it keeps them, or when the capture
    does not hold every packet the check needs.
    """

    job: int
    slot: int
    number: int
    op: Op
    block: int
    contributions: list[PacketSeen] = field(default_factory=list)
    results: list[PacketSeen] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lanes: dict[int, _Lanes] = field(default_factory=dict, repr=False)
    result: Packet | None = field(default=None, repr=False)
    sums: _Lanes | None = field(default=None, repr=False)

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
        other: frames that are not Weir's. malformed: frames that should be, each with the reason.
    """

    def __init__(self) -> None:
        self._rounds: dict[tuple[int, int, int], Round] = {}
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
        """Return the rounds in the order of their first packets."""
        return list(self._rounds.values())

    def add(self, seen: CapturedFrame) -> None:
        """Take in one more frame."""
        if seen.problem is not None:
            self.malformed.append((seen.time, seen.problem))
        elif seen.packet is None:
            self.other += 1
        else:
            self._add_packet(seen, seen.packet)

    def _add_packet(self, seen: CapturedFrame, packet: Packet) -> None:
        key = (packet.job, packet.slot, packet.round)
        found = self._rounds.get(key)
        if found is None:
            found = Round(*key, op=packet.op, block=1 << packet.block_log2)
            self._rounds[key] = found
        if packet.type is PacketType.CONTRIBUTION:
            self._add_contribution(found, seen, packet)
        else:
            self._add_result(found, seen, packet)

    def _add_contribution(self, found: Round, seen: CapturedFrame, packet: Packet) -> None:
        noted = _note(seen, packet, found.contributions)
        found.contributions.append(noted)
        if noted.copy == 1 and not found.complete:
            found.lanes[packet.worker] = _lanes(packet)

    def _add_result(self, found: Round, seen: CapturedFrame, packet: Packet) -> None:
        found.results.append(_note(seen, packet, found.results))
        if found.result is None:
            found.result = packet
            found.wrong += _check_nexts(found, packet)
            if packet.flags & Flag.DISAGREE:
                found.wrong.append("the workers are in different operations")
        first, lanes = found.result, _lanes(packet)
        differs = (first.columns, first.included) != (packet.columns, packet.included)
        if packet.flags & (Flag.ELSEWHERE | Flag.DISAGREE):
            differs = differs or bool(packet.groups)
        elif found.sums is None:
            found.sums = lanes
            found.wrong += _check_sums(found, packet, lanes)
            found.lanes.clear()
        else:
            differs = differs or not np.array_equal(lanes, found.sums)
        if differs:
            found.wrong.append(f"the result for worker {packet.worker} differs from that for {first.worker}")


def _note(seen: CapturedFrame, packet: Packet, before: list[PacketSeen]) -> PacketSeen:
    per_column = (1 << packet.block_log2) // GROUP_LANES
    columns = tuple(
        ColumnSeen(
            block=None if column.block == NO_BLOCK else column.block,
            next=None if column.next == NO_BLOCK else column.next,
            lanes=any(index * per_column + group in packet.groups for group in range(per_column)),
        )
        for index, column in enumerate(packet.columns)
    )
    copy = 1 + sum(other.worker == packet.worker for other in before)
    return PacketSeen(seen.time, seen.port, seen.size, packet.worker, columns, packet.included, copy)


def _lanes(packet: Packet) -> _Lanes:
    """Return the packet's lanes as a whole slot, uint32[256]; zero where it has none."""
    lanes = np.zeros(SLOT_LANES, np.uint32)
    for group, values in packet.groups.items():
        lanes[group * GROUP_LANES : (group + 1) * GROUP_LANES] = values
    return lanes


def _check_sums(found: Round, result: Packet, lanes: _Lanes) -> list[str]:
    """Return what is wrong with the sums of a round, as far as the capture can tell."""
    included = [worker for worker in range(MAX_CHILDREN) if result.included >> worker & 1]
    everybody = result.count == len(included)  # else workers of other racks are in the sums
    if not everybody or any(worker not in found.lanes for worker in included):
        return []
    expected = np.zeros(SLOT_LANES, np.uint32)
    for worker in included:
        expected = _COMBINE[found.op](expected, found.lanes[worker])
    wrong = int((expected != lanes).sum())
    return [f"{wrong} lanes are not {found.op.name} of the contributions'"] if wrong else []


def _check_nexts(found: Round, result: Packet) -> list[str]:
    """Return what is wrong with the blocks that the first result of a round asks for next."""
    wrong = []
    first = {p.worker: p for p in found.contributions if p.copy == 1}
    for index, column in enumerate(result.columns):
        nexts = [n for p in first.values() if (n := p.columns[index].next) is not None]
        if nexts and column.next > min(nexts):
            wrong.append(
                f"column {index} asks for {_name(column.next)} next, a worker announced {min(nexts)}"
            )
    return wrong


def _name(block: int) -> str:
    return "nothing" if block == NO_BLOCK else str(block)
