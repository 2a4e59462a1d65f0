# SPDX-License-Identifier: Apache-2.0
"""The gradient step: from a bucket of gradients to its average over all workers, through a communicator.

The same for every way to sum lanes: the DDP hook gives it the switch, ``weir bench`` and ``weir calibrate``
workers of one process (``weir.host_agent.collectives.in_memory``).
"""

import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.communicator import Audience, Communicator
from weir.host_agent.collectives.float_sum import Contribution, contribute, encode, packet_block_of
from weir.host_agent.collectives.packing import LANE_ERROR, LaneBits, LaneFormat, WholeLanes, lane_format
from weir.host_agent.compression.bucket_layout import BucketLayout, Parameters
from weir.host_agent.compression.classes import LayerClasses
from weir.host_agent.compression.encodings import (
    SCALE_BLOCK,
    Encoder,
    EncodingPlan,
    Proposal,
    Selection,
    Summed,
    parse_rule,
)
from weir.host_agent.compression.encodings.mask_scales import MaskScales, Predictions
from weir.host_agent.compression.encodings.shared_mask import NO_LANES
from weir.host_agent.compression.local_gradients import Choice, LocalGradients
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.packed_vector import PackedVector, packed_vector
from weir.host_agent.compression.phase_clock import PhaseClock
from weir.host_agent.compression.sparsifiers import Sparsifier
from weir.host_agent.compression.transfer import to_device, to_host
from weir.host_agent.transport.ledger import Direction, Ledger
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import ServiceClass
from weir.wire.definition import GROUP_LANES, Op


@dataclass(frozen=True)
class Exchanged:
    """One bucket's exchange as one worker saw it.

    Attributes:
        choice: of this worker; what it chose is in memory that its next exchange takes again.
        chosen_elements: how many of it are not zero.
        union_elements: how many elements some worker chose, or sent where all of them send the union; this
            worker's own where only servers know.
        selection: what travelled of the vector, and how it was encoded.
        blocks: of the packets that its values take, zero ones included.
        summed: the sum over all workers of what was delivered.
        notes: numbers that each worker told the others for the next plan.
        report: of the reduction of the values.
        seconds: what this worker's own part took.
    """

    choice: Choice
    chosen_elements: int
    union_elements: int
    selection: Selection
    blocks: int
    summed: Summed
    notes: int
    report: ReduceReport
    seconds: PhaseClock

    @property
    def total(self) -> torch.Tensor:
        """Return the sum as a whole vector."""
        return self.summed.whole


@dataclass(frozen=True)
class Servers:
    """Members of a group that have no gradients: each is given the sums of some parameters, nobody else is.

    They are the last ranks of the group.

    Attributes:
        count: how many there are.
        rank_of: the one that is given a parameter's sum, by the parameter's name.
    """

    count: int
    rank_of: Mapping[str, int]


def gradient_form(bits: LaneBits, error: float, workers: int, *, lossless: bool) -> LaneFormat:
    """Return the form of gradients in lanes. lossless: nothing may go missing.

    Raises:
        ValueError: none that so many workers, or a loss budget, go with; see ``lane_format``.
    """
    form = lane_format(bits, error, workers)
    if not lossless and packet_block_of(form, SCALE_BLOCK) < form.lanes(SCALE_BLOCK):
        if bits == "auto":
            return lane_format(16, error, workers)
        raise ValueError(
            f"lane bits {bits}: for {workers} workers these are three values to a lane, which does not go "
            "with a loss budget; choose 16 or 32"
        )
    return form


class GradientExchange:
    """One worker's gradient step: choose, agree on an encoding, sum, keep what was not delivered.

    All workers make the same calls in the same order, each with its own object: ``join`` first, then
    ``exchange`` for every bucket of every step.

    Args:
        sparsifier: chooses what is sent.
        policy: how much may go missing.
        encoding: the rule for how what was chosen is written down; None: the sparsifier's own.
        error_feedback: keep what is not delivered for the next step.
        exclude: name patterns (fnmatch) of parameters that are sent whole; "1d": all of one dimension.
        lane_bits, lane_error: the form of values in lanes, see ``collectives.packing.lane_format``; None: the
            sparsifier's own.

    Raises:
        ValueError: a rule that there is not, or that does not fit the sparsifier.

    Attributes:
        form: of values in lanes, known when the group is.
        predictions: of scales; the same on all workers, and of no weight for what they sum.
        timer: returns the seconds of which the phases of a step are made.

    Example::

        group = InMemoryGroup(2)
        for worker, communicator in zip(workers, group.communicators):
            worker.join(model, communicator, slots=256)
        group.run([lambda w=w, b=b: w.exchange(layout, b) for w, b in zip(workers, buckets)])
    """

    def __init__(
        self,
        sparsifier: Sparsifier,
        policy: LossPolicy,
        *,
        encoding: str | None = None,
        error_feedback: bool = True,
        exclude: Sequence[str] = (),
        lane_bits: LaneBits | None = None,
        lane_error: float = LANE_ERROR,
    ) -> None:
        rule = sparsifier.encoding if encoding is None else encoding
        if lane_bits is None:  # blocks of a given size may be too small for several values to a lane
            lane_bits = sparsifier.lane_bits if parse_rule(rule).packet_block is None else 32
        self._lanes = lane_bits, lane_error
        self.form: LaneFormat = WholeLanes(1)
        self.gradients = LocalGradients(
            sparsifier, policy, error_feedback=error_feedback, exclude=exclude, coarse=lane_bits != 32
        )
        self.encoder = Encoder(parse_rule(rule), sparsifier)
        self.settings = _settings(sparsifier, rule, policy, error_feedback, exclude, lane_bits, lane_error)
        """The method and its options in words, which must be the same on every worker."""
        self.predictions = Predictions()
        self.ledger = Ledger()
        self.timer = time.perf_counter
        self.step = 0
        self._names: frozenset[str] = frozenset()
        self._layers = LayerClasses({})
        self._communicator: Communicator | None = None
        self._servers: Servers | None = None
        self._workers = 1

    def join(
        self,
        module: Parameters,
        communicator: Communicator,
        slots: int,
        servers: Servers | None = None,
        *,
        narrow: int = 0,
    ) -> None:
        """Take a place among the workers that sum a module's gradients; again when either has changed.

        Args:
            module: holds the parameters.
            communicator: sums lanes over the workers, and the servers.
            slots: of the switch, which the sums take; what encodings cost depends on it.
            servers: who the sums are for; None: for all workers.
            narrow: how many lanes of ADD the switch takes in a packet, which changes what encodings cost;
                0: any number.

        Raises:
            ValueError: a pattern of ``exclude`` that fits no parameter of the module, or lanes of so few bits
                that this group, the encoding or the loss budget does not go with them; a loss budget together
                with servers.
        """
        lossless = self.gradients.policy.lossless
        if servers is not None and not lossless:
            raise ValueError("sums for servers are lossless: a loss budget does not go with them")
        workers = communicator.size - (servers.count if servers else 0)
        self.form = gradient_form(*self._lanes, workers, lossless=lossless)
        self._communicator, self._servers, self._workers = communicator, servers, workers
        self._names = frozenset(name for name, _ in module.named_parameters())
        self._layers = LayerClasses.of(module)
        self.predictions.clear()
        self.gradients.sparsifier.value_bits = 32 / self.form.fields
        self.gradients.join(module, communicator.rank, workers)
        self.encoder.join(workers, slots, self.form, narrow=narrow)

    @property
    def _contributes(self) -> bool:
        """Return whether this member has gradients."""
        return self._communicator is not None and self._communicator.rank < self._workers

    @property
    def _for_servers(self) -> bool:
        """Return whether this step's sums are given to the servers alone.

        A sparsifier that looks at the sums is shown them on every worker.
        """
        gradients = self.gradients
        return self._servers is not None and not (gradients.observes and gradients.sparsifier.observes_values)

    def exchange(self, layout: BucketLayout, bucket: torch.Tensor, last: bool = True) -> Exchanged:
        """Overwrite a bucket by the average over all workers of what was delivered.

        Where there are servers, a server's bucket is overwritten by the averages of its parameters, whatever
        it held, and zeros elsewhere, a worker's by nothing of use. Until the sum is there nothing of the
        state has changed, so a step that raised can be repeated.

        Args:
            layout: of the bucket; its parameters start on multiples of SCALE_BLOCK.
            bucket: gradients, flat, of any float dtype.
            last: the step ends with this bucket.

        Raises:
            NonFiniteError: some worker's gradient has NaN or infinity; on every worker.
            ConservationError: lanes were lost or counted twice.
        """
        assert self._communicator is not None, "join comes first"
        communicator, clock = self._communicator, PhaseClock(self.timer)
        service = ServiceClass(self._layers.frontmost(segment.name for segment in layout))
        with clock.time("planning"):
            plan = self.encoder.plan(layout, self.gradients.spans, self.gradients.excluded)
        choice = (
            self.gradients.prepare(layout, bucket, plan.encodings, clock)
            if self._contributes
            else self.gradients.nothing(layout, bucket.device)
        )
        with clock.time("mask"):
            proposal = Proposal(plan, layout, choice.chosen, choice.masks)
        may_send = choice.compensated if self.gradients.sparsifier.fills_union else choice.chosen
        scales = None
        if proposal.masked:
            with clock.time("mask"):
                largest = choice.largest if may_send is choice.compensated else None
                scales = MaskScales(plan, layout, may_send, self.predictions, self.form, largest)
        selection = proposal.agree(communicator, service, scales.codes if scales else NO_LANES, self._workers)
        packed = selection.pack(may_send)
        with clock.time("planning"):
            notes = self.encoder.notes(communicator.rank, selection, packed)
        vector = packed_vector(packed, choice.largest_bits if packed is choice.chosen else None)
        packet_block, riders = self._packet_block(plan, selection), NO_LANES
        if scales is None:
            contribution = encode(
                communicator,
                vector,
                selection.describe,
                SCALE_BLOCK,
                service,
                form=self.form,
                packet_block=packet_block,
                dense=not selection.everything,
                notes=notes,
            )
        else:
            unit = scales.steps.unit
            settled = scales.settle(
                communicator,
                scales.codes,
                layout.describe,
                service,
                lambda: selection.travelling(SCALE_BLOCK),
            )
            contribution = contribute(
                communicator,
                vector,
                selection.largest(settled, SCALE_BLOCK, unit),
                None,
                unit,
                self.form,
                packet_block,
            )
            if self.gradients.policy.lossless and self._servers is None:
                riders = notes
            else:
                communicator.reduce(notes, Op.MAX, GROUP_LANES, service)
        classes = self.gradients.classify(selection.layout, packed, contribution.scales_of(SCALE_BLOCK))
        budgets = self._budgets(service, selection, classes, contribution)
        summed, report = contribution.add(
            communicator,
            keep=self._contributes and self.gradients.keeps_rounding and not vector.keeps_lanes,
            service=budgets,
            audience=self._audience(selection, contribution),
            notes=riders,
        )
        sums = Summed(selection, self._own(selection, vector.decoded(summed)))
        self._overwrite(bucket, sums)
        if self._contributes:
            self._settle(choice, selection, vector, contribution, report)
        sums = self._observed(sums, summed)
        measured = np.empty(0, np.float32)
        if self.gradients.observes:
            with clock.time("observing"):
                self.gradients.observe(sums)
                measured = self.gradients.measure(sums)
        with clock.time("planning"):
            tally = self.encoder.tally(sums)
        told = np.concatenate([tally, measured.view(np.uint32)])
        if self._for_servers:
            communicator.reduce(told, Op.OR, None, service)  # of each parameter, one server has it
        with clock.time("observing"):
            self.gradients.take_note(layout, told[tally.size :].view(np.float32))
        with clock.time("planning"):
            self.encoder.settle(selection, told[: tally.size], notes)
        for direction in Direction:
            self.ledger.record(self.step, f"bucket {layout.index}", direction, report)
        if last:
            self._end_step(clock)
        return Exchanged(
            choice=choice,
            chosen_elements=proposal.elements,
            union_elements=self._union(selection, proposal.elements, sums.packed),
            selection=selection,
            blocks=max(
                report.blocks,
                -(
                    -selection.layout.length
                    // SCALE_BLOCK
                    * self.form.lanes(SCALE_BLOCK)
                    // contribution.packet_block
                ),
            ),
            summed=sums,
            notes=notes.size // self._workers,
            report=report,
            seconds=clock,
        )

    def forget(self, layout: BucketLayout) -> None:
        """Drop what is owed of a bucket."""
        if self.gradients.feedback is not None:
            self.gradients.feedback.forget(layout)

    def _overwrite(self, bucket: torch.Tensor, summed: Summed) -> None:
        """Overwrite a bucket by its sum."""
        sparsifier, selection = self.gradients.sparsifier, summed.selection
        if type(sparsifier).decode is Sparsifier.decode:
            selection.collect(summed.packed, bucket)
        else:
            selection.whole.collect(sparsifier.decode(summed.whole), bucket)

    def _observed(self, sums: Summed, total: Contribution) -> Summed:
        """Return a bucket's sum where it is looked at: in main memory, if anything is to be learnt from it.

        The lanes are there in any case, so that nobody waits for a device.
        """
        if sums.packed.is_cpu or not (self.gradients.observes or self.encoder.learns):
            return sums
        return Summed(sums.selection, self._own(sums.selection, torch.from_numpy(total.values())))

    def _union(self, selection: Selection, chosen: int, packed_total: torch.Tensor) -> int:
        """Return how many elements of a bucket any worker sent, as far as it is known here."""
        if self.gradients.sparsifier.fills_union or (self._for_servers and not selection.everything):
            return selection.layout.elements
        return chosen if self._for_servers else int(to_host(torch.count_nonzero(packed_total))[0])

    def _packet_block(self, plan: EncodingPlan, selection: Selection) -> int | None:
        """Return the lanes in a block of the packets; None: as many as fit, as no block stands by itself."""
        if self._servers is not None:
            return packet_block_of(self.form, SCALE_BLOCK if selection.everything else plan.packet_block)
        if self.form.fields > 1 and selection.everything and self.gradients.policy.lossless:
            return None
        return packet_block_of(self.form, plan.packet_block)

    def _audience(self, selection: Selection, contribution: Contribution) -> Audience | None:
        """Return which server wants each block of the lanes; None: all members want all."""
        if self._servers is None or not self._for_servers:
            return None
        layout = selection.layout.in_blocks(SCALE_BLOCK)
        ranks = np.array([self._servers.rank_of[segment.name] for segment in layout], np.int16)
        of_scales = ranks[layout.owners]
        if contribution.rows is not None:
            of_scales = of_scales[contribution.rows]
        return np.repeat(of_scales, self.form.lanes(SCALE_BLOCK) // contribution.packet_block)

    def _own(self, selection: Selection, packed: torch.Tensor) -> torch.Tensor:
        """Return of a packed vector of sums those that this member was given, zeros elsewhere."""
        if self._servers is None or not self._for_servers or self._communicator is None:
            return packed
        for segment in selection.layout:
            if self._servers.rank_of[segment.name] != self._communicator.rank:
                packed[segment.in_vector] = 0
        return packed

    def _settle(
        self,
        choice: Choice,
        selection: Selection,
        vector: PackedVector,
        contribution: Contribution,
        report: ReduceReport,
    ) -> None:
        """Keep what the sum did not include."""
        undelivered = choice.compensated
        if self.gradients.feedback is None:
            pass
        elif self.gradients.keeps_rounding:
            selection.subtract(undelivered, vector.delivered(contribution, report.given_back.blocks))
        else:  # everything was sent, as it was
            lost, places = report.given_back.blocks, contribution.places()
            packed = selection.pack(choice.chosen)
            blocks = torch.zeros_like(packed).view(-1, selection.plan.packet_block)
            chosen = to_device((lost if places is None else places[lost]).astype(np.int64), packed.device)
            blocks[chosen] = packed.view(blocks.shape)[chosen]
            undelivered = selection.unpack(blocks.view(-1))
        self.gradients.settle(choice, undelivered)

    def _budgets(
        self,
        service: ServiceClass,
        selection: Selection,
        classes: npt.NDArray[np.uint8] | None,
        contribution: Contribution,
    ) -> ServiceClass:
        """Return the classes and budgets of the blocks that ``mine`` has lanes of."""
        if classes is None or not contribution.lanes.size:
            return service
        places, occupied = contribution.places(), contribution.occupied()
        if places is not None:
            sent_here, occupied = occupied, np.zeros(classes.size, np.bool_)
            occupied[places] = sent_here
        accounts = self.gradients.policy.accounts_for(
            selection.layout, self._layers, classes, occupied, contribution.packet_block
        )
        chosen = slice(None) if places is None else places
        return ServiceClass(service.layer, classes[chosen], accounts.of_block[chosen], accounts.budgets)

    def _end_step(self, clock: PhaseClock) -> None:
        with clock.time("observing"):
            self.gradients.end_step()
        with clock.time("planning"):
            self.encoder.end_step()
        self.step += 1

    def shared_state(self) -> dict[str, Any]:
        """Return what is the same on all workers: tensors and plain values."""
        return {
            "step": self.step,
            "sparsifier": self.gradients.sparsifier.state_dict(),
            "encodings": self.encoder.state_dict(),
        }

    def load_shared_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``shared_state`` gave on any worker, maybe in a group of another size."""
        self.gradients.sparsifier.load_state_dict(state["sparsifier"])
        saved = state["encodings"] if "encodings" in state else state["formats"]  # their name in older states
        self.encoder.load_state_dict(saved)
        self.predictions.clear()
        self.step = state["step"]

    def state_dict(self) -> dict[str, Any]:
        """Return what is shared, and this worker's residuals: enough to go on bit for bit."""
        return {**self.shared_state(), **self.gradients.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` gave on this worker; ValueError when it is of other parameters."""
        unknown = sorted(set(state["residuals"]) - self._names)
        if unknown:
            raise ValueError(
                f"the saved state has residuals of parameters this module lacks: {', '.join(unknown)}"
            )
        self.load_shared_state(state)
        self.gradients.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the communicator, which another process does not have."""
        return {**self.__dict__, "_communicator": None}


def _settings(
    sparsifier: Sparsifier,
    encoding: str,
    policy: LossPolicy,
    error_feedback: bool,
    exclude: Sequence[str],
    lane_bits: LaneBits,
    lane_error: float,
) -> str:
    """Return a method and its options in words: those that are as usual are left out."""
    options = [f"{name}={getattr(sparsifier.options, name)}" for name in sparsifier.uses]
    if "density" in sparsifier.uses and sparsifier.options.warmup_steps:
        options.append(f"warmup_steps={sparsifier.options.warmup_steps}")
    settings = [f"{sparsifier.name}({', '.join(options)})", f"encoding={encoding}"]
    if exclude:
        settings.append(f"exclude={','.join(exclude)}")
    if not policy.lossless:
        share = max(*policy.tensor, 0.0)
        settings.append(f"loss_policy={zlib.crc32(policy.model_dump_json().encode()):08x} (up to {share:g})")
    if lane_bits != 32:
        settings.append(f"lane_bits={lane_bits}, lane_error={lane_error:g}")
    if not error_feedback:
        settings.append("no error feedback")
    return ", ".join(settings)
