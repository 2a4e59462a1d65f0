# SPDX-License-Identifier: Apache-2.0
"""One of DDP's buckets while it is summed, piece by piece, from its end, where the front layers are."""

import threading
from collections.abc import Sequence
from typing import Final

import torch

from weir.host_agent.collectives.float_sum import GATHERED_LANES
from weir.wire.definition import SLOT_LANES

LEAST_PIECE: Final = 2 * GATHERED_LANES
"""Values: fewer are summed in another way, which rounds otherwise than the sum of the whole bucket does."""


def check_piece(values: int) -> int:
    """Return the size of a piece; ValueError where pieces of it would not sum as the whole does."""
    if values < LEAST_PIECE or values % SLOT_LANES:
        raise ValueError(
            f"a piece has at least {LEAST_PIECE} values, in multiples of {SLOT_LANES} that share a scale, "
            f"not {values}"
        )
    return values


class Bucket:
    """Gradients of some parameters, flat, in host memory of their own; overwritten by their averages.

    Args:
        number: of all buckets of the group, in the order in which they are issued.
        step, place: of two buckets that all ranks have, the one of the earlier step goes first, and of the
            same step the one with the higher place.
        values: flat.
        names: of the parameters, in their order.
        starts: of the parameters, in values.
        piece: values that are summed at a time.
    """

    def __init__(
        self,
        number: int,
        step: int,
        place: int,
        values: torch.Tensor,
        names: Sequence[str],
        starts: Sequence[int],
        piece: int,
    ) -> None:
        self.number, self.values = number, values
        self.rank = (step, -place)
        self.error: BaseException | None = None
        self._names, self._starts, self._piece = names, starts, piece
        self._left = values.numel()
        self._change = threading.Condition()

    @property
    def over(self) -> bool:
        """Return whether all is summed, or never will be."""
        return not self._left or self.error is not None

    def next_piece(self) -> tuple[int, int]:
        """Return where the next piece starts and ends: the last one that is left.

        The one at the end is longer, where what is over would be less than a piece.
        """
        pieces = max(1, self._left // self._piece)
        return (pieces - 1) * self._piece, self._left

    def summed(self, start: int) -> None:
        """Note that all from ``start`` on is summed."""
        with self._change:
            self._left = start
            self._change.notify_all()

    def fail(self, error: BaseException) -> None:
        """Note that the rest will not be summed."""
        with self._change:
            self.error = self.error or error
            self._change.notify_all()

    def has(self, start: int) -> bool:
        """Return whether all from ``start`` on is summed."""
        return self._left <= start

    def wait(self, start: int) -> None:
        """Wait until all from ``start`` on is summed; raise what prevented that."""
        with self._change:
            self._change.wait_for(lambda: self.has(start) or self.error is not None)
        if not self.has(start) and self.error is not None:
            raise self.error

    def name(self, index: int) -> str:
        """Describe a value, for errors."""
        at = max(place for place, start in enumerate(self._starts) if start <= index)
        return f"the gradient of {self._names[at]}, element {index - self._starts[at]}"
