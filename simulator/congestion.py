# SPDX-License-Identifier: Apache-2.0
"""TCP's congestion control: DCTCP (RFC 8257) and CUBIC (RFC 9438); BBR is in `weir.simulator.bbr`.

`weir.simulator.tcp.Sender` finds out what arrived and what got lost, and tells it here; the answer is a
window in bytes, and for some a pace. DCTCP is what data centres with marking switches run, CUBIC Linux's
default.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

MSS = 1460
SECOND = 1_000_000_000

Algorithm = Literal["dctcp", "cubic", "bbr"]


@dataclass(slots=True)
class Ack:
    """News from one acknowledgement, in bytes and nanoseconds.

    rtt: None where it is not known which copy arrived. rate: of delivery, bytes per nanosecond, over one
    round trip; None: too short to tell. idle: the application had too little to send then. prior: what had
    been delivered when the segment that the rate is measured by was sent. total: what has been, now.
    delivered: by this one, in order or not. lost: found to be just now. marked: its segment met congestion.
    in_flight: afterwards. sent: so far, all copies. limited: the window kept data back. advanced: what is
    acknowledged has grown. recovering: from loss, not from a time-out. acknowledged: all before this has
    arrived. until: first byte that was never sent.
    """

    now: int
    rtt: int | None = None
    rate: float | None = None
    idle: bool = False
    prior: int = 0
    total: int = 0
    delivered: int = 0
    lost: int = 0
    marked: bool = False
    in_flight: int = 0
    sent: int = 0
    limited: bool = False
    advanced: bool = False
    recovering: bool = False
    acknowledged: int = 0
    until: int = 0


class Congestion(Protocol):
    """Congestion control as a sender sees it."""

    window: float  # bytes that may be in flight
    pacing: float | None  # bytes per nanosecond; None: as fast as the link takes them
    ecn: bool  # packets may be marked instead of dropped

    def on_ack(self, ack: Ack) -> None:
        """Take in an acknowledgement."""

    def on_loss(self, in_flight: int, lost: int, sent: int) -> None:
        """Begin recovery: ``lost`` bytes must be sent again, ``in_flight`` are left under way."""

    def on_recovered(self) -> None:
        """End recovery: all that was under way when it began has arrived."""

    def on_timeout(self, *, again: bool) -> None:
        """Count all that was under way as lost. again: nothing has arrived since the last time."""

    def on_idle(self) -> None:
        """Take in that there was nothing to send for long."""

    def undo(self) -> None:
        """Take back the last recovery: nothing had been lost when it began."""


class LossBased:
    """Slow start, growth only while the window is what limits (RFC 7661), proportional rate reduction (RFC
    9937). What is left open: by how much to cut, and how to grow afterwards.
    """

    ecn = False
    pacing: float | None = None

    def __init__(self, initial_window: int) -> None:
        self._initial = float(initial_window * MSS)
        self.window = self._initial
        self.ssthresh = math.inf
        self._saved = (self.window, self.ssthresh)  # before the last cut
        # Since recovery began: what was in flight then, what has arrived, what had been sent before.
        self._flight = self._delivered = self._sent = 0
        self._reducing = False

    def reduced(self) -> float:
        """Return the window after a loss."""
        raise NotImplementedError

    def grow(self, ack: Ack) -> None:
        """Grow the window in congestion avoidance."""
        raise NotImplementedError

    def on_ack(self, ack: Ack) -> None:
        """Do as ``Congestion`` says."""
        if ack.recovering:
            if ack.delivered:
                self._reduce_window(ack)
        elif ack.limited and ack.advanced and not ack.marked:
            if self.window < self.ssthresh:
                self.window = min(self.window + ack.delivered, max(self.ssthresh, self.window))
            else:
                self.grow(ack)

    def _reduce_window(self, ack: Ack) -> None:
        """Let packets out in proportion to what arrives, so that the window is down when recovery ends."""
        self._delivered += ack.delivered
        out = ack.sent - self._sent
        if ack.in_flight > self.ssthresh:
            room = math.ceil(self._delivered * self.ssthresh / self._flight) - out
        else:
            room = max(self._delivered - out, ack.delivered) + (0 if ack.lost else MSS)
            room = min(int(self.ssthresh) - ack.in_flight, room)
        self.window = float(ack.in_flight + max(room, 0 if out else MSS))

    def on_loss(self, in_flight: int, lost: int, sent: int) -> None:
        """Do as ``Congestion`` says."""
        self._saved = (self.window, self.ssthresh)
        self.ssthresh = max(self.reduced(), 2.0 * MSS)
        self._flight, self._delivered, self._sent = in_flight + lost, 0, sent
        self.window = float(in_flight + MSS)
        self._reducing = True

    def on_recovered(self) -> None:
        """Do as ``Congestion`` says."""
        if self._reducing:
            self.window = self.ssthresh
        self._reducing = False

    def on_timeout(self, *, again: bool) -> None:
        """Do as ``Congestion`` says."""
        if not (again or self._reducing):
            self._saved = (self.window, self.ssthresh)
            self.ssthresh = max(self.reduced(), 2.0 * MSS)
        self._reducing = False
        self.window = float(MSS)

    def on_idle(self) -> None:
        """Do as ``Congestion`` says."""
        self.window = min(self.window, self._initial)

    def undo(self) -> None:
        """Do as ``Congestion`` says."""
        self._reducing = False
        self.window = max(self.window, self._saved[0])
        self.ssthresh = max(self.ssthresh, self._saved[1])


class Dctcp(LossBased):
    """Reno, that marks cut by alpha/2 once per window; alpha follows the share of marked bytes.

    gain: g, how fast it does.
    """

    ecn = True
    gain = 1 / 16

    def __init__(self, initial_window: int) -> None:
        super().__init__(initial_window)
        self.alpha = 1.0
        self._alpha_end = 0  # alpha is measured again when this is acknowledged
        self._measured = self._marked = 0  # bytes delivered, and marked, since then
        self._cut_end = -1  # marks cut a window at most once: not before this is acknowledged

    def reduced(self) -> float:
        """Do as ``LossBased`` says."""
        return self.window / 2

    def grow(self, ack: Ack) -> None:
        """Do as ``LossBased`` says."""
        self.window += MSS * ack.delivered / self.window

    def on_ack(self, ack: Ack) -> None:
        """Do as ``Congestion`` says."""
        self._measured += ack.delivered
        self._marked += ack.delivered if ack.marked else 0
        if self._measured and ack.acknowledged > self._alpha_end:
            self.alpha += self.gain * (self._marked / self._measured - self.alpha)
            self._measured = self._marked = 0
            self._alpha_end = ack.until
        super().on_ack(ack)
        if ack.marked and not ack.recovering and ack.acknowledged > self._cut_end:
            self.window = self.ssthresh = max(self.window * (1 - self.alpha / 2), 2.0 * MSS)
            self._cut_end = ack.until


class Cubic(LossBased):
    """Grows with the cube of the time since the last cut, and not slower than Reno would. (Linux's does grow
    slower where round trips are short, as it looks at the clock only 32 times a second.) Without HyStart.
    """

    scale = 0.4  # C, segments per cubic second
    beta = 0.7

    def __init__(self, initial_window: int) -> None:
        super().__init__(initial_window)
        self._most = 0.0  # the window, in segments, before the last cut
        self._since: int | None = None  # when growth began
        self._goal = self._back = 0.0  # where the curve is flat, and after how many seconds
        self._reno = 0.0  # segments that Reno would have
        self._min_rtt = SECOND

    def reduced(self) -> float:
        """Return the window after a loss; one that did not reach the last one leaves room for others."""
        segments = self.window / MSS
        self._most = segments * (1 + self.beta) / 2 if segments < self._most else segments
        self._since = None
        return self.window * self.beta

    def grow(self, ack: Ack) -> None:
        """Do as ``LossBased`` says."""
        segments, arrived = self.window / MSS, ack.delivered / MSS
        if self._since is None:
            self._since, self._reno = ack.now, segments
            self._goal = max(self._most, segments)
            self._back = ((self._goal - segments) / self.scale) ** (1 / 3)
        after = (ack.now - self._since + self._min_rtt) / SECOND
        target = min(self._goal + self.scale * (after - self._back) ** 3, 1.5 * segments)
        alpha = 3 * (1 - self.beta) / (1 + self.beta) if self._reno < self._goal else 1
        self._reno += alpha * arrived / segments
        segments += max(0.0, target - segments) * arrived / segments
        self.window = max(segments, self._reno) * MSS

    def on_ack(self, ack: Ack) -> None:
        """Do as ``Congestion`` says."""
        if ack.rtt is not None:
            self._min_rtt = min(self._min_rtt, ack.rtt)
        super().on_ack(ack)

    def on_idle(self) -> None:
        """Do as ``Congestion`` says."""
        super().on_idle()
        self._since = None
