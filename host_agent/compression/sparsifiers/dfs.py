# SPDX-License-Identifier: Apache-2.0
"""DFS: what is pruned, and in blocks of what size, follows from what it costs to write down the rest."""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch

from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.encodings import forecast, pyramid
from weir.host_agent.compression.encodings.position_lists import PositionList
from weir.host_agent.compression.encodings.shared_mask import mark_blocks
from weir.host_agent.compression.sparsifiers.base import Sparsifier, SparsifierOptions, register
from weir.host_agent.compression.sparsifiers.density import rounded, worthiest
from weir.host_agent.compression.sparsifiers.dfs_blocks import (
    copy_blocks,
    enough,
    marginal,
    marginals,
    mark_largest,
    norms,
)
from weir.host_agent.compression.vectors import is_native, sum_in_order
from weir.wire.definition import SLOT_LANES

PARTS: Final = ("portions", "lists", "sizes")
"""What ``leave_out`` can name."""

PROBE_EVERY: Final = 64
"""Steps from one probe to the next, once there have been a few."""

HYSTERESIS: Final = 0.97
"""Blocks of another size must cost less than this share of what those of the present size do."""

MEMORY: Final = 0.8
"""The weight of a step in what is known, against the step after it."""

MOST_MOVED: Final = 16.0
MOST_PORTION: Final = 64.0
"""Parameters' portions of the density move by the root of this at most in a step, and to this at most."""

_ROUNDS: Final = 4
_PRIOR: Final = 16.0  # elements
_SIZES: Final = tuple(1 << level for level in range(pyramid.LEVELS))


@register
class Dfs(Sparsifier):
    """Keeps the blocks with most energy per bit on the wire, in both directions; all workers fill the union.

    A bit buys as much energy in one parameter as in another: parameters whose least values that travel are
    large get a larger portion of the density.

    Each parameter has a block size, 1 to 256 elements, that all workers know: in a *probe* they choose single
    elements, and the union of these tells what it would have cost in blocks of each size, all headers and
    masks or lists included. Until the next probe blocks of the cheapest size are chosen, or left whole.

    All workers know how many blocks each chooses, so positions can travel instead of a mask: up what one
    worker has, down what all have. And what any worker has chosen travels down to all of them, so all of them
    send their values there, too.

    density: the share of elements that travel, the union. A worker chooses a share of it for itself, the
    larger, the more of what the workers chose in the last steps was the same. energy: instead, the blocks of
    least energy wait, as many as have this share of a parameter's together, whatever the density is then.
    leave_out: parts to do without, of PARTS.

    Reference: Yang, Zhao, Zhao and Xu, Computer Networks 2023, doi 10.1016/j.comnet.2023.109777; what its
    abstract leaves open is filled in here, see docs/reference/methods.md.
    """

    name = "dfs"
    summary = "Blocks with the most energy per bit sent. The block size follows the gradients."
    reference = "Yang et al., Computer Networks 2023"
    uses = ("density", "energy")
    fills_union = True
    lane_bits = "auto"

    def __init__(self, options: SparsifierOptions) -> None:
        super().__init__(options)
        if unknown := set(options.leave_out) - set(PARTS):
            raise ValueError(f"dfs has no part {', '.join(sorted(unknown))}: it has {', '.join(PARTS)}")
        self._known: dict[str, _Known] = {}
        self._found: dict[str, _Known] = {}
        # What is asked several times in a step, by the step and the parameter.
        self._sizes: dict[tuple[int, str], int] = {}
        self._quotas: dict[tuple[int, str], int] = {}

    def join(self, rank: int, workers: int) -> None:
        """Take a place in the group, whose size is part of how much each chooses."""
        super().join(rank, workers)
        self._sizes, self._quotas = {}, {}

    @property
    def probing(self) -> bool:
        """Return whether single elements are chosen in this step: at first in steps 0, 1, 2, 4, 8 and so
        on.
        """
        return self.step % PROBE_EVERY == 0 or (self.step < PROBE_EVERY and self.step & (self.step - 1) == 0)

    def mask_block_of(self, span: Span) -> int:
        """Return elements in a block of this parameter, which is what a bit of its mask stands for."""
        at = self.step, span.name
        size = self._sizes.get(at)
        if size is None:
            single = self.probing or "sizes" in self.options.leave_out
            size = self._sizes[at] = 1 if single else self._of(span).size
        return size

    def quota_of(self, span: Span) -> int | None:
        """Return how many blocks each worker chooses, unless energy decides."""
        if self.options.energy is not None or "lists" in self.options.leave_out:
            return None
        return self._quota(span)

    def _of(self, span: Span) -> "_Known":
        return self._known.get(span.name, _UNKNOWN)

    def share_of(self, span: Span) -> float:
        """Return the share of a parameter's elements that each worker chooses for itself."""
        known = self._of(span)
        return min(1.0, self.density * known.portion) / max(1.0, known.spread * self.workers)

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """Return whole blocks of ``gradient``, and what is not finite."""
        sent = torch.empty_like(gradient)
        self.encode_into(gradient, span, sent)
        return sent

    def encode_into(self, gradient: torch.Tensor, span: Span, out: torch.Tensor) -> None:
        """Write what ``encode`` returns to memory that is there already."""
        copy_blocks(gradient, self.choose(gradient, span), self.mask_block_of(span), out)

    def mark(
        self, gradients: Sequence[torch.Tensor], spans: Sequence[Span], masks: Sequence[Lanes]
    ) -> list[int]:
        """Set the bits of the blocks with most energy, and of those with what is not finite."""
        sizes = [self.mask_block_of(span) for span in spans]
        found: list[int | None] = [None] * len(spans)
        if self.options.energy is None:
            found = mark_largest(gradients, sizes, [self._quota(span) for span in spans], masks)
        return [
            mark_blocks(gradient, self.choose(gradient, span), size, words) if elements is None else elements
            for elements, gradient, span, size, words in zip(
                found, gradients, spans, sizes, masks, strict=True
            )
        ]

    def choose(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """Return which blocks have most energy, or something that is not finite: int64, ascending, none that
        is zero.
        """
        lengths, count = norms(gradient, self.mask_block_of(span)), self._quota(span)
        if self.options.energy is not None:
            count = enough(lengths, self.options.energy)
        return worthiest(lengths, count)

    def _quota(self, span: Span) -> int:
        """Return how many blocks each worker chooses, the same for all."""
        at = self.step, span.name
        quota = self._quotas.get(at)
        if quota is None:
            blocks = self.share_of(span) / self.mask_block_of(span)
            quota = self._quotas[at] = rounded(blocks * span.length, self.step, blocks * span.start)
        return quota

    @property
    def observes_union(self) -> bool:
        """Return False: what ``take_starts`` is given will do."""
        return False

    def observe(self, total: torch.Tensor, union: torch.Tensor, span: Span) -> None:
        """Learn from a probe which block size is the cheapest."""
        if self._looks_for_sizes:
            self._learn_size(pyramid.counts(union, forecast.UNION_LEVELS).tolist(), span)

    def take_starts(self, starts: Lanes, size: int, span: Span) -> None:
        """Learn the same from the blocks of the union."""
        if self._looks_for_sizes:
            found = pyramid.counts_of_blocks(starts, size, span.length, forecast.UNION_LEVELS)
            self._learn_size(found, span)

    @property
    def _looks_for_sizes(self) -> bool:
        return self.probing and "sizes" not in self.options.leave_out

    def _learn_size(self, union: list[int], span: Span) -> None:
        """Choose the cheapest block size. union: how many blocks of 2^k elements it has some of."""
        known = self._of(span)
        costs = _costs(span.length, union, self._quota(span), self.workers, self.value_bits)
        best = min(costs, key=costs.__getitem__)
        size = best if costs[best] < HYSTERESIS * costs[known.size] else known.size
        self._found[span.name] = known._replace(size=size)

    def take_count(self, travelled: int, span: Span) -> None:
        """Learn how much of what the workers chose was different."""
        known = self._of(span)
        found = self._found.get(span.name, known)
        self._found[span.name] = _Known(
            found.size,
            MEMORY * known.chosen + self._quota(span) * self.mask_block_of(span) * self.workers,
            MEMORY * known.travelled + travelled,
            known.portion,
            span.length,
        )

    def measure(self, travelled: torch.Tensor, span: Span) -> float:
        """Return how large the least blocks are that travelled."""
        return marginal(travelled, self.mask_block_of(span))

    def measure_all(self, travelled: Sequence[torch.Tensor], spans: Sequence[Span]) -> list[float]:
        """Return what ``measure`` does, of all parameters at once."""
        if not is_native(*travelled):
            return super().measure_all(travelled, spans)
        return marginals(travelled, [self.mask_block_of(span) for span in spans])

    def take_note(self, measured: float, span: Span) -> None:
        """Take note of it, for the parameter's portion of the density."""
        self._found[span.name] = self._found[span.name]._replace(margin=measured)

    def end_step(self) -> None:
        """End a step: from now on what was found in it counts."""
        self._known = {**self._known, **self._found}
        self._found, self._sizes, self._quotas = {}, {}, {}
        if self.options.energy is None and "portions" not in self.options.leave_out:
            self._share_out()
        super().end_step()

    def _share_out(self) -> None:
        """Give more of the density to parameters whose least values that travel are large.

        At the end all parameters give up as much energy for a bit that is saved.
        """
        known = list(self._known.values())
        elements = sum(one.length for one in known)
        level = sum_in_order(one.length * one.margin for one in known) / max(1, elements)
        if not level > 0.0:
            return
        moved = [
            one.portion * math.sqrt(min(max(one.margin / level, 1 / MOST_MOVED), MOST_MOVED))
            if one.margin
            else one.portion
            for one in known
        ]
        most = min(MOST_PORTION, 1.0 / self.density)
        for _ in range(_ROUNDS):
            total = sum_in_order(one.length * portion for one, portion in zip(known, moved, strict=True))
            moved = [min(max(portion * elements / total, 1 / MOST_PORTION), most) for portion in moved]
        self._known = {
            name: one._replace(portion=portion)
            for (name, one), portion in zip(self._known.items(), moved, strict=True)
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the step and what is known of each parameter: plain values, the same on every worker."""
        return {
            **super().state_dict(),
            "known": {name: known._asdict() for name, known in self._known.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave. In a group of another size the overlap is learnt again."""
        super().load_state_dict(state)
        self._known, self._found = {name: _Known(**known) for name, known in state["known"].items()}, {}
        self._sizes, self._quotas = {}, {}


class _Known(NamedTuple):
    """All workers' knowledge of a parameter.

    size: of its blocks. chosen, travelled: elements that the workers chose, added up, and those in the unions
    of it; over the last steps, the latest counting most. portion: of the density, its share of elements over
    that of all. length: its elements. margin: what three in four of the sums that
    travelled last had; 0: none did.
    """

    size: int = 1
    chosen: float = 0.0
    travelled: float = 0.0
    portion: float = 1.0
    length: int = 0
    margin: float = 0.0

    @property
    def spread(self) -> float:
        """Size of the union over all workers' choices together; near 1 while little is known."""
        return (self.travelled + _PRIOR) / (max(self.chosen, self.travelled) + _PRIOR)


_UNKNOWN: Final = _Known()


def _costs(length: int, union: list[int], chosen: int, workers: int, value_bits: float) -> dict[int, float]:
    """Return bytes on the wire to exchange a union in blocks of each size: lanes, and mask or lists.

    Args:
        length: elements of the parameter.
        union: how many of its blocks of 2^k elements the union has some of.
        chosen: elements that each worker has chosen of it.
        workers: how many they are.
        value_bits: bits of a value on the wire.
    """
    full = forecast.Counts(length, tuple(union), (1.0,) * pyramid.LEVELS, None, (1.0,) * 4)
    costs = {}
    for size in _SIZES:
        blocks = full.blocks(size)
        capacity = math.ceil(max(chosen / max(1, full.blocks(1)), 1 / workers) * blocks)
        lists = PositionList.of(-(-length // size), capacity)
        values = forecast.full_bytes(blocks * size * value_bits / 32, SLOT_LANES, workers)
        mask = forecast.mask_bytes(full, size, workers)
        costs[size] = values + min(mask, forecast.list_bytes(lists, workers))
    return costs
