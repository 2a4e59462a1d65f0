# SPDX-License-Identifier: Apache-2.0
"""How much the tests do: by default what shows most faults soon; with ``SOFTP4_TESTS=long`` everything."""

import os
from typing import Final, TypeVar

_T = TypeVar("_T")

LONG: Final = os.environ.get("SOFTP4_TESTS", "") == "long"


def effort(fast: _T, long: _T) -> _T:
    """Return ``fast``, or ``long`` where the long tests are asked for."""
    return long if LONG else fast


def examples(number: int) -> int:
    """Return how many cases Hypothesis draws of this many: a sixteenth, at least 3, by default."""
    return effort(min(number, max(number // 16, 3)), number)
