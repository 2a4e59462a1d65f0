# SPDX-License-Identifier: Apache-2.0
"""BBR, version 1, as in Linux: sends at the rate that arrives, and takes no loss for congestion.

Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016; tcp_bbr.c. It finds the
greatest rate of delivery of the last ten round trips and the least round-trip time of ten seconds, and
keeps about twice their product in flight. Left out: long-term sampling for policers, aggregated
acknowledgements, and what chance there is (a cycle's first phase).
"""

import math
from collections import deque

from weir.simulator.congestion import MSS, SECOND, Ack

_HIGH_GAIN = 2 / math.log(2)
_CYCLE = (1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
_WINDOW_GAIN = 2.0
_MARGIN = 0.99  # of the pace, so that no queue stays
_ROUNDS = 10  # that a rate is remembered
_LEAST_WINDOW = 4 * MSS
_QUANTA = 6 * MSS  # what hosts and interfaces hold back at a time
_RTT_LASTS = 10 * SECOND
_RTT_PROBE = SECOND // 5


class Bbr:
    """BBR. States: startup, drain, cycle, and now and then a look at the empty path's time."""

    ecn = False

    def __init__(self, initial_window: int) -> None:
        self._initial = float(initial_window * MSS)
        self.window = self._initial
        self.pacing: float | None = None
        self._state = "startup"
        self._gain = _HIGH_GAIN
        self._phase = self._phase_began = 0
        # Round trips.
        self._round = self._round_end = 0
        self._rates: deque[tuple[int, float]] = deque()  # (round, rate), falling: the first is the greatest
        self._full_rate, self._full_rounds = 0.0, 0
        self._full = False  # the path is: startup is over
        self._min_rtt: int | None = None
        self._min_rtt_at = 0
        self._probe_ends: int | None = None  # of the empty path
        # Recovery.
        self._saved = self.window
        self._recovering = self._conserve = False  # conserve: send as much as arrives, for a round

    @property
    def rate(self) -> float:
        """Rate that the path can carry, in bytes per nanosecond; 0: unknown."""
        return self._rates[0][1] if self._rates else 0.0

    def on_ack(self, ack: Ack) -> None:
        """Do as ``Congestion`` says."""
        begins = self._measure(ack)
        self._look_if_full(ack, begins)
        if self._state == "cycle":
            self._turn(ack)
        self._mind_rtt(ack)
        if self.rate:
            pace = self._gain * self.rate * _MARGIN
            if self._full or self.pacing is None or pace > self.pacing:
                self.pacing = pace
        self._set_window(ack)

    def _measure(self, ack: Ack) -> bool:
        """Take the rate in; return whether a new round trip has begun."""
        if not ack.delivered:
            return False
        begins = ack.prior >= self._round_end
        if begins:
            self._round += 1
            self._round_end = ack.total
            self._conserve = False
        if ack.rate is not None and (not ack.idle or ack.rate >= self.rate):
            while self._rates and self._rates[-1][1] <= ack.rate:
                self._rates.pop()
            self._rates.append((self._round, ack.rate))
        while len(self._rates) > 1 and self._rates[0][0] <= self._round - _ROUNDS:
            self._rates.popleft()
        return begins

    def _look_if_full(self, ack: Ack, begins: bool) -> None:
        """End startup when the rate has not grown by a quarter for three rounds; then its queue drains."""
        if begins and not self._full and not ack.idle:
            if self.rate >= 1.25 * self._full_rate:
                self._full_rate, self._full_rounds = self.rate, 0
            else:
                self._full_rounds += 1
                self._full = self._full_rounds >= 3
        if self._state == "startup" and self._full:
            self._state, self._gain = "drain", 1 / _HIGH_GAIN
        if self._state == "drain" and ack.in_flight <= self._product(1.0):
            self._begin_cycle(ack.now)

    def _begin_cycle(self, now: int) -> None:
        self._state, self._phase, self._phase_began = "cycle", 2, now
        self._gain = _CYCLE[2]

    def _turn(self, ack: Ack) -> None:
        """Go to the next phase after a round trip, once sending above or below the rate has shown."""
        over = ack.now - self._phase_began > (self._min_rtt or 0)
        if self._gain > 1:
            over = over and (bool(ack.lost) or ack.in_flight >= self._product(self._gain))
        elif self._gain < 1:
            over = over or ack.in_flight <= self._product(1.0)
        if over:
            self._phase, self._phase_began = (self._phase + 1) % len(_CYCLE), ack.now
            self._gain = _CYCLE[self._phase]

    def _mind_rtt(self, ack: Ack) -> None:
        """Forget the least time after ten seconds; then send nearly nothing for 200 ms."""
        stale = self._min_rtt is not None and ack.now > self._min_rtt_at + _RTT_LASTS
        if ack.rtt is not None and (self._min_rtt is None or ack.rtt <= self._min_rtt or stale):
            self._min_rtt, self._min_rtt_at = ack.rtt, ack.now
        if stale and self._state != "probe":
            self._state, self._gain, self._probe_ends = "probe", 1.0, None
            self._saved = max(self._saved, self.window) if self._recovering else self.window
        if self._state == "probe":
            if self._probe_ends is None and ack.in_flight <= _LEAST_WINDOW:
                self._probe_ends = ack.now + _RTT_PROBE
            elif self._probe_ends is not None and ack.now > self._probe_ends:
                self._min_rtt_at = ack.now
                self.window = max(self.window, self._saved)
                if self._full:
                    self._begin_cycle(ack.now)
                else:
                    self._state, self._gain = "startup", _HIGH_GAIN

    def _product(self, gain: float) -> float:
        """Return ``gain`` times the bytes that fill the path."""
        if self._min_rtt is None:
            return self._initial
        return gain * self.rate * self._min_rtt + _QUANTA

    def _set_window(self, ack: Ack) -> None:
        window = max(self.window - ack.lost, float(MSS))
        if self._conserve:
            window = max(window, float(ack.in_flight + ack.delivered))
        elif ack.delivered:
            target = self._product(_HIGH_GAIN if self._state in ("startup", "drain") else _WINDOW_GAIN)
            if self._full:
                window = min(window + ack.delivered, target)
            elif window < target or ack.total < self._initial:
                window += ack.delivered
            window = max(window, float(_LEAST_WINDOW))
        self.window = min(window, float(_LEAST_WINDOW)) if self._state == "probe" else window

    def on_loss(self, in_flight: int, lost: int, sent: int) -> None:
        """Begin recovery; for one round trip as much is sent as arrives."""
        self._saved = self.window
        self._recovering = self._conserve = True
        self.window = float(in_flight + MSS)

    def on_recovered(self) -> None:
        """Do as ``Congestion`` says."""
        self._recovering = self._conserve = False
        self.window = max(self.window, self._saved)

    def on_timeout(self, *, again: bool) -> None:
        """Do as ``Congestion`` says."""
        if not self._recovering:
            self._saved = self.window
        self._recovering, self._conserve = True, False
        self._full_rate, self._full_rounds = 0.0, 0
        self.window = float(MSS)

    def on_idle(self) -> None:
        """Keep the model of the path."""

    def undo(self) -> None:
        """Do as ``Congestion`` says."""
        self.on_recovered()
