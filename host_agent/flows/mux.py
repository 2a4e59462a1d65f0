# SPDX-License-Identifier: Apache-2.0
"""All flows of a host behind one port: packets to the flow they name, and the most urgent packet first."""

import ctypes
import ipaddress
import weakref
from typing import NamedTuple

from weir.host_agent.flows import native
from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.receiver import FlowReceiver
from weir.host_agent.flows.sender import FlowSender
from weir.host_agent.flows.verdict import FlowVerdict, Verdicts, refusals
from weir.host_agent.transport.frames import Datagram

_NOBODY = 1 << 63  # no address


class Addressed(NamedTuple):
    """A datagram and where it goes."""

    peer: Address
    datagram: Datagram


class FlowMux:
    """Senders and receivers by flow id, each with its one peer. For one thread at a time.

    A packet that does not come from its flow's peer is refused. Among the flows that have something to send,
    the packet of the greatest class goes first (so front layers before back ones); equals alternate.
    """

    def __init__(self) -> None:
        self._library = native.library()
        self._flows: dict[int, tuple[FlowSender | FlowReceiver, Address]] = {}
        self._peers: dict[int, Address] = {}
        self._numbers: dict[Address, int] = {}
        self._out = ctypes.create_string_buffer(native.MAX_PACKET)
        self._class, self._peer = ctypes.c_uint8(), ctypes.c_uint64()
        self.handle = native.handle(self._library.weir_flow_mux_new(), "flows")
        weakref.finalize(self, self._library.weir_flow_mux_free, self.handle)

    def add(self, flow: FlowSender | FlowReceiver, peer: Address) -> None:
        """Serve a flow whose other end is at ``peer``."""
        number = flow.config.flow
        if number in self._flows:
            raise ValueError(f"flow {number:#010x} is here already: take another id")
        sends = isinstance(flow, FlowSender)
        ends = (flow.handle, None) if sends else (None, flow.handle)
        if self._library.weir_flow_mux_add(self.handle, number, self._number(peer), *ends):
            raise MemoryError("no memory for another flow")
        self._flows[number] = flow, peer

    def remove(self, flow: FlowSender | FlowReceiver) -> None:
        """Serve it no more."""
        del self._flows[flow.config.flow]
        self._library.weir_flow_mux_remove(self.handle, flow.config.flow)

    def on_packet(self, payload: bytes, now: int, traffic_class: int, source: Address) -> FlowVerdict:
        """Give a UDP payload to its flow."""
        peer = self._numbers.get(source, _NOBODY)
        return FlowVerdict(
            self._library.weir_flow_mux_receive(self.handle, payload, len(payload), now, traffic_class, peer)
        )

    def ended(self) -> bool:
        """Return whether packets had tensors delivered or settled since the last call.

        Otherwise no flow has anything new to tell, and none of them need be asked.
        """
        return bool(self._library.weir_flow_mux_ended(self.handle))

    def urgency(self, now: int) -> int | None:
        """Return the class (DSCP without drop precedence) of the most urgent packet to send now."""
        urgency: int = self._library.weir_flow_mux_urgency(self.handle, now)
        return None if urgency < 0 else urgency

    def next(self, now: int) -> Addressed | None:
        """Return the most urgent packet to send now."""
        length = self._library.weir_flow_mux_next(self.handle, now, self._out, self._class, self._peer)
        if not length:
            return None
        return Addressed(self._peers[self._peer.value], Datagram(self._out.raw[:length], self._class.value))

    def poll(self, now: int, limit: int | None = None) -> tuple[list[Addressed], int | None]:
        """Return at most ``limit`` packets to send now, and when to poll again if nothing arrives.

        A driver that looks for arrivals between short polls keeps the order of urgency up to date.
        """
        found: list[Addressed] = []
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

    @property
    def verdicts(self) -> Verdicts:
        """Fates of packets that no flow of this host got to see."""
        return native.verdicts_of(self._library.weir_flow_mux_verdicts(self.handle))

    def refused(self) -> dict[FlowVerdict, int]:
        """Return how many packets were refused here or by a flow, by reason."""
        total = self.verdicts
        for flow, _ in self._flows.values():
            total.update(flow.verdicts)
        return refusals(total)

    @property
    def deadline(self) -> int | None:
        """Earliest of all flows' deadlines."""
        deadline: int = self._library.weir_flow_mux_deadline(self.handle)
        return None if deadline == native.NEVER else deadline

    def _number(self, peer: Address) -> int:
        """Return what the native half calls a peer."""
        number = int(ipaddress.IPv4Address(peer.ip)) << 16 | peer.port
        self._peers[number], self._numbers[peer] = peer, number
        return number
