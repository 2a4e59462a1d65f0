# SPDX-License-Identifier: Apache-2.0
"""A worker's own part of the gradient step: before and after gradients are summed, whatever sums them.

Between ``choose`` and ``settle`` the exchange decides what is delivered; the rest becomes the residual here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.compression.bucket_layout import BucketLayout, Parameters, Segment, Span, spans_of
from weir.host_agent.compression.encodings.encoding import SCALE_BLOCK, Encoding
from weir.host_agent.compression.encodings.selection import Summed
from weir.host_agent.compression.encodings.shared_mask import Masks
from weir.host_agent.compression.error_feedback import ErrorFeedback
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.phase_clock import PhaseClock
from weir.host_agent.compression.sparsifiers import Sparsifier
from weir.host_agent.compression.transfer import to_host
from weir.host_agent.compression.vectors import has_kernels


@dataclass(frozen=True)
class Choice:
    """A worker's choice of one bucket.

    Attributes:
        layout: of the bucket.
        compensated: gradients over the number of workers, plus residuals.
        chosen: what this worker chose of that, all else zero; it may be the same tensor, or memory that the
            next call takes again. Of parameters whose masks are written it says nothing.
        masks: the blocks that it chose of these; None: there are none.
        sent: what this worker sends of what is selected: ``chosen``, or all of ``compensated`` where workers
            fill the union.
        largest: magnitude of each block of SCALE_BLOCK of ``sent``, where that is known.
        largest_bits: the same as bits on its device, where that is known.
    """

    layout: BucketLayout
    compensated: torch.Tensor
    chosen: torch.Tensor
    sent: torch.Tensor
    masks: Masks | None = None
    largest: npt.NDArray[np.float32] | None = None
    largest_bits: torch.Tensor | None = None

    @property
    def flags(self) -> torch.Tensor:
        """Return which elements this worker chose: bool, until the next call."""
        flags = torch.zeros(self.layout.length, dtype=torch.bool, device=self.chosen.device)
        for segment in self.layout:
            place = segment.in_vector
            if self.masks is not None and segment.name in self.masks.elements:
                flags[place] = torch.from_numpy(self.masks.flags(segment)).to(flags.device)
            else:
                flags[place] = self.chosen[place] != 0
        return flags


def check_patterns(exclude: Sequence[str], module: Parameters) -> None:
    """Raise ValueError, with parameters' names, for a pattern that fits none of the module's parameters."""
    names = {name: parameter.dim() for name, parameter in module.named_parameters()}
    for pattern in exclude:
        if not any(_matches(pattern, name, dimensions) for name, dimensions in names.items()):
            first = ", ".join(list(names)[:4])
            raise ValueError(
                f"exclude: no parameter is called {pattern!r}; there are {first}"
                f"{', …' if len(names) > 4 else ''}; patterns such as '*.bias' will do, and 1d"
            )


def _matches(pattern: str, name: str, dimensions: int) -> bool:
    return (pattern == "1d" and dimensions == 1) or fnmatchcase(name, pattern)


class LocalGradients:
    """One worker's sparsifier and residuals, from step to step.

    Args:
        sparsifier: chooses what is sent.
        policy: how much of it may go missing.
        error_feedback: keep what is not delivered for the next step. Where everything is sent as it is and
            nothing may be lost there is nothing to keep.
        coarse: what is sent is rounded to few bits.
        exclude: patterns (fnmatch) of parameter names whose gradients are sent whole, such as ``"*.bias"``;
            ``"1d"`` stands for every parameter of one dimension: biases, norms.
    """

    def __init__(
        self,
        sparsifier: Sparsifier,
        policy: LossPolicy,
        *,
        error_feedback: bool = True,
        exclude: Sequence[str] = (),
        coarse: bool = False,
    ) -> None:
        self.sparsifier = sparsifier
        self.coarse = coarse
        self.exclude = tuple(exclude)
        self.spans: Mapping[str, Span] = {}
        self._kept_memory = torch.empty(0)
        self.policy = policy
        keeps = not sparsifier.sends_all or not policy.lossless or coarse
        self.feedback = ErrorFeedback() if error_feedback and keeps else None

    def join(self, module: Parameters, rank: int, workers: int) -> None:
        """Take the module's parameters and a place in a group; again when either has changed.

        Raises:
            ValueError: a pattern of ``exclude`` that fits no parameter.
        """
        check_patterns(self.exclude, module)
        self.spans = spans_of(module)
        self.sparsifier.join(rank, workers)

    def choose(
        self,
        layout: BucketLayout,
        bucket: torch.Tensor,
        encodings: Mapping[str, Encoding],
        clock: PhaseClock,
    ) -> Choice:
        """Return what to send of a bucket (flat, any float dtype); changes nothing.

        encodings: how it will be written down, by parameter. clock: of this worker's step.
        """
        if has_kernels(bucket) and layout.align == SCALE_BLOCK:
            return self._chosen_on_device(layout, bucket, encodings, clock)
        idle = None
        if self.sparsifier.sends_all and self.keeps_rounding:
            idle = layout.idle(bucket, self.sparsifier.workers, SCALE_BLOCK)
        largest = np.empty(layout.length // SCALE_BLOCK, np.float32) if layout.align == SCALE_BLOCK else None
        vector = self.compensated(layout, bucket, largest)
        masks: Masks | None = None
        with clock.time("choice"):
            chosen = vector
            if not self.sparsifier.sends_all:
                masks = self._marked(layout, vector, encodings)
                chosen = self._chosen(layout, vector, masks)
            if idle is not None and bool(idle.any()):
                chosen = vector.clone()
                chosen.view(-1, SCALE_BLOCK)[idle] = 0
        return self._choice(layout, vector, chosen, masks, largest)

    def _choice(
        self,
        layout: BucketLayout,
        vector: torch.Tensor,
        chosen: torch.Tensor,
        masks: Masks | None,
        largest: npt.NDArray[np.float32] | None,
    ) -> Choice:
        """Return the choice ``chosen`` of a vector, of which ``largest`` says how large its blocks are."""
        sent = vector if self.sparsifier.fills_union else chosen
        return Choice(layout, vector, chosen, sent, masks, largest if sent is vector else None)

    def _chosen_on_device(
        self,
        layout: BucketLayout,
        bucket: torch.Tensor,
        encodings: Mapping[str, Encoding],
        clock: PhaseClock,
    ) -> Choice:
        """Do ``choose`` by kernels."""
        residuals = {} if self.feedback is None else self.feedback.residuals
        vector, bits, idle = layout.spread_on_device(bucket, self.sparsifier.workers, residuals)
        with clock.time("choice"):
            if self.sparsifier.sends_all and self.keeps_rounding:
                chosen = vector.view(-1, SCALE_BLOCK).masked_fill(idle.unsqueeze(1), 0).view(-1)
                return Choice(layout, vector, chosen, chosen, largest_bits=bits.masked_fill(idle, 0))
            if self.sparsifier.sends_all:
                return Choice(layout, vector, vector, vector, largest_bits=bits)
            masks = self._marked(layout, vector, encodings)
            chosen = self._chosen(layout, vector, masks)
            largest = to_host(bits)[0].view(np.float32)
        return self._choice(layout, vector, chosen, masks, largest)

    def nothing(self, layout: BucketLayout, device: torch.device) -> Choice:
        """Return the choice of who has no gradient."""
        zeros = torch.zeros(layout.length, device=device)
        largest = np.zeros(layout.length // SCALE_BLOCK, np.float32) if layout.align == SCALE_BLOCK else None
        return Choice(layout, zeros, zeros, zeros, largest=largest)

    def compensated(
        self, layout: BucketLayout, bucket: torch.Tensor, largest: npt.NDArray[np.float32] | None = None
    ) -> torch.Tensor:
        """Return a bucket's gradients over the number of workers, plus residuals: a new vector.

        largest: as for ``BucketLayout.spread``.
        """
        residuals = {} if self.feedback is None else self.feedback.residuals
        return layout.spread(bucket, self.sparsifier.workers, residuals, largest)

    def _marked(self, layout: BucketLayout, vector: torch.Tensor, encodings: Mapping[str, Encoding]) -> Masks:
        """Return masks of what is chosen, of those parameters of which nothing else is needed."""
        masks, sparsifier = Masks.zero(layout, encodings), self.sparsifier
        if not sparsifier.fills_union:
            return masks
        found = [
            segment
            for segment in layout
            if segment.name in masks.of
            and not self.excluded(segment)
            and masks.mask_blocks[segment.name] == sparsifier.mask_block_of(self.spans[segment.name])
        ]
        elements = sparsifier.mark(
            [vector[segment.in_vector] for segment in found],
            [self.spans[segment.name] for segment in found],
            [masks.of[segment.name] for segment in found],
        )
        if elements is not None:
            masks.elements.update(zip((segment.name for segment in found), elements, strict=True))
        return masks

    def _chosen(self, layout: BucketLayout, vector: torch.Tensor, masks: Masks) -> torch.Tensor:
        """Return what is chosen of each parameter whose mask is not written, good until the next call.

        In memory that is kept: fresh pages cost more than most ways to choose.
        """
        if self._kept_memory.numel() < vector.numel() or self._kept_memory.device != vector.device:
            self._kept_memory = torch.empty_like(vector)
        chosen = self._kept_memory[: vector.numel()]
        asked = []
        for segment in layout:
            place = segment.in_vector
            if segment.name in masks.elements:
                continue
            if self.excluded(segment):
                chosen[place] = vector[place]
            else:
                asked.append(segment)
            chosen[layout.padding_of(segment)] = 0.0
        self.sparsifier.encode_all(
            [vector[segment.in_vector] for segment in asked],
            [self.spans[segment.name] for segment in asked],
            [chosen[segment.in_vector] for segment in asked],
        )
        return chosen

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but memory that holds nothing of worth."""
        return {**self.__dict__, "_kept_memory": torch.empty(0)}

    def excluded(self, segment: Segment) -> bool:
        """Return whether a parameter's gradient is sent whole, whatever the sparsifier."""
        return self.excludes(segment.name, len(segment.shape))

    def excludes(self, name: str, dimensions: int) -> bool:
        """Return whether a parameter is excluded from selection, and so sent whole."""
        return any(_matches(pattern, name, dimensions) for pattern in self.exclude)

    @property
    def observes(self) -> bool:
        """Return whether the sparsifier looks at sums."""
        kind = type(self.sparsifier)
        return (
            self._measures
            or kind.observe is not Sparsifier.observe
            or kind.take_count is not Sparsifier.take_count
        )

    @property
    def observes_values(self) -> bool:
        """Return whether it looks at the values of this step's sums."""
        return self.observes and self.sparsifier.observes_values

    @property
    def _measures(self) -> bool:
        return type(self.sparsifier).measure is not Sparsifier.measure

    def observe(self, summed: Summed) -> None:
        """Show the sparsifier a bucket's sum, and what the workers had chosen."""
        shown, selection = self.sparsifier.observes_union, summed.selection
        for index, part in enumerate(selection.parts):
            if not self.excluded(part.source):
                place, span = part.source.in_vector, self.spans[part.source.name]
                if shown:
                    self.sparsifier.observe(summed.whole[place], summed.union[place], span)
                elif (starts := selection.starts_of(index)) is not None:
                    self.sparsifier.take_starts(starts, part.mask_block, span)
                self.sparsifier.take_count(part.travelled(summed.packed), span)

    def measure(self, summed: Summed) -> npt.NDArray[np.float32]:
        """Return what the sparsifier measures of each parameter's sum; nothing if it does not measure."""
        measured = {segment.name for segment in self._measured(summed.selection.whole)}
        parts = [part for part in summed.selection.parts if part.source.name in measured]
        found = self.sparsifier.measure_all(
            [summed.packed[part.in_packed] for part in parts],
            [self.spans[part.source.name] for part in parts],
        )
        return np.array(found, np.float32)

    def take_note(self, layout: BucketLayout, measured: npt.NDArray[np.float32]) -> None:
        """Give it what ``measure`` returned where the sums are."""
        for segment, number in zip(self._measured(layout), measured.tolist(), strict=True):
            self.sparsifier.take_note(number, self.spans[segment.name])

    def _measured(self, layout: BucketLayout) -> list[Segment]:
        return [s for s in layout if not self.excluded(s)] if self._measures else []

    def end_step(self) -> None:
        """End a step, of which every bucket has been settled and observed."""
        self.sparsifier.end_step()

    @property
    def keeps_rounding(self) -> bool:
        """Return whether residuals have the errors of rounding to fixed point in them, too.

        Not where everything is sent in whole lanes: blocks that are zero in the next step would be sent for
        their sake. Packed lanes keep them, and such blocks wait until they have a gradient again.
        """
        return self.feedback is not None and (self.coarse or not self.sparsifier.sends_all)

    def settle(self, layout: BucketLayout, undelivered: torch.Tensor) -> None:
        """Take note of what no sum included of this worker: compensated minus delivered.

        To be called once for each vector, when its sum is there. ``undelivered`` must not change any more.
        """
        if self.feedback is not None:
            self.feedback.keep(layout, undelivered)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what is this worker's own: residuals."""
        return {"residuals": self.feedback.state_dict() if self.feedback is not None else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` gave; what these settings do not use is left out."""
        if self.feedback is not None:
            self.feedback.load_state_dict(state["residuals"])
