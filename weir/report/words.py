# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them."""

import math


def byte_count(value: float) -> str:
    """Return bytes with a decimal prefix: 999 B, 1.2 kB, 46.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def digits(value: float, decimals: int) -> str:
    """Return a number with this many decimals, or with more, for two significant digits: with 1, 97.2, 4.0
    and 0.0042. Zero is "0".
    """
    if not value or not math.isfinite(value):
        return "0" if value == 0 else "–"
    return f"{value:.{max(decimals, 1 - math.floor(math.log10(abs(value))))}f}"


def factor(value: float) -> str:
    """Return a ratio: 12.50, 0.063, 0.0042; never 0.00 of one that is not zero."""
    return digits(value, 2)


def times(value: float) -> str:
    """Return a ratio as a factor: 12.50x, 0.0042x."""
    return f"{factor(value)}x" if math.isfinite(value) else factor(value)


def duration(seconds: float) -> str:
    """Return seconds with a fitting unit: 0.31 ms, 850 ms, 12.3 s, 2 min 05 s."""
    if seconds < 1:
        return f"{digits(seconds * 1000, 0)} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def percent(share: float) -> str:
    """Return a share as a percentage: 4.9 %, 97.2 %, 0.042 %."""
    return f"{digits(share * 100, 1)} %"


def workers(count: int) -> str:
    """Return how many workers: 1 worker, 4 workers."""
    return f"{count} worker" if count == 1 else f"{count} workers"


def ratio(ours: float, theirs: float) -> str:
    """Return ours : theirs as a factor, 0.063x; a dash when there is nothing to compare with."""
    return times(ours / theirs) if theirs else "–"
