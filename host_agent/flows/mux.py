# SPDX-License-Identifier: Apache-2.0
"""All flows of a host behind one port: packets to the flow they name, and the most urgent packet first."""

from collections import Counter
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from weir.host_agent.flows.receiver import FlowReceiver
from weir.host_agent.flows.sender import FlowSender
from weir.host_agent.flows.verdict import FlowVerdict, Verdicts, refusals
from weir.host_agent.transport.datagram import Datagram
from weir.wire.definition import FLOW

Peer = TypeVar("Peer", bound=Hashable)

_FLOW_AT = 4  # bytes before the flow id


class Addressed(NamedTuple, Generic[Peer]):
    """A datagram and where it goes."""

    peer: Peer
    datagram: Datagram


class FlowMux(Generic[Peer]):
    """Senders and receivers by flow id, each with its one peer. For one thread at a time.

    A packet that does not come from its flow's peer is refused. Among the flows that have something to send,
    the packet of the greatest class goes first (so front layers before back ones); equals take turns.
    """

    def __init__(self) -> None:
        self._flows: dict[int, tuple[FlowSender | FlowReceiver, Peer]] = {}
        self._turns: list[int] = []
        self.verdicts: Verdicts = Counter()
        """Of packets that no flow of this host got to see."""

    def add(self, flow: FlowSender | FlowReceiver, peer: Peer) -> None:
        """Serve a flow whose other end is at ``peer``."""
        number = flow.config.flow
        if number in self._flows:
            raise ValueError(f"flow {number:#010x} is here already: take another id")
        self._flows[number] = flow, peer
        self._turns.append(number)

    def remove(self, flow: FlowSender | FlowReceiver) -> None:
        """Serve it no more."""
        del self._flows[flow.config.flow]
        self._turns.remove(flow.config.flow)

    def on_packet(self, payload: bytes, now: int, traffic_class: int, source: Peer) -> FlowVerdict:
        """Give a UDP payload to its flow."""
        if len(payload) < FLOW.size:
            return self._refuse(FlowVerdict.SHORT)
        found = self._flows.get(int.from_bytes(payload[_FLOW_AT : _FLOW_AT + 4], "big"))
        if found is None:
            return self._refuse(FlowVerdict.WRONG_FLOW)
        flow, peer = found
        if peer != source:
            return self._refuse(FlowVerdict.WRONG_SOURCE)
        return flow.on_packet(payload, now, traffic_class)

    def _refuse(self, verdict: FlowVerdict) -> FlowVerdict:
        self.verdicts[verdict] += 1
        return verdict

    def urgency(self, now: int) -> int | None:
        """Return the class (DSCP without drop precedence) of the most urgent packet to send now."""
        found = [flow.urgency(now) for flow, _ in self._flows.values()]
        return max((one for one in found if one is not None), default=None)

    def next(self, now: int) -> Addressed[Peer] | None:
        """Return the most urgent packet to send now."""
        best, best_place = -1, -1
        for place, number in enumerate(self._turns):
            urgency = self._flows[number][0].urgency(now)
            if urgency is not None and urgency > best:
                best, best_place = urgency, place
        if best < 0:
            return None
        number = self._turns.pop(best_place)
        self._turns.append(number)
        flow, peer = self._flows[number]
        datagram = flow.next(now)
        assert datagram is not None
        return Addressed(peer, datagram)

    def poll(self, now: int, limit: int | None = None) -> tuple[list[Addressed[Peer]], int | None]:
        """Return at most ``limit`` packets to send now, and when to poll again if nothing arrives.

        A driver that looks for arrivals between short polls keeps the order of urgency up to date.
        """
        found: list[Addressed[Peer]] = []
        while limit is None or len(found) < limit:
            one = self.next(now)
            if one is None:
                return found, self.deadline
            found.append(one)
        return found, now

    @property
    def settled(self) -> bool:
        """Return whether nothing is under way, and every sender here and there knows that."""
        return all(
            flow.idle if isinstance(flow, FlowSender) else flow.settled for flow, _ in self._flows.values()
        )

    def waiting(self) -> list[str]:
        """Describe what each sender with unsettled tensors waits for."""
        return [
            f"flow {number:#010x} to {peer} waits for tensors {flow.waiting()}"
            for number, (flow, peer) in self._flows.items()
            if isinstance(flow, FlowSender) and flow.waiting()
        ]

    def refused(self) -> dict[FlowVerdict, int]:
        """Return how many packets were refused here or by a flow, by reason."""
        total = self.verdicts.copy()
        for flow, _ in self._flows.values():
            total.update(flow.verdicts)
        return refusals(total)

    @property
    def deadline(self) -> int | None:
        """Return the earliest of all flows' deadlines."""
        times = [flow.deadline for flow, _ in self._flows.values()]
        return min((time for time in times if time is not None), default=None)
