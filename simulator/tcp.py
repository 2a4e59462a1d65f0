# SPDX-License-Identifier: Apache-2.0
"""TCP as Linux has it, as two state machines without I/O: what dense training runs on, and the background.

Selective acknowledgements, of duplicates too (RFC 2018, 2883); losses found by time and a probe of the tail
(RACK-TLP, RFC 8985); time-outs with back-off (RFC 6298); cuts taken back that proved needless (RFC 3708).
How much may be under way is for `weir.simulator.congestion` to say. No handshake, no delayed
acknowledgements.

Positions are bytes of the stream from 0, without wrapping; `weir.simulator.stream` puts them on the wire.
"""

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from weir.simulator.bbr import Bbr
from weir.simulator.congestion import MSS, Ack, Algorithm, Congestion, Cubic, Dctcp
from weir.wire.definition import BEST_EFFORT_DSCP

__all__ = ["MSS", "Range", "Receiver", "Sender", "TcpConfig"]

SACK_BLOCKS = 3  # as many as fit beside Linux's time stamps
_MS = 1_000_000
_DUPLICATES = 3  # segments that arrived later than one that did not: it is lost
_MOST_REORDERING_QUARTERS = 16
_KINDS: Final[Mapping[Algorithm, Callable[[int], Congestion]]] = {
    "bbr": Bbr,
    "cubic": Cubic,
    "dctcp": Dctcp,
}

Range = tuple[int, int]  # first byte, first byte after


@dataclass(frozen=True)
class TcpConfig:
    """Times in nanoseconds.

    min_rto: by how much longer than a round trip a time-out waits, at least, as in Linux (200 ms there; RFC
    6298 says 1 s). initial_rto: the time-out before a round trip was measured. min_probe: least wait before a
    probe of the tail (Linux: two ticks). Where the fabric's round trip is far below these, set them from it:
    as they are, a loss at the end of a short transfer costs more than the transfer. initial_window: in
    segments (RFC 6928). algorithm: of congestion control. dscp: the class of all packets.
    class_by_remaining: data travels in that class only while little is left to send, else in one to three
    below. Among streams of different lengths the shortest go first then; among equal ones it says nothing.
    """

    min_rto: int = 10 * _MS
    initial_rto: int = 20 * _MS
    min_probe: int = 2 * _MS
    max_rto: int = 1000 * _MS
    initial_window: int = 10
    algorithm: Algorithm = "dctcp"
    dscp: int = BEST_EFFORT_DSCP
    class_by_remaining: bool = False


class Receiver:
    """Puts segments in order. Every segment is acknowledged at once, with the mark it came with."""

    __slots__ = ("_again", "_ahead", "expected")

    def __init__(self) -> None:
        self.expected = 0  # all before it has arrived: what is acknowledged
        self._ahead: list[Range] = []  # what arrived beyond a gap, that which grew last first
        self._again: Range | None = None  # what arrived last, if it had arrived before

    def on_segment(self, start: int, length: int) -> bool:
        """Take in a segment that arrived; return whether the stream has grown."""
        end, self._again = start + length, None
        if end <= self.expected or any(first <= start and end <= last for first, last in self._ahead):
            self._again = (start, end)
            return False
        if start <= self.expected and not self._ahead:
            self.expected = end
            return True
        apart = []
        for first, last in self._ahead:
            if first <= end and start <= last:
                start, end = min(first, start), max(last, end)
            else:
                apart.append((first, last))
        if start > self.expected:
            self._ahead = [(start, end), *apart]
            return False
        self.expected, self._ahead = end, apart
        return True

    def blocks(self) -> list[Range]:
        """Return the ranges to acknowledge selectively: a duplicate first (RFC 2883), then what grew last."""
        if self._again is None:
            return self._ahead[:SACK_BLOCKS]
        return [self._again, *self._ahead[: SACK_BLOCKS - 1]]


class _State(Enum):
    FLYING = 1
    ARRIVED = 2
    LOST = 3


class _Segment:
    """A part of the stream, cut when it was first sent."""

    __slots__ = (
        "delivered",
        "delivered_at",
        "end",
        "first_sent",
        "idle",
        "order",
        "repeated",
        "sent",
        "start",
        "state",
    )

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.state = _State.LOST
        self.sent = self.order = 0  # when, last, and after how many bytes
        self.repeated = False
        # For the rate of delivery, as it was when this was sent: bytes delivered, when the last of them was,
        # when the newest of them was sent, and whether the application had too little to send.
        self.delivered = self.delivered_at = self.first_sent = 0
        self.idle = False


class _RoundTrip:
    """Round-trip times, in nanoseconds."""

    __slots__ = ("_variance", "least", "smooth")

    def __init__(self) -> None:
        self.least: int | None = None
        self.smooth: float | None = None
        self._variance = 0.0

    def measure(self, sample: int) -> None:
        """Take in a round trip, as RFC 6298 has it."""
        self.least = sample if self.least is None else min(self.least, sample)
        if self.smooth is None:
            self.smooth, self._variance = float(sample), sample / 2
        else:
            self._variance += (abs(self.smooth - sample) - self._variance) / 4
            self.smooth += (sample - self.smooth) / 8

    def timeout(self, config: TcpConfig, backoff: int) -> int:
        """Return when to take for lost what is not acknowledged."""
        if self.smooth is None:
            base = max(config.initial_rto, config.min_rto)
        else:
            base = round(self.smooth + max(4 * self._variance, config.min_rto))
        return min(base << min(backoff, 16), config.max_rto)


class Sender:
    """Sends a stream of ``size`` bytes; ``write`` makes it longer."""

    def __init__(self, config: TcpConfig | None = None) -> None:
        self.config = config or TcpConfig()
        self.congestion = _KINDS[self.config.algorithm](self.config.initial_window)
        self.size = 0
        self.acknowledged = 0
        self.next = 0  # the first byte that was never sent
        self.in_flight = 0  # bytes that neither arrived nor got lost, as far as is known
        self.deadline: int | None = None  # when to call on_timer
        self.held: int | None = None  # a segment could be sent, but not before then: pacing
        self.timeouts = self.probes = self.retransmissions = 0
        self._segments: deque[_Segment] = deque()  # sent and not acknowledged, in order
        self._by_start: dict[int, _Segment] = {}
        self._flying: OrderedDict[int, _Segment] = OrderedDict()  # by start, in order of sending
        self._lost: list[int] = []  # starts of what must be sent again, sorted
        self._ahead = 0  # segments that have arrived beyond a gap
        self._limited = False  # the window, not the application or the interface, kept data back
        self._resume = 0  # the pace allows the next segment then
        self._last = 0  # when something was last sent
        self._sent = 0  # bytes, all copies
        # Recovery lasts until _recover is acknowledged.
        self._recover: int | None = None
        self._timed_out = False  # it began with, or came to, a time-out
        self._undo: int | None = None  # segments repeated since it began, less reported duplicates
        # RACK.
        self._newest = -1  # order of the segment that was sent last of those that have arrived
        self._newest_rtt = 0
        self._furthest = 0  # the end of what has arrived
        self._reordered = False  # was ever seen
        # Quarters of a round-trip time; raised when that arrives.
        self._reordering_quarters, self._reordering_from = 1, 0
        self._reorder_at: int | None = None  # when what may only be late counts as lost
        # The probe of the tail.
        self._probe_at: int | None = None
        self._probe_due = False
        self._probed: int | None = None  # the end of what had been sent with the last one
        self._probe_again = False  # it was a segment that had been sent before
        # Timers.
        self._times = _RoundTrip()
        self._backoff = 0
        self._progress = 0  # when the oldest segment was sent, or an acknowledgement advanced
        # The rate of delivery (draft-cheng-iccrg-delivery-rate-estimation).
        self._delivered = self._delivered_at = self._first_sent = 0
        self._idle_until = 0  # the application had too little to send until so much is delivered

    @property
    def done(self) -> bool:
        """Return whether all is acknowledged."""
        return self.acknowledged >= self.size

    def write(self, length: int, now: int) -> None:
        """Append to the stream. A pause longer than the time-out is told to the congestion control."""
        if self.done and now - self._last > self._rto():
            self.congestion.on_idle()
        self.size += length

    # -- sending ---------------------------------------------------------------------------------------

    def segment(self, now: int) -> Range | None:
        """Return (start, length) of the segment to send now; None when there is none, or no room."""
        self.held = None
        if self._probe_due:
            self._probe_due = False
            if not self._lost and (probe := self._probe()) is not None:
                return self._send(probe, now)
        if self._lost:
            length = self._by_start[self._lost[0]].end - self._lost[0]
        elif self.next < self.size:
            length = min(MSS, self.size - self.next)
        else:
            if self.in_flight < self.congestion.window:
                self._idle_until = self._delivered + self.in_flight
            return None
        if self.in_flight and self.in_flight + length > self.congestion.window:
            self._limited = True
            return None
        if now < self._resume:
            self.held = self._resume
            return None
        return self._send(self._by_start[self._lost[0]] if self._lost else self._cut(), now)

    def _probe(self) -> _Segment | None:
        """Return something new to send as a probe, or the last segment again."""
        self._probe_again = self.next >= self.size
        if self._probe_again and not (self._segments and self._segments[-1].state is _State.FLYING):
            return None
        probe = self._segments[-1] if self._probe_again else self._cut()
        self._probed = probe.end
        return probe

    def _cut(self) -> _Segment:
        segment = _Segment(self.next, min(self.next + MSS, self.size))
        self._segments.append(segment)
        self._by_start[segment.start] = segment
        return segment

    def _send(self, segment: _Segment, now: int) -> Range:
        start, length = segment.start, segment.end - segment.start
        if start < self.next:
            self.retransmissions += 1
            segment.repeated = True
            self._leave(segment)
            if self._undo is not None:
                self._undo += 1
        else:
            self.next = segment.end
        if not self.in_flight:
            self._first_sent = self._delivered_at = now
        segment.first_sent, segment.delivered_at = self._first_sent, self._delivered_at
        segment.delivered, segment.idle = self._delivered, self._delivered < self._idle_until
        segment.sent, segment.order, segment.state = now, self._sent, _State.FLYING
        self._flying[start] = segment
        self.in_flight += length
        self._sent += length
        self._last = now
        if segment is self._segments[0]:
            self._progress = now
        if self.congestion.pacing is not None:
            self._resume = max(now, self._resume) + round(length / self.congestion.pacing)
        self._set_deadline(now)
        return start, length

    def _leave(self, segment: _Segment) -> None:
        """Forget a segment that was in flight or waited to be sent again."""
        if segment.state is _State.FLYING:
            del self._flying[segment.start]
            self.in_flight -= segment.end - segment.start
        else:
            self._lost.remove(segment.start)

    # -- acknowledgements ------------------------------------------------------------------------------

    def on_acknowledgement(self, position: int, marked: bool, now: int, blocks: Sequence[Range] = ()) -> None:
        """Take in an acknowledgement: all before ``position`` has arrived.

        blocks: of what follows, what arrived, too; first of all, perhaps, what arrived twice. marked: the
        segment that caused this met congestion.
        """
        if position > self.next:
            return
        twice = bool(blocks) and (
            blocks[0][1] <= position
            or any(first <= blocks[0][0] and blocks[0][1] <= last for first, last in blocks[1:])
        )
        ack = Ack(now=now, marked=marked)
        news = self._take(position, blocks[1:] if twice else blocks)
        if news:
            self._credit(news, ack)
        if twice:
            self._on_duplicate()
        if position > self.acknowledged:
            ack.advanced = True
            self.acknowledged, self._progress, self._backoff = position, now, 0
            self._end_probe(twice)
            if self._recover is not None and position >= self._recover:
                self._recover, self._timed_out = None, False
                self.congestion.on_recovered()
        if news:
            ack.lost = self._find_lost(now)
        ack.in_flight, ack.sent, ack.total = self.in_flight, self._sent, self._delivered
        ack.acknowledged, ack.until = self.acknowledged, self.next
        ack.limited, self._limited = self._limited, False
        ack.recovering = self._recover is not None and not self._timed_out
        self.congestion.on_ack(ack)
        self._set_deadline(now)

    def _take(self, position: int, blocks: Sequence[Range]) -> list[_Segment]:
        """Return the segments that this is the first news of, and forget those acknowledged in order."""
        news, segments = [], self._segments
        while segments and segments[0].end <= position:
            segment = segments.popleft()
            del self._by_start[segment.start]
            if segment.state is _State.ARRIVED:
                self._ahead -= 1
            else:
                self._leave(segment)
                news.append(segment)
        for first, last in blocks:
            at = max(first, position)
            while at < last and (other := self._by_start.get(at)) is not None:
                if other.state is not _State.ARRIVED:
                    self._ahead += 1
                    self._leave(other)
                    other.state = _State.ARRIVED
                    news.append(other)
                at = other.end
        return news

    def _credit(self, news: Sequence[_Segment], ack: Ack) -> None:
        """Take in what segments that arrived tell about times, order and rate."""
        latest = None
        for segment in news:
            ack.delivered += segment.end - segment.start
            rtt = ack.now - segment.sent
            if segment.repeated and rtt < (self._times.least or 0):
                continue  # too early to be the last copy
            if segment.order > self._newest:
                self._newest, self._newest_rtt = segment.order, rtt
            if not segment.repeated:
                self._reordered = self._reordered or segment.end < self._furthest
                ack.rtt = rtt if ack.rtt is None else min(rtt, ack.rtt)
            self._furthest = max(self._furthest, segment.end)
            if latest is None or segment.order > latest.order:
                latest = segment
        self._delivered += ack.delivered
        self._delivered_at = ack.now
        if ack.rtt is not None:
            self._times.measure(ack.rtt)
        if latest is not None:
            ack.prior, ack.idle = latest.delivered, latest.idle
            interval = max(latest.sent - latest.first_sent, ack.now - latest.delivered_at)
            self._first_sent = latest.sent
            if interval and interval >= (self._times.least or 0):
                ack.rate = (self._delivered - latest.delivered) / interval

    def _on_duplicate(self) -> None:
        """Be more patient, once a round trip, as a segment arrived twice: it was late, not lost."""
        if self._probed is not None and self._probe_again:
            self._probed = None  # it was the probe
            return
        self._reordered = True
        if self.acknowledged >= self._reordering_from:
            self._reordering_quarters = min(self._reordering_quarters + 1, _MOST_REORDERING_QUARTERS)
            self._reordering_from = self.next
        if self._undo is not None:
            self._undo -= 1
            if self._undo == 0:
                self._undo = self._recover = None
                self._timed_out = False
                self.congestion.undo()

    def _end_probe(self, twice: bool) -> None:
        """End the probe when what came after it has arrived; one that came once had repaired a loss."""
        if self._probed is None or self.acknowledged < self._probed + self._probe_again:
            return
        self._probed = None
        if self._probe_again and not twice and self._recover is None:
            self.congestion.on_loss(self.in_flight, MSS, self._sent)
            self.congestion.on_recovered()

    # -- losses ----------------------------------------------------------------------------------------

    def _find_lost(self, now: int) -> int:
        """Take for lost what was sent so long before something that has arrived; bytes."""
        lost, wait, window = [], 0, self._reordering_window()
        for segment in self._flying.values():
            if segment.order >= self._newest:
                break
            left = segment.sent + self._newest_rtt + window - now
            if left <= 0:
                lost.append(segment)
            else:
                wait = max(wait, left)
        self._reorder_at = now + wait if wait else None
        before = self.in_flight
        for segment in lost:
            self._lose(segment)
        if lost and self._recover is None:
            self._recover, self._undo = self.next, 0
            self.congestion.on_loss(self.in_flight, before - self.in_flight, self._sent)
        return before - self.in_flight

    def _reordering_window(self) -> int:
        """Return how much later a segment may arrive than one that was sent later."""
        if not self._reordered and (self._recover is not None or self._ahead >= _DUPLICATES):
            return 0
        if self._times.least is None or self._times.smooth is None:
            return 0
        return int(min(self._reordering_quarters * self._times.least / 4, self._times.smooth))

    def _lose(self, segment: _Segment) -> None:
        self._leave(segment)
        segment.state = _State.LOST
        insort(self._lost, segment.start)

    def _rto(self) -> int:
        return self._times.timeout(self.config, self._backoff)

    def _set_deadline(self, now: int) -> None:
        """Set the one timer: for late segments, else for the tail's probe, else for the time-out."""
        self._probe_at = None
        if not self._flying:
            self.deadline = self._reorder_at = None
            return
        self.deadline = max(now, self._progress + self._rto())
        if self._reorder_at is not None:
            self.deadline = min(self.deadline, self._reorder_at)
        elif self._times.smooth is not None and not (self._recover or self._probed or self._ahead):
            at = now + max(round(2 * self._times.smooth), self.config.min_probe)
            if at < self.deadline:
                self.deadline = self._probe_at = at

    def on_timer(self, now: int) -> None:
        """Do what is due, if the deadline is past."""
        if self.deadline is None or now < self.deadline:
            return
        if self._reorder_at is not None and now >= self._reorder_at:
            self._find_lost(now)
        elif self._probe_at is not None:
            self.probes += 1
            self._probe_due = True
            self._probe_at = None
            self.deadline = max(now, self._progress + self._rto())
            return
        else:
            self._on_timeout(now)
        self._set_deadline(now)

    def _on_timeout(self, now: int) -> None:
        """Take all for lost, as nothing is heard, and begin again with one segment."""
        self.timeouts += 1
        self.congestion.on_timeout(again=self._backoff > 0)
        self._backoff += 1
        if self._recover is None:
            self._undo = 0
        self._recover, self._timed_out = self.next, True
        for segment in list(self._flying.values()):
            self._lose(segment)
        self._reorder_at = self._probed = None
        self._probe_due = False
        self._resume = self._progress = now
