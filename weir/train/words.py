# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them."""


def byte_count(value: float) -> str:
    """Bytes with a decimal prefix: 999 B, 1.2 kB, 46.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def duration(seconds: float) -> str:
    """Seconds with a fitting unit: 850 ms, 12.3 s, 2 min 05 s."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def percent(share: float) -> str:
    """A share as a percentage: 4.9 %, 97.2 %."""
    return f"{share * 100:.1f} %"


def workers(count: int) -> str:
    """How many workers: 1 worker, 4 workers."""
    return f"{count} worker" if count == 1 else f"{count} workers"


def ratio(ours: float, theirs: float) -> str:
    """ours : theirs, as a factor: 0.06x; a dash when there is nothing to compare with."""
    return f"{ours / theirs:.2f}x" if theirs else "–"
