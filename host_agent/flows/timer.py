# SPDX-License-Identifier: Apache-2.0
"""Time to wait for an answer: round trips and time-outs that follow from them (RFC 6298, RFC 8985)."""

from typing import Final

from weir.host_agent.flows.config import FlowConfig

_SECOND: Final = 1_000_000_000


class RoundTrip:
    """Smoothed round trip of a flow's chunks, in nanoseconds. Copies sent again are no samples (Karn)."""

    __slots__ = ("_least_probe", "_max", "_rto", "_smoothed", "_variation")

    def __init__(self, config: FlowConfig) -> None:
        self._least_probe, self._max = round(config.min_probe * _SECOND), round(config.max_rto * _SECOND)
        self._rto = round(config.initial_rto * _SECOND)
        self._smoothed = self._variation = 0

    def sample(self, elapsed: int) -> None:
        """Take in how long an answer took."""
        if not self._smoothed:
            self._smoothed, self._variation = max(elapsed, 1), elapsed // 2
        else:
            self._variation += (abs(elapsed - self._smoothed) - self._variation) // 4
            self._smoothed += (elapsed - self._smoothed) // 8
        margin = max(4 * self._variation, self._smoothed // 4, self._least_probe)
        self._rto = min(self._smoothed + margin, self._max)

    def timeout(self, backoff: int = 0) -> int:
        """Return how long to wait before asking, after ``backoff`` questions in a row without an answer."""
        return min(self._rto << min(backoff, 16), self._max)

    @property
    def patience(self) -> int:
        """Return for how long a packet may be overtaken, on a slower path, by packets sent after it."""
        return self._smoothed + 2 * self._variation if self._smoothed else self._rto

    @property
    def reordering(self) -> int:
        """Return how much later than others, sent after it, a packet may come that takes the same way."""
        return self._smoothed // 2 + self._variation

    @property
    def smoothed(self) -> int:
        """Return the smoothed round trip; 0 before the first sample."""
        return self._smoothed
