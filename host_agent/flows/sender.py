# SPDX-License-Identifier: Apache-2.0
"""The sending half of a flow as a state machine without I/O.

Example::

    sender = FlowSender(FlowConfig(flow=new_flow_id(), worker=2))
    number = sender.submit(gradient, ServiceClass(layer=1, budgets=np.array([3520], np.uint64)))
    while not sender.idle:
        datagrams, deadline = sender.poll(now)
        ...                                     # send them; wait for a packet or the deadline
        sender.on_packet(payload, now)
    (settlement,) = sender.settlements()
    residual += settlement.residual()           # what was not delivered, exactly
"""

import ctypes
import weakref
from dataclasses import dataclass

import numpy as np

from weir.host_agent.flows import native
from weir.host_agent.flows.accounts import ChunkClasses
from weir.host_agent.flows.config import FlowConfig
from weir.host_agent.flows.delivery import Floats, Settlement
from weir.host_agent.flows.verdict import FlowVerdict, Verdicts
from weir.host_agent.transport.frames import Datagram
from weir.host_agent.transport.report import FRAME_OVERHEAD, Account
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass


@dataclass
class SenderCounts:
    """Totals of a sender. bytes: with Ethernet, IPv4 and UDP headers."""

    packets: int = 0
    bytes: int = 0
    chunks: int = 0
    droppable: int = 0
    resent: int = 0
    probes: int = 0
    timeouts: int = 0
    trimmed: int = 0
    marked: int = 0


@dataclass(frozen=True)
class SenderWindow:
    """A sender's congestion window: how many chunks may be under way, and how often that shrank."""

    chunks: int
    shrunk: int


class FlowSender:
    """Sends tensors one after the other or at once, those of front layers first. For one thread at a time.

    Times are integer nanoseconds of any one monotonic clock.
    """

    def __init__(self, config: FlowConfig) -> None:
        self.config = config
        self._library = native.library()
        self._under_way: dict[int, Floats] = {}  # whose values the native half reads
        self._last = 0  # greatest number submitted
        self._out = ctypes.create_string_buffer(native.MAX_PACKET)
        self._class = ctypes.c_uint8()
        self.handle = native.handle(
            self._library.weir_flow_sender_new(native.config_of(config)), "a sender of flows"
        )
        weakref.finalize(self, self._library.weir_flow_sender_free, self.handle)

    def submit(self, values: Floats, service: ServiceClass = LOSSLESS, number: int | None = None) -> int:
        """Send a vector of float32, which is copied, and return its number.

        service: its layer class, and per chunk (``config.chunk_lanes`` lanes) its magnitude class and
        account; budgets in lanes. number: for senders whose tensors do not become ready in order; each
        number from 1 must be submitted some day. The number in the sequence otherwise.
        Raises TypeError or ValueError for what cannot be sent.
        """
        if not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.ndim != 1:
            raise TypeError("a tensor is sent as a one-dimensional numpy array of float32")
        if not 1 <= values.size <= self.config.max_lanes:
            raise ValueError(f"a tensor has 1 to {self.config.max_lanes} lanes, not {values.size}")
        number = self._last + 1 if number is None else number
        if number > 0xFFFFFFFF:
            raise ValueError("a flow carries fewer than 2^32 tensors: open another one")
        if number < 1 or self._library.weir_flow_sender_knows(self.handle, number):
            raise ValueError(f"tensor {number} was submitted before")
        classes = ChunkClasses.of(service, self.config, values.size, number)
        kept = values.copy()
        tensor = native.Tensor(
            kept.ctypes.data,
            *(
                each.ctypes.data
                for each in (classes.magnitudes, classes.accounts, classes.droppable, classes.budgets)
            ),
            number,
            kept.size,
            service.layer,
            classes.budgets.size,
        )
        if self._library.weir_flow_sender_submit(self.handle, tensor):
            raise MemoryError(f"no memory to send a tensor of {kept.size} lanes")
        self._under_way[number] = kept
        self._last = max(self._last, number)
        return number

    @property
    def idle(self) -> bool:
        """Return whether every tensor submitted is settled, and nothing is left to say."""
        return bool(self._library.weir_flow_sender_idle(self.handle))

    def settlements(self) -> list[Settlement]:
        """Return the settlements reached since the last call, in order."""
        settled, native_one = [], native.Settled()
        while self._library.weir_flow_sender_settled(self.handle, native_one):
            settled.append(self._settlement(native_one))
        return settled

    def waiting(self) -> list[int]:
        """Return the numbers of the tensors that are not settled."""
        count = self._library.weir_flow_sender_waiting(self.handle, None, 0)
        numbers = (ctypes.c_uint32 * count)()
        self._library.weir_flow_sender_waiting(self.handle, numbers, count)
        return list(numbers)

    def on_packet(self, payload: bytes, now: int, traffic_class: int = 0) -> FlowVerdict:
        """Take in a UDP payload. A refused one changes nothing but its counter."""
        return FlowVerdict(self._library.weir_flow_sender_receive(self.handle, payload, len(payload), now))

    def poll(self, now: int) -> tuple[list[Datagram], int | None]:
        """Return what to send now, and when to poll again if nothing arrives (None: not before then)."""
        datagrams = []
        while (datagram := self.next(now)) is not None:
            datagrams.append(datagram)
        return datagrams, self.deadline

    @property
    def deadline(self) -> int | None:
        """Return when a question will have been unanswered for too long."""
        deadline: int = self._library.weir_flow_sender_deadline(self.handle)
        return None if deadline == native.NEVER else deadline

    def urgency(self, now: int) -> int | None:
        """Return the class (DSCP without drop precedence) of the packet that would be sent next; None when
        there is none.
        """
        urgency: int = self._library.weir_flow_sender_urgency(self.handle, now)
        return None if urgency < 0 else urgency

    def next(self, now: int) -> Datagram | None:
        """Return the next packet to send now."""
        length = self._library.weir_flow_sender_next(self.handle, now, self._out, self._class)
        return Datagram(self._out.raw[:length], self._class.value) if length else None

    @property
    def counts(self) -> SenderCounts:
        """Return totals so far."""
        counted = self._library.weir_flow_sender_counted(self.handle).contents
        counts = SenderCounts(*(getattr(counted, name) for name in native.SenderCounts.FIELDS))
        counts.bytes += counts.packets * FRAME_OVERHEAD
        return counts

    @property
    def verdicts(self) -> Verdicts:
        """Return how many packets met each fate."""
        return native.verdicts_of(self._library.weir_flow_sender_verdicts(self.handle))

    @property
    def window(self) -> SenderWindow:
        """Congestion window."""
        shrunk = ctypes.c_uint32()
        return SenderWindow(self._library.weir_flow_sender_window(self.handle, shrunk), shrunk.value)

    def _settlement(self, native_one: native.Settled) -> Settlement:
        accounts = slice(0, native_one.account_count)
        values = self._under_way.pop(native_one.number)
        return Settlement(
            tensor=native_one.number,
            layer=native_one.layer,
            lanes=values.size,
            chunk_lanes=self.config.chunk_lanes,
            delivered=native.bits_of(native_one.delivered, native_one.count),
            entered=Account(values.size, native_one.entered_sum),
            kept=Account(native_one.kept_lanes, native_one.kept_sum),
            returned=Account(native_one.returned_lanes, native_one.returned_sum),
            missing=np.array(native_one.missing[accounts], np.uint64),
            budgets=np.array(native_one.budgets[accounts], np.uint64),
            resent=native_one.resent,
            trimmed=native_one.trimmed,
            probes=native_one.probes,
            timeouts=native_one.timeouts,
            began=native_one.began_ns,
            ended=native_one.ended_ns,
            _values=values,
        )
