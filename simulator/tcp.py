# SPDX-License-Identifier: Apache-2.0
"""DCTCP (RFC 8257) as two state machines without I/O: what dense training runs on, and the background.

Slow start and congestion avoidance by bytes (RFC 5681, grown only while the window is what limits, RFC 7661),
limited transmit (RFC 3042), fast retransmit on three duplicate acknowledgements with NewReno's partial ones
(RFC 6582), time-outs with back-off (RFC 6298), a mark echoed per segment and the window cut by alpha/2 once
per window. No handshake, SACK, delayed acknowledgements or tail loss probes.

Positions are bytes of the stream from 0, without wrapping; `simulator.stream` puts them on the wire.
"""

from bisect import insort
from dataclasses import dataclass

MSS = 1460
_MS = 1_000_000


@dataclass(frozen=True)
class TcpConfig:
    """Times in nanoseconds.

    min_rto: 10 ms, as simulations of data centres have it (RFC 6298 says 1 s, Linux 200 ms).
    initial_window: in segments (RFC 6928). gain: g, how fast alpha follows the share of marks.
    """

    min_rto: int = 10 * _MS
    max_rto: int = 1000 * _MS
    initial_window: int = 10
    gain: float = 1 / 16


class Receiver:
    """Puts segments in order. Every segment is acknowledged at once, with the mark it came with."""

    __slots__ = ("_ahead", "expected")

    def __init__(self) -> None:
        self.expected = 0  # all before it has arrived: what is acknowledged
        self._ahead: list[tuple[int, int]] = []  # what arrived beyond a gap, sorted

    def on_segment(self, start: int, length: int) -> bool:
        """A segment arrived; whether the stream has grown."""
        end = start + length
        if start > self.expected:
            if (start, end) not in self._ahead:
                insort(self._ahead, (start, end))
            return False
        if end <= self.expected:
            return False
        self.expected = end
        while self._ahead and self._ahead[0][0] <= self.expected:
            self.expected = max(self.expected, self._ahead.pop(0)[1])
        return True


class Sender:
    """Sends a stream of ``size`` bytes; ``write`` makes it longer."""

    __slots__ = (
        "_alpha_end",
        "_backoff",
        "_cut_end",
        "_duplicates",
        "_highest",
        "_last",
        "_limited",
        "_marked",
        "_measured",
        "_recover",
        "_recovered",
        "_repeat",
        "_rttvar",
        "_srtt",
        "_timed",
        "acknowledged",
        "alpha",
        "config",
        "deadline",
        "next",
        "retransmissions",
        "size",
        "ssthresh",
        "timeouts",
        "window",
    )

    def __init__(self, config: TcpConfig | None = None) -> None:
        self.config = config or TcpConfig()
        self.size = 0
        self.acknowledged = 0
        self.next = 0  # the next byte to send
        self._highest = 0  # the first byte that was never sent
        self.window = float(self.config.initial_window * MSS)
        self.ssthresh = float("inf")
        self.alpha = 1.0
        self._alpha_end = 0  # alpha is measured anew when this is acknowledged
        self._measured = self._marked = 0  # bytes acknowledged, and marked, since then
        self._cut_end = -1  # a window is cut at most once: not before this is acknowledged
        self._duplicates = 0
        self._recover: int | None = None  # in fast recovery: until this is acknowledged
        self._recovered = 0  # what was lost before this has been dealt with (RFC 6582)
        self._repeat = False  # the first unacknowledged segment is to be sent again
        self._limited = False  # the window, not the application or the interface, kept data back
        self._srtt: float | None = None
        self._rttvar = 0.0
        self._timed: tuple[int, int] | None = None  # (acknowledgement that ends it, when it was sent)
        self._backoff = 0
        self._last = 0  # when something was last sent
        self.deadline: int | None = None  # when the retransmission timer fires
        self.timeouts = self.retransmissions = 0

    @property
    def done(self) -> bool:
        """Whether all is acknowledged."""
        return self.acknowledged >= self.size

    def write(self, length: int, now: int) -> None:
        """Append to the stream. After a pause longer than the time-out the window starts again (RFC 5681)."""
        if self.done and now - self._last > self._rto():
            self.window = min(self.window, float(self.config.initial_window * MSS))
        self.size += length

    def segment(self, now: int) -> tuple[int, int] | None:
        """(start, length) of the segment to send now; None when there is nothing to send or no room."""
        if self._repeat:
            self._repeat = False
            return self._sent(self.acknowledged, now)
        if self.next >= self.size:
            return None
        in_flight = self.next - self.acknowledged
        room = self.window + (min(self._duplicates, 2) * MSS if self._recover is None else 0)
        if in_flight and in_flight + min(MSS, self.size - self.next) > room:
            self._limited = True
            return None
        start = self.next
        length = self._sent(start, now)[1]
        self.next = start + length
        self._highest = max(self._highest, self.next)
        return start, length

    def _sent(self, start: int, now: int) -> tuple[int, int]:
        length = min(MSS, self.size - start)
        self._last = now
        if start < self._highest:
            self.retransmissions += 1
            if self._timed is not None and self._timed[0] > start:
                self._timed = None  # Karn: which copy would be acknowledged?
        elif self._timed is None:
            self._timed = (start + length, now)
        if self.deadline is None:
            self.deadline = now + self._rto()
        return start, length

    def on_acknowledgement(self, position: int, marked: bool, now: int) -> None:
        """All before ``position`` has arrived; ``marked``: the segment that caused this met congestion."""
        if position > self._highest:
            return
        newly = position - self.acknowledged
        if newly > 0:
            self._advance(position, newly, marked, now)
        elif newly == 0 and self.next > self.acknowledged:
            self._duplicate()
        if marked:
            self._cut()

    def _advance(self, position: int, newly: int, marked: bool, now: int) -> None:
        self.acknowledged = position
        self.next = max(self.next, position)  # after a time-out, what had arrived anyway
        self._backoff = 0
        if self._timed is not None and position >= self._timed[0]:
            self._measure(now - self._timed[1])
            self._timed = None
        self._measured += newly
        self._marked += newly if marked else 0
        if position > self._alpha_end:
            share = self._marked / self._measured
            self.alpha += self.config.gain * (share - self.alpha)
            self._measured = self._marked = 0
            self._alpha_end = self._highest
        if self._recover is not None:
            if position >= self._recover:
                self._recover = None
                self._duplicates = 0
                self.window = min(self.ssthresh, max(self.next - position, MSS) + MSS)
            else:  # the next hole
                self._repeat = True
                self.window = max(self.window - newly + MSS, MSS)
        else:
            self._duplicates = 0
            if self._limited and not marked:
                slow_start = self.window < self.ssthresh
                self.window += min(newly, 2 * MSS) if slow_start else MSS * newly / self.window
        self._limited = False
        self.deadline = None if position >= self._highest else now + self._rto()

    def _duplicate(self) -> None:
        self._duplicates += 1
        if self._recover is not None:
            self.window += MSS
        elif self._duplicates == 3 and self.acknowledged >= self._recovered:
            self._recover = self._recovered = self._highest
            self.ssthresh = max((self.next - self.acknowledged) / 2, 2 * MSS)
            self.window = self.ssthresh + 3 * MSS
            self._repeat = True
            self._cut_end = self._highest

    def _cut(self) -> None:
        if self._recover is None and self.acknowledged > self._cut_end:
            self.window = self.ssthresh = max(self.window * (1 - self.alpha / 2), 2.0 * MSS)
            self._cut_end = self._highest

    def on_timer(self, now: int) -> None:
        """The deadline is past: go back to what is unacknowledged."""
        if self.deadline is None or now < self.deadline:
            return
        self.timeouts += 1
        self._backoff += 1
        self.ssthresh = max((self.next - self.acknowledged) / 2, 2 * MSS)
        self.window = float(MSS)
        self.next = self.acknowledged
        self._duplicates = 0
        self._recover, self._repeat, self._timed = None, False, None
        self._cut_end = self._recovered = self._highest
        self.deadline = now + self._rto()

    def _measure(self, sample: int) -> None:
        if self._srtt is None:
            self._srtt, self._rttvar = float(sample), sample / 2
        else:
            self._rttvar += (abs(self._srtt - sample) - self._rttvar) / 4
            self._srtt += (sample - self._srtt) / 8

    def _rto(self) -> int:
        config = self.config
        base = config.min_rto if self._srtt is None else self._srtt + 4 * self._rttvar
        return min(max(round(base), config.min_rto) << min(self._backoff, 16), config.max_rto)
