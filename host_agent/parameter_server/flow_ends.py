# SPDX-License-Identifier: Apache-2.0
"""The ends of a member's two flows with a server: messages in, messages out, without I/O.

Members are workers, and servers that hand units over.

Of a push a bounded part may be lost. What says where values belong is never lost; of the values, a share
that the server sees to. Of these, chunks with the smallest mean magnitude are dropped first, as the blocks of
a bucket are (``weir.host_agent.compression.classes``). What was lost is zero in what the server applies, and
the server's next word says so: the worker then holds it again.

Example::

    ends = ServerEnds(server, mux)
    ends.connect(0, 1, up, down, peer)          # and on the worker WorkerEnd(mux, peer, up, down)
    (push,) = worker.push(gradient, lr)
    end.submit(push)
    ...                                         # drive both muxes; after packets came:
    ends.advance()
    for message in end.received():
        worker.on_message(0, message)
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weir.host_agent.flows import FlowConfig, FlowMux, FlowReceiver, FlowSender, Settlement
from weir.host_agent.flows.frames import Address
from weir.host_agent.parameter_server.messages import Message, MessageError
from weir.host_agent.parameter_server.payload import Words
from weir.host_agent.parameter_server.server_machine import ServerMachine
from weir.host_agent.transport.counters import TransportCounters
from weir.host_agent.transport.report import FRAME_OVERHEAD
from weir.host_agent.transport.service_class import ServiceClass
from weir.wire.definition import FLOW, MAGNITUDE_CLASSES

log = logging.getLogger(__name__)


class WorkerEnd:
    """A member's end: a flow of its messages to a server, and one of the server's back.

    Args:
        mux: that serves both.
        peer: where the server is.
        up, down: of the flows.
        loss_budget: share of a push's values that may be lost.
        layer: layer class of the server's shard.
    """

    def __init__(
        self,
        mux: FlowMux,
        peer: Address,
        up: FlowConfig,
        down: FlowConfig,
        loss_budget: float = 0.0,
        layer: int = 0,
    ) -> None:
        self._mux, self._budget, self._layer = mux, loss_budget, layer
        self._sender, self._receiver = FlowSender(up), FlowReceiver(down)
        self._came = TransportCounters()
        for flow in (self._sender, self._receiver):
            mux.add(flow, peer)

    def submit(self, message: Message) -> None:
        """Send a message."""
        words = message.encode()
        service = service_of(message, words, self._sender.config, self._budget, self._layer)
        self._sender.submit(words.view(np.float32), service)

    def received(self) -> list[Message]:
        """Return the messages that have come. What is none is left out, and told to the log."""
        found = []
        for delivery in self._receiver.deliveries():
            packets = self._receiver.config.chunks(delivery.values.size)
            size = delivery.values.nbytes + packets * (FRAME_OVERHEAD + FLOW.size)
            self._came += TransportCounters(packets_down=packets, bytes_down=size)
            try:
                found.append(Message.decode(delivery.values.view(np.uint32)))
            except MessageError as error:
                log.warning("worker %d: %s", self._receiver.config.worker, error)
        return found

    def settlements(self) -> list[Settlement]:
        """Return what became of messages that were sent, since the last call."""
        return self._sender.settlements()

    @property
    def idle(self) -> bool:
        """Return whether the server has got all that was sent."""
        return self._sender.idle

    @property
    def stats(self) -> TransportCounters:
        """Packets so far. Of what comes, those of data: no probes, no answers."""
        counts, back = self._sender.counts, self._receiver.counts
        return self._came + TransportCounters(
            packets_up=counts.packets + back.packets,
            bytes_up=counts.bytes + back.bytes,
            retransmissions=counts.resent,
            probes=counts.probes,
            timeouts=counts.timeouts,
            trimmed=counts.trimmed,
            marked=counts.marked,
        )

    @property
    def sent(self) -> int:
        """Bytes sent, headers from Ethernet up."""
        return self._sender.counts.bytes + self._receiver.counts.bytes

    def close(self) -> None:
        """Serve the flows no more."""
        for flow in (self._sender, self._receiver):
            self._mux.remove(flow)


@dataclass(frozen=True)
class _Session:
    incarnation: int
    receiver: FlowReceiver
    sender: FlowSender


class ServerEnds:
    """A server's ends of the flows with all of its workers."""

    def __init__(self, server: ServerMachine, mux: FlowMux) -> None:
        self._server, self._mux = server, mux
        self._sessions: dict[int, _Session] = {}
        self._closed: Counter[int] = Counter()  # bytes of flows that are served no more

    def connect(self, worker: int, incarnation: int, up: FlowConfig, down: FlowConfig, peer: Address) -> None:
        """Open the flows of a worker that is at ``peer``, instead of those that it had."""
        if (before := self._sessions.pop(worker, None)) is not None:
            self._closed[worker] += _bytes(before)
            self._mux.remove(before.receiver)
            self._mux.remove(before.sender)
        session = self._sessions[worker] = _Session(incarnation, FlowReceiver(up), FlowSender(down))
        for flow in (session.receiver, session.sender):
            self._mux.add(flow, peer)

    def advance(self) -> list[int]:
        """Take what has come, send what follows, and return the workers who have said something."""
        heard = []
        for worker, session in list(self._sessions.items()):
            for delivery in session.receiver.deliveries():
                heard.append(worker)
                try:
                    message = Message.received(delivery.values.view(np.uint32), delivery.lanes_received())
                except MessageError as error:
                    log.warning("a parameter server, worker %d: %s", worker, error)
                    continue
                if message.member != worker:
                    log.warning("rank %d speaks as rank %d: not heard", worker, message.member)
                    continue
                self.send(self._server.handle(message))
            session.sender.settlements()
        return heard

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages to those members that are connected."""
        for message in messages:
            session = self._sessions.get(message.member)
            if session is not None and session.incarnation == message.incarnation:
                session.sender.submit(message.encode().view(np.float32))

    @property
    def sent(self) -> Counter[int]:
        """Bytes sent so far by rank of the member, headers from Ethernet up."""
        return self._closed + Counter({rank: _bytes(session) for rank, session in self._sessions.items()})

    @property
    def senders(self) -> list[FlowSender]:
        """Flows to the workers."""
        return [session.sender for session in self._sessions.values()]


def _bytes(session: _Session) -> int:
    return session.sender.counts.bytes + session.receiver.counts.bytes


def frames(words: int) -> tuple[int, int]:
    """Return the bytes of a message of this many words on its way, and on the way back, with all headers: its
    chunks and a confirmation; the answer that all came.
    """
    head = FRAME_OVERHEAD + FLOW.size
    return 4 * words + FlowConfig(0).chunks(words) * head + head, head


_INDEX, _VALUES = 0, 1  # accounts


def service_of(
    message: Message, words: Words, config: FlowConfig, loss_budget: float, layer: int
) -> ServiceClass:
    """Return how a message travels.

    Args:
        message: what is sent.
        words: the same, encoded.
        config: of the flow that carries it.
        loss_budget: share of its values that may be lost.
        layer: layer class of its shard.
    """
    chunks, budget = config.chunks(words.size), int(loss_budget * message.droppable)
    first = -(-(words.size - message.droppable) // config.chunk_lanes)  # that holds values alone
    if not budget or first >= chunks:
        return ServiceClass(layer)
    accounts = np.where(np.arange(chunks) < first, _INDEX, _VALUES).astype(np.uint16)
    magnitudes = np.full(chunks, MAGNITUDE_CLASSES - 1, np.uint8)
    values = words[first * config.chunk_lanes :].view(np.float32)
    magnitudes[first:] = _magnitude_classes(values, config.chunk_lanes)
    return ServiceClass(layer, magnitudes, accounts, np.array([0, budget], np.uint64))


def _magnitude_classes(values: npt.NDArray[np.float32], length: int) -> npt.NDArray[np.uint8]:
    """Return the class of each run of values: as many in each, by mean magnitude, 0 the smallest."""
    starts = np.arange(0, values.size, length)
    sums = np.add.reduceat(np.abs(values, dtype=np.float64), starts)
    places = np.empty(starts.size, np.int64)
    places[np.argsort(sums / np.diff(starts, append=values.size), kind="stable")] = np.arange(starts.size)
    return (places * MAGNITUDE_CLASSES // starts.size).astype(np.uint8)
