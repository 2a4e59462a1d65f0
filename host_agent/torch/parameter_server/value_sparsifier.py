# SPDX-License-Identifier: Apache-2.0
"""Filters as sparsifiers where the switches sum, and sparsifiers as filters where pushes travel by flows."""

import math
from fnmatch import fnmatchcase

import numpy as np
import torch

from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.sparsifiers import Sparsifier, SparsifierOptions, create_sparsifier
from weir.host_agent.parameter_server.residual import Where
from weir.host_agent.parameter_server.terms import Terms
from weir.host_agent.parameter_server.value_filter import Bits, FilterRule, Floats, above


class ValueSparsifier(Sparsifier):
    """Chooses what moves the model by more than a filter's threshold.

    Args:
        rule: of the filter.
        peak_lr: the learning rate to which its schedule "lr" relates.
    """

    name = "value-filter"
    summary = "Elements or blocks with steps above a threshold."
    reference = "Parameter Flow (cap-ntu/Ratatouille)"
    uses = ()
    promises_density = False

    def __init__(self, rule: FilterRule, peak_lr: float) -> None:
        super().__init__(SparsifierOptions())
        self.rule, self._peak_lr = rule, peak_lr or 1.0
        self.lr = peak_lr
        """Learning rate of this step, to be set before it."""

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """Return what is above the threshold of ``gradient``, which is divided by the workers already."""
        step = self.rule.at(self.step + 1, self.lr / self._peak_lr)
        bound = step / self.lr / self.workers if self.lr else math.inf
        passed = above(array_of(gradient.cpu()), bound, self.rule.block)
        return torch.where(torch.from_numpy(passed).to(gradient.device), gradient, 0.0)


class LocalChoice:
    """A method's choice of what a worker pushes by flows, where nobody sums: in a group of its own.

    What any worker has chosen it alone knows, so methods learn from its own choice what they would learn of
    the sum.

    Args:
        terms: of the job.
    """

    def __init__(self, terms: Terms) -> None:
        method, self._workers = terms.method, terms.workers
        options = SparsifierOptions(
            method.density, method.threshold, method.block, method.warmup_steps, method.seed
        )
        self._sparsifier = create_sparsifier(method.sparsifier, options)
        self._sparsifier.join(0, 1)
        self._units = terms.units()
        self._whole = {
            info.name: info.row == 0
            and any(
                fnmatchcase(info.name, pattern) or (pattern == "1d" and len(info.shape) == 1)
                for pattern in method.exclude
            )
            for info in terms.parameters
        }

    def __call__(self, due: Floats, where: Where) -> Bits:
        """Return which elements are pushed. due: gradients with what was held before, at these elements."""
        heads = self._units.starts[self._units.firsts]
        edges = np.append(heads if isinstance(where, slice) else np.searchsorted(where, heads), due.size)
        chosen = np.zeros(due.size, np.bool_)
        for info, start, end in zip(self._units.parameters, edges.tolist(), edges[1:].tolist(), strict=False):
            if end > start:
                mine = due[start:end]
                if self._whole[info.name]:
                    chosen[start:end] = mine != 0
                else:
                    chosen[start:end] = self._of(mine, Span(info.name, start, end - start, due.size))
        self._sparsifier.end_step()
        return chosen

    def _of(self, due: Floats, span: Span) -> Bits:
        values = torch.from_numpy(due / np.float32(self._workers))
        sent = self._sparsifier.encode(values, span)
        chosen = sent != 0
        block = self._sparsifier.mask_block_of(span) or 1
        blocks = torch.nn.functional.pad(chosen, (0, -span.length % block)).view(-1, block)
        travelled = blocks.any(dim=1).repeat_interleave(block)[: span.length]
        self._sparsifier.observe(sent, travelled, span)
        self._sparsifier.take_count(int(travelled.sum()), span)
        self._sparsifier.take_note(self._sparsifier.measure(sent[travelled], span), span)
        found: Bits = array_of(chosen)
        return found
