# SPDX-License-Identifier: Apache-2.0
"""Between sparsifier and sum: the workers agree what travels, in which encoding, and learn from it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.collectives.packing import LaneFormat
from weir.host_agent.compression import bindings
from weir.host_agent.compression.bucket_layout import BucketLayout, Segment, Span
from weir.host_agent.compression.encodings.encoding import (
    DENSE,
    SCALE_BLOCK,
    Encoding,
    EncodingPlan,
    EncodingRule,
)
from weir.host_agent.compression.encodings.forecast import block_sizes
from weir.host_agent.compression.encodings.planner import Planner
from weir.host_agent.compression.encodings.position_lists import gather, region_of
from weir.host_agent.compression.encodings.selection import Selection, Summed
from weir.host_agent.compression.encodings.shared_mask import NO_LANES, Masks, unite, write_mask
from weir.host_agent.compression.transfer import to_host
from weir.host_agent.compression.vectors import has_kernels, is_native
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass

_log = logging.getLogger(__name__)

Excluded = Callable[[Segment], bool]


class Chooser(Protocol):
    """The properties of a sparsifier that its encoding depends on; see ``sparsifiers.Sparsifier``."""

    name: ClassVar[str]
    sends_all: ClassVar[bool]
    fills_union: ClassVar[bool]
    mask_block: ClassVar[int | None]

    def mask_block_of(self, span: Span) -> int | None:
        """Return elements per bit of a parameter's mask in this step."""

    def quota_of(self, span: Span) -> int | None:
        """Return how many blocks of a parameter each worker chooses at most; None: unknown."""


class Encoder:
    """Decides how buckets are written down, from step to step. What it knows is the same on all workers.

    A sparsifier that sends everything is written down densely, unless the rule names an encoding. One that
    fills the union says itself how fine its masks are, and so may others.

    Args:
        rule: which encodings may be used.
        sparsifier: chose what must be written down.

    Attributes:
        plans: the last one of each bucket, by its index.
        learns: the next plans depend on what is sent.

    Raises:
        ValueError: the rule does not fit the sparsifier.
    """

    def __init__(self, rule: EncodingRule, sparsifier: Chooser) -> None:
        self.rule, self.sparsifier = rule, sparsifier
        self.plans: dict[int, EncodingPlan] = {}
        self._prescribed = prescribed(rule, sparsifier)
        self._workers = 1
        self._planner = Planner(workers=1, slots=1)
        self.learns = self._prescribed is None or self._prescribed.mask_block is not None

    def join(self, workers: int, slots: int, form: LaneFormat, *, max_lanes: int = 0) -> None:
        """Take note of the group that the buckets are summed over; again when it has changed.

        ``max_lanes``: its switches take this many lanes of ADD in a packet; 0: any number.

        Raises:
            ValueError: blocks of the rule are too small for this many values to a lane.
        """
        wanted, sizes = self.rule.packet_block, block_sizes(form)
        if wanted is not None and wanted not in sizes:
            raise ValueError(
                f"encoding {self.rule}: with {form.fields} values to a lane, blocks have "
                f"{' or '.join(map(str, sizes))} values"
            )
        self._workers = workers
        self._planner.resize(workers, slots, form, max_lanes=max_lanes)

    def plan(self, layout: BucketLayout, spans: Mapping[str, Span], excluded: Excluded) -> EncodingPlan:
        """Return the encoding of a bucket.

        Args:
            layout: of the bucket.
            spans: by parameter.
            excluded: tells whether a parameter is always sent whole.
        """
        if layout.align % SCALE_BLOCK:
            raise ValueError(f"parameters start on multiples of {layout.align}, not of {SCALE_BLOCK}")
        wanted = {
            segment.name: DENSE if excluded(segment) else self._wanted(spans[segment.name])
            for segment in layout
        }
        fixed = {name: encoding for name, encoding in wanted.items() if encoding is not None}
        if self.learns:
            plan = self._planner.plan(layout, fixed, self.rule.packet_block)
            capacities = self._capacities(plan, layout, spans)
            if capacities is not None:
                plan = self._planner.in_lists(layout, plan, capacities)
        else:
            plan = EncodingPlan(fixed, SCALE_BLOCK, reason="everything is sent")
        self._announce(layout, plan)
        return plan

    def _capacities(
        self, plan: EncodingPlan, layout: BucketLayout, spans: Mapping[str, Span]
    ) -> dict[str, int] | None:
        """Return how many blocks each worker chooses at most, by parameter with a mask; None: unknown."""
        found: dict[str, int] = {}
        for segment in layout:
            if plan.encodings[segment.name].mask_block is not None:
                quota = self.sparsifier.quota_of(spans[segment.name])
                if quota is None:
                    return None
                found[segment.name] = quota
        return found or None

    def _wanted(self, span: Span) -> Encoding | None:
        """Return the encoding of a parameter that is not excluded; None: to be planned."""
        if self._prescribed is None and self.sparsifier.fills_union:
            return Encoding(self.sparsifier.mask_block_of(span) or 1)
        return self._prescribed

    def _announce(self, layout: BucketLayout, plan: EncodingPlan) -> None:
        """Tell people: of a change, else only those who ask for much."""
        before = self.plans.get(layout.index)
        known = before is not None and (before.encodings, before.packet_block) == (
            plan.encodings,
            plan.packet_block,
        )
        _log.log(
            logging.DEBUG if known else logging.INFO, "bucket %d: %s", layout.index, plan.reason or "as ruled"
        )
        self.plans[layout.index] = plan

    def notes(self, rank: int, selection: Selection, packed: torch.Tensor) -> Lanes:
        """Return what the workers tell each other for the next step's plan, each in lanes of its own.

        rank: of this worker; one that is none of the workers' tells nothing.
        """
        if not self.learns:
            return np.empty(0, np.uint32)
        own = self._planner.count(selection.layout, packed)
        notes: Lanes = np.zeros((self._workers, own.size), np.uint32)
        notes[rank : rank + 1] = own
        return notes.reshape(-1)

    def tally(self, summed: Summed) -> Lanes:
        """Return what there is to learn from a bucket's sum, as ``settle`` takes it."""
        return self._planner.tally(summed) if self.learns else NO_LANES

    def settle(self, selection: Selection, tally: Lanes, notes: Lanes) -> None:
        """Learn from the ``tally`` of a bucket's sum, and the notes of all workers."""
        if self.learns:
            told = notes.reshape(self._workers, notes.size // self._workers)
            self._planner.observe(selection.whole, selection.plan, tally, told)

    def end_step(self) -> None:
        """End a step, after its last bucket."""
        self._planner.end_step()

    def state_dict(self) -> dict[str, Any]:
        """Return what the next step's plans depend on: tensors and plain values."""
        return self._planner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` gave, maybe in a group of another size."""
        self._planner.load_state_dict(dict(state))


class Proposal:
    """One worker's choice of a bucket as masks, before it knows of the others'.

    chosen: all else zero; of parameters whose masks are written it says nothing. elements: that are not zero.
    masked: some parameter has a mask.
    """

    def __init__(
        self, plan: EncodingPlan, layout: BucketLayout, chosen: torch.Tensor, masks: Masks | None = None
    ) -> None:
        self.plan, self.layout = plan, layout
        self._masks = masks.copy() if masks else Masks.zero(layout, plan.encodings)  # to become the union
        self.masked = bool(self._masks.of)
        left = [segment for segment in layout if segment.name not in self._masks.elements]
        write = self._write_on_device if has_kernels(chosen) else self._write
        self.elements = sum(self._masks.elements.values()) + sum(
            write([(segment, chosen[segment.in_vector]) for segment in left])
        )

    def _write(self, values: Sequence[tuple[Segment, torch.Tensor]]) -> list[int]:
        """Write the masks of parameters, and return how many values of each are not zero."""
        return [self._write_one(segment, own) for segment, own in values]

    def _write_on_device(self, values: Sequence[tuple[Segment, torch.Tensor]]) -> list[int]:
        """Do the same for values on a device, of which only masks and counts leave it."""
        from weir.host_agent.compression.kernels.masks import write_masks

        masked = [(segment.name, own) for segment, own in values if segment.name in self._masks.of]
        whole = [torch.count_nonzero(own) for segment, own in values if segment.name not in self._masks.of]
        found = write_masks(
            [own for _, own in masked],
            [self._masks.mask_blocks[name] for name, _ in masked],
            [self._masks.of[name] for name, _ in masked],
        )
        return found + (to_host(torch.stack(whole))[0].tolist() if whole else [])

    def _write_one(self, segment: Segment, values: torch.Tensor) -> int:
        """Write a parameter's mask, if it has one, and return how many of the values are not zero."""
        mask_block = self.plan.encodings[segment.name].mask_block
        if mask_block is None and is_native(values):
            return int(bindings.library().weir_nonzero(values.data_ptr(), values.numel()))
        if mask_block is None:
            return int(torch.count_nonzero(values))
        return write_mask(values, mask_block, self._masks.of[segment.name])

    def agree(
        self,
        communicator: Communicator,
        service: ServiceClass = LOSSLESS,
        piggybacks: Lanes = NO_LANES,
        workers: int | None = None,
    ) -> Selection:
        """Return what some worker would send; the same on all of them. Once.

        piggybacks: become their OR. workers: ranks with a choice of their own, the first ones; None: all.
        """
        masks = self._masks.of
        if self.plan.capacities is not None:
            region = region_of(self.layout, self.plan.encodings, self.plan.capacities)
            if gather(
                communicator, region, list(masks.values()), workers or communicator.size, service, piggybacks
            ):
                return Selection.of(self.plan, self.layout, masks)
            piggybacks = NO_LANES
        united = unite(communicator, self._masks.words, self.plan.levels, service, piggybacks)
        assert united is self._masks.words, "the masks are parts of it"
        return Selection.of(self.plan, self.layout, masks)


def prescribed(rule: EncodingRule, sparsifier: Chooser) -> Encoding | None:
    """Return the encoding of all parameters that are not excluded; None: of each its own.

    Raises:
        ValueError: the sparsifier's choice cannot be encoded so.
    """
    needed = None if sparsifier.mask_block is None else Encoding(sparsifier.mask_block)
    refused = (
        rule.encoding not in (None, needed) if needed else sparsifier.fills_union and rule.kind == "dense"
    )
    if refused:
        what = f"the encoding {needed}" if needed else "a mask"
        raise ValueError(f"sparsifier {sparsifier.name!r} needs {what}, so {rule} does not fit; use auto")
    if rule.kind == "auto":
        return needed or (DENSE if sparsifier.sends_all else None)
    return rule.encoding
