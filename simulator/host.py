# SPDX-License-Identifier: Apache-2.0
"""A worker's host in virtual time: the real transport between a queue of reduces and a link."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from weir.host_agent.transport.frames import Addresses, Framer
from weir.host_agent.transport.pieces import Pieces
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.host_agent.transport.slot_transport import (
    Audiences,
    FloatScales,
    Lanes,
    SlotTransport,
    TransportConfig,
)
from weir.simulator.clock import Clock
from weir.wire.definition import Op


@dataclass(frozen=True)
class Work:
    """One reduce to do: in place, after a ``pause`` of this many nanoseconds (the training step before "
    "it)."""

    op: Op
    block: int
    lanes: Lanes | Pieces
    pause: int = 0
    service: ServiceClass = LOSSLESS
    audiences: Audiences | None = None
    floats: FloatScales | None = None


class Host:
    """Does its reduces one after the other, each as soon as the last one is done here."""

    def __init__(
        self, clock: Clock, config: TransportConfig, addresses: Addresses, send: Callable[[bytes], None]
    ) -> None:
        self._clock, self._send = clock, send
        self.transport = SlotTransport(config)
        self._framer = Framer(addresses)
        self._work: deque[Work] = deque()
        self._busy = self._running = False  # has work; has begun it
        self._wake: int | None = None  # the earliest time at which a timer action is scheduled
        self.reports: list[ReduceReport] = []
        self.react: Callable[[], object] = lambda: None  # called when a reduce is done

    @property
    def idle(self) -> bool:
        """Return whether all work is done."""
        return not self._busy

    def submit(self, work: Work) -> None:
        """Do ``work`` after all that was submitted before."""
        self._work.append(work)
        if not self._busy:
            self._start_next()

    def receive(self, frame: bytes) -> None:
        """Take in a frame that arrived from the link."""
        datagram = self._framer.unwrap(frame)
        if datagram is not None:
            self.transport.on_packet(datagram.payload, self._clock.now, datagram.traffic_class)
            self._pump()

    def _start_next(self) -> None:
        self._busy = bool(self._work)
        if self._busy:
            self._clock.after(self._work[0].pause, self._begin)

    def _begin(self) -> None:
        work = self._work.popleft()
        self.transport.begin_reduction(
            work.op, work.block, work.lanes, work.service, audiences=work.audiences, floats=work.floats
        )
        self._running = True
        self._pump()

    def _pump(self) -> None:
        """Send what is due and note when to look again, or go on to the next reduce when this one is done."""
        datagrams, deadline = self.transport.poll(self._clock.now)
        for datagram in datagrams:
            self._send(self._framer.wrap(*datagram))
        if deadline is not None and (self._wake is None or deadline < self._wake):
            self._wake = deadline
            self._clock.at(deadline, self._on_timer)
        if self._running and self.transport.done:
            self._running = False
            self.reports.append(self.transport.report())
            self._start_next()
            self.react()

    def _on_timer(self) -> None:
        if self._wake != self._clock.now:
            return  # an earlier one has seen to it
        self._wake = None
        self._pump()
