# SPDX-License-Identifier: Apache-2.0
"""One worker's compressed step, over any communicator: ahead of the wire, delivered to all.

    pending += the worker's own step
    shared point decays, then += the mean of what all workers deliver
    pending -= what this worker delivered
    weights = shared point + pending

Only the shared point and the weights are kept: the pending part is their difference. *Exactness.* Weights are
float32. One step rounds the weights once and the shared point twice at most; so over T steps, the updates
that were wanted, less those delivered, are the pending part but for 2 T 2^-24 of the largest weight. What is
delivered itself is known exactly, on all workers.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.non_finite import culprits
from weir.host_agent.compression.updates.coverage import EVERY, Coverage
from weir.host_agent.compression.updates.delivery import FixedPoint, Pending, ValueBits, delivery, sum_whole
from weir.host_agent.compression.updates.harm import Harm, HarmMeter
from weir.host_agent.compression.updates.layout import UpdateLayout
from weir.host_agent.compression.updates.parts import Parts
from weir.host_agent.compression.updates.rotation import Rotation
from weir.host_agent.compression.updates.rules import Options, RuleName, Step, make_rule
from weir.host_agent.compression.updates.samples import Sample, SampleBits, Sampler, squared_norm

_TINY: Final = 1e-6  # as torch has it where it clips
_AT_ONCE: Final = 1 << 18  # rows that the last delivery sums in one piece: it takes five times their memory


@dataclass(frozen=True)
class UpdateSettings:
    """Settings of compressed updates, the same on all workers.

    Attributes:
        bits: of a value on its way up: 1, or fixed point of 8, 16 or 32.
        share: of the rows that are sent at a step, in rotation; 1: all.
        most_pending: steps of a worker's own that may wait, see ``Harm.pending``: while more do, on average
            over the workers, a larger share is sent. None: the share stays.
        sample_share: of the rows of which the mean gradient is sampled at a step, in rotation.
        sample_bits: 4: few, see ``samples``; 32: the whole width.
        sample_whole_steps: at this many first steps all rows are sampled.
        clip_norm: the norm that the mean gradient is clipped to, as estimated from the samples; None: it is
            not.
        seed: of rotations and of rounding.

    Raises:
        ValueError: a setting is out of range.
    """

    bits: ValueBits = 1
    share: float = 1.0
    sample_share: float = 0.06
    sample_bits: SampleBits = 4
    sample_whole_steps: int = 40
    clip_norm: float | None = None
    seed: int = 0
    most_pending: float | None = None

    def __post_init__(self) -> None:
        for name in ("share", "sample_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: it must be above 0, and at most 1")
        if self.sample_whole_steps < 1:
            raise ValueError(f"sample_whole_steps={self.sample_whole_steps}: it must be at least 1")
        for name in ("clip_norm", "most_pending"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value!r}: it must be above 0")


class UpdateStage:
    """One worker's compressed steps.

    Attributes:
        steps: how many were made.
        norm: the mean gradient's norm at the last step, before it was clipped; None where none is estimated.

    Args:
        layout: of the parameters.
        settings: the same on all workers.
        rule: the optimizer's steps.
        workers: how many there are.
    """

    def __init__(self, layout: UpdateLayout, settings: UpdateSettings, rule: RuleName, workers: int) -> None:
        self.layout, self.settings = layout, settings
        self.steps = 0
        self.norm: float | None = None
        sampled = Rotation(layout.rows, settings.sample_share, settings.seed + 1, settings.sample_whole_steps)
        self._sampler = Sampler(
            sampled, settings.sample_bits, settings.seed, noise=settings.clip_norm is not None
        )
        self._samples = rule == "adam" or settings.clip_norm is not None
        self._coverage = Coverage(layout.rows, settings.share, settings.seed)
        self._delivery = delivery(settings.bits, workers)
        self._whole = FixedPoint(32, workers)
        exact = settings.sample_share == 1 and settings.sample_bits == 32
        self._rule = make_rule(rule, layout, workers, exact=exact)
        self._meter = HarmMeter(layout)
        self._shared = layout.empty()
        self._made = torch.zeros(len(layout.names), dtype=torch.int64)  # steps of each parameter
        self._waiting = 0.0  # steps of this worker's own, when the share was last to follow them

    @property
    def shared(self) -> torch.Tensor:
        """Shared point: float32[rows, ROW]."""
        return self._shared

    def begin_from(self, weights: Sequence[torch.Tensor]) -> None:
        """Let weights, the same on all workers, be the shared point."""
        self.layout.gather(weights, self._shared)

    def step(
        self,
        communicator: Communicator,
        weights: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        options: Options,
    ) -> None:
        """Make a step: overwrite this worker's weights.

        Args:
            communicator: of all workers, which make the same call.
            weights: this worker's, contiguous float32 in main memory.
            gradients: likewise; None: this worker has none. A parameter that has none on any worker makes no
                step.
            options: of the optimizer, the same on all workers.

        Raises:
            NonFiniteError: some worker's gradient holds NaN or infinity. On all workers, and nothing has
                changed.
        """
        parts = Parts(self.layout, weights, gradients)
        stepping = self._agree(communicator, parts, gradients)
        self._adapt(communicator)
        sample = self._sampler.sample(communicator, parts, self.steps) if self._samples else None
        clip = 1.0
        if sample is not None and self.settings.clip_norm is not None:
            sample, clip = self._clip(sample, self.settings.clip_norm)
        self._made += stepping
        step = Step(options, stepping, self._made, clip)
        sums = self._rule.update(parts, step, sample, self._shared)
        factors = self._rule.decay(parts, step, self._shared)
        rows = self._coverage.turn()
        with self._ahead(parts):
            pending = Pending(parts, sums.norms, rows, self._shared, factors)
            done = self._delivery.deliver(communicator, pending)
        self._meter.note(sums, rows, done)
        self._coverage.advance()
        self.steps += 1
        if self._is_adapted:
            self._waiting = self.harm().pending

    @property
    def share(self) -> float:
        """Return which share of the rows the last step has sent."""
        return self._coverage.share

    @property
    def _is_adapted(self) -> bool:
        """Return whether the share changes before the next step."""
        return self.settings.most_pending is not None and self.steps % EVERY == 0 < self.steps

    def _adapt(self, communicator: Communicator) -> None:
        """Let the share follow the harm, if it is time."""
        bound = self.settings.most_pending
        if bound is not None and self._is_adapted:
            harm = sum_whole(communicator, torch.tensor([self._waiting])) / communicator.size
            self._coverage.follow(float(harm), bound)

    def harm(self, index: int | None = None) -> Harm:
        """Return the harm of the last step on this worker, to a parameter, None: to all together."""
        return self._meter.harm(self._shared, index)

    def finish(self, communicator: Communicator, weights: Sequence[torch.Tensor]) -> None:
        """Deliver all that is pending, in whole lanes: all workers have the same weights then."""
        parts = Parts(self.layout, weights)
        kept = torch.ones(parts.count)
        for rows in torch.split(torch.arange(self.layout.rows), _AT_ONCE):
            for index, one in enumerate(weights):
                one.sub_(self.layout.part(self._shared, index).view(one.shape))
            with self._ahead(parts):
                pending = Pending(parts, self._shared.new_empty(0), rows, self._shared, kept)
                self._whole.deliver(communicator, pending)
        self.layout.scatter(self._shared, weights)

    @contextlib.contextmanager
    def _ahead(self, parts: Parts) -> Iterator[None]:
        """Let parameters that hold what is pending be weights again, where it is not delivered."""
        try:
            yield
        except BaseException:
            for index, one in enumerate(parts.values):
                one.add_(self.layout.part(self._shared, index).view(one.shape))
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step needs, but for this worker's weights."""
        return {
            "settings": self.settings.__dict__.copy(),
            "names": list(self.layout.names),
            "steps": self.steps,
            "made": self._made,
            "shared": self._shared,
            "rule": self._rule.state_dict(),
            "harm": self._meter.state_dict(),
            "coverage": self._coverage.state_dict(),
            "waiting": self._waiting,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; of a stage of as many workers, bit for bit.

        Raises:
            ValueError: it is of other parameters or settings.
        """
        if state["names"] != list(self.layout.names):
            raise ValueError("this state is of other parameters")
        if state["settings"] != self.settings.__dict__:
            raise ValueError(f"this state is of other settings: {state['settings']}")
        self.steps = state["steps"]
        self._made.copy_(state["made"])
        self._shared.copy_(state["shared"])
        self._rule.load_state_dict(state["rule"])
        self._meter.load_state_dict(state["harm"])
        self._coverage.load_state_dict(state["coverage"])
        self._waiting = state["waiting"]

    def _agree(
        self, communicator: Communicator, parts: Parts, gradients: Sequence[torch.Tensor | None]
    ) -> torch.Tensor:
        """Return which parameters have a gradient on some worker: bool. Raises NonFiniteError."""
        used, spoilt = np.array([one is not None for one in gradients]), parts.spoilt()
        flags = communicator.any_of(np.stack([used, spoilt]))
        if flags[1].any():
            everyone = np.zeros((communicator.size, flags.shape[1]), np.bool_)
            everyone[communicator.rank] = spoilt
            everyone = communicator.any_of(everyone)
            raise culprits(
                everyone, lambda index: f"gradient of {self.layout.names[index]}", communicator.rank
            )
        return torch.from_numpy(flags[0].copy())

    def _clip(self, sample: Sample, limit: float) -> tuple[Sample, float]:
        """Return the sample of the mean gradient as it is clipped, and the factor of all gradients."""
        self.norm = squared_norm(sample, self.layout) ** 0.5
        factor = min(1.0, limit / (self.norm + _TINY))
        return sample.scaled(factor), factor
