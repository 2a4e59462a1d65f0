# SPDX-License-Identifier: Apache-2.0
"""Congestion window of a flow: DCTCP's rule (Alizadeh et al., SIGCOMM 2010) on chunks."""

from typing import Final

GAIN: Final = 1 / 16
"""DCTCP's g: how fast the estimate of the marked share follows."""

MAX_WINDOW: Final = 1 << 16


class Window:
    """A window in chunks. Chunks that met congestion are those marked CE and those that a switch trimmed.

    A chunk that just did not arrive says nothing about congestion, and does not shrink the window: what may
    be lost is sent at the rate that marks allow. The window doubles every round trip until the first chunk
    that met congestion, then grows by one chunk each round trip without any, and shrinks by half the
    estimated share of such chunks, at most once each round trip. It never is below one chunk.
    """

    __slots__ = (
        "_chunks",
        "_left",
        "_limited",
        "_marked",
        "_settled",
        "_starting",
        "alpha",
        "enabled",
        "shrunk",
    )

    def __init__(self, first: int, enabled: bool = True) -> None:
        self.enabled = enabled
        self.alpha = 1.0  # as DCTCP starts: the first mark halves
        self.shrunk = 0  # how often
        self._chunks = float(min(first, MAX_WINDOW))
        self._starting = True
        self._limited = False  # in this round trip some chunk had to wait
        self._settled = self._marked = 0  # chunks of this round trip
        self._left = int(self._chunks)  # until this round trip is over

    @property
    def chunks(self) -> int:
        """Return how many chunks may be under way."""
        return int(self._chunks) if self.enabled else MAX_WINDOW

    def on_limit(self) -> None:
        """Take in that a chunk has to wait for the window: only then it may grow (RFC 7661)."""
        self._limited = True

    def on_settled(self, chunks: int, marked: int) -> None:
        """Take in that the fate of so many chunks became known, of which ``marked`` met congestion."""
        if self._starting:
            if marked:
                self._starting = False
            elif self._limited:
                self._chunks = min(self._chunks + chunks, MAX_WINDOW)
        self._settled += chunks
        self._marked += marked
        self._left -= chunks
        if self._left <= 0:
            self._end_round_trip()

    def on_silence(self) -> None:
        """Halve the window: several questions in a row stayed unanswered, so nothing tells of the network."""
        self._starting = False
        self._shrink(0.5)
        self._begin_round_trip()

    def _end_round_trip(self) -> None:
        self.alpha += GAIN * (self._marked / self._settled - self.alpha) if self._settled else 0.0
        if self._marked:
            self._shrink(self.alpha / 2)
        elif not self._starting and self._limited:
            self._chunks = min(self._chunks + 1, MAX_WINDOW)
        self._begin_round_trip()

    def _begin_round_trip(self) -> None:
        self._settled = self._marked = 0
        self._limited = False
        self._left = int(self._chunks)

    def _shrink(self, share: float) -> None:
        self._chunks = max(1.0, self._chunks * (1 - share))
        self.shrunk += 1
