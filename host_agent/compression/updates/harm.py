# SPDX-License-Identifier: Apache-2.0
"""Harm of compression on a worker: how much of its own steps waits, for how long, and how far it is ahead.

A worker measures itself, in the passes that it makes anyway, and sends nothing for it.
"""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from weir.host_agent.compression.updates.layout import UpdateLayout


class Sums(NamedTuple):
    """Sums over each row's values: float32[rows].

    norms, energies: of magnitudes and of squares of what is pending, before it is delivered. moved: of the
    squares of the step.
    """

    norms: torch.Tensor
    energies: torch.Tensor
    moved: torch.Tensor


class Delivered(NamedTuple):
    """Sums over rows of what a worker delivered: float32[rows in turn].

    energies: of squares. products: with what was pending.
    """

    energies: torch.Tensor
    products: torch.Tensor


@dataclass(frozen=True)
class Harm:
    """Harm of one step to a parameter, or to all of them.

    Attributes:
        pending: norm of what waits after the step, in norms of the step. With steps in one direction that is
            how many of them wait.
        distance: norm of what waits, in norms of the weights at the shared point.
        cosine: between what was delivered and what was pending before: 1, all of it; 0, nothing. Signs of
            normal values have 0.8.
        age: mean number of steps since a value was last delivered; 0: all were at this step.
        oldest: the largest one.
    """

    pending: float
    distance: float
    cosine: float
    age: float
    oldest: int

    def as_dict(self) -> dict[str, float]:
        """Return the attributes by name, as loggers take them."""
        return asdict(self)


class HarmMeter:
    """Harm of a worker's last step.

    Args:
        layout: of the parameters.
    """

    def __init__(self, layout: UpdateLayout) -> None:
        self._layout = layout
        self._steps = 0
        self._last = torch.zeros(layout.rows, dtype=torch.int64)  # the step at which a row was delivered
        self._sums = Sums(*torch.zeros(3, layout.rows))
        self._done = Delivered(*torch.zeros(2, layout.rows))

    def note(self, sums: Sums, rows: torch.Tensor | None, done: Delivered) -> None:
        """Take a step in. rows: those delivered; None: all."""
        self._steps += 1
        self._sums = sums
        if rows is None:
            self._done = done
            self._last.fill_(self._steps)
            return
        self._last[rows] = self._steps
        for whole, part in zip(self._done, done, strict=True):
            whole.zero_()
            whole[rows] = part

    def harm(self, shared: torch.Tensor, index: int | None = None) -> Harm:
        """Return the harm to a parameter, None: to all of them together.

        Args:
            shared: the shared point, float32[rows, ROW].
            index: of the parameter.
        """
        rows = slice(None) if index is None else self._layout.rows_of(index)

        def total(values: torch.Tensor) -> float:
            return float(values[rows].sum(dtype=torch.float64))

        pending, moved = total(self._sums.energies), total(self._sums.moved)
        delivered, product = total(self._done.energies), total(self._done.products)
        rest = max(0.0, pending - 2 * product + delivered) ** 0.5
        lengths = self._layout.lengths[rows].double()
        ages = (self._steps - self._last[rows]).double()
        point = float(torch.linalg.vector_norm(shared[rows]))
        return Harm(
            pending=_ratio(rest, moved**0.5),
            distance=_ratio(rest, point),
            cosine=_ratio(product, (pending * delivered) ** 0.5),
            age=float((ages * lengths).sum() / lengths.sum()),
            oldest=int(ages.max()),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return ages; the rest is of the last step alone."""
        return {"steps": self._steps, "last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same layout."""
        self._steps = state["steps"]
        self._last.copy_(state["last"])


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
