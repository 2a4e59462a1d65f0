# SPDX-License-Identifier: Apache-2.0
"""A training job without a network: every worker's choices and residuals, summed in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weir.host_agent.compression.sparsifiers import Span, SparsifierOptions, create_sparsifier


def spans_of(sizes: Sequence[int]) -> list[Span]:
    """Return a model of parameters with this many elements each."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [
        Span(f"layer{number}", start, size, sum(sizes))
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


@dataclass(frozen=True)
class Step:
    """One step: what each worker chose (bool, over the whole model), and the sum that all received."""

    chosen: list[torch.Tensor]
    total: torch.Tensor

    @property
    def union(self) -> torch.Tensor:
        """Return what any worker chose."""
        return torch.stack(self.chosen).any(0)

    @property
    def counts(self) -> list[int]:
        """Return how many elements each worker chose."""
        return [int(chosen.sum()) for chosen in self.chosen]

    @property
    def density(self) -> float:
        """Return the union's share of the model."""
        return float(self.union.float().mean())

    @property
    def imbalance(self) -> float:
        """Return the most that a worker chose over the mean."""
        return max(self.counts) * len(self.counts) / max(sum(self.counts), 1)


class Job:
    """Workers that sum what their sparsifiers let through.

    alone: one object acts for all workers in turn, which is faster and shows that nothing but the rank and
    the residuals differs between them; otherwise each has its own.
    """

    def __init__(
        self, name: str, workers: int, spans: Sequence[Span], *, alone: bool = False, **options: Any
    ) -> None:
        self.spans, self.workers = list(spans), workers
        own = [create_sparsifier(name, SparsifierOptions(**options)) for _ in range(1 if alone else workers)]
        self.sparsifiers = own
        self.residuals = [torch.zeros(spans[0].total) for _ in range(workers)]

    def step(self, gradients: Sequence[torch.Tensor], order: Sequence[int] | None = None) -> Step:
        """Return one step of all workers, parameters in the given order, by default from the last to the
        first.
        """
        compensated = [kept + new for kept, new in zip(self.residuals, gradients, strict=True)]
        chosen = [torch.zeros(len(vector), dtype=torch.bool) for vector in compensated]
        total = torch.zeros_like(compensated[0])
        for number in reversed(range(len(self.spans))) if order is None else order:
            span = self.spans[number]
            place = slice(span.start, span.start + span.length)
            parts = [vector[place] for vector in compensated]
            sent = [self._encode(rank, part, span) for rank, part in enumerate(parts)]
            for marks, what in zip(chosen, sent, strict=True):
                torch.ne(what, 0, out=marks[place])
            union = torch.stack([marks[place] for marks in chosen]).any(0)
            if self.sparsifiers[0].fills_union:
                sent = [part * union for part in parts]
            for residual, part, what in zip(self.residuals, parts, sent, strict=True):
                torch.sub(part, what, out=residual[place])
            total[place] = torch.stack(sent).sum(0)
            for sparsifier in self.sparsifiers:
                sparsifier.observe(total[place], union, span)
        for sparsifier in self.sparsifiers:
            sparsifier.end_step()
        return Step(chosen, total)

    def _encode(self, rank: int, part: torch.Tensor, span: Span) -> torch.Tensor:
        sparsifier = self.sparsifiers[rank % len(self.sparsifiers)]
        sparsifier.join(rank, self.workers)
        return sparsifier.encode(part, span)
