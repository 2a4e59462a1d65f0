# SPDX-License-Identifier: Apache-2.0
"""Rows that are delivered at a step: a share of them in rotation, which may follow the harm.

With a bound of harm the share grows while, on average over the workers, more of their steps wait than may.
It falls again, down to the least share, while fewer do. Growth is faster than the fall: too many bytes cost
time, too much that waits costs accuracy.
"""

from typing import Any, Final

import torch

from weir.host_agent.compression.updates.rotation import Rotation

EVERY: Final = 5
"""Steps from one adaption to the next: what waits follows the share with a delay."""
_GROWTH: Final = 1.2
_FALL: Final = 1.05


class Coverage:
    """Rows to deliver, the same on all workers.

    Attributes:
        share: of the rows at a step.

    Args:
        rows: how many there are.
        least: the least share, above 0; 1: all rows at every step.
        seed: of the rotation.
    """

    def __init__(self, rows: int, least: float, seed: int) -> None:
        self._rotation = Rotation(rows, least, seed)
        self._rows, self._least, self._next = rows, least, 0
        self.share = least

    def turn(self) -> torch.Tensor | None:
        """Return the rows of this step, ascending; None: all."""
        count = self._rotation.count_of(self.share)
        return None if count == self._rows else self._rotation.few(self._next, count)

    def advance(self) -> None:
        """Go on to the next step."""
        self._next = (self._next + self._rotation.count_of(self.share)) % max(1, self._rows)

    def follow(self, harm: float, bound: float) -> None:
        """Adapt the share. harm: steps that wait, on average over the workers; bound: how many may."""
        wanted = self.share * (_GROWTH if harm > bound else 1 / _FALL)
        self.share = min(1.0, max(self._least, wanted))

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step needs."""
        return {"share": self.share, "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of as many rows."""
        self.share, self._next = state["share"], state["next"]
