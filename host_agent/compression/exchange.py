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
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.contribution import packet_block_of
from weir.host_agent.collectives.packing import LANE_ERROR, LaneBits, LaneFormat, WholeLanes, lane_format
from weir.host_agent.compression import stages
from weir.host_agent.compression.bucket_layout import BucketLayout, Parameters
from weir.host_agent.compression.classes import LayerClasses
from weir.host_agent.compression.destination import ALL_WORKERS, Destination
from weir.host_agent.compression.encodings import SCALE_BLOCK, Encoder, Selection, Summed, parse_rule
from weir.host_agent.compression.encodings.mask_scales import Predictions
from weir.host_agent.compression.local_gradients import Choice, LocalGradients
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.phase_clock import PhaseClock
from weir.host_agent.compression.sparsifiers import Sparsifier
from weir.host_agent.compression.stages import Agreed, Encoded, Place, Plan, Total
from weir.host_agent.compression.transfer import to_host
from weir.host_agent.transport.ledger import Direction, Ledger
from weir.host_agent.transport.report import ReduceReport
from weir.wire.definition import Op


@dataclass(frozen=True)
class ExchangeResult:
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
        """Sum as a whole vector."""
        return self.summed.whole


def gradient_form(bits: LaneBits, error: float, workers: int, *, lossless: bool) -> LaneFormat:
    """Return the form of gradients in lanes. lossless: nothing may go missing.

    Raises:
        ValueError: none that this many workers, or a loss budget, go with; see ``lane_format``.
    """
    form = lane_format(bits, error, workers)
    if not lossless and packet_block_of(form, SCALE_BLOCK) < form.lanes(SCALE_BLOCK):
        if bits == "auto":
            return lane_format(16, error, workers)
        raise ValueError(
            f"lane bits {bits}: with {workers} workers a lane has three values, which cannot be combined "
            "with a loss budget; choose 16 or 32"
        )
    return form


class GradientExchange:
    """One worker's gradient step: what it remembers from bucket to bucket, on which the ``stages`` work.

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
        group.run([lambda w=w, b=b: w.exchange_bucket(layout, b) for w, b in zip(workers, buckets)])
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
        """The method and its options as text, which must be the same on every worker."""
        self.predictions = Predictions()
        self.ledger = Ledger()
        self.timer = time.perf_counter
        self.step = 0
        self._names: frozenset[str] = frozenset()
        self._place: Place | None = None

    def join(
        self,
        module: Parameters,
        communicator: Communicator,
        slots: int,
        destination: Destination = ALL_WORKERS,
        *,
        max_lanes: int = 0,
    ) -> None:
        """Take a place among the workers that sum a module's gradients; again when either has changed.

        Args:
            module: holds the parameters.
            communicator: sums lanes over the workers, and the servers.
            slots: of the switch, which the sums take; what encodings cost depends on it.
            destination: who the sums are for.
            max_lanes: how many lanes of ADD the switch takes in a packet, which changes what encodings cost;
                0: any number.

        Raises:
            ValueError: a pattern of ``exclude`` that fits no parameter of the module, or lanes of so few bits
                that this group, the encoding or the loss budget does not go with them; a loss budget together
                with servers.
        """
        policy, workers = self.gradients.policy, destination.workers(communicator.size)
        if not (policy.lossless or destination.takes_losses):
            raise ValueError("sums for servers are lossless: leave out the loss budget")
        self.form = gradient_form(*self._lanes, workers, lossless=policy.lossless)
        self._place = Place(communicator, destination, self.form, policy, LayerClasses.of(module))
        self._names = frozenset(name for name, _ in module.named_parameters())
        self.predictions.clear()
        self.gradients.sparsifier.value_bits = 32 / self.form.fields
        self.gradients.join(module, communicator.rank, workers)
        self.encoder.join(workers, slots, self.form, max_lanes=max_lanes)

    def exchange_bucket(
        self, layout: BucketLayout, bucket: torch.Tensor, last: bool = True
    ) -> ExchangeResult:
        """Overwrite a bucket by the average over all workers of what was delivered.

        Where there are servers, a server's bucket is overwritten by the averages of its parameters, whatever
        it held, and zeros elsewhere, and a worker's stays as it is. Until the sum is there nothing of the
        state has changed, so a step that raised can be repeated.

        Args:
            layout: of the bucket; its parameters start on multiples of SCALE_BLOCK.
            bucket: gradients, flat, of any float dtype.
            last: the step ends with this bucket.

        Raises:
            NonFiniteError: some worker's gradient has NaN or infinity; on every worker.
            ConservationError: lanes were lost or counted twice.
        """
        assert self._place is not None, "join comes first"
        place, gradients, clock = self._place, self.gradients, PhaseClock(self.timer)
        plan = stages.plan(
            place,
            self.encoder,
            layout,
            gradients.spans,
            gradients.excluded,
            watched=gradients.observes_values,
            clock=clock,
        )
        choice = (
            gradients.choose(layout, bucket, plan.encoding.encodings, clock)
            if place.contributes
            else gradients.nothing(layout, bucket.device)
        )
        agreed = stages.agree(place, self.encoder, self.predictions, plan, choice, clock)
        total = stages.add_in_place(place, plan, agreed) if self._sums_in_place(plan) else None
        if total is None:
            encoded = stages.encode(place, plan, agreed, self.step)
            keep = place.contributes and gradients.keeps_rounding
            total = stages.add(place, plan, agreed, encoded, keep=keep)
            if place.contributes:
                self._keep(choice, agreed, encoded, total.report)
        if plan.destination.gives(place.communicator.rank):
            self._overwrite(bucket, total.summed)
        self._learn(place, plan, agreed, total, clock)
        for direction in Direction:
            self.ledger.record(self.step, f"bucket {layout.index}", direction, total.report)
        if last:
            self._end_step(clock)
        return ExchangeResult(
            choice=choice,
            chosen_elements=agreed.chosen,
            union_elements=self._union(plan, agreed, total),
            selection=agreed.selection,
            blocks=total.blocks,
            summed=total.summed,
            notes=agreed.notes.size // place.workers,
            report=total.report,
            seconds=clock,
        )

    def _sums_in_place(self, plan: Plan) -> bool:
        """Return whether a vector may become its sum. It may if the worker keeps nothing of the vector, and
        does not look at sums that it is not given.
        """
        looks = self.gradients.observes or self.encoder.learns
        return self.gradients.feedback is None and (plan.destination.reaches_all or not looks)

    def _overwrite(self, bucket: torch.Tensor, summed: Summed) -> None:
        """Overwrite a bucket by its sum."""
        sparsifier, selection = self.gradients.sparsifier, summed.selection
        if type(sparsifier).decode is Sparsifier.decode:
            selection.collect(summed.packed, bucket)
        else:
            selection.whole.collect(sparsifier.decode(summed.whole), bucket)

    def _keep(self, choice: Choice, agreed: Agreed, encoded: Encoded, report: ReduceReport) -> None:
        """Keep what the sum did not include for the next step."""
        if self.gradients.keeps_rounding:
            self.gradients.settle(choice.layout, stages.undelivered(choice, agreed, encoded, report))
        elif self.gradients.feedback is not None:  # everything was sent, as it was
            self.gradients.settle(choice.layout, stages.lost(agreed, encoded, report))

    def _learn(self, place: Place, plan: Plan, agreed: Agreed, total: Total, clock: PhaseClock) -> None:
        """Learn from a bucket's sum what all members are to know for the next steps."""
        summed, measured = self._observed(total), np.empty(0, np.float32)
        if self.gradients.observes:
            with clock.time("observing"):
                self.gradients.observe(summed)
                measured = self.gradients.measure(summed)
        with clock.time("planning"):
            tally = self.encoder.tally(summed)
        known = np.concatenate([tally, measured.view(np.uint32)])
        if not plan.destination.reaches_all:
            # Of each parameter, one has it.
            place.communicator.reduce_vector(known, Op.OR, None, plan.service)
        with clock.time("observing"):
            self.gradients.take_note(plan.layout, known[tally.size :].view(np.float32))
        with clock.time("planning"):
            self.encoder.settle(agreed.selection, known[: tally.size], agreed.notes)

    def _observed(self, total: Total) -> Summed:
        """Return a bucket's sum where it is looked at: in main memory, if anything must be learnt from it.

        The lanes are there in any case, so that nobody waits for a device.
        """
        summed = total.summed
        if summed.packed.is_cpu or not (self.gradients.observes or self.encoder.learns):
            return summed
        assert total.lanes is not None, "a sum on a device is made of lanes"
        return Summed(summed.selection, torch.from_numpy(total.lanes.values()))

    def _union(self, plan: Plan, agreed: Agreed, total: Total) -> int:
        """Return how many elements of a bucket any worker sent, as far as it is known here."""
        known, selection = plan.destination.reaches_all, agreed.selection
        if self.gradients.sparsifier.fills_union or not (known or selection.everything):
            return selection.layout.elements
        return int(to_host(torch.count_nonzero(total.summed.packed))[0]) if known else agreed.chosen

    def forget(self, layout: BucketLayout) -> None:
        """Drop what is owed of a bucket."""
        if self.gradients.feedback is not None:
            self.gradients.feedback.forget(layout)

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
        """Return everything but the place in a group, which another process does not have."""
        return {**self.__dict__, "_place": None}


def _settings(
    sparsifier: Sparsifier,
    encoding: str,
    policy: LossPolicy,
    error_feedback: bool,
    exclude: Sequence[str],
    lane_bits: LaneBits,
    lane_error: float,
) -> str:
    """Return a method and its options as text: those that are as usual are left out."""
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
