# SPDX-License-Identifier: Apache-2.0
"""Numbers and settings as people read them."""

import math
from typing import Final

from weir.methods import find_method
from weir.train.config import TrainConfig

_SETTINGS: Final = {
    "density": "density",
    "threshold": "threshold",
    "block": "block",
    "powersgd_rank": "rank",
    "group_size": "groups of",
}


def byte_count(value: float) -> str:
    """Return bytes with a decimal prefix: 999 B, 1.2 kB, 46.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def digits(value: float, decimals: int) -> str:
    """Return a number with so many decimals, or with more, for two significant digits: with 1, 97.2, 4.0 and
    0.0042. Zero is "0".
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


def epochs(config: TrainConfig) -> str:
    """Return how long is trained: 1 epoch, 3 epochs of at most 20 steps each."""
    count = "1 epoch" if config.epochs == 1 else f"{config.epochs} epochs"
    if config.max_steps is None:
        return count
    steps = "1 step" if config.max_steps == 1 else f"{config.max_steps} steps"
    return f"{count} of at most {steps}{'' if config.epochs == 1 else ' each'}"


def ratio(ours: float, theirs: float) -> str:
    """Return ours : theirs as a factor, 0.063x; a dash when there is nothing to compare with."""
    return times(ours / theirs) if theirs else "–"


def training_line(config: TrainConfig) -> str:
    """Describe the training, and how its gradients are sent, in one line."""
    who = workers(config.workers)
    if config.mode == "ps":
        who += f" and {config.servers} server{'' if config.servers == 1 else 's'}"
    return f"{config.model} on {config.data}, {who}, {method_words(config)}"


def method_words(config: TrainConfig) -> str:
    """Return the method with those of its settings that it reads: "topk, density 0.01, encoding
    shared-mask:1".
    """
    method = find_method(config.method)
    parts = [method.name]
    settings = {words: getattr(config, name) for name, words in _SETTINGS.items() if name in method.uses}
    parts += [f"{words} {value:g}" for words, value in settings.items() if value is not None]
    if "density" in method.uses and config.warmup_steps:
        parts.append(f"{config.warmup_steps} steps of warm-up")
    if config.rule is not None:
        parts.append(f"encoding {config.rule}")
    if config.lane_bits is not None:
        parts.append(f"lane bits {config.lane_bits}")
    if config.exclude:
        parts.append(f"whole: {' '.join(config.exclude)}")
    return ", ".join(parts)
