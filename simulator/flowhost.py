# SPDX-License-Identifier: Apache-2.0
"""A host with flows in virtual time: real senders and receivers behind one interface.

Example::

    host = FlowHost(clock, Address("10.0.1.1"), "02:00:00:00:01:01", next_hop, uplink.send)
    host.add(sender, Address("10.0.1.2"))
    sender.submit(gradient)
    host.pump()
"""

from collections.abc import Callable

from weir.host_agent.flows.frames import Address, unwrap, wrap
from weir.host_agent.flows.mux import FlowMux
from weir.host_agent.flows.receiver import FlowReceiver
from weir.host_agent.flows.sender import FlowSender
from weir.simulator.clock import Clock
from weir.simulator.nic import QUEUES, Source
from weir.wire.addresses import mac_bytes


class _Outlet:
    """Packets of one class or above, made when the interface asks: none waits there, of whatever flow."""

    def __init__(self, host: "FlowHost", queue: int) -> None:
        self._host, self._queue = host, queue
        self.waits = False  # the interface will ask

    def next_frame(self, now: int) -> bytes | None:
        """Return the frame to send now."""
        frame = self._host.next_frame(self._queue)
        self.waits = frame is not None
        return frame


class FlowHost:
    """Serves flows on one address.

    next_hop: MAC address for a destination's IPv4 address. send: a link without limits, unless there is
    serve: an interface that asks for frames when it is free, of a class. react: called when a tensor was
    delivered or settled, before answers are sent: what a program on the host does then (a parameter server
    adds up).
    """

    def __init__(
        self,
        clock: Clock,
        address: Address,
        mac: str,
        next_hop: Callable[[str], str],
        send: Callable[[bytes], None],
        serve: Callable[[Source, int], None] | None = None,
        react: Callable[[], object] | None = None,
    ) -> None:
        self._clock, self._address, self._mac = clock, address, mac_bytes(mac)
        self._next_hop, self._send, self._serve = next_hop, send, serve
        self._outlets = [_Outlet(self, queue) for queue in range(QUEUES)]
        self.react = react
        self.mux = FlowMux()
        self._wake: int | None = None  # the earliest time at which a timer action is scheduled

    def add(self, flow: FlowSender | FlowReceiver, peer: Address) -> None:
        """Serve a flow whose other end is at ``peer``."""
        self.mux.add(flow, peer)

    def receive(self, frame: bytes) -> None:
        """Take in a frame that arrived from the link."""
        arrival = unwrap(frame, self._address, self._mac)
        if arrival is not None:
            self.mux.on_packet(arrival.payload, self._clock.now, arrival.traffic_class, arrival.source)
            if self.react is not None and self.mux.ended():
                self.react()
            self.pump()

    def pump(self) -> None:
        """Send what is due, also after something was submitted, and note when to look again."""
        if self._serve is None:
            while (frame := self.next_frame(0)) is not None:
                self._send(frame)
        elif (urgency := self.mux.urgency(self._clock.now)) is not None:
            outlet = self._outlets[urgency]
            if not outlet.waits:
                outlet.waits = True
                self._serve(outlet, urgency)
            return  # when there is nothing left to send, timers are set
        deadline = self.mux.deadline
        if deadline is not None and (self._wake is None or deadline < self._wake):
            self._wake = deadline
            self._clock.at(deadline, self._on_timer)

    def next_frame(self, queue: int) -> bytes | None:
        """Return the most urgent frame to send now; None when there is none for this queue."""
        now = self._clock.now
        urgency = self.mux.urgency(now)
        if urgency is None or urgency < queue:
            if self._serve is not None:
                self._clock.at(now, self.pump)  # other queues, and timers
            return None
        found = self.mux.next(now)
        assert found is not None
        return wrap(
            found.datagram, self._address, self._mac, found.peer, mac_bytes(self._next_hop(found.peer.ip))
        )

    def _on_timer(self) -> None:
        if self._wake != self._clock.now:
            return  # an earlier one has seen to it
        self._wake = None
        self.pump()
