# SPDX-License-Identifier: Apache-2.0
"""Rules about flows: what receivers say has come, and what they are content without."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from weir.host_agent.flows.codec import Bitmap, Bits, Chunk, FlowPacket, Head, Probe, Stop, Terms
from weir.pcap.audit.report import Report, Rule
from weir.pcap.frames import CapturedFrame, Datagram

_LANE: Final = 4


@dataclass
class _Tensor:
    """A tensor of a flow: of each chunk where its data were seen, its account and its lanes.

    seen: by node that the links lead to, "" where links have no ends.
    """

    count: int
    seen: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    account: dict[int, int] = field(default_factory=dict)
    lanes: dict[int, int] = field(default_factory=dict)
    terms: Terms | None = None
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
        if isinstance(packet, Chunk) and packet.data:
            self._tensor(packet.head, udp.source, udp.destination).seen[there].add(packet.index)

    def add(self, seen: CapturedFrame, udp: Datagram, packet: FlowPacket) -> None:
        """Take in a packet, in the order of the capture."""
        head = packet.head
        if isinstance(packet, Chunk | Probe):
            tensor = self._tensor(head, udp.source, udp.destination)
        else:
            tensor = self._tensor(head, udp.destination, udp.source)
        match packet:
            case Chunk():
                tensor.account[packet.index] = packet.account
                if packet.data:
                    tensor.lanes[packet.index] = len(packet.data) // _LANE
            case Probe():
                tensor.terms = packet.terms or tensor.terms
            case Bitmap() if not packet.trimmed:
                self._has(seen, head, tensor, packet.first, packet.bits)
            case Stop() if not packet.cut:
                self._stop(seen, head, tensor, packet)

    def _tensor(self, head: Head, sender: str, receiver: str) -> _Tensor:
        key = (head.flow, head.tensor, sender, receiver)
        return self._tensors.setdefault(key, _Tensor(head.count))

    def _has(self, seen: CapturedFrame, head: Head, tensor: _Tensor, first: int, bits: Bits | None) -> None:
        home = self._homes.get(seen.udp.source, "") if seen.udp is not None else ""
        if bits is None or not tensor.seen:
            return
        claimed = {first + int(index) for index in np.flatnonzero(bits)}
        lies = sorted(claimed - tensor.seen.get(home, set()))
        self._report.check(
            Rule.SETTLEMENT,
            not lies,
            f"{_name(head)}: the receiver has chunks {lies[:8]}, which never came",
            seen,
        )

    def _stop(self, seen: CapturedFrame, head: Head, tensor: _Tensor, packet: Stop) -> None:
        if not tensor.seen:
            return  # the other end's confirmation, or a capture that began late
        if packet.complete:
            bits: Bits = np.ones(tensor.count, np.bool_)
        elif packet.bits is not None:
            bits = packet.bits
        else:
            return
        self._has(seen, head, tensor, packet.first, bits)
        packed = np.packbits(bits).tobytes()
        before, where = tensor.stopped.setdefault(packet.first, (packed, seen))
        self._report.check(
            Rule.SETTLEMENT,
            before == packed,
            f"{_name(head)}: the receiver stops twice, differently",
            where,
            seen,
        )
        tensor.delivered |= {packet.first + int(index) for index in np.flatnonzero(bits)}
        covered = packet.first + len(bits) >= tensor.count and (packet.first == 0 or 0 in tensor.stopped)
        if covered and tensor.terms is not None:
            self._budgets(seen, head, tensor, tensor.terms)

    def _budgets(self, seen: CapturedFrame, head: Head, tensor: _Tensor, terms: Terms) -> None:
        came = [0] * len(terms.lanes)
        for chunk in tensor.delivered:
            account = tensor.account.get(chunk)
            if account is None or account >= len(came):
                return
            came[account] += tensor.lanes.get(chunk, 0)
        for account, (lanes, budget) in enumerate(zip(terms.lanes, terms.budgets, strict=True)):
            missing = lanes - came[account]
            self._report.check(
                Rule.SETTLEMENT,
                missing <= budget,
                f"{_name(head)}: {missing} lanes of account {account} are missing, its budget is {budget}",
                seen,
            )


def _name(head: Head) -> str:
    return f"flow {head.flow:#x} worker {head.worker} tensor {head.tensor}"
