# SPDX-License-Identifier: Apache-2.0
"""Fates of flow packets that arrive."""

from collections import Counter
from enum import IntEnum


class FlowVerdict(IntEnum):
    """From SHORT on: refused, with no effect but on its counter.

    DUPLICATE: said nothing new. LATE: of a tensor whose delivery is settled already. TRIMMED: a switch cut
    off its data, which is lost.
    """

    ACCEPTED = 0
    DUPLICATE = 1
    LATE = 2
    TRIMMED = 3
    SHORT = 4
    BAD_VERSION = 5
    BAD_TYPE = 6
    BAD_FLAGS = 7
    BAD_CLASS = 8
    BAD_COUNT = 9
    BAD_INDEX = 10
    BAD_FIRST = 11
    BAD_LENGTH = 12
    BAD_TERMS = 13
    BAD_BITMAP = 14
    BAD_TENSOR = 15
    WRONG_FLOW = 16
    WRONG_WORKER = 17
    WRONG_DIRECTION = 18
    WRONG_SOURCE = 19
    BEYOND_BOUND = 20

    @property
    def refused(self) -> bool:
        """Return whether the packet changed nothing because it was no valid one."""
        return self >= FlowVerdict.SHORT


Verdicts = Counter[FlowVerdict]


def refusals(verdicts: Verdicts) -> dict[FlowVerdict, int]:
    """Return those of the counts that are of refused packets."""
    return {verdict: n for verdict, n in verdicts.items() if n and verdict.refused}
