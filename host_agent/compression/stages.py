# SPDX-License-Identifier: Apache-2.0
"""The stages of a bucket's way to its sum over all workers: plan, choose, agree, encode, sum, settle.

======  ==============================================================================================
plan    how the bucket is written down and who is given its sum: without a message, the same on all
choose  which part of its vector this worker sends: ``local_gradients``
agree   which part travels, at which scales: the masks of all workers are united
encode  the packed vector as fixed-point lanes, and which of them may go missing
sum     the lanes of all workers are added
settle  what was not delivered waits, and all workers learn the same: ``exchange``
======  ==============================================================================================

Each stage takes results of those before it and returns one of its own. Nothing that lasts is changed before
the last one, so a step that raised can be repeated. Only ``choose`` and ``settle`` know what the numbers of a
vector are and what becomes of their sum; the stages in this module do not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from weir.host_agent.collectives import shared_scales
from weir.host_agent.collectives.communicator import Audience, Communicator
from weir.host_agent.collectives.contribution import Contribution, Scales
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.collectives.packing import LaneFormat, WholeLanes
from weir.host_agent.compression.bucket_layout import BucketLayout, Segment, Span
from weir.host_agent.compression.classes import LayerClasses, shared_magnitude_classes
from weir.host_agent.compression.destination import Destination
from weir.host_agent.compression.encodings import (
    SCALE_BLOCK,
    Encoder,
    EncodingPlan,
    Proposal,
    Selection,
    Summed,
)
from weir.host_agent.compression.encodings.mask_scales import MaskScales, Predictions
from weir.host_agent.compression.encodings.shared_mask import NO_LANES
from weir.host_agent.compression.local_gradients import Choice
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.packed_vector import PackedVector, packed_vector
from weir.host_agent.compression.phase_clock import PhaseClock
from weir.host_agent.compression.transfer import to_device
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import ServiceClass
from weir.wire.definition import GROUP_LANES, Op


@dataclass(frozen=True)
class Place:
    """A member's place in the group that sums.

    Attributes:
        communicator: sums lanes over the members.
        destination: of sums.
        form: of values in lanes.
        policy: how much may go missing.
        layers: the classes of the module's parameters.
    """

    communicator: Communicator
    destination: Destination
    form: LaneFormat
    policy: LossPolicy
    layers: LayerClasses

    @property
    def workers(self) -> int:
        """Return how many members contribute: the first ones."""
        return self.destination.workers(self.communicator.size)

    @property
    def contributes(self) -> bool:
        """Return whether this member does."""
        return self.communicator.rank < self.workers


@dataclass(frozen=True)
class Plan:
    """The way a bucket travels, which all workers know without a message.

    Attributes:
        layout: of the bucket.
        encoding: how it is written down.
        service: the class of its packets.
        destination: of its sum.
    """

    layout: BucketLayout
    encoding: EncodingPlan
    service: ServiceClass
    destination: Destination


@dataclass(frozen=True)
class Agreed:
    """The part of a bucket that travels, the same on all workers, and its scales.

    Attributes:
        selection: of the vector.
        vector: this worker's, packed.
        packed: the same as a tensor.
        scales: of the packed vector.
        notes: numbers that the workers tell one another for the next plan: of all of them, but for
        piggybacks.
        piggybacks: the notes themselves where they are still to travel, with the values; otherwise no lanes.
        chosen: how many elements this worker chose that are not zero.
    """

    selection: Selection
    vector: PackedVector
    packed: torch.Tensor
    scales: Scales
    notes: Lanes
    piggybacks: Lanes
    chosen: int


@dataclass(frozen=True)
class Encoded:
    """One worker's part of a sum.

    Attributes:
        mine: its lanes.
        service: the class of their packets, and what of them may go missing.
        audience: who is given the sum of which blocks; None: all are given all.
    """

    mine: Contribution
    service: ServiceClass
    audience: Audience | None


@dataclass(frozen=True)
class Total:
    """A bucket's sum.

    Attributes:
        summed: its values, those that this member was given.
        lanes: that these are made of, in main memory; None where the values themselves are there.
        blocks: of packets that the values take, zero ones included.
        report: of the reduction.
    """

    summed: Summed
    lanes: Contribution | None
    blocks: int
    report: ReduceReport


def plan(
    place: Place,
    encoder: Encoder,
    layout: BucketLayout,
    spans: Mapping[str, Span],
    excluded: Callable[[Segment], bool],
    *,
    watched: bool,
    clock: PhaseClock,
) -> Plan:
    """Plan a bucket.

    Args:
        place: of this member.
        encoder: knows of the steps before.
        layout: of the bucket.
        spans: of the parameters, by name.
        excluded: tells that a parameter is sent whole in any case.
        watched: every worker looks at the values of the sum.
        clock: of the step.
    """
    with clock.time("planning"):
        encoding = encoder.plan(layout, spans, excluded)
    service = ServiceClass(place.layers.frontmost(segment.name for segment in layout))
    destination = place.destination.watched() if watched else place.destination
    return Plan(layout, encoding, service, destination)


def agree(
    place: Place, encoder: Encoder, predictions: Predictions, plan: Plan, choice: Choice, clock: PhaseClock
) -> Agreed:
    """Agree with all workers on what travels, and on its scales.

    Raises:
        NonFiniteError: some worker's vector has NaN or infinity; on every worker.
    """
    communicator, layout, service = place.communicator, plan.layout, plan.service
    with clock.time("mask"):
        proposal = Proposal(plan.encoding, layout, choice.chosen, choice.masks)
        of_regions = (
            MaskScales(plan.encoding, layout, choice.sent, predictions, place.form, choice.largest)
            if proposal.masked
            else None
        )
    codes = of_regions.codes if of_regions else NO_LANES
    selection = proposal.agree(communicator, service, codes, place.workers)
    packed = selection.pack(choice.sent)
    same = packed is choice.sent
    vector = packed_vector(packed, *(choice.largest_bits, choice.largest) if same else ())
    with clock.time("planning"):
        notes = encoder.notes(communicator.rank, selection, packed)
    piggybacks = NO_LANES
    if of_regions is None:
        scales = shared_scales.agree(
            communicator, vector, selection.describe, SCALE_BLOCK, place.form, service, notes=notes
        )
    else:
        settled = of_regions.settle(
            communicator, codes, layout.describe, service, lambda: selection.travelling(SCALE_BLOCK)
        )
        unit = of_regions.steps.unit
        scales = Scales(selection.largest(settled, SCALE_BLOCK, unit), unit)
        if place.policy.lossless and plan.destination.takes_notes:
            piggybacks = notes
        else:
            communicator.reduce_vector(notes, Op.MAX, GROUP_LANES, service)
    return Agreed(selection, vector, packed, scales, notes, piggybacks, proposal.elements)


def encode(place: Place, plan: Plan, agreed: Agreed, step: int) -> Encoded:
    """Make the lanes of a packed vector, and say what of them may go missing."""
    lossless = place.policy.lossless
    block = plan.destination.packet_block(place.form, agreed.selection, lossless=lossless)
    mine = shared_scales.contribute(place.communicator, agreed.vector, agreed.scales, place.form, block)
    service = (
        plan.service if lossless or not mine.lanes.size else _with_budgets(place, plan, agreed, mine, step)
    )
    audience = plan.destination.audience(agreed.selection.layout, mine.form, mine.rows, mine.packet_block)
    return Encoded(mine, service, audience)


def _with_budgets(place: Place, plan: Plan, agreed: Agreed, mine: Contribution, step: int) -> ServiceClass:
    """Return the classes and budgets of the packets' blocks in a contribution.

    Blocks that share a scale, a packet full of values, are classified together: a packet is of the class of
    its largest block.
    """
    layout = agreed.selection.layout
    classes = shared_magnitude_classes(
        layout.in_blocks(SCALE_BLOCK), mine.scales_of(SCALE_BLOCK), step
    ).repeat(SCALE_BLOCK // layout.packet_block)
    places, occupied = mine.places(), mine.occupied()
    if places is not None:
        sent_here, occupied = occupied, np.zeros(classes.size, np.bool_)
        occupied[places] = sent_here
    accounts = place.policy.accounts_for(layout, place.layers, classes, occupied, mine.packet_block)
    chosen = slice(None) if places is None else places
    return ServiceClass(plan.service.layer, classes[chosen], accounts.of_block[chosen], accounts.budgets)


def add(place: Place, plan: Plan, agreed: Agreed, encoded: Encoded, *, keep: bool) -> Total:
    """Sum the lanes of all workers. keep: this worker's own stay as they are, for ``undelivered``."""
    lanes, report = encoded.mine.add(
        place.communicator,
        keep=keep and not agreed.vector.keeps_lanes,
        service=encoded.service,
        audience=encoded.audience,
        notes=agreed.piggybacks,
    )
    rank, layout = place.communicator.rank, agreed.selection.layout
    if plan.destination.gives(rank):
        packed = plan.destination.given(layout, agreed.vector.decoded(lanes), rank)
    else:
        packed = torch.zeros_like(agreed.packed)
    blocks = _blocks(place.form, agreed.vector.size, encoded.mine.packet_block)
    return Total(Summed(agreed.selection, packed), lanes, max(report.blocks, blocks), report)


def add_in_place(place: Place, plan: Plan, agreed: Agreed) -> Total | None:
    """Do ``encode`` and ``add`` in the vector's own memory, which becomes the sum; None: not of this one.

    So are sums of whole lanes, where no block is left out, and none may go missing. It saves the memory of
    the lanes, and of the sum. Where a member is given nothing, its sum is undefined.
    """
    form, selection, destination = place.form, agreed.selection, plan.destination
    block = destination.packet_block(form, selection, lossless=place.policy.lossless)
    whole = agreed.scales.rows is None and not agreed.piggybacks.size and agreed.packed.is_cpu
    if not (whole and block and place.policy.lossless and isinstance(form, WholeLanes)):
        return None
    values = agreed.vector.numbers()
    audience = destination.audience(selection.layout, form, None, block)
    report = shared_scales.add_in_place(
        place.communicator, values, agreed.scales, form, block, plan.service, audience
    )
    if report is None:
        return None
    rank, packed = place.communicator.rank, agreed.packed
    if destination.gives(rank):
        packed = destination.given(selection.layout, packed, rank)
    blocks = _blocks(form, values.size, block)
    return Total(Summed(selection, packed), None, max(report.blocks, blocks), report)


def _blocks(form: LaneFormat, values: int, packet_block: int) -> int:
    """Return how many blocks of packets this many values take, zero ones included."""
    lanes = -(-values // SCALE_BLOCK) * form.lanes(SCALE_BLOCK)
    return -(-lanes // packet_block)


def undelivered(choice: Choice, agreed: Agreed, encoded: Encoded, report: ReduceReport) -> torch.Tensor:
    """Return what of a worker's vector no sum included, rounding too; overwrites ``choice.compensated``."""
    delivered = agreed.vector.delivered(encoded.mine, report.given_back.blocks)
    agreed.selection.subtract(choice.compensated, delivered)
    return choice.compensated


def lost(agreed: Agreed, encoded: Encoded, report: ReduceReport) -> torch.Tensor:
    """Return what of a worker's vector was sent and no sum included, as it was before it was rounded."""
    blocks, places = report.given_back.blocks, encoded.mine.places()
    given_back = torch.zeros_like(agreed.packed).view(-1, agreed.selection.plan.packet_block)
    rows = to_device((blocks if places is None else places[blocks]).astype(np.int64), given_back.device)
    given_back[rows] = agreed.packed.view(given_back.shape)[rows]
    return agreed.selection.unpack(given_back.view(-1))
