# SPDX-License-Identifier: Apache-2.0
"""The base of ExDyna and MiCRO: every worker chooses in its own part, by one threshold that is steered.

The whole model's gradient is cut in as many partitions as there are workers. In step t worker r chooses in
partition (t + r) mod N, so no element is chosen twice, the union is no larger than the sum of the workers'
choices, and each worker gets around. What one has chosen all send.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import torch

from weir.host_agent.collectives.dtypes import Lanes, pack_bits, set_bits
from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.encodings.shared_mask import words_for
from weir.host_agent.compression.sparsifiers.base import Sparsifier, SparsifierOptions
from weir.host_agent.compression.sparsifiers.density import (
    keep_from,
    keep_largest,
    keep_non_finite,
    positions,
    rounded,
)
from weir.host_agent.compression.vectors import has_kernels

GAIN: Final = 0.06
_LARGEST_MOVE: Final = 0.7  # of the threshold's logarithm, in a step
_HORIZON: Final = 50  # steps over which what was sent too little or too much is made good
_LOST: Final = (
    1 / 16,
    4.0,
)  # outside of these ratios to its target the density says nothing of the threshold


def published_factor(ratio: float) -> float:
    """Return the threshold's change, as the code has it; ``ratio``: elements sent over elements to send.

    It asks ``exam > 0`` for a second time where it surely means ``exam > 1``: what should lower the threshold
    within the dead band is never reached, and the density settles at about 0.93 of its target.

    Reference: ``ExDynaReducer``, ``MicroReducer`` in cnn-lstm/gradient_reducers.py of kljp/exdyna.
    """
    if ratio > 1.1:
        return 1.005
    return 1.00125 if ratio > 0.909 else 0.995


def corrected_factor(ratio: float) -> float:
    """Return the published change with the branch within reach, and with more the further off the density is.

    Published steps of half a percent take hundreds of them where residuals grow or gradients shrink fast; a
    GAIN-th of the ratio's logarithm on top follows them, and is next to nothing near the target.
    """
    published = 0.9987 if 0.909 < ratio <= 1.0 else published_factor(ratio)
    move = GAIN * math.log(max(ratio, 1e-6))
    return published * math.exp(min(max(move, -_LARGEST_MOVE), _LARGEST_MOVE))


@dataclass(frozen=True)
class Seen:
    """One observation of a parameter: how much was sent of it, and perhaps the sums' magnitudes."""

    span: Span
    counts: torch.Tensor
    magnitudes: torch.Tensor | None


class Exclusive(Sparsifier):
    """A sparsifier that chooses by magnitude in this worker's own partition.

    Published thresholds begin at 1/(2 sqrt(k)) for k elements to send, whatever the gradients' scale.
    Corrected ones are known after the first step, in which each worker takes its exact share of its
    partition: the median magnitude of what the workers then summed is the same for all, and of the right
    order. That is how each step of a density warm-up is made, too, and one after a density that went astray.
    """

    fills_union = True
    mask_block = 1
    published: ClassVar[bool] = False  # the rules as the authors' code has them

    def __init__(self, options: SparsifierOptions) -> None:
        super().__init__(options)
        self.threshold: float | None = None
        self._owed = 0.0  # what was sent too little so far, in steps' worth
        self._seen: dict[str, Seen] = {}

    @abstractmethod
    def edges(self, total: int) -> Sequence[int]:
        """Return the partitions' bounds in this step, ``workers + 1`` of them: 0 to ``total`` elements."""

    def _bounds(self, span: Span) -> tuple[int, int]:
        """Return the first element of a parameter that is in this worker's partition, and the one after the
        last.
        """
        edges, own = self.edges(span.total), (self.step + self.rank) % self.workers
        first = min(max(edges[own] - span.start, 0), span.length)
        return first, min(max(edges[own + 1] - span.start, first), span.length)

    def mark(
        self, gradients: Sequence[torch.Tensor], spans: Sequence[Span], masks: Sequence[Lanes]
    ) -> list[int] | None:
        """Set the bits of what ``encode`` returns, on a device with kernels."""
        if not gradients or not all(has_kernels(gradient) for gradient in gradients):
            return None
        from weir.host_agent.compression.kernels import choice

        bounds = [self._bounds(span) for span in spans]
        if not self._shares:
            threshold = self._begun(spans[0].total) if self.threshold is None else self.threshold
            return choice.mark_from(gradients, bounds, threshold, masks)
        choice.mark_from(gradients, bounds, math.inf, masks)
        for gradient, span, mask, (first, last) in zip(gradients, spans, masks, bounds, strict=True):
            own = gradient[first:last]
            words = np.zeros(words_for(own.numel(), 1), np.uint32)
            kept = [self._share(own.numel(), span.start + first)]
            if choice.mark_largest([own], [1], kept, [words]) == [None]:
                return None
            flags = set_bits(mask, span.length)
            flags[first:last] |= set_bits(words, last - first)
            mask[:] = pack_bits(flags)
        return [int(set_bits(mask).sum()) for mask in masks]

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """Return what is large in this worker's partition, and what is not finite anywhere."""
        first, last = self._bounds(span)
        if last - first == span.length:
            return self._choose(gradient, span.start, span.total)
        sent = keep_non_finite(gradient)
        sent[first:last] = self._choose(gradient[first:last], span.start + first, span.total)
        return sent

    def _choose(self, part: torch.Tensor, start: int, total: int) -> torch.Tensor:
        """Return what is sent of ``part``, whose first element is number ``start`` of ``total``."""
        if self._shares:
            return keep_largest(part, self._share(part.numel(), start))
        return keep_from(part, self._begun(total) if self.threshold is None else self.threshold)

    def _share(self, length: int, start: int) -> int:
        """Return how many elements are sent of this many of the partition, where exact shares are."""
        return rounded(self.density * length, self.step, self.density * start)

    @property
    def observes_union(self) -> bool:
        """Return whether the sums are looked at; else ``take_starts`` will do."""
        return self._shares

    def take_starts(self, starts: Lanes, size: int, span: Span) -> None:
        """Count what was sent."""
        places = torch.from_numpy(starts.astype(np.int64))
        self._seen[span.name] = Seen(span, self.count(places, span), None)

    @property
    def observes_values(self) -> bool:
        """Return whether the first threshold must be found among the sums."""
        return self._shares

    @property
    def _shares(self) -> bool:
        """Return whether exact shares are taken in this step, not what a threshold lets through."""
        return not self.published and (self.threshold is None or self.step < self.options.warmup_steps)

    def _begun(self, total: int) -> float:
        """Return the published first threshold, for gradients that are divided by the number of workers."""
        return 0.5 / math.sqrt(max(self.density * total, 1.0)) / self.workers

    def observe(self, total: torch.Tensor, union: torch.Tensor, span: Span) -> None:
        """Count what was sent."""
        magnitudes = total[union].abs() if self._shares else None
        self._seen[span.name] = Seen(span, self.count(positions(union), span), magnitudes)

    def count(self, places: torch.Tensor, span: Span) -> torch.Tensor:
        """Return the elements of ``span`` that were sent, int64: their number, or a finer count.

        places: where they are, int64, ascending.
        """
        return torch.tensor(places.numel())

    def end_step(self) -> None:
        """Set the next step's threshold."""
        seen, shares = list(self._seen.values()), self._shares
        self._seen = {}
        super().end_step()
        if not seen:
            return
        sent = int(torch.stack([each.counts.sum() for each in seen]).sum())
        self.learn(seen, sent)
        ratio = sent / max(self.density * sum(each.span.length for each in seen), 1.0)
        if self.published:
            before = self._begun(seen[0].span.total) if self.threshold is None else self.threshold
            self.threshold = before * published_factor(ratio)
        elif shares:
            self.threshold = _median([each.magnitudes for each in seen if each.magnitudes is not None])
        else:
            self._steer(ratio)

    def _steer(self, ratio: float) -> None:
        """Apply the corrected rule: what was sent too little or too much in the past moves the target."""
        most = _HORIZON / 4
        self._owed = min(max(self._owed + 1.0 - ratio, -most), most)
        aim = ratio / (1.0 + self._owed / _HORIZON)
        if self.threshold is not None:
            self.threshold = self.threshold * corrected_factor(aim) if _LOST[0] < ratio < _LOST[1] else None

    def learn(self, seen: Sequence[Seen], sent: int) -> None:
        """Learn what else there is to learn of a step in which ``sent`` elements were sent."""

    def state_dict(self) -> dict[str, Any]:
        """Return the step, the threshold, and what is owed."""
        return {**super().state_dict(), "threshold": self.threshold, "owed": self._owed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take these back; the group may be of another size."""
        super().load_state_dict(state)
        self.threshold, self._owed = state["threshold"], state["owed"]


def _median(parts: Sequence[torch.Tensor]) -> float | None:
    """Return the median of all of these together; None where there is none above zero."""
    values = torch.cat(list(parts)) if parts else torch.zeros(0)
    middle = float(values.median()) if values.numel() else 0.0
    return middle if middle > 0.0 else None
