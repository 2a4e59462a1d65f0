# SPDX-License-Identifier: Apache-2.0
"""ExDyna: each worker chooses in its own part of the model, by one threshold, and the parts are balanced."""

import itertools
from collections.abc import Sequence
from typing import Any, Final

import torch

from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.sparsifiers.base import SparsifierOptions, register
from weir.host_agent.compression.sparsifiers.exclusive import Exclusive, Seen

_CELLS: Final = 4096
_FADING: Final = 0.9  # of what was counted in earlier steps
_EVEN: Final = 0.01  # share of the weight that all cells have in common
_BLOCKS: Final = 1024
_HIGH, _LOW = 1.05, 0.95238


class _Counted(Exclusive):
    """Counts what is sent by equal parts of the model, called cells."""

    cells = _CELLS

    def count(self, places: torch.Tensor, span: Span) -> torch.Tensor:
        """Return the elements that were sent, by cell: of the cells that ``span`` has a part of."""
        first, last = self._cells_of(span)
        cells = (places + span.start) * self.cells // span.total
        return torch.bincount(cells - first, minlength=last - first)

    def _cells_of(self, span: Span) -> tuple[int, int]:
        """Return the first cell that ``span`` has a part of, and the one after the last."""
        last = (span.start + span.length - 1) * self.cells // span.total
        return span.start * self.cells // span.total, last + 1

    def _by_cell(self, seen: Sequence[Seen]) -> torch.Tensor:
        """Return the whole step's counts by cell, float64."""
        counts = torch.zeros(self.cells, dtype=torch.float64, device=seen[0].counts.device)
        for each in seen:
            first, last = self._cells_of(each.span)
            counts[first:last] += each.counts
        return counts


@register
class ExDyna(_Counted):
    """Partitions with equal numbers of chosen elements that go round, and a threshold that is steered.

    Every worker sees from the sum what was chosen where; the partitions of the next step are cut where the
    mean of the last steps' counts is divided evenly.

    Reference: Yoon and Oh, "Preserving Near-Optimal Gradient Sparsification Cost for Scalable Distributed
    Deep Learning", CCGrid 2024; ``ExDynaReducer`` in kljp/exdyna. There one of 1024 blocks at a time goes
    from a partition to its neighbour; see ``ExDynaPublished``.
    """

    name = "exdyna"
    summary = "As micro, in parts that are moved to hold equal numbers of chosen elements."
    reference = "Yoon and Oh, CCGrid 2024"

    def __init__(self, options: SparsifierOptions) -> None:
        super().__init__(options)
        self._weights: torch.Tensor | None = None
        self._edges: tuple[int, list[int]] | None = None  # the number of workers, and the edges for it

    def edges(self, total: int) -> Sequence[int]:
        """Return parts in which equally much was chosen; equal parts at first."""
        if self._weights is None:
            return [number * total // self.workers for number in range(self.workers + 1)]
        if self._edges is None or self._edges[0] != self.workers:
            self._edges = self.workers, _divided(self._weights, self.workers, total)
        return self._edges[1]

    def learn(self, seen: Sequence[Seen], sent: int) -> None:
        """Take the step's counts into the mean."""
        counts = self._by_cell(seen)
        old = counts if self._weights is None else self._weights
        self._weights, self._edges = _FADING * old + (1 - _FADING) * counts, None

    def state_dict(self) -> dict[str, Any]:
        """Return the step, the threshold and the counts."""
        weights = None if self._weights is None else self._weights.clone()
        return {**super().state_dict(), "weights": weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take these back; partitions are cut again for the group there is."""
        super().load_state_dict(state)
        self._weights = None if state["weights"] is None else state["weights"].clone()
        self._edges = None


def _divided(weights: torch.Tensor, parts: int, total: int) -> list[int]:
    """Cut ``total`` elements, weighed by equal cells, in parts of equal weight; evenly within a cell."""
    weights = weights + (weights.sum() * _EVEN + 1e-9) / len(weights)
    sums = weights.cumsum(0)
    wanted = sums[-1] * torch.arange(1, parts, dtype=torch.float64, device=sums.device) / parts
    cell = torch.searchsorted(sums, wanted).clamp_(max=len(weights) - 1)
    within = 1.0 - (sums[cell] - wanted) / weights[cell]
    inner = ((cell + within.clamp_(0.0, 1.0)) * (total / len(weights))).long().tolist()
    return [0, *inner, total]


@register
class ExDynaPublished(_Counted):
    """ExDyna with first threshold, scaling and partitions as its code has them.

    Partitions are runs of 1024 blocks. Where one had over 5 % more than the mean and the next over 5 % less,
    one block goes over, unless too few would be left. So what lies between a partition with too much and one
    with too little, neither, keeps them as they are: balance is not reached on gradients that differ much.
    """

    name = "exdyna-published"
    summary = "ExDyna as its code has it. Settles near 0.93 of the density."
    reference = "Yoon and Oh, CCGrid 2024"
    promises_density = False
    published = True
    cells = _BLOCKS

    def __init__(self, options: SparsifierOptions) -> None:
        super().__init__(options)
        self._blocks: list[int] = []  # of each partition

    def _fit(self) -> None:
        """Begin with equal partitions in a group of another size."""
        if len(self._blocks) != self.workers:
            more = _BLOCKS % self.workers
            self._blocks = [_BLOCKS // self.workers + (number < more) for number in range(self.workers)]

    def edges(self, total: int) -> Sequence[int]:
        """Return the runs of blocks."""
        self._fit()
        return [-(-edge * total // _BLOCKS) for edge in itertools.accumulate(self._blocks, initial=0)]

    def learn(self, seen: Sequence[Seen], sent: int) -> None:
        """Move blocks from partitions with too much to neighbours with too little."""
        self._fit()
        blocks, counts = self._blocks, self._by_cell(seen)
        sent_of = [float(part.sum()) for part in torch.split(counts, blocks)]
        fewest, mean, per_block = _BLOCKS / (4 * self.workers), max(sent / self.workers, 1.0), sent / _BLOCKS
        for left in range(self.workers - 1):
            right = left + 1
            for giver, taker in ((left, right), (right, left)):
                unequal = sent_of[giver] > _HIGH * mean and sent_of[taker] < _LOW * mean
                if unequal and blocks[giver] - 1 >= fewest:
                    blocks[giver], blocks[taker] = blocks[giver] - 1, blocks[taker] + 1
                    sent_of[giver], sent_of[taker] = sent_of[giver] - per_block, sent_of[taker] + per_block

    def state_dict(self) -> dict[str, Any]:
        """Return the step, the threshold and the partitions."""
        return {**super().state_dict(), "blocks": list(self._blocks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take these back; a group of another size begins with equal partitions."""
        super().load_state_dict(state)
        self._blocks = list(state["blocks"])
