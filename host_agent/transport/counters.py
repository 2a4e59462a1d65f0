# SPDX-License-Identifier: Apache-2.0
"""The transport's counters: the one list of them, and their sums and differences."""

from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class TransportCounters:
    """Counters of one reduce, or sums over several. Bytes include Ethernet, IPv4 and UDP headers.

    A packet of a round after the round's first is of exactly one of three kinds: a retransmission, a release
    or a probe.

    Attributes:
        blocks: packet blocks of the vector.
        blocks_sent: those of which this worker sent lanes: the non-zero ones, unless it fills.
        rounds: slot rounds completed.
        packets_up: packets sent; packets_down: received. bytes_up, bytes_down: likewise.
        batches_up: times that the kernel took several packets in one piece; batches_down: gave.
        timeouts: retransmission timeouts.
        retransmissions: packets that were sent before, sent again.
        probes: packets without lanes that ask for the result, or whether lanes are missing.
        releases: packets without lanes that give them up, so that the round can complete.
        replays: packets of rounds that are over, sent again after a long silence for a switch that may have
            restarted.
        marked: results that told of congestion.
        trimmed: rounds whose result lacks the lanes that this worker had for it, whether a switch cut them
            off or a release gave them up.
        duplicates: results that came again, and were ignored.
        repeats_asked: times that the aggregator asked for lanes.
        results_trimmed: results that came without their lanes, and were asked for again.
    """

    blocks: int = 0
    blocks_sent: int = 0
    rounds: int = 0
    packets_up: int = 0
    packets_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    batches_up: int = 0
    batches_down: int = 0
    timeouts: int = 0
    retransmissions: int = 0
    probes: int = 0
    releases: int = 0
    replays: int = 0
    marked: int = 0
    trimmed: int = 0
    duplicates: int = 0
    repeats_asked: int = 0
    results_trimmed: int = 0

    @classmethod
    def made(cls, **attributes: Any) -> Self:
        """Return an object with all of its attributes given: several are made in every step, and this takes a
        fifth of the time.
        """
        made = object.__new__(cls)
        made.__dict__.update(attributes)
        return made

    def __add__(self, other: "TransportCounters") -> "TransportCounters":
        return TransportCounters(**{name: getattr(self, name) + getattr(other, name) for name in COUNTERS})

    def __sub__(self, other: "TransportCounters") -> "TransportCounters":
        return TransportCounters(**{name: getattr(self, name) - getattr(other, name) for name in COUNTERS})

    @property
    def counters(self) -> "TransportCounters":
        """Counters alone, of whatever else the object knows."""
        return self + TransportCounters()


COUNTERS = tuple(counter.name for counter in fields(TransportCounters))
"""The names of all counters."""
