# SPDX-License-Identifier: Apache-2.0
"""The step between sparsifier and sum: the workers agree what travels, in which format, and learn from it."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.compression.bucket_layout import BucketLayout, Segment
from weir.host_agent.compression.encodings.encoding import DENSE, SCALE_LANES, Format, Plan, Rule
from weir.host_agent.compression.encodings.planner import Planner
from weir.host_agent.compression.encodings.selection import Selection
from weir.host_agent.compression.encodings.shared_mask import unite, words_for, write_mask
from weir.host_agent.compression.sparsifiers import Span, Sparsifier
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass

_log = logging.getLogger(__name__)

Excluded = Callable[[Segment], bool]


class Encodings:
    """How buckets are written down, from step to step. What it knows is the same on all workers.

    rule: which formats may be used. A sparsifier that sends everything is written down densely, unless the
    rule names a format. One that fills the union says itself how fine its masks are, and so may others: a
    rule that does not fit is refused with ValueError.

    plans: the last one of each bucket, by its index.
    """

    def __init__(self, rule: Rule, sparsifier: Sparsifier) -> None:
        self.rule, self.sparsifier = rule, sparsifier
        self.plans: dict[int, Plan] = {}
        self._prescribed = _prescribed(rule, sparsifier)
        self._planner = Planner(workers=1, slots=1)
        self._learns = self._prescribed is None or self._prescribed.mask is not None

    def join(self, workers: int, slots: int) -> None:
        """The group that the buckets are summed over; again when it has changed."""
        self._planner.resize(workers, slots)

    def plan(self, layout: BucketLayout, spans: Mapping[str, Span], excluded: Excluded) -> Plan:
        """Return how to write down a bucket. spans: by parameter. excluded: is one sent whole in any case?"""
        if layout.align % SCALE_LANES:
            raise ValueError(f"parameters start on multiples of {layout.align}, not of {SCALE_LANES}")
        wanted = {
            segment.name: DENSE if excluded(segment) else self._wanted(spans[segment.name])
            for segment in layout
        }
        fixed = {name: format for name, format in wanted.items() if format is not None}
        if self._learns:
            plan = self._planner.plan(layout, fixed, self.rule.block)
        else:
            plan = Plan(fixed, SCALE_LANES, reason="everything is sent")
        self._announce(layout, plan)
        return plan

    def _wanted(self, span: Span) -> Format | None:
        """Return the format of a parameter that is not excluded; None: to be planned."""
        if self._prescribed is None and self.sparsifier.fills_union:
            return Format(self.sparsifier.mask_of(span) or 1)
        return self._prescribed

    def _announce(self, layout: BucketLayout, plan: Plan) -> None:
        """Tell people: of a change, else only those who ask for much."""
        before = self.plans.get(layout.index)
        known = before is not None and (before.formats, before.block) == (plan.formats, plan.block)
        _log.log(
            logging.DEBUG if known else logging.INFO, "bucket %d: %s", layout.index, plan.reason or "as ruled"
        )
        self.plans[layout.index] = plan

    def notes(self, communicator: Communicator, selection: Selection, packed: torch.Tensor) -> Lanes:
        """Return what the workers tell each other for the next step's plan, each in lanes of its own."""
        if not self._learns:
            return np.empty(0, np.uint32)
        own = self._planner.count(selection.layout, packed)
        notes: Lanes = np.zeros((communicator.size, own.size), np.uint32)
        notes[communicator.rank] = own
        return notes.reshape(-1)

    def settle(self, selection: Selection, total: torch.Tensor, workers: int, notes: Lanes) -> None:
        """Learn from a bucket's sum (the whole vector), and the notes of all workers."""
        if self._learns:
            told = notes.reshape(workers, notes.size // workers)
            self._planner.observe(selection.whole, selection.plan, total, told)

    def end_step(self) -> None:
        """After the last bucket of a step."""
        self._planner.end_step()

    def state_dict(self) -> dict[str, Any]:
        """Return what the next step's plans depend on: tensors and plain values."""
        return self._planner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` gave, maybe in a group of another size."""
        self._planner.load_state_dict(dict(state))


class Proposal:
    """What this worker would send of a bucket, before it knows of the others.

    elements: that are not zero. seconds: that it took to find them.
    """

    def __init__(self, plan: Plan, layout: BucketLayout, sent: torch.Tensor) -> None:
        started = time.perf_counter()
        self.plan, self.layout = plan, layout
        masked = [segment for segment in layout if plan.formats[segment.name].mask is not None]
        self._words = np.zeros(sum(self._size(segment) for segment in masked), np.uint32)
        self._masks: dict[str, Lanes] = {}
        self.elements, at = 0, 0
        for segment in layout:
            mask, values = plan.formats[segment.name].mask, sent[segment.in_vector]
            if mask is None:
                self.elements += int(torch.count_nonzero(values))
                continue
            words = self._masks[segment.name] = self._words[at : at + self._size(segment)]
            self.elements += write_mask(values, mask, words)
            at += words.size
        self.seconds = time.perf_counter() - started

    def _size(self, segment: Segment) -> int:
        return words_for(segment.length, self.plan.formats[segment.name].mask or 1)

    def agree(self, communicator: Communicator, service: ServiceClass = LOSSLESS) -> Selection:
        """Return what some worker would send; the same on all of them. Once."""
        united = unite(communicator, self._words, self.plan.levels, service)
        assert united is self._words, "the masks are parts of it"
        return Selection.of(self.plan, self.layout, self._masks)


def _prescribed(rule: Rule, sparsifier: Sparsifier) -> Format | None:
    """Return the format of all parameters that are not excluded; None: of each its own."""
    needed = None if sparsifier.mask is None else Format(sparsifier.mask)
    refused = rule.format not in (None, needed) if needed else sparsifier.fills_union and rule.kind == "dense"
    if refused:
        what = f"the format {needed}" if needed else "a mask"
        raise ValueError(f"sparsifier {sparsifier.name!r} needs {what}: {rule} does not fit, auto does")
    if rule.kind == "auto":
        return needed or (DENSE if sparsifier.sends_all else None)
    return rule.format
