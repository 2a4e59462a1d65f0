# SPDX-License-Identifier: Apache-2.0
"""The receiving half of a flow as a state machine without I/O. It keeps no timers: it only answers.

Example::

    receiver = FlowReceiver(FlowConfig(flow=agreed, worker=2))
    receiver.on_packet(payload, now, traffic_class)
    datagrams, _ = receiver.poll(now)           # send them
    for delivery in receiver.deliveries():
        gradient = delivery.values              # zero where nothing came
        parameters = delivery.onto(parameters)  # or stale there
"""

from collections import Counter, deque
from dataclasses import dataclass

from weir.host_agent.flows.codec import Bitmap, Chunk, FlowPacket, Head, Probe, decode
from weir.host_agent.flows.config import FlowConfig
from weir.host_agent.flows.inbound import Delivery, InboundTensor
from weir.host_agent.flows.verdict import FlowVerdict, Verdicts
from weir.host_agent.transport.datagram import RELIABLE_CLASS, Datagram
from weir.host_agent.transport.report import FRAME_OVERHEAD
from weir.wire.definition import CE, RELIABLE_DSCP

__all__ = ["Delivery", "FlowReceiver", "ReceiverCounts"]


@dataclass
class ReceiverCounts:
    """Totals of a receiver. marked: chunks that met congestion. bytes: with all headers, of what it sent."""

    packets: int = 0
    bytes: int = 0
    marked: int = 0


class FlowReceiver:
    """Takes in tensors and tells their sender what came. For one thread at a time.

    It remembers ``config.open_tensors`` tensors: a sender opens no other before it knows how the oldest of
    them ended.
    """

    def __init__(self, config: FlowConfig) -> None:
        self.config = config
        self.verdicts: Verdicts = Counter()
        self.counts = ReceiverCounts()
        self._tensors: dict[int, InboundTensor] = {}
        self._highest = 0  # greatest tensor number seen
        self._lowest = 1  # every tensor below is stopped
        self._answers: deque[bytes] = deque()
        self._deliveries: list[Delivery] = []
        self._news: dict[int, InboundTensor] = {}

    def on_packet(self, payload: bytes, now: int, traffic_class: int = 0) -> FlowVerdict:
        """Take in a UDP payload that came with this DSCP << 2 | ECN. A refused one only counts."""
        packet = decode(payload)
        congested = traffic_class & 3 == CE
        verdict = packet if isinstance(packet, FlowVerdict) else self._take_in(packet, congested)
        self.verdicts[verdict] += 1
        return verdict

    def poll(self, now: int) -> tuple[list[Datagram], None]:
        """Return the answers to send now. It never needs to be polled but after a packet."""
        datagrams = []
        while (datagram := self.next(now)) is not None:
            datagrams.append(datagram)
        return datagrams, None

    @property
    def deadline(self) -> None:
        """Return None: it has no timers, as whoever waits for an answer asks again."""
        return None

    def urgency(self, now: int) -> int | None:
        """Return the class (DSCP without drop precedence) of the packet that would be sent next; None when
        there is none.
        """
        return RELIABLE_DSCP >> 3 if self._has_answer() else None

    def next(self, now: int) -> Datagram | None:
        """Return the next answer to send now."""
        if not self._has_answer():
            return None
        payload = self._answers.popleft()
        self.counts.packets += 1
        self.counts.bytes += FRAME_OVERHEAD + len(payload)
        return Datagram(payload, RELIABLE_CLASS)

    def deliveries(self) -> list[Delivery]:
        """Return the tensors delivered since the last call, in the order in which they were stopped."""
        delivered, self._deliveries = self._deliveries, []
        return delivered

    @property
    def settled(self) -> bool:
        """Return whether the sender has confirmed every tensor that it began: nothing is left to answer."""
        return all(tensor.confirmed for tensor in self._tensors.values()) and not self._answers

    def _has_answer(self) -> bool:
        """Tell the news there are, now that they can go out: packets that came together get one answer."""
        while self._news and not self._answers:
            self._answers += self._news.popitem()[1].tell()
        return bool(self._answers)

    def _take_in(self, packet: FlowPacket, congested: bool) -> FlowVerdict:
        head = packet.head
        if head.flow != self.config.flow:
            return FlowVerdict.WRONG_FLOW
        if head.worker != self.config.worker:
            return FlowVerdict.WRONG_WORKER
        if isinstance(packet, Bitmap):
            return FlowVerdict.WRONG_DIRECTION
        if head.tensor + self.config.open_tensors <= self._highest:
            return FlowVerdict.LATE
        if head.tensor >= self._lowest + self.config.open_tensors:
            return FlowVerdict.BAD_TENSOR
        tensor = self._tensors.get(head.tensor)
        if tensor is not None:
            if head.count != tensor.count:
                return FlowVerdict.BAD_COUNT
            if head.layer != tensor.layer:
                return FlowVerdict.BAD_CLASS
        if not isinstance(packet, Chunk | Probe):
            return self._on_confirmation(tensor)
        if tensor is None:
            if (head.count - 1) * self.config.chunk_lanes >= self.config.max_lanes:
                return FlowVerdict.BAD_COUNT
            tensor = InboundTensor(self.config, head)
        if isinstance(packet, Chunk):
            verdict, answers = tensor.on_chunk(packet, congested)
            self.counts.marked += congested and verdict is FlowVerdict.ACCEPTED
        else:
            verdict, answers = tensor.on_probe(packet, congested)
        if verdict.refused:
            return verdict
        if tensor.has_news:
            self._news[head.tensor] = tensor
        self._keep(head, tensor)
        self._answers += answers
        if tensor.stopped and not tensor.delivered:
            self._deliveries.append(tensor.deliver())
            while (lowest := self._tensors.get(self._lowest)) is not None and lowest.stopped:
                self._lowest += 1
        return verdict

    def _on_confirmation(self, tensor: InboundTensor | None) -> FlowVerdict:
        if tensor is None or not tensor.stopped:
            return FlowVerdict.BAD_TENSOR
        verdict = FlowVerdict.DUPLICATE if tensor.confirmed else FlowVerdict.ACCEPTED
        tensor.confirmed = True
        return verdict

    def _keep(self, head: Head, tensor: InboundTensor) -> None:
        """Remember a tensor, and forget those whose end its sender must know by now."""
        self._tensors[head.tensor] = tensor
        if head.tensor > self._highest:
            self._highest = head.tensor
            for number in [n for n in self._tensors if n + self.config.open_tensors <= self._highest]:
                del self._tensors[number]
