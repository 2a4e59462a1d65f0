# SPDX-License-Identifier: Apache-2.0
"""DFS: what is pruned, and in blocks of what size, follows from what it costs to write down the rest."""

from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.encodings import forecast, pyramid
from weir.host_agent.compression.sparsifiers.base import Sparsifier, SparsifierOptions, register
from weir.host_agent.compression.sparsifiers.density import rounded
from weir.host_agent.compression.sparsifiers.dfs_blocks import copy_blocks, enough, norms, worthiest
from weir.wire.definition import SLOT_LANES

PROBE_EVERY: Final = 64
"""Steps from one probe to the next, once there have been a few."""

HYSTERESIS: Final = 0.97
"""Blocks of another size must cost less than this share of what those of the present size do."""

WORTH_FAVOURING: Final = 1.05
MOST_FAVOUR: Final = 1.5
"""From what a loner's bits are this many times those of others on it pays to look for loners, and up to where
they are held against it: with more, hardly a byte less was sent, of less energy."""

MEMORY: Final = 0.8
"""The weight of a step in what is known, against the step after it."""

_PRIOR: Final = 16.0  # elements
_WORD: Final = 32
_SIZES: Final = tuple(1 << level for level in range(pyramid.LEVELS))


@register
class Dfs(Sparsifier):
    """Keeps the blocks with most energy per bit on the wire, in both directions; all workers fill the union.

    Each parameter has a block size, 1 to 256 elements, that all workers know: in a *probe* they choose single
    elements, and the union of these tells what it would have cost in blocks of each size, all headers and
    the mask included. Until the next probe blocks of the cheapest size are chosen, or left whole; the mask
    that the workers agree on is as fine.

    All blocks of a parameter are of one size, so the energy per bit orders them as their energy does, but for
    the mask: a block that lies alone in a word of it pays for that word, unless another worker does. So it
    must have more energy than one in company, which makes longer stretches without any block. And what any
    worker has chosen travels down to all of them, so all of them send their values there, too.

    density: the share of elements that travel, the union. A worker chooses a share of it for itself, the
    larger, the more of what the workers chose in the last steps was the same. energy: instead, the blocks of
    least energy wait, as many as have this share of a parameter's together, whatever the density is then.

    Reference: Yang, Zhao, Zhao and Xu, Computer Networks 2023, doi 10.1016/j.comnet.2023.109777; what its
    abstract leaves open is filled in here, see docs/methods.md.
    """

    name = "dfs"
    summary = "Blocks of most energy per bit on the wire, of a size that follows the gradients."
    reference = "Yang et al., Computer Networks 2023"
    uses = ("density", "energy")
    fills_union = True

    def __init__(self, options: SparsifierOptions) -> None:
        super().__init__(options)
        self._known: dict[str, _Known] = {}
        self._found: dict[str, _Known] = {}

    @property
    def probing(self) -> bool:
        """Return whether single elements are chosen in this step: at first in steps 0, 1, 2, 4, 8 and so
        on.
        """
        return self.step % PROBE_EVERY == 0 or (self.step < PROBE_EVERY and self.step & (self.step - 1) == 0)

    def mask_block_of(self, span: Span) -> int:
        """Return elements in a block of this parameter, which is what a bit of its mask stands for."""
        return 1 if self.probing else self._of(span).size

    def _of(self, span: Span) -> "_Known":
        return self._known.get(span.name, _Known())

    def share_of(self, span: Span) -> float:
        """Return the share of a parameter's elements that each worker chooses for itself."""
        return self.density / max(1.0, self._of(span).spread * self.workers)

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """Return whole blocks of ``gradient``, and what is not finite."""
        sent = torch.empty_like(gradient)
        self.encode_into(gradient, span, sent)
        return sent

    def encode_into(self, gradient: torch.Tensor, span: Span, out: torch.Tensor) -> None:
        """Write what ``encode`` returns to memory that is there already."""
        size, count = self.mask_block_of(span), self._quota(span)
        lengths, favour = norms(gradient, size), self._favour(span)
        if self.options.energy is not None:
            count, favour = enough(lengths, self.options.energy), 1.0
        if count >= lengths.numel():
            out.copy_(gradient)
            return
        chosen = worthiest(lengths, count, favour**0.5 if favour >= WORTH_FAVOURING else 1.0)
        copy_blocks(gradient, chosen, size, out)

    def _quota(self, span: Span) -> int:
        """Return how many blocks each worker chooses, the same for all."""
        blocks = self.share_of(span) / self.mask_block_of(span)
        return rounded(blocks * span.length, self.step, blocks * span.start)

    def _favour(self, span: Span) -> float:
        """Return how many times the bits of a block in company, lanes of 32 bits, one alone in a word costs.

        The word's 32 bits are its own when no other worker has chosen any of the word's blocks; the chance of
        that is taken as if choices were spread evenly.
        """
        others = _WORD * (self.workers - 1)
        alone = float((1.0 - self.share_of(span)) ** others)
        return min(MOST_FAVOUR, 1.0 + alone / self.mask_block_of(span))

    def observe(self, total: torch.Tensor, union: torch.Tensor, span: Span) -> None:
        """Learn how much of what the workers chose was different; from a probe, the cheapest block size."""
        known = self._of(span)
        size, before = known.size, known.size
        if self.probing:
            costs = _costs(union, self.workers)
            best = min(costs, key=costs.__getitem__)
            size = best if costs[best] < HYSTERESIS * costs[before] else before
        chosen = self._quota(span) * self.mask_block_of(span) * self.workers
        self._found[span.name] = _Known(
            size,
            MEMORY * known.chosen + chosen,
            MEMORY * known.travelled + int(torch.count_nonzero(union)),
        )

    def end_step(self) -> None:
        """End a step: from now on what was found in it counts."""
        self._known = {**self._known, **self._found}
        self._found = {}
        super().end_step()

    def state_dict(self) -> dict[str, Any]:
        """Return the step and what is known of each parameter: plain values, the same on every worker."""
        return {**super().state_dict(), "known": {name: asdict(known) for name, known in self._known.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave. In a group of another size the overlap is learnt anew."""
        super().load_state_dict(state)
        self._known, self._found = {name: _Known(**known) for name, known in state["known"].items()}, {}


@dataclass(frozen=True)
class _Known:
    """All workers' knowledge of a parameter.

    size: of its blocks. chosen, travelled: elements that the workers chose, added up, and those in the unions
    of it; over the last steps, the latest counting most.
    """

    size: int = 1
    chosen: float = 0.0
    travelled: float = 0.0

    @property
    def spread(self) -> float:
        """Return the share of what was chosen that was not chosen twice; near 1 while little is known."""
        return (self.travelled + _PRIOR) / (max(self.chosen, self.travelled) + _PRIOR)


def _costs(union: torch.Tensor, workers: int) -> dict[int, float]:
    """Return bytes on the wire to exchange a union (bool) in blocks of each size, lanes and mask."""
    found = tuple(pyramid.counts(union, forecast.UNION_LEVELS).tolist())
    full = forecast.Counts(union.numel(), found, (1.0,) * pyramid.LEVELS, None, (1.0,) * 4)
    return {
        size: forecast.full_bytes(full.blocks(size) * size, SLOT_LANES, workers)
        + forecast.mask_bytes(full, size, workers)
        for size in _SIZES
    }
