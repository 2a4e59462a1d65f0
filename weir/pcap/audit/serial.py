# SPDX-License-Identifier: Apache-2.0
"""Rounds in serial arithmetic (RFC 1982): they begin with zero again after 2^32 - 1."""

from collections.abc import Iterable
from functools import reduce
from typing import Final

_ALL: Final = 1 << 32
_HALF: Final = 1 << 31


def follows(round_: int, other: int) -> bool:
    """Return whether a round comes after another one."""
    return 0 < (round_ - other) % _ALL < _HALF


def successor(round_: int) -> int:
    """Return the round after this one."""
    return (round_ + 1) % _ALL


def oldest(rounds: Iterable[int]) -> int:
    """Return the first of rounds that are less than 2^31 apart."""
    return reduce(lambda first, other: other if follows(first, other) else first, rounds)
