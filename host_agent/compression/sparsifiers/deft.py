# SPDX-License-Identifier: Apache-2.0
"""DEFT: layers are dealt to workers, each chooses in its own as many as the layers' norms are worth."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.sparsifiers.base import Sparsifier, SparsifierOptions, register
from weir.host_agent.compression.sparsifiers.density import keep_largest, keep_non_finite, rounded
from weir.host_agent.compression.vectors import sum_in_order

_LEAST: Final = 1e-30


@dataclass(frozen=True)
class Piece:
    """A layer, or one of the equal parts of a large one: elements ``first`` to ``last`` of its parameter."""

    span: Span
    first: int
    last: int

    @property
    def length(self) -> int:
        """Return how many elements it has."""
        return self.last - self.first


@dataclass(frozen=True)
class Share:
    """Whose a piece is in this step, and how many elements that worker chooses in it."""

    piece: Piece
    owner: int
    count: int


@register
class Deft(Sparsifier):
    """Every worker takes the largest elements of the layers dealt to it in this step; all workers send these.

    A layer larger than an N-th of the model counts as N layers. A layer's number of elements is proportional
    to its norm, at most its size; layers are dealt so that all workers have about the same to do (the
    costliest first, each to the worker that has least), and the hands go round.

    There the worker whose turn it is measures its own layers and broadcasts the hands; that message is saved
    here: what counts is the mean square of what was last summed of each layer, which every worker has seen.
    In the first step, nothing being known, each worker takes its share of an equal part of every layer.

    Reference: Yoon and Oh, "DEFT: Exploiting Gradient Norm Difference between Model Layers for Scalable
    Gradient Sparsification", ICPP 2023; ``DeftReducer`` in kljp/deft.
    """

    name = "deft"
    summary = "Each worker chooses the largest elements of some layers, more where a layer's norm is larger."
    reference = "Yoon and Oh, ICPP 2023"
    fills_union = True
    mask_block = 1

    def __init__(self, options: SparsifierOptions) -> None:
        super().__init__(options)
        self._spans: dict[str, Span] = {}
        self._powers: dict[str, torch.Tensor] = {}  # by parameter: mean squares of its pieces, NaN: unknown
        self._seen: dict[str, tuple[Span, torch.Tensor]] = {}  # of this step
        self._plan: tuple[int, int, Mapping[str, list[Share]]] | None = None  # step, workers, shares

    @property
    def observes_values(self) -> bool:
        """Return that it measures the sums."""
        return True

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """Return the largest of this worker's pieces, and what is not finite anywhere."""
        sent = keep_non_finite(gradient)
        for share in self._shares(span):
            if share.owner == self.rank:
                part = slice(share.piece.first, share.piece.last)
                sent[part] = keep_largest(gradient[part], share.count)
        return sent

    def _shares(self, span: Span) -> list[Share]:
        """Return who takes how many elements of which part of a parameter in this step."""
        if not self._powers:
            return [self._first_share(piece, number) for number, piece in enumerate(_cut(span, self.workers))]
        if self._plan is None or self._plan[:2] != (self.step, self.workers):
            self._plan = self.step, self.workers, self._planned()
        return self._plan[2].get(span.name, [])

    def _first_share(self, piece: Piece, number: int) -> Share:
        place = self.density * (piece.span.start + piece.first)
        return Share(piece, number, rounded(self.density * piece.length, self.step, place))

    def _planned(self) -> Mapping[str, list[Share]]:
        """Return the shares of every parameter known, from what was last seen of them."""
        pieces = [p for name in sorted(self._spans) for p in _pieces(self._spans[name], self.workers)]
        powers = [power for name in sorted(self._spans) for power in self._power_of_pieces(name)]
        known = [power for power in powers if not math.isnan(power)]
        usual = sum_in_order(known) / max(len(known), 1)
        powers = [max(usual if math.isnan(power) else power, _LEAST) for power in powers]
        norms = [math.sqrt(power * piece.length) for piece, power in zip(pieces, powers, strict=True)]
        wanted = _proportional(
            norms, [p.length for p in pieces], self.density * sum(p.length for p in pieces)
        )
        counts, place = [], 0.0
        for expected in wanted:
            counts.append(rounded(expected, self.step, place))
            place += expected
        costs = [
            p.length * max(math.log2(max(count, 1)), 1.0) for p, count in zip(pieces, counts, strict=True)
        ]
        plan: dict[str, list[Share]] = {}
        for piece, hand, count in zip(pieces, _dealt(costs, self.workers), counts, strict=True):
            owner = (hand - self.step) % self.workers
            plan.setdefault(piece.span.name, []).append(Share(piece, owner, count))
        return plan

    def _power_of_pieces(self, name: str) -> list[float]:
        """Return the mean square of each piece; of the whole parameter where it is cut differently now."""
        powers, number = self._powers[name], len(_pieces(self._spans[name], self.workers))
        if len(powers) != number:
            powers = powers.nanmean().expand(number)
        return [float(power) for power in powers]

    def observe(self, total: torch.Tensor, union: torch.Tensor, span: Span) -> None:
        """Measure what was summed of each piece: the mean square of what was sent, NaN where nothing was."""
        pieces = [slice(piece.first, piece.last) for piece in _pieces(span, self.workers)]
        sent = torch.stack([torch.count_nonzero(union[piece]) for piece in pieces])
        norms = torch.stack([torch.linalg.vector_norm(total[piece]) for piece in pieces]).double()
        self._seen[span.name] = span, norms.square() / sent

    def end_step(self) -> None:
        """Take in what was measured; of what was not sent at all the former measure stays."""
        super().end_step()
        for name, (span, fresh) in self._seen.items():
            old = self._powers.get(name)
            if old is None or len(old) != len(fresh):
                old = torch.full_like(fresh, math.nan if old is None else float(old.nanmean()))
            self._spans[name] = span
            self._powers[name] = torch.where(fresh.isfinite(), fresh, old)
        self._seen, self._plan = {}, None

    def state_dict(self) -> dict[str, Any]:
        """Return the step, and what is known of every parameter."""
        spans = {name: (span.start, span.length, span.total) for name, span in sorted(self._spans.items())}
        powers = {name: power.clone() for name, power in sorted(self._powers.items())}
        return {**super().state_dict(), "spans": spans, "powers": powers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take these back; the group may be of another size."""
        super().load_state_dict(state)
        self._spans = {name: Span(name, *place) for name, place in state["spans"].items()}
        self._powers = {name: power.clone() for name, power in state["powers"].items()}
        self._plan = None


def _cut(span: Span, parts: int) -> list[Piece]:
    """Return a parameter in equal parts."""
    edges = [number * span.length // parts for number in range(parts + 1)]
    return [Piece(span, edges[number], edges[number + 1]) for number in range(parts)]


def _pieces(span: Span, workers: int) -> list[Piece]:
    """Return a parameter as it is dealt: whole, or cut where it is more than a worker's part of the model."""
    return _cut(span, workers if span.length * workers > span.total else 1)


def _proportional(norms: list[float], sizes: list[int], total: float) -> list[float]:
    """Divide ``total`` elements in proportion to norms, to no layer more than its size."""
    counts, left, weight = [0.0] * len(norms), total, sum_in_order(norms)
    for number in sorted(range(len(norms)), key=lambda n: norms[n] / sizes[n], reverse=True):
        counts[number] = min(float(sizes[number]), left * norms[number] / max(weight, _LEAST))
        left, weight = left - counts[number], weight - norms[number]
    return counts


def _dealt(costs: list[float], hands: int) -> list[int]:
    """Return the hand that each layer goes to: the costliest first, always to the hand with the least so
    far.
    """
    loads, dealt = [0.0] * hands, [0] * len(costs)
    for number in sorted(range(len(costs)), key=lambda n: costs[n], reverse=True):
        hand = loads.index(min(loads))
        loads[hand] += costs[number]
        dealt[number] = hand
    return dealt
