# SPDX-License-Identifier: Apache-2.0
"""Sends the largest runs of each chunk, of which every worker has its own ones in turn."""

from typing import Final

import torch

from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.sparsifiers.base import Sparsifier, register
from weir.host_agent.compression.sparsifiers.density import keep_non_finite, rounded

CHUNK: Final = 4096
"""Elements in a chunk, as SparseLoCo has them; in small models fewer."""

RUN: Final = 4
"""Elements in a run. Chosen here: positions of single elements take as many bytes on the way down as narrow
values do."""


@register
class ChunkTopK(Sparsifier):
    """Keeps the ``density`` fraction of the runs of each chunk that has the largest L2 norm.

    Chunks go round: in every step each one has one worker that chooses, and all workers send what is chosen.
    So the sum is no denser than one worker's part. Where a model has less than a chunk for each worker,
    chunks are halved until it has. The largest elements of the whole model, as in topk, would
    be those of a few layers.

    Reference: Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", arXiv 2508.15706,
    for chunks. There each worker chooses in all chunks, single elements, and sends its own values alone.
    """

    name = "chunk-topk"
    summary = "The largest runs of 4 elements in each chunk of 4096; each chunk has one worker that chooses."
    reference = "Sarfi et al., arXiv 2508.15706 (chunks)"
    fills_union = True
    mask_block = RUN

    def quota_of(self, span: Span) -> int:
        """Return how many runs the worker with most of them keeps."""
        counts, choosers = self._counts(span), self._choosers(span)
        return int(torch.zeros(self.workers, dtype=torch.int64).index_add_(0, choosers, counts).max())

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """Return the largest runs of this worker's chunks, and what is not finite."""
        sent = keep_non_finite(gradient)
        counts = self._counts(span)
        own = (self._choosers(span) == self.rank) & (counts > 0)
        if not bool(own.any()):
            return sent
        own, counts = own.to(gradient.device), counts.to(gradient.device)
        chunk = self._chunk(span)
        padded = torch.nn.functional.pad(gradient, (0, -gradient.numel() % chunk)).view(-1, chunk // RUN, RUN)
        energy = padded.square().sum(2).nan_to_num_(0.0, 0.0)[own]
        most = int(counts.max())
        places = energy.topk(most, dim=1).indices
        kept = torch.arange(most, device=gradient.device) < counts[own].unsqueeze(1)
        flags = torch.zeros(len(own), chunk // RUN, dtype=torch.bool, device=gradient.device)
        flags[own] = torch.zeros_like(energy, dtype=torch.bool).scatter_(1, places, kept)
        chosen = flags.unsqueeze(2).expand_as(padded).reshape(-1)[: gradient.numel()]
        return torch.where(chosen, gradient, sent)

    def _chunk(self, span: Span) -> int:
        """Return how many elements a chunk has: as many in all parameters of a model."""
        chunk = CHUNK
        while chunk > RUN and span.total < self.workers * chunk:
            chunk //= 2
        return chunk

    def _counts(self, span: Span) -> torch.Tensor:
        """Return how many runs are kept of each chunk of a parameter, the last of which may be shorter."""
        found, chunk = [], self._chunk(span)
        for start in range(0, span.length, chunk):
            runs = -(-min(chunk, span.length - start) // RUN)
            place = self.density * (span.start + start) / RUN
            found.append(min(runs, rounded(self.density * runs, self.step, place)))
        return torch.tensor(found, dtype=torch.int64)

    def _choosers(self, span: Span) -> torch.Tensor:
        """Return which worker chooses in each chunk of a parameter."""
        chunk = self._chunk(span)
        chunks = torch.arange(-(-span.length // chunk))
        return (chunks + span.start // chunk + self.step) % self.workers
