# SPDX-License-Identifier: Apache-2.0
"""What a worker does with its own gradients before and after they are summed, whatever sums them.

The DDP hook sums over a switch; ``weir calibrate`` sums in memory and loses blocks on purpose. Between
``prepare`` and ``settle`` either decides what is delivered; the rest becomes the residual here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from host_agent.bucket_layout import BucketLayout, Segment
from host_agent.classes import MagnitudeClassifier, Magnitudes
from host_agent.error_feedback import ErrorFeedback
from host_agent.float_sum import give_back
from host_agent.loss_policy import LossPolicy
from host_agent.sparsifiers import Span, Sparsifier


def spans_of(module: torch.nn.Module) -> dict[str, Span]:
    """Where the trained parameters of a module lie in its gradient, by name."""
    named = [(name, p.numel()) for name, p in module.named_parameters() if p.requires_grad]
    total, start, spans = sum(length for _, length in named), 0, {}
    for name, length in named:
        spans[name] = Span(name, start, length, total)
        start += length
    return spans


@dataclass(frozen=True)
class Outgoing:
    """One vector on its way.

    compensated: gradients over the number of workers, plus residuals. sent: what of that was chosen, all else
    zero. magnitudes: the classes of its blocks; None when nothing may be lost.
    """

    layout: BucketLayout
    compensated: torch.Tensor
    sent: torch.Tensor
    magnitudes: Magnitudes | None

    def without(self, lost: npt.NDArray[np.integer[Any]]) -> torch.Tensor:
        """What is delivered when these blocks are lost."""
        if not lost.size:
            return self.sent
        delivered = self.sent.clone()
        give_back(delivered.numpy(), lost, self.layout.block)
        return delivered


class LocalGradients:
    """One worker's sparsifier, residuals and magnitude classes, from step to step.

    error_feedback: keep what is not delivered for the next step. Where everything is sent and nothing may be
    lost there is nothing to keep. exclude: patterns (fnmatch) of parameter names whose gradients are sent
    whole, such as ``"*.bias"``; ``"1d"`` stands for every parameter of one dimension: biases, norms.
    """

    def __init__(
        self,
        sparsifier: Sparsifier,
        policy: LossPolicy,
        *,
        error_feedback: bool = True,
        exclude: Sequence[str] = (),
    ) -> None:
        self.sparsifier = sparsifier
        self.exclude = tuple(exclude)
        self.spans: Mapping[str, Span] = {}
        self.policy = policy
        keeps = not sparsifier.sends_all or not policy.lossless
        self.feedback = ErrorFeedback() if error_feedback and keeps else None
        self.classifier = None if policy.lossless else MagnitudeClassifier()

    def join(self, module: torch.nn.Module, rank: int, workers: int) -> None:
        """Whose gradients these are, and this worker's place in its group; again when either has changed."""
        self.spans = spans_of(module)
        self.sparsifier.join(rank, workers)

    def prepare(self, layout: BucketLayout, bucket: torch.Tensor) -> Outgoing:
        """What to send of a bucket (flat, any float dtype); changes nothing."""
        vector = layout.spread(bucket).div_(self.sparsifier.workers)
        if self.feedback is not None:
            self.feedback.compensate(layout, vector)
        sent = vector if self.sparsifier.sends_all else self._chosen(layout, vector)
        magnitudes = None if self.classifier is None else self.classifier.classify(layout, sent)
        return Outgoing(layout, vector, sent, magnitudes)

    def _chosen(self, layout: BucketLayout, vector: torch.Tensor) -> torch.Tensor:
        """What of each parameter is sent, chosen for each by itself."""
        sent = torch.zeros_like(vector)
        for segment in layout:
            whole = vector[segment.in_vector]
            span = self.spans[segment.name]
            sent[segment.in_vector] = whole if self.excluded(segment) else self.sparsifier.encode(whole, span)
        return sent

    def excluded(self, segment: Segment) -> bool:
        """Whether a parameter's gradient is sent whole, whatever the sparsifier."""
        return any(
            (pattern == "1d" and len(segment.shape) == 1) or fnmatchcase(segment.name, pattern)
            for pattern in self.exclude
        )

    def observe(self, layout: BucketLayout, total: torch.Tensor, union: torch.Tensor | None = None) -> None:
        """Shows the sparsifier a sum (spread by ``layout``), and what the workers had chosen.

        union: bool, by element; None: total != 0.
        """
        if self.sparsifier.sends_all:
            return
        union = total != 0 if union is None else union
        for segment in layout:
            if not self.excluded(segment):
                place = segment.in_vector
                self.sparsifier.observe(total[place], union[place], self.spans[segment.name])

    def end_step(self) -> None:
        """After every bucket of a step has been settled and observed."""
        self.sparsifier.end_step()

    @property
    def keeps_rounding(self) -> bool:
        """Whether residuals have the errors of rounding to fixed point in them, too.

        Not where everything is sent: blocks that are zero in the next step would be sent for their sake.
        """
        return self.feedback is not None and not self.sparsifier.sends_all

    def settle(self, outgoing: Outgoing, delivered: torch.Tensor) -> None:
        """Takes note of what the sum included of this worker: what was sent, zero where it was lost.

        To be called once for each vector, when its sum is there.
        """
        if self.feedback is not None:
            self.feedback.keep(outgoing.layout, outgoing.compensated - delivered)
        if self.classifier is not None and outgoing.magnitudes is not None:
            self.classifier.adopt(outgoing.magnitudes)

    def state_dict(self) -> dict[str, Any]:
        """The sparsifier's state, residuals and classes: enough to go on bit for bit."""
        return {
            "sparsifier": self.sparsifier.state_dict(),
            "residuals": self.feedback.state_dict() if self.feedback is not None else {},
            "quartiles": self.classifier.state_dict() if self.classifier is not None else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what ``state_dict`` gave; what these settings do not use is left out."""
        self.sparsifier.load_state_dict(state["sparsifier"])
        if self.feedback is not None:
            self.feedback.load_state_dict(state["residuals"])
        if self.classifier is not None:
            self.classifier.load_state_dict(state["quartiles"])
