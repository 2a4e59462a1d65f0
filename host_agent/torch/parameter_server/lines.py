# SPDX-License-Identifier: Apache-2.0
"""Lines: two flows between a member and a server that it calls, anew when the server is another process."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from torch._C._distributed_c10d import Store

from weir.host_agent.flows import FlowConfig, FlowReceiver, FlowSender, new_flow_id
from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.udp import UdpFlows
from weir.host_agent.parameter_server.payload import Words
from weir.host_agent.torch.parameter_server.meeting import CallOfWorker, Meeting, Place
from weir.host_agent.transport.counters import TransportCounters
from weir.host_agent.transport.report import FRAME_OVERHEAD
from weir.wire.definition import FLOW

_LOOK_S: Final = 0.05
_LOOKS: Final = 3
_ASK_S: Final = 0.02
"""How long after a round trip a sender asks: questions of busy machines cost more than they save where
something was lost.
"""


def frames(words: int) -> tuple[int, int]:
    """Return the bytes of a message of so many words on its way, and on the way back, with all headers: its
    chunks and a confirmation; the answer that all came.
    """
    config = FlowConfig(0)
    head = FRAME_OVERHEAD + FLOW.size
    return 4 * words + config.chunks(words) * head + head, head


@dataclass(frozen=True)
class _Line:
    place: Place | CallOfWorker
    sender: FlowSender
    receiver: FlowReceiver

    @property
    def bytes(self) -> int:
        """Return the bytes sent, with all headers."""
        return self.sender.counts.bytes + self.receiver.counts.bytes

    @property
    def counters(self) -> TransportCounters:
        """Return the packets sent, and no others."""
        return TransportCounters(
            packets_up=self.sender.counts.packets + self.receiver.counts.packets,
            bytes_up=self.bytes,
            retransmissions=self.sender.counts.resent,
        )


class Lines:
    """One member's lines: to the servers that it calls, and from those who call it. For one thread at a time.

    Args:
        store: of ``open_store``.
        rank: of the member; servers have the ranks after the workers'.
        workers, servers: how many there are.
        serves: it is a server, and may be called.
    """

    def __init__(self, store: Store, rank: int, workers: int, servers: int, *, serves: bool) -> None:
        self._rank, self._workers, self._serves = rank, workers, serves
        self._members = workers + servers
        self._meeting = Meeting(store)
        self._start = time.time_ns()
        self._called: dict[int, _Line] = {}
        self._callers: dict[int, _Line] = {}
        self._closed: dict[int, int] = {}
        self._ended = TransportCounters()
        self._fresh: dict[int, int] = {}  # looks until a server that was called surely knows of it
        self._looked = 0.0
        self.flows = UdpFlows((self._meeting.own_ip, 0))
        if serves:
            self._meeting.announce(rank - workers, Place(*self.flows.address, self._start))

    def look(self, servers: Iterator[int]) -> list[int]:
        """Look, now and then, who calls, and whether servers (by rank) are where they were; call those that
        are not, and return them: they have got nothing that was sent to them before.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return []
        self._looked = now
        if self._serves:
            for call in self._meeting.calls(self._rank - self._workers, range(self._members)):
                self._answer(call)
        return [rank for rank in servers if self._found(rank)]

    def whereabouts(self, server: int) -> str:
        """Return words about a server that is waited for: where it is, and what it has said."""
        return self._meeting.whereabouts(server)

    def call(self, rank: int, words: Words) -> None:
        """Send a message to a server, if it was found."""
        if rank in self._called and rank not in self._fresh:
            self._called[rank].sender.submit(words.view(np.float32))

    def reply(self, rank: int, words: Words) -> None:
        """Send a message to a member that calls this server, if it does."""
        if rank in self._callers:
            self._callers[rank].sender.submit(words.view(np.float32))

    def received(self) -> list[Words]:
        """Return the messages that have come."""
        found: list[Words] = []
        for line in (*self._called.values(), *self._callers.values()):
            for delivery in line.receiver.deliveries():
                packets = line.receiver.config.chunks(delivery.values.size)
                size = delivery.values.nbytes + packets * (FRAME_OVERHEAD + FLOW.size)
                self._ended += TransportCounters(packets_down=packets, bytes_down=size)
                found.append(delivery.values.view(np.uint32))
            line.sender.settlements()
        return found

    def sent_bytes(self) -> dict[int, int]:
        """Return bytes sent so far by rank of the receiver, headers from Ethernet up."""
        found = dict(self._closed)
        for lines in (self._called, self._callers):
            for rank, line in lines.items():
                found[rank] = found.get(rank, 0) + line.bytes
        return found

    @property
    def counters(self) -> TransportCounters:
        """Return bytes and packets of all lines, those that are closed too. Of what came, messages alone."""
        lines = (*self._called.values(), *self._callers.values())
        return sum((line.counters for line in lines), self._ended)

    def close(self) -> None:
        """Close the socket."""
        self.flows.close()

    def _found(self, rank: int) -> bool:
        """Return whether a server was called, and has had time to read that: it drops what comes before."""
        if self._find(rank):
            self._fresh[rank] = _LOOKS
        elif rank in self._fresh:
            self._fresh[rank] -= 1
            if not self._fresh[rank]:
                del self._fresh[rank]
                return True
        return False

    def _find(self, rank: int) -> bool:
        place, line = self._meeting.find(rank - self._workers), self._called.get(rank)
        if place is None or (line is not None and line.place == place):
            return False
        up, down = new_flow_id(), new_flow_id()
        self._replace(self._called, rank, place, up, down)
        own = self.flows.address
        call = CallOfWorker(self._rank, self._start, own.ip, own.port, up, down, place.start)
        self._meeting.call(rank - self._workers, call)
        return True

    def _answer(self, call: CallOfWorker) -> None:
        self._replace(self._callers, call.worker, call, call.down, call.up, call.worker)

    def _replace(
        self,
        lines: dict[int, _Line],
        rank: int,
        place: Place | CallOfWorker,
        to: int,
        back: int,
        caller: int | None = None,
    ) -> None:
        """Open flows to a peer instead of those that there were."""
        if (before := lines.pop(rank, None)) is not None:
            self._closed[rank] = self._closed.get(rank, 0) + before.bytes
            self._ended += before.counters
            self.flows.mux.remove(before.sender)
            self.flows.mux.remove(before.receiver)
        caller = self._rank if caller is None else caller
        line = _Line(
            place,
            FlowSender(FlowConfig(to, caller, min_probe=_ASK_S)),
            FlowReceiver(FlowConfig(back, caller)),
        )
        lines[rank] = line
        for flow in (line.sender, line.receiver):
            self.flows.mux.add(flow, Address(place.ip, place.port))
