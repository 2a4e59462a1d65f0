# SPDX-License-Identifier: Apache-2.0
"""One worker's outer steps, over any communicator.

    local = weights - start, after ``every`` steps of the worker's own
    mean  = of what all workers deliver of local, and of what they had kept
    shared point += rate * (mean, with Nesterov's momentum of the means before)
    start = weights = shared point + what this worker still keeps

So the kept part is not lost, and not held back either: the worker's next steps begin ahead of the wire.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.non_finite import culprits
from weir.host_agent.compression.bucket_layout import Parameters
from weir.host_agent.compression.outer.sums import OuterSum
from weir.host_agent.compression.updates.delivery import FixedPoint
from weir.host_agent.compression.updates.layout import UpdateLayout


@dataclass(frozen=True)
class OuterSettings:
    """Settings of outer steps, the same on all workers.

    Attributes:
        every: steps of a worker's own from one outer step to the next.
        rate: of the outer step.
        momentum: of the outer step, Nesterov's; 0: none.
        decay: what is left of the kept part after an outer step.
        ahead: the kept part is in the worker's weights.
        overlap: steps that a worker makes while the sum is under way.

    Raises:
        ValueError: a setting is out of range.
    """

    every: int
    rate: float = 1.0
    momentum: float = 0.0
    decay: float = 1.0
    ahead: bool = True
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every={self.every}: an outer step comes after 1 step at least")
        if not self.rate > 0:
            raise ValueError(f"outer_rate={self.rate}: it must be above 0")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"outer_momentum={self.momentum}: it is 0 at least, and below 1")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay={self.decay}: it is 0 to 1")
        if not 0 <= self.overlap < self.every:
            raise ValueError(
                f"overlap={self.overlap}: a sum may be under way for 0 to {self.every - 1} steps"
            )


class OuterStage:
    """One worker's outer steps.

    Attributes:
        rounds: how many outer steps were made.
        shared: the shared point, the same on all workers: float32, flat.

    Args:
        layout: of the parameters.
        settings: the same on all workers.
        total: the sum that an outer step takes.
    """

    def __init__(self, layout: UpdateLayout, settings: OuterSettings, total: OuterSum) -> None:
        self.layout, self.settings, self.sum = layout, settings, total
        self.rounds = 0
        self.shared = torch.zeros(layout.values)
        self._momentum = torch.zeros(layout.values if settings.momentum else 0)
        self._communicator: Communicator | None = None

    def join(self, module: Parameters, communicator: Communicator, slots: int, max_lanes: int) -> None:
        """Take a place in a group; again when it has changed. Arguments as of ``GradientExchange.join``."""
        self._communicator = communicator
        self.sum.join(module, communicator, slots, max_lanes)

    def begin_from(self, weights: torch.Tensor) -> None:
        """Let weights, the same on all workers, be the shared point. Nothing is kept."""
        self.shared = weights.clone()
        self._momentum.zero_()
        self.sum.scale_kept(0.0)

    def step(self, local: torch.Tensor) -> torch.Tensor:
        """Make an outer step, and return the weights that this worker goes on from.

        Args:
            local: what this worker has come further since its last outer step, flat.

        Raises:
            NonFiniteError: some worker's weights hold NaN or infinity. On all workers, and nothing has
                changed.
        """
        self._check(local)
        mean, settings = self.sum.mean(local), self.settings
        move = mean
        if settings.momentum:
            self._momentum = self._momentum * settings.momentum + mean
            move = mean + settings.momentum * self._momentum
        self.shared = torch.add(self.shared, move, alpha=settings.rate)
        if settings.decay != 1:
            self.sum.scale_kept(settings.decay)
        self.rounds += 1
        return self.start()

    def start(self) -> torch.Tensor:
        """Return the weights that this worker goes on from after its last outer step."""
        return self.shared + self.sum.kept() if self.settings.ahead else self.shared.clone()

    def finish(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the mean of all workers' weights, the shared point from now on. Nothing is kept."""
        assert self._communicator is not None, "join comes first"
        layout, local = self.layout, weights - self.shared
        self._check(local)
        rows = layout.gather(layout.split(local), layout.empty())
        _, moved = FixedPoint(32, self._communicator.size).mean(self._communicator, rows)
        mean = torch.empty_like(local)
        layout.scatter(moved, layout.split(mean))
        self.shared = self.shared + mean
        self.sum.scale_kept(0.0)
        return self.shared.clone()

    def shared_state(self) -> dict[str, Any]:
        """Return what is the same on all workers."""
        return {
            "names": list(self.layout.names),
            "settings": f"{self.settings} {self.sum.settings}",
            "rounds": self.rounds,
            "shared": self.shared,
            "momentum": self._momentum,
            "sum": self.sum.shared_state(),
        }

    def load_shared_state(self, state: dict[str, Any]) -> None:
        """Go on from what ``shared_state`` gave on any worker, with nothing kept.

        Raises:
            ValueError: it is of other parameters or settings.
        """
        if state["names"] != list(self.layout.names):
            raise ValueError("this state is of other parameters")
        if state["settings"] != (own := f"{self.settings} {self.sum.settings}"):
            raise ValueError(f"this state is of other settings: {state['settings']}, not {own}")
        self.rounds = state["rounds"]
        self.shared, self._momentum = state["shared"].clone(), state["momentum"].clone()
        self.sum.load_shared_state(state["sum"])
        self.sum.scale_kept(0.0)

    def state_dict(self) -> dict[str, Any]:
        """Return what is shared, and what this worker keeps."""
        return {**self.shared_state(), "own": self.sum.own_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` gave on this worker, bit for bit. Raises ValueError likewise."""
        self.load_shared_state(state)
        self.sum.load_own_state(state["own"])

    def _check(self, local: torch.Tensor) -> None:
        """Raise NonFiniteError on all workers where one's weights are spoilt."""
        assert self._communicator is not None, "join comes first"
        parts = self.layout.split(local)
        spoilt = np.array([not bool(part.isfinite().all()) for part in parts])
        communicator = self._communicator
        if communicator.any_of(spoilt).any():
            everyone = np.zeros((communicator.size, spoilt.size), np.bool_)
            everyone[communicator.rank] = spoilt
            everyone = communicator.any_of(everyone)
            raise culprits(
                everyone, lambda index: f"weights of {self.layout.names[index]}", communicator.rank
            )
