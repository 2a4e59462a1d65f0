# SPDX-License-Identifier: Apache-2.0
"""One of DDP's buckets while it is summed, piece by piece, from its end, where the front layers are."""

import threading
from collections.abc import Sequence

import torch

from weir.host_agent.transport.service_class import ServiceClass


class Bucket:
    """Gradients of some parameters, flat, in host memory of their own; overwritten by their averages.

    Args:
        number: of all buckets of the group, in the order in which they are issued.
        step, place: of two buckets that all ranks have, the one of the earlier step goes first, and of the
            same step the one with the higher place.
        values: flat.
        names: of the parameters, in their order.
        starts: of the parameters, in values.
        layers: layer classes of the parameters; none: all in front.

    Attributes:
        rank: of two buckets, the one with the smaller goes first.
    """

    def __init__(
        self,
        number: int,
        step: int,
        place: int,
        values: torch.Tensor,
        names: Sequence[str],
        starts: Sequence[int],
        layers: Sequence[int] = (),
    ) -> None:
        self.number, self.values = number, values
        self.rank = (step, -place)
        self.error: BaseException | None = None
        self._names, self._starts, self._layers = names, starts, layers or [0] * len(names)
        self._left = values.numel()
        self._change = threading.Condition()

    @property
    def over(self) -> bool:
        """Return whether all is summed, or never will be."""
        return not self._left or self.error is not None

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

    def service(self, start: int, end: int) -> ServiceClass:
        """Return the class of packets with these values: that of the frontmost parameter among them."""
        ends = [*self._starts[1:], self.values.numel()]
        parts = zip(self._layers, self._starts, ends, strict=True)
        return ServiceClass(
            layer=min((layer for layer, one, other in parts if one < end and start < other), default=0)
        )

    def name(self, index: int) -> str:
        """Describe a value, for errors."""
        at = max(place for place, start in enumerate(self._starts) if start <= index)
        return f"the gradient of {self._names[at]}, element {index - self._starts[at]}"
