# SPDX-License-Identifier: Apache-2.0
"""Rows in turn: every worker knows without a message which share of the rows belongs to a step."""

import math

import torch


class Rotation:
    """Rows in an order of their own, of which every step takes the next few, round and round.

    Args:
        rows: how many there are.
        share: of the rows at a step, above 0; 1: all.
        seed: of the order.
        whole: at this many first steps all rows are in turn.
    """

    def __init__(self, rows: int, share: float, seed: int, whole: int = 0) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"a share of {share:g}: it must be above 0, and at most 1")
        self._order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
        self._count = self.count_of(share)
        self._whole = whole

    @property
    def period(self) -> int:
        """Return after how many steps each row has been in turn, once ``whole`` is over."""
        return -(-len(self._order) // max(1, self._count))

    def is_whole(self, step: int) -> bool:
        """Return whether all rows are in turn at a step, which are counted from 0."""
        return step < self._whole or self._count == len(self._order)

    def turn(self, step: int) -> torch.Tensor:
        """Return the rows of a step, ascending: int64."""
        if self.is_whole(step):
            return torch.arange(len(self._order))
        return self.few((step - self._whole) * self._count, self._count)

    def count_of(self, share: float) -> int:
        """Return how many rows a share is, rounded up."""
        return min(len(self._order), math.ceil(share * len(self._order)))

    def few(self, first: int, count: int) -> torch.Tensor:
        """Return ``count`` rows of the order, from place ``first`` on, ascending: int64."""
        places = torch.arange(first, first + count) % len(self._order)
        return self._order[places].sort().values
