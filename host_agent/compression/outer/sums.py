# SPDX-License-Identifier: Apache-2.0
"""Sums of the workers' progress: which part of it travels, in how many bits, and what is kept for later.

All workers are given the same mean. Progress and mean are flat float32 vectors of all parameters, one after
the other.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, Final

import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.packing import LaneBits
from weir.host_agent.compression.bucket_layout import BucketLayout, Parameters
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.compression.exchange import GradientExchange
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import Sparsifier, SparsifierOptions, create_sparsifier
from weir.host_agent.compression.updates.delivery import Pending, ValueBits, delivery
from weir.host_agent.compression.updates.layout import UpdateLayout
from weir.host_agent.compression.updates.parts import Parts
from weir.host_agent.compression.updates.rotation import Rotation

ROWS: Final = "rows"
"""The method that sends rows in turn, of all workers the same ones; the others are sparsifiers."""


class OuterSum(ABC):
    """One worker's part of the sums."""

    settings: str
    """What must be the same on all workers, as text."""

    @abstractmethod
    def join(self, module: Parameters, communicator: Communicator, slots: int, max_lanes: int) -> None:
        """Take a place in a group; again when it has changed. Arguments as of ``GradientExchange.join``."""

    @abstractmethod
    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """Return the mean over all workers of what was delivered.

        Until it returns nothing has changed, so a sum that raised can be repeated.

        Args:
            local: what this worker has come further since its last sum.
        """

    @abstractmethod
    def kept(self) -> torch.Tensor:
        """Return what this worker has not delivered yet."""

    @abstractmethod
    def scale_kept(self, factor: float) -> None:
        """Multiply what is kept; by 0: forget it."""

    def facts(self) -> tuple[Hashable, ...]:
        """Return what else must be the same on all workers at the next sum."""
        return ()

    @abstractmethod
    def shared_state(self) -> dict[str, Any]:
        """Return what is the same on all workers: tensors and plain values."""

    @abstractmethod
    def load_shared_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``shared_state`` gave on any worker."""

    @abstractmethod
    def own_state(self) -> dict[str, Any]:
        """Return what is this worker's own."""

    @abstractmethod
    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``own_state`` gave on this worker."""


class ChosenSum(OuterSum):
    """The part that a sparsifier chooses, as gradients are exchanged: see ``exchange``.

    Args:
        layout: of the parameters.
        sparsifier: chooses; ``dense``: everything.
        lane_bits: of a value; None: as the sparsifier says.
    """

    def __init__(self, layout: UpdateLayout, sparsifier: Sparsifier, lane_bits: LaneBits | None) -> None:
        self._exchange = GradientExchange(sparsifier, LossPolicy.of(0.0), lane_bits=lane_bits)
        self._names = layout.names
        sizes = [torch.empty(size, device="meta") for size in layout.sizes]
        self._layout = BucketLayout.of(0, layout.names, sizes, SCALE_BLOCK)
        self._workers = 1
        self.settings = self._exchange.settings

    def join(self, module: Parameters, communicator: Communicator, slots: int, max_lanes: int) -> None:
        """Take a place in a group."""
        state = self.own_state()
        self._workers = communicator.size
        self._exchange.join(module, communicator, slots, max_lanes=max_lanes)
        self.load_own_state(state)

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """Return the mean of what the workers chose."""
        bucket = local.clone()
        self._exchange.exchange_bucket(self._layout, bucket)
        return bucket

    def kept(self) -> torch.Tensor:
        """Return the residuals: they are held as a worker's part of the mean."""
        found = torch.zeros(self._layout.elements)
        residuals = self._exchange.gradients.state_dict()["residuals"]
        for segment in self._layout if residuals else ():
            torch.mul(residuals[segment.name], self._workers, out=found[segment.in_bucket])
        return found

    def scale_kept(self, factor: float) -> None:
        """Multiply the residuals."""
        residuals = self._exchange.gradients.state_dict()["residuals"]
        self._load({name: factor * residual for name, residual in residuals.items()})

    def facts(self) -> tuple[Hashable, ...]:
        """Return which scales are predicted."""
        return (self._exchange.predictions.known(self._names),)

    def shared_state(self) -> dict[str, Any]:
        """Return what sparsifier and encodings know."""
        return self._exchange.shared_state()

    def load_shared_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._exchange.load_shared_state(state)

    def own_state(self) -> dict[str, Any]:
        """Return the residuals."""
        return {**self._exchange.gradients.state_dict(), "workers": self._workers}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Go on from residuals."""
        share = state["workers"] / self._workers
        self._load({name: residual * share for name, residual in state["residuals"].items()})

    def _load(self, residuals: dict[str, torch.Tensor]) -> None:
        self._exchange.gradients.load_state_dict({"residuals": residuals})


class RowSum(OuterSum):
    """Rows of parameters in turn, of all workers the same ones, in one bit a value or more: as ``updates``.

    Args:
        layout: of the parameters.
        share: of the rows that travel; 1: all.
        bits: of a value on its way up.
        seed: of the rotation, the same on all workers.
    """

    def __init__(self, layout: UpdateLayout, share: float, bits: ValueBits, seed: int) -> None:
        self._layout, self._bits = layout, bits
        self._rotation = Rotation(layout.rows, share, seed)
        self._kept = torch.zeros(layout.values)
        self._turns = 0
        self._communicator: Communicator | None = None
        self.settings = f"rows(share={share}, bits={bits}, seed={seed})"
        delivery(bits, 1)  # raises ValueError for other bits

    def join(self, module: Parameters, communicator: Communicator, slots: int, max_lanes: int) -> None:
        """Take a place in a group."""
        self._delivery = delivery(self._bits, communicator.size)
        self._communicator = communicator

    def mean(self, local: torch.Tensor) -> torch.Tensor:
        """Return the mean of the rows in turn."""
        assert self._communicator is not None, "join comes first"
        layout, values = self._layout, local + self._kept
        parts = layout.split(values)
        norms = layout.gather(parts, layout.empty()).abs().sum(1)
        rows = None if self._rotation.is_whole(self._turns) else self._rotation.turn(self._turns)
        moved = layout.empty()
        pending = Pending(Parts(layout, parts), norms, rows, moved, torch.ones(len(parts)))
        self._delivery.deliver(self._communicator, pending)  # values: the mean, and what is kept
        mean = torch.empty_like(local)
        layout.scatter(moved, layout.split(mean))
        self._kept = values.sub_(mean)
        self._turns += 1
        return mean

    def kept(self) -> torch.Tensor:
        """Return the rows that were not in turn, and what signs or rounding left of the others."""
        return self._kept.clone()

    def scale_kept(self, factor: float) -> None:
        """Multiply them."""
        self._kept *= factor

    def shared_state(self) -> dict[str, Any]:
        """Return the number of the turn."""
        return {"turns": self._turns}

    def load_shared_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a turn."""
        self._turns = state["turns"]

    def own_state(self) -> dict[str, Any]:
        """Return what is kept."""
        return {"kept": self._kept.clone()}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what was kept."""
        self._kept = state["kept"].clone()


def make_sum(
    layout: UpdateLayout, method: str | Sparsifier, density: float, bits: LaneBits | int | None, seed: int
) -> OuterSum:
    """Return the sum of a method: a sparsifier, or its name, or ROWS.

    Raises:
        ValueError: there is no such method, or it has not this many bits.
    """
    if method == ROWS:
        return RowSum(layout, density, 1 if bits is None else bits, seed)  # type: ignore[arg-type]
    if isinstance(method, str):
        method = create_sparsifier(method, SparsifierOptions(density=density, seed=seed))
    if bits == 1:
        raise ValueError(f"bits=1: one bit to a value is for method {ROWS!r}; {method.name} has 8, 16 or 32")
    return ChosenSum(layout, method, bits)  # type: ignore[arg-type]
