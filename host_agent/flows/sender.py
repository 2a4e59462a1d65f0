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

from bisect import insort
from collections import Counter, deque
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.flows.codec import Bitmap, Bits, FlowPacket, Stop, decode
from weir.host_agent.flows.config import FlowConfig
from weir.host_agent.flows.outbound import Floats, OutboundTensor, Progress
from weir.host_agent.flows.payload import pack_bytes
from weir.host_agent.flows.timer import RoundTrip
from weir.host_agent.flows.verdict import FlowVerdict, Verdicts
from weir.host_agent.flows.window import Window
from weir.host_agent.transport.datagram import Datagram
from weir.host_agent.transport.ledger import Direction, Posting
from weir.host_agent.transport.report import FRAME_OVERHEAD, Account
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.wire.definition import ECT, NOT_ECT, RELIABLE_DSCP, dscp


@dataclass(frozen=True)
class Settlement:
    """Fate of one tensor, as both ends know it.

    delivered: chunks that the receiver has and used. entered = kept + returned, exactly: lanes, and the sums
    of their bit patterns. missing, budgets: lanes per account. trimmed: chunks that came without their data;
    resent: chunks sent again; probes, timeouts: questions asked, and those of them that a timer asked.
    began, ended: times of the first packet and of the receiver's final word.
    """

    tensor: int
    layer: int
    lanes: int
    delivered: Bits
    entered: Account
    kept: Account
    returned: Account
    missing: npt.NDArray[np.uint64]
    budgets: npt.NDArray[np.uint64]
    resent: int
    trimmed: int
    probes: int
    timeouts: int
    began: int
    ended: int
    _tensor: OutboundTensor

    @property
    def complete(self) -> bool:
        """Return whether all of it was delivered."""
        return self.returned.lanes == 0

    def posting(self, step: int, bucket: str) -> Posting:
        """Return the settlement as an entry of the ledger."""
        missing, budgets = (tuple(lanes.tolist()) for lanes in (self.missing, self.budgets))
        return Posting(step, bucket, Direction.UP, self.entered, self.kept, self.returned, missing, budgets)

    def residual(self) -> Floats:
        """Return the values that were not delivered, zero elsewhere."""
        return self._tensor.values(~self.delivered)


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


_SILENCE: Final = 3
"""Questions in a row without an answer that count as silence: a machine may be busy for one or two."""


class _Step(Enum):
    """Kinds of packet to send next."""

    CONTROL = 0
    TIMER = 1
    ASK = 2
    RESEND = 3
    CHUNK = 4


class FlowSender:
    """Sends tensors one after the other or at once, those of front layers first. For one thread at a time.

    Times are integer nanoseconds of any one monotonic clock.
    """

    def __init__(self, config: FlowConfig) -> None:
        self.config = config
        self.window = Window(config.first_window, config.congestion)
        self.counts = SenderCounts()
        self.verdicts: Verdicts = Counter()
        self.round_trip = RoundTrip(config)
        self._tensors: dict[int, OutboundTensor] = {}  # submitted, not settled
        self._open: list[tuple[int, int]] = []  # (layer, number) of those under way, in order of urgency
        self._lowest = 1  # every tensor below is settled
        self._ended: set[int] = set()  # settled tensors from _lowest on
        self._last = 0  # greatest number submitted
        self._control: deque[bytes] = deque()
        self._settlements: list[Settlement] = []
        self._silent_until = 0  # before then, further silence is the same silence
        self._chosen: tuple[int, _Step, OutboundTensor | None] | None = None  # what to send next, while ...
        self._fresh = False  # ... nothing happened since, and no deadline has come
        self._earliest: int | None = None  # of the deadlines then

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
        if number < self._lowest or number in self._tensors or number in self._ended:
            raise ValueError(f"tensor {number} was submitted before")
        if number > 0xFFFFFFFF:
            raise ValueError("a flow carries fewer than 2^32 tensors: open another one")
        self._tensors[number] = OutboundTensor(self.config, number, values, service)
        self._last = max(self._last, number)
        self._fresh = False
        self._open_more()
        return number

    def submit_bytes(
        self, data: bytes | bytearray | memoryview, layer: int = 0, number: int | None = None
    ) -> int:
        """Send any bytes, without loss, as a tensor; return its number. ``Delivery.data`` gives them back.

        layer, number: as ``submit`` has them. Raises ValueError for more than ``config.max_lanes`` hold.
        """
        return self.submit(pack_bytes(data), ServiceClass(layer=layer), number)

    @property
    def idle(self) -> bool:
        """Return whether every tensor submitted is settled, and nothing is left to say."""
        return not self._tensors and not self._control

    def settlements(self) -> list[Settlement]:
        """Return the settlements reached since the last call, in order."""
        settled, self._settlements = self._settlements, []
        return settled

    def waiting(self) -> list[int]:
        """Return the numbers of the tensors that are not settled."""
        return sorted(self._tensors)

    def on_packet(self, payload: bytes, now: int, traffic_class: int = 0) -> FlowVerdict:
        """Take in a UDP payload. A refused one changes nothing but its counter."""
        packet = decode(payload)
        verdict = packet if isinstance(packet, FlowVerdict) else self._take_in(packet, now)
        self._fresh = False
        self.verdicts[verdict] += 1
        return verdict

    def poll(self, now: int) -> tuple[list[Datagram], int | None]:
        """Return what to send now, and when to poll again if nothing arrives (None: not before then)."""
        datagrams = []
        while (datagram := self.next(now)) is not None:
            datagrams.append(datagram)
        return datagrams, self.deadline

    @property
    def deadline(self) -> int | None:
        """Return when a question will have been unanswered for too long."""
        times = [self._wake(self._tensors[number]) for _, number in self._open]
        return min((time for time in times if time is not None), default=None)

    def urgency(self, now: int) -> int | None:
        """Return the class (DSCP without drop precedence) of the packet that would be sent next; None when
        there is none.
        """
        chosen = self._choose(now)
        return None if chosen is None else chosen[0] >> 3

    def next(self, now: int) -> Datagram | None:
        """Return the next packet to send now."""
        chosen = self._choose(now)
        if chosen is None:
            return None
        code, step, tensor = chosen
        self._fresh = False
        counts = self.counts
        ecn = ECT
        if tensor is None:
            payload = self._control.popleft()
        elif step in {_Step.ASK, _Step.TIMER}:
            if step is _Step.TIMER:
                self._count_silence(tensor, now)
            kind = int(code == RELIABLE_DSCP)
            payload = tensor.ask(now, self.round_trip.patience, kind).encode()
            tensor.deadline = now + self.round_trip.timeout(tensor.timeouts_in_a_row)
            counts.probes += 1
        else:
            chunk = tensor.send_again(now) if step is _Step.RESEND else tensor.send_next(now)
            if tensor.began is None:
                tensor.began = now
            payload = chunk.encode()
            tensor.deadline = now + self.round_trip.timeout(tensor.timeouts_in_a_row)
            counts.chunks += 1
            counts.resent += step is _Step.RESEND
            if not chunk.protected:
                code, ecn = dscp(tensor.layer, chunk.head.magnitude), NOT_ECT
                counts.droppable += 1
        counts.packets += 1
        counts.bytes += FRAME_OVERHEAD + len(payload)
        return Datagram(payload, code << 2 | ecn)

    def _choose(self, now: int) -> tuple[int, _Step, OutboundTensor | None] | None:
        """Return (DSCP, kind, tensor) of the packet to send next."""
        if not self._fresh or (self._earliest is not None and self._earliest <= now):
            self._chosen, self._earliest, self._fresh = self._find(now), self.deadline, True
        return self._chosen

    def _find(self, now: int) -> tuple[int, _Step, OutboundTensor | None] | None:
        if self._control:
            return RELIABLE_DSCP, _Step.CONTROL, None
        tensors = [self._tensors[number] for _, number in self._open]
        for tensor in tensors:
            if tensor.reorder_at is not None and tensor.reorder_at <= now:
                self._find_lost(tensor, now)
            if tensor.ask_at_once or tensor.must_decide:
                return RELIABLE_DSCP, _Step.ASK, tensor
            wake = tensor.deadline
            if wake is not None and wake <= now:
                # Repeats ride behind the chunks too, so that they find all that was only slow, until silence
                # suggests that their queue lets nothing through.
                behind = not tensor.resending and tensor.timeouts_in_a_row < _SILENCE - 1
                step = _Step.TIMER if tensor.unanswered else _Step.ASK
                return dscp(tensor.layer) if behind else RELIABLE_DSCP, step, tensor
        room = sum(tensor.under_way for tensor in tensors) < self.window.chunks
        if room:
            for tensor in tensors:
                if tensor.to_resend:
                    return RELIABLE_DSCP, _Step.RESEND, tensor
        for tensor in tensors:
            if not room and (tensor.unsent or tensor.to_resend):
                self.window.on_limit()
                break
            if tensor.unsent:
                if tensor.has_terms and not tensor.probes:  # the receiver cannot decide without
                    return RELIABLE_DSCP, _Step.ASK, tensor
                return dscp(tensor.layer), _Step.CHUNK, tensor
        return None

    def _find_lost(self, tensor: OutboundTensor, now: int) -> None:
        """Give up or repeat what others have overtaken. A loss is congestion, as far as one can know."""
        lost = tensor.find_lost(now, self.round_trip.reordering, self.round_trip.patience)
        if lost:
            self.window.on_settled(lost, lost)

    def _wake(self, tensor: OutboundTensor) -> int | None:
        """Return when to look after a tensor although nothing arrived."""
        times = [time for time in (tensor.deadline, tensor.reorder_at) if time is not None]
        return min(times, default=None)

    def _count_silence(self, tensor: OutboundTensor, now: int) -> None:
        tensor.timeouts += 1
        tensor.timeouts_in_a_row += 1
        self.counts.timeouts += 1
        if tensor.timeouts_in_a_row >= _SILENCE and now >= self._silent_until:
            self.window.on_silence()
            self._silent_until = now + self.round_trip.timeout(tensor.timeouts_in_a_row)

    def _take_in(self, packet: FlowPacket, now: int) -> FlowVerdict:
        head = packet.head
        if head.flow != self.config.flow:
            return FlowVerdict.WRONG_FLOW
        if head.worker != self.config.worker:
            return FlowVerdict.WRONG_WORKER
        if not isinstance(packet, Bitmap | Stop):
            return FlowVerdict.WRONG_DIRECTION
        if head.tensor < self._lowest or head.tensor in self._ended:
            if isinstance(packet, Stop):  # the receiver does not know that its word came
                self._control.append(Stop(head, packet.answers, 0, None).encode())
            return FlowVerdict.LATE
        tensor = self._tensors.get(head.tensor)
        if tensor is None or not self._is_open(head.tensor):
            return FlowVerdict.BAD_TENSOR
        if head.count != tensor.count:
            return FlowVerdict.BAD_COUNT
        if head.layer != tensor.layer:
            return FlowVerdict.BAD_CLASS
        if packet.answers > tensor.probes:
            return FlowVerdict.BAD_INDEX
        progress = (
            tensor.on_bitmap(packet, now) if isinstance(packet, Bitmap) else tensor.on_stop(packet, now)
        )
        if isinstance(progress, FlowVerdict) and progress.refused:
            return progress
        if isinstance(progress, Progress) and progress.round_trip is not None:
            self.round_trip.sample(progress.round_trip)
        tensor.timeouts_in_a_row = 0
        tensor.deadline = now + self.round_trip.timeout() if tensor.awaits_answer else None
        if isinstance(progress, FlowVerdict):
            return progress
        if tensor.stopped is not None:
            progress = Progress(progress.settled + tensor.under_way, progress.marked)
            self._settle(tensor, tensor.stopped, packet.answers, now)
        else:
            self._find_lost(tensor, now)
        self.counts.marked += progress.marked
        if not progress.settled:
            return FlowVerdict.ACCEPTED if tensor.stopped is not None else FlowVerdict.DUPLICATE
        self.window.on_settled(progress.settled, progress.marked)
        return FlowVerdict.ACCEPTED

    def _settle(self, tensor: OutboundTensor, delivered: Bits, answers: int, now: int) -> None:
        settlement = Settlement(
            tensor=tensor.number,
            layer=tensor.layer,
            lanes=tensor.lanes,
            delivered=delivered,
            entered=tensor.entered,
            kept=tensor.account(delivered),
            returned=tensor.account(~delivered),
            missing=tensor.missing(delivered).astype(np.uint64),
            budgets=tensor.budgets.astype(np.uint64),
            resent=tensor.resent,
            trimmed=tensor.trimmed,
            probes=tensor.probes,
            timeouts=tensor.timeouts,
            began=now if tensor.began is None else tensor.began,
            ended=now,
            _tensor=tensor,
        )
        self._settlements.append(settlement)
        self.counts.trimmed += tensor.trimmed
        self._control.append(tensor.confirm(answers).encode())
        del self._tensors[tensor.number]
        self._open.remove((tensor.layer, tensor.number))
        self._ended.add(tensor.number)
        while self._lowest in self._ended:
            self._ended.remove(self._lowest)
            self._lowest += 1
        self._open_more()

    def _is_open(self, number: int) -> bool:
        return number < self._lowest + self.config.open_tensors

    def _open_more(self) -> None:
        """Open what the receiver can remember: so many tensors from the lowest that is not settled."""
        is_open = {number for _, number in self._open}
        for number in sorted(self._tensors):
            if not self._is_open(number):
                break
            if number not in is_open:
                insort(self._open, (self._tensors[number].layer, number))
