# SPDX-License-Identifier: Apache-2.0
"""Rules about flows: what receivers say has come, and what they are content without."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from weir.pcap.audit.report import Report
from weir.pcap.audit.rules import Rule
from weir.pcap.frames import CapturedFrame
from weir.pcap.packets import Bits, Datagram, FlowPacket
from weir.wire.definition import FlowType

_LANE: Final = 4


@dataclass
class _Tensor:
    """A tensor of a flow: of each chunk where its data were seen, its account and its lanes.

    seen: by node that the links lead to, "" where links have no ends. data: of each chunk a fingerprint of
    its account and data, and where these were first. terms: of each account its lanes and budget, and where.
    """

    count: int
    seen: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    account: dict[int, int] = field(default_factory=dict)
    lanes: dict[int, int] = field(default_factory=dict)
    data: dict[int, tuple[int, str]] = field(default_factory=dict)
    terms: tuple[list[tuple[int, int]], str] | None = None
    stopped: dict[int, tuple[bytes | None, CapturedFrame]] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)


class Flows:
    """Follows every tensor of every flow."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._tensors: dict[tuple[int, int, str, str], _Tensor] = {}
        self._homes: dict[str, str] = {}  # of addresses: the nodes that they are at

    def passed(self, seen: CapturedFrame, udp: Datagram, packet: FlowPacket) -> None:
        """Note what passed a link, on each that it passes."""
        here, there = seen.ends or ("", "")
        self._homes.setdefault(udp.source, here)
        if packet.type is FlowType.CHUNK and packet.data:
            tensor = self._tensor(packet, udp.source, udp.destination)
            tensor.seen[there].add(packet.index)
            now = hash((packet.first, packet.data))
            first, place = tensor.data.setdefault(packet.index, (now, seen.place))
            text = f"{packet.name}: chunk {packet.index} has other data or another account than before"
            self._report.check(Rule.SAME_LANES, first == now, text, place, seen)

    def add(self, seen: CapturedFrame, udp: Datagram, packet: FlowPacket) -> None:
        """Take in a packet, in the order of the capture."""
        if packet.type in (FlowType.CHUNK, FlowType.PROBE):
            tensor = self._tensor(packet, udp.source, udp.destination)
        else:
            tensor = self._tensor(packet, udp.destination, udp.source)
        text = f"{packet.name}: {packet.count} chunks, {tensor.count} before"
        self._report.check(Rule.SETTLEMENT, packet.count == tensor.count, text, seen)
        match packet.type:
            case FlowType.CHUNK:
                tensor.account[packet.index] = packet.first
                if packet.data:
                    tensor.lanes[packet.index] = len(packet.data) // _LANE
            case FlowType.PROBE:
                self._terms(seen, tensor, packet)
            case FlowType.BITMAP if not packet.trimmed:
                self._has(seen, tensor, packet, packet.bits)
            case FlowType.STOP if not packet.trimmed:
                self._stop(seen, tensor, packet)

    def _tensor(self, packet: FlowPacket, sender: str, receiver: str) -> _Tensor:
        key = (packet.flow, packet.tensor, sender, receiver)
        return self._tensors.setdefault(key, _Tensor(packet.count))

    def _terms(self, seen: CapturedFrame, tensor: _Tensor, packet: FlowPacket) -> None:
        terms = packet.terms
        if terms is None:
            return
        tensor.terms = before, place = tensor.terms or (terms, seen.place)
        text = f"{packet.name}: its accounts and budgets differ from the first probe's"
        self._report.check(Rule.SETTLEMENT, terms == before, text, place, seen)

    def _has(self, seen: CapturedFrame, tensor: _Tensor, packet: FlowPacket, bits: Bits | None) -> None:
        home = self._homes.get(seen.udp.source, "") if seen.udp is not None else ""
        if bits is None or not tensor.seen:
            return
        claimed = {packet.first + int(index) for index in np.flatnonzero(bits)}
        lies = sorted(claimed - tensor.seen.get(home, set()))
        text = f"{packet.name}: the receiver has chunks {lies[:8]}, which never came"
        self._report.check(Rule.SETTLEMENT, not lies, text, seen)

    def _stop(self, seen: CapturedFrame, tensor: _Tensor, packet: FlowPacket) -> None:
        if not tensor.seen:
            return  # the other end's confirmation, or a capture that began late
        bits = packet.bits
        if bits is None:  # all was delivered
            bits = np.ones(tensor.count, np.bool_)
        self._has(seen, tensor, packet, bits)
        packed = np.packbits(bits).tobytes()
        before, where = tensor.stopped.setdefault(packet.first, (packed, seen))
        text = f"{packet.name}: the receiver stops twice, differently"
        self._report.check(Rule.SETTLEMENT, before == packed, text, where, seen)
        tensor.delivered |= {packet.first + int(index) for index in np.flatnonzero(bits)}
        covered = packet.first + len(bits) >= tensor.count and (packet.first == 0 or 0 in tensor.stopped)
        if covered and tensor.terms is not None:
            self._budgets(seen, tensor, packet, *tensor.terms)

    def _budgets(
        self,
        seen: CapturedFrame,
        tensor: _Tensor,
        packet: FlowPacket,
        terms: list[tuple[int, int]],
        place: str,
    ) -> None:
        came = [0] * len(terms)
        for chunk in tensor.delivered:
            account = tensor.account.get(chunk)
            if account is None or account >= len(came):
                return
            came[account] += tensor.lanes.get(chunk, 0)
        for account, (lanes, budget) in enumerate(terms):
            missing = lanes - came[account]
            text = f"{packet.name}: {missing} lanes of account {account} are missing, its budget is {budget}"
            self._report.check(Rule.SETTLEMENT, missing <= budget, text, seen, place)
