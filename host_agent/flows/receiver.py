# SPDX-License-Identifier: Apache-2.0
"""The receiving half of a flow as a state machine without I/O. It keeps no timers: it only answers.

Example::

    receiver = FlowReceiver(FlowConfig(flow=agreed, worker=2))
    receiver.on_packet(payload, now, traffic_class)
    datagrams, _ = receiver.poll(now)           # send them
    for delivery in receiver.deliveries():
        gradient = delivery.values  # zero where nothing came
"""

import ctypes
import weakref
from dataclasses import dataclass

import numpy as np

from weir.host_agent.flows import native
from weir.host_agent.flows.config import FlowConfig
from weir.host_agent.flows.delivery import Delivery, Floats
from weir.host_agent.flows.verdict import FlowVerdict, Verdicts
from weir.host_agent.transport.frames import RELIABLE_CLASS, Datagram
from weir.host_agent.transport.report import FRAME_OVERHEAD, Account
from weir.wire.definition import RELIABLE_DSCP


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
        self._library = native.library()
        self._out = ctypes.create_string_buffer(native.MAX_PACKET)
        self.handle = native.handle(
            self._library.weir_flow_receiver_new(native.config_of(config)), "a receiver of flows"
        )
        weakref.finalize(self, self._library.weir_flow_receiver_free, self.handle)

    def on_packet(self, payload: bytes, now: int, traffic_class: int = 0) -> FlowVerdict:
        """Take in a UDP payload that came with this DSCP << 2 | ECN. A refused one only counts."""
        return FlowVerdict(
            self._library.weir_flow_receiver_receive(self.handle, payload, len(payload), traffic_class)
        )

    def poll(self, now: int) -> tuple[list[Datagram], None]:
        """Return the answers to send now. It never needs to be polled but after a packet."""
        datagrams = []
        while (datagram := self.next(now)) is not None:
            datagrams.append(datagram)
        return datagrams, None

    @property
    def deadline(self) -> None:
        """Return None: it has no timers, as anyone who waits for an answer asks again."""
        return None

    def urgency(self, now: int) -> int | None:
        """Return the class (DSCP without drop precedence) of the packet that would be sent next; None when
        there is none.
        """
        return RELIABLE_DSCP >> 3 if self._library.weir_flow_receiver_has_answer(self.handle) else None

    def next(self, now: int) -> Datagram | None:
        """Return the next answer to send now."""
        length = self._library.weir_flow_receiver_next(self.handle, self._out)
        return Datagram(self._out.raw[:length], RELIABLE_CLASS) if length else None

    def deliveries(self) -> list[Delivery]:
        """Return the tensors delivered since the last call, in the order in which they were stopped."""
        delivered, native_one = [], native.Delivered()
        while self._library.weir_flow_receiver_delivered(self.handle, native_one):
            delivered.append(self._delivery(native_one))
        return delivered

    @property
    def settled(self) -> bool:
        """Return whether the sender has confirmed every tensor that it began: nothing is left to answer."""
        return bool(self._library.weir_flow_receiver_is_settled(self.handle))

    @property
    def counts(self) -> ReceiverCounts:
        """Return totals so far."""
        counted = self._library.weir_flow_receiver_counted(self.handle).contents
        counts = ReceiverCounts(*(getattr(counted, name) for name in native.ReceiverCounts.FIELDS))
        counts.bytes += counts.packets * FRAME_OVERHEAD
        return counts

    @property
    def verdicts(self) -> Verdicts:
        """Return how many packets met each fate."""
        return native.verdicts_of(self._library.weir_flow_receiver_verdicts(self.handle))

    def _delivery(self, native_one: native.Delivered) -> Delivery:
        accounts = slice(0, native_one.account_count)
        return Delivery(
            flow=self.config.flow,
            worker=self.config.worker,
            tensor=native_one.number,
            layer=native_one.layer,
            chunk_lanes=self.config.chunk_lanes,
            received=native.bits_of(native_one.came, native_one.count),
            values=self._values(native_one),
            account=Account(native_one.came_lanes, native_one.came_sum),
            missing=tuple(native_one.missing[accounts]),
            budgets=tuple(native_one.budgets[accounts]),
        )

    def _values(self, native_one: native.Delivered) -> Floats:
        """Return the values where they are; their memory is freed with the last array over it."""
        memory = (ctypes.c_float * native_one.lanes).from_address(native_one.values)
        weakref.finalize(memory, self._library.weir_flow_free, native_one.values)
        return np.frombuffer(memory, np.float32)
