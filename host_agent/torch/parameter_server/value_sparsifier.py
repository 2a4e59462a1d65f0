# SPDX-License-Identifier: Apache-2.0
"""Parameter Flow's filter as a sparsifier: in synchronous training what is small waits as a residual."""

import math

import torch

from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.sparsifiers import Sparsifier, SparsifierOptions
from weir.host_agent.parameter_server.value_filter import FilterRule, above


class ValueSparsifier(Sparsifier):
    """Chooses what moves the model by more than a filter's threshold.

    Args:
        rule: of the filter.
        peak_lr: the learning rate to which its schedule "lr" relates.
    """

    name = "value-filter"
    summary = "Elements or blocks whose steps are above a threshold."
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
