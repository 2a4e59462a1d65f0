# SPDX-License-Identifier: Apache-2.0
"""The dynamic value-bounded filter: what is small waits, at both ends, until it has grown.

Reference: Parameter Flow (cap-ntu/Ratatouille). A worker holds back what is small of its updates, and sends
it once it has added up to more than the threshold (``residual``); a server holds back what is small of the
difference between its model and a worker's (``feed``). Nothing is dropped, it is late.

A rule is written ``THRESHOLD[:SCHEDULE[:BLOCK]]``, for instance ``0.002:sqrt`` or ``0.002:lr:32``.
"""

import math
import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.compression.encodings.encoding import MASK_SIZES

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.bool_]

_ROOT: Final = re.compile(r"root([1-9][0-9]{0,2})")
_ROOTS: Final = {"sqrt": 2, "cbrt": 3}


@dataclass(frozen=True)
class FilterRule:
    """The threshold of a filter over a run, and the pieces that are compared with it.

    Attributes:
        threshold: of the first step, in units of the parameters. 0: nothing waits.
        schedule: of the threshold. "constant"; "lr": scaled by the learning rate, which PF-Caffe prints;
            "sqrt": divided by the square root of the step, as in PF-MxNet's ps-lite; "cbrt": by its cube
            root, as in its key-value store; "rootA": by its A-th root, as its README has it.
        block: elements that are sent or held together, 1 (each by itself) to 256, a power of two: a block is
            sent when the mean magnitude in it is above the threshold, which is PF-MxNet's rule for keys.
    """

    threshold: float = 0.0
    schedule: str = "constant"
    block: int = 1

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold < math.inf:
            raise ValueError(f"a filter's threshold is 0 or a positive number, not {self.threshold}")
        if self.schedule not in ("constant", "lr", *_ROOTS) and not _ROOT.fullmatch(self.schedule):
            raise ValueError(
                f"schedule {self.schedule!r} is not one of constant, lr, sqrt, cbrt and rootA, where A "
                "is a whole number: the threshold is divided by the A-th root of the step"
            )
        if self.block not in MASK_SIZES:
            raise ValueError(f"filter block {self.block} is not one of {', '.join(map(str, MASK_SIZES))}")

    def at(self, step: int, lr_ratio: float = 1.0) -> float:
        """Return the threshold of a step, counted from 1. lr_ratio: of the learning rate to its peak."""
        if self.schedule == "constant":
            return self.threshold
        if self.schedule == "lr":
            return self.threshold * lr_ratio
        found = _ROOT.fullmatch(self.schedule)
        root = int(found[1]) if found else _ROOTS[self.schedule]
        return float(self.threshold * max(step, 1) ** (-1.0 / root))

    def __str__(self) -> str:
        text = f"{self.threshold:g}:{self.schedule}"
        return text if self.block == 1 else f"{text}:{self.block}"


def parse_filter(text: str) -> FilterRule:
    """Return the rule that a text stands for; ValueError says what would do.

    Example::

        parse_filter("0.002:sqrt:32")   # FilterRule(0.002, "sqrt", 32)
    """
    threshold, _, rest = text.partition(":")
    schedule, _, block = rest.partition(":")
    try:
        return FilterRule(float(threshold), schedule or "constant", int(block or 1))
    except ValueError as error:
        raise ValueError(f"filter {text!r} is not THRESHOLD[:SCHEDULE[:BLOCK]]: {error}") from None


def above(values: Floats, threshold: float, block: int = 1) -> Bits:
    """Return which elements pass the filter: those that are not zero, in blocks above the threshold.

    What is not a number passes, so that it is not hidden.
    """
    passed: Bits = values != 0
    if threshold == 0.0:
        return passed
    with np.errstate(invalid="ignore", over="ignore"):
        if block == 1:
            passed &= ~(np.abs(values) <= threshold)
            return passed
        starts = np.arange(0, values.size, block)
        sums = np.add.reduceat(np.abs(values), starts, dtype=np.float64)
        means = sums / np.minimum(block, values.size - starts)
        passed &= np.repeat(~(means <= threshold), block)[: values.size]
        return passed
