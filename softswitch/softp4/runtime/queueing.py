# SPDX-License-Identifier: Apache-2.0
"""Limits of a port: its rate, and how much may wait in its queues.

A limited port has eight queues. `standard_metadata.priority` says which one a packet waits in; the port
serves 7 first and 0 last, strictly. A frame leaves when its transmission would begin; the next one leaves
when it would be over, ``length * 8 / rate`` later. The length is that of the frame as it leaves, without
preamble, checksum and gap.
"""

import ctypes
import re
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any, Final

PRIORITIES: Final = 8
"""Queues of a limited port."""

QUEUE_PORTS: Final = 512
"""Ports that can be limited: 0 to this, exclusive."""

NEVER: Final = (1 << 64) - 1
"""The deadline of a switch in which nothing waits."""

_MOST: Final = 10**15  # bits or packets a second
_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


@dataclass(frozen=True)
class Queueing:
    """Limits of a port, and of each of its queues.

    Args:
        rate_bps: bits of frames a second; None for no limit.
        rate_pps: packets taken from the queues a second, dropped by egress or not; None for no limit.
        burst_bytes: what may leave back to back after the port was idle, ahead of `rate_bps`. With 0 every
            frame takes its time, as on a line.
        depth_packets: what each queue holds; what comes then is dropped. 64 is BMv2's too.
        depth_bytes: the same in bytes, of packets as they are after ingress; None for no limit.

    Raises:
        ValueError: a limit that is negative, zero (a rate), or beyond 10^15 a second.
    """

    rate_bps: int | None = None
    rate_pps: int | None = None
    burst_bytes: int = 0
    depth_packets: int = 64
    depth_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("rate_bps", "rate_pps"):
            rate = getattr(self, name)
            if rate is not None and not 1 <= rate <= _MOST:
                raise ValueError(f"{name} is {rate}: expected 1 to 10^15, or None for no limit")
        for name in ("burst_bytes", "depth_packets", "depth_bytes"):
            size = getattr(self, name)
            if size is not None and not 0 <= size < 1 << 32:
                raise ValueError(f"{name} is {size}: expected 0 to 2^32 - 1")


@dataclass(frozen=True)
class QueueStatistics:
    """Counts of one queue: what it has sent, holds now and has dropped since the port was limited.

    overtaking: packets sent before one of a lower priority that had come earlier.
    """

    packets: int
    bytes: int
    depth_packets: int
    depth_bytes: int
    dropped_packets: int
    dropped_bytes: int
    overtaking_packets: int = 0


def parse_rate(text: str) -> int:
    """Return a rate in bit/s: ``100mbit``, ``2.5gbit``, ``64kbit`` or ``9600bit``.

    Raises ValueError, saying what is expected; also for a number alone, which could be meant in any unit.
    """
    written = text.strip().lower()
    if re.fullmatch(r"\d+(?:\.\d+)?", written):
        raise ValueError(f"{text!r} is no rate without a unit: {written}mbit, {written}kbit, {written}bit?")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit(?:/s|ps)?", written)
    rate = int(Decimal(match[1]) * _UNITS[match[2]]) if match else 0
    if not 1 <= rate <= _MOST:
        raise ValueError(
            f"{text!r} is no rate: expected a number with kbit, mbit or gbit, for example 100mbit"
        )
    return rate


# -- the native side (runtime/switch.h) ------------------------------------------------------------------


class Limits(ctypes.Structure):
    """C ``sw_queueing``."""

    _fields_ = tuple((field.name, ctypes.c_uint64) for field in fields(Queueing))

    @classmethod
    def of(cls, queueing: Queueing) -> "Limits":
        """Convert limits to their C form."""
        return cls(
            rate_bps=queueing.rate_bps or 0,
            rate_pps=queueing.rate_pps or 0,
            burst_bytes=queueing.burst_bytes,
            depth_packets=queueing.depth_packets,
            depth_bytes=NEVER if queueing.depth_bytes is None else queueing.depth_bytes,
        )


class _Counts(ctypes.Structure):
    _fields_ = tuple((field.name, ctypes.c_uint64) for field in fields(QueueStatistics))


QueueCounts: Any = _Counts * PRIORITIES
"""C ``sw_queue_stats[SW_PRIORITIES]``."""


def queue_statistics(counts: Any) -> tuple[QueueStatistics, ...]:
    """Convert from C's form, by priority."""
    return tuple(
        QueueStatistics(*(int(getattr(each, field.name)) for field in fields(QueueStatistics)))
        for each in counts
    )
