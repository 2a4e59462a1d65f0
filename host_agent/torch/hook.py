# SPDX-License-Identifier: Apache-2.0
"""DDP communication hook: sparsified all-reduce through the switch, of which a bounded part may go missing.

This module must not postpone the evaluation of annotations: DDP looks at the hook's.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from weir.host_agent.collectives.non_finite import NonFiniteError
from weir.host_agent.collectives.operation import Call
from weir.host_agent.collectives.packing import LANE_ERROR, LaneBits
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import SCALE_BLOCK, EncodingPlan
from weir.host_agent.compression.exchange import GradientExchange
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import Sparsifier, SparsifierOptions, create_sparsifier
from weir.host_agent.torch.advice import warn_at_first_step, warn_of_few_blocks
from weir.host_agent.torch.compiling import never_compiled
from weir.host_agent.torch.packed_state import newest
from weir.host_agent.torch.process_group import WeirProcessGroup
from weir.host_agent.torch.replicas import weir_group
from weir.host_agent.torch.staging import devices_of
from weir.host_agent.torch.step_stats import StepStats
from weir.host_agent.transport.ledger import Ledger

__all__ = ["HookState", "StepStats", "hook"]

_log = logging.getLogger(__name__)

_HOOKABLE = frozenset({torch.float16, torch.bfloat16, torch.float32})


class HookState:
    """The state of ``hook`` from step to step: the method, its settings, every parameter's residual.

    Packets carry the layer class of their bucket, so that what the next forward pass needs first is summed
    first where the network is congested.

    NaN and infinity reach all ranks as without the hook, unless ``GroupOptions.non_finite`` is "raise". From
    the first bucket with such a value on, the buckets of this step are sent whole. The step does not count,
    and the residuals of its buckets up to that one are dropped, since a gradient scaler skips such a step.

    A residual is this rank's own: save ``state_dict()`` on every rank, beside the model. When the group has
    changed, ``bind`` on all its ranks: they go on from the state of the one that has made most steps, and a
    rank that has just joined starts without residuals.

    Args:
        module: the DDP module that the hook is registered on, or any module that holds the parameters; errors
            and checkpoints use its names for them.
        process_group: a "weir" group; by default the module's, else the default group.
        sparsifier: a registered name, or an object. The default sends the fewest bytes with SGD.
        density, threshold, block: the sparsifier's options, see SparsifierOptions.
        encoding: how the chosen elements are written down: "auto", "dense", "blocks:B" or "shared-mask:M";
            by default as the sparsifier says, mostly "auto".
        loss_policy: how much of each gradient may go missing in a step rather than be waited for: a share
            from 0 to 1, a LossPolicy, or the path of a file with one; by default nothing.
        error_feedback: keep what is not delivered for the next step (dense and without loss there is nothing
            to keep but what lanes of few bits round off).
        lane_bits: 32, 16 or 8: bits that a value takes on the wire, several small ones to a lane of the
            switch; "auto": the fewest whose error is within ``lane_error``; by default the sparsifier's own,
            mostly 32. See docs/guides/precision.md.
        lane_error: with "auto": how much an average over the ranks may be off, relative to the largest
            magnitude within the 256 values around it.
        warmup_steps: over that many first steps the density goes down to its target.
        exclude: parameters that are sent whole: name patterns (fnmatch), or "1d" for all of one dimension.
        seed: of what a sparsifier draws at random, the same on all ranks.

    Raises:
        TypeError: the group is not one of the weir backend.
        ValueError: no such sparsifier or encoding, an option out of range, an encoding that does not fit the
            sparsifier, or lanes of too few bits for this many ranks.

    Example::

        ddp = DistributedDataParallel(model)
        state = weir.torch.HookState(ddp, sparsifier="dfs", density=0.05)
        ddp.register_comm_hook(state, weir.torch.hook)
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        process_group: dist.ProcessGroup | None = None,
        sparsifier: str | Sparsifier = "dfs",
        density: float = 0.05,
        threshold: float = 1e-3,
        block: int = 256,
        encoding: str | None = None,
        loss_policy: LossPolicy | float | str | Path = 0.0,
        error_feedback: bool = True,
        lane_bits: LaneBits | None = None,
        lane_error: float = LANE_ERROR,
        warmup_steps: int = 0,
        exclude: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        if isinstance(sparsifier, str):
            options = SparsifierOptions(density, threshold, block, warmup_steps, seed)
            sparsifier = create_sparsifier(sparsifier, options)
        self.exchanger = GradientExchange(
            sparsifier,
            LossPolicy.of(loss_policy),
            encoding=encoding,
            error_feedback=error_feedback,
            exclude=exclude,
            lane_bits=lane_bits,
            lane_error=lane_error,
        )
        self.last_step: StepStats | None = None
        self._this_step = StepStats()
        self._begun: list[BucketLayout] = []  # buckets of this step
        self._whole = False  # the rest of this step travels so
        self._names: dict[torch.Tensor, str] = {}
        self._layouts: dict[int, tuple[tuple[str, ...], BucketLayout]] = {}
        self._group: WeirProcessGroup | None = None
        self._joined = False
        self.bind(module, process_group)
        if not sparsifier.sends_all and self.group.rank() == 0:
            self._warn(sparsifier, f"weir.torch.hook with sparsifier {sparsifier.name!r}")

    def bind(self, module: torch.nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        """Connect the state to a module and a group: at the start, after unpickling, for another group.

        Call it on all ranks of the group. At the next step they agree on one state.

        Args:
            module: the module whose gradients are summed.
            process_group: of backend "weir"; by default the default group.

        Raises:
            TypeError: the group has another backend.
        """
        if isinstance(module, DistributedDataParallel):
            process_group = process_group or module.process_group
            module = module.module
        advice = (
            ': call init_process_group("weir", ...), or give HookState a process_group made by '
            'new_group(backend="weir")'
        )
        self._group = group = weir_group(process_group, "weir.torch.hook", advice)
        self._names = {parameter: name for name, parameter in module.named_parameters()}
        self._layouts.clear()
        connection, communicator = group.connection, group.collectives.communicator
        facts = connection.facts
        self.exchanger.join(module, communicator, facts.slot_count, max_lanes=facts.max_lanes)
        self._joined = False

    def _warn(self, sparsifier: Sparsifier, name: str) -> None:
        """Say where the sparsifier goes badly with the optimizer, or with parameters of these sizes."""
        warn_at_first_step(self._names, name)
        if {"density", "block"} <= set(sparsifier.uses):
            excludes = self.exchanger.gradients.excludes
            sizes = [
                one.numel()
                for one, each in self._names.items()
                if one.requires_grad and not excludes(each, one.dim())
            ]
            warn_of_few_blocks(sizes, sparsifier.options.density, sparsifier.options.block, name)

    def layout_of(self, bucket: GradBucket) -> BucketLayout:
        """Return the places of the parameters in one of DDP's buckets.

        Args:
            bucket: as DDP passes it to the hook.
        """
        parameters = bucket.parameters()
        names = tuple(self._names[parameter] for parameter in parameters)
        known = self._layouts.get(bucket.index())
        if known is None or known[0] != names:
            known = names, BucketLayout.of(bucket.index(), names, parameters, SCALE_BLOCK)
            self._layouts[bucket.index()] = known
        return known[1]

    @property
    def step(self) -> int:
        """Return how many steps have been made."""
        return self.exchanger.step

    @property
    def ledger(self) -> Ledger:
        """Account of all lanes: what entered a sum, what was included, what came back."""
        return self.exchanger.ledger

    def residual(self, name: str) -> torch.Tensor | None:
        """Return the residual of a parameter's gradient, which later sums will include.

        Args:
            name: of the parameter, as ``named_parameters`` gives it.

        Returns:
            Flat, float32; None if there is no residual.
        """
        feedback = self.exchanger.gradients.feedback
        return feedback.residual(name) if feedback is not None else None

    @property
    def plans(self) -> Mapping[int, EncodingPlan]:
        """Return how each bucket was written down the last time, by its index."""
        return self.exchanger.encoder.plans

    @property
    def group(self) -> WeirProcessGroup:
        """Group the gradients are summed over."""
        if self._group is None:
            raise RuntimeError("this HookState was unpickled: call bind(module) before it is used again")
        return self._group

    def average_bucket(self, layout: BucketLayout, bucket: torch.Tensor, last: bool) -> torch.Tensor:
        """Overwrite one bucket by the average over all ranks of what was sent, and return it.

        Runs on the group's thread. A step that raised can be repeated.

        Args:
            layout: of the bucket; its parameters start on multiples of SCALE_BLOCK.
            bucket: gradients, flat.
            last: the step ends with this bucket.
        """
        call = self._call(layout, last)
        return self.group.connection.run_call(call, self._average_bucket, layout, bucket, last)

    def _call(self, layout: BucketLayout, last: bool) -> Call:
        """Return what all ranks must agree on when a bucket is summed."""
        names = tuple(segment.name for segment in layout)
        lengths = tuple(segment.length for segment in layout)
        which = f"bucket {layout.index}: {len(names)} parameters, {layout.elements} elements"
        predicted = self.exchanger.predictions.known(names)
        facts = (layout.index, names, lengths, last, self.exchanger.settings, predicted)
        return Call("weir.torch.hook", facts, (which, self.exchanger.settings))

    def _average_bucket(self, layout: BucketLayout, bucket: torch.Tensor, last: bool) -> torch.Tensor:
        if not self._joined:
            self._join()
        if not layout.index:  # a step that raised may have left something behind
            self._begun, self._whole = [], False
        self._begun.append(layout)
        if not self._whole:
            try:
                return self._compressed(layout, bucket, last)
            except NonFiniteError as error:
                if not self.group.connection.precision.delivers:
                    raise
                _log.info("%s", error)
            self._whole = True
            for begun in self._begun:
                self.exchanger.forget(begun)
        self.group.all_reduce_here(bucket, dist.ReduceOp.AVG)
        return bucket

    def _compressed(self, layout: BucketLayout, bucket: torch.Tensor, last: bool) -> torch.Tensor:
        started, before = time.perf_counter(), self.group.connection.stats
        done = self.exchanger.exchange_bucket(layout, bucket, last)
        part = StepStats.of(
            done,
            before,
            self.group.connection.stats,
            step=self.step if last else self.step + 1,
            elements=layout.elements,
            seconds=time.perf_counter() - started,
        )
        so_far = self._this_step if layout.index else StepStats()
        self._this_step = so_far.plus(part)
        if last:
            self.last_step, self._this_step = self._this_step, StepStats()
        return bucket

    def _join(self) -> None:
        """Go on from the state of whichever rank of the group has made most steps."""
        state = newest(self.group.collectives, self.step, self.exchanger.shared_state())
        if state is not None:
            self.exchanger.load_shared_state(state)
        self._joined = True

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residuals and classes, and what all ranks share: enough to go on bit for bit."""
        return self.exchanger.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of this rank.

        Args:
            state: of ``state_dict`` on this rank.

        Raises:
            ValueError: the state belongs to other parameters.
        """
        self.exchanger.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the module and the group, which another process does not have."""
        return {**self.__dict__, "_group": None, "_names": {}, "_layouts": {}}


@never_compiled
def hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sum a bucket's gradients. Register it by ``ddp.register_comm_hook(state, weir.torch.hook)``.

    For NaN and infinity, see HookState. In a group that raises NonFiniteError for them, ``backward()`` raises
    it on every rank. The error names the parameter, and the group stays usable.

    Args:
        state: of this rank.
        bucket: DDP's gradients: float16, bfloat16 or float32.

    Returns:
        A future of the averaged gradients, in the shape and dtype of the bucket's buffer.
    """
    if isinstance(bucket, tuple):  # a parameter and its gradient
        raise TypeError(
            "weir.torch.hook sums buckets, but DDP's Python reducer has no buckets: do not change "
            "torch._dynamo.config.optimize_ddp, or train without the hook"
        )
    with state.group.issuing():
        buffer = bucket.buffer()
        if buffer.is_sparse:
            raise TypeError(
                "weir.torch.hook compresses dense gradients, but these are sparse (sparse=True in an "
                "Embedding). Train without the hook: the weir backend sends only a rank's own rows"
            )
        parts = [one.dtype for one in bucket.parameters() if one.is_complex()]  # the buffer has those of
        if parts or buffer.dtype not in _HOOKABLE:
            raise TypeError(
                f"weir.torch.hook sums gradients in float32, these are {(parts or [buffer.dtype])[0]}: "
                "train without the hook, and the weir backend sums them in 64 bits"
            )
        layout, last = state.layout_of(bucket), bucket.is_last()
        run = partial(state.average_bucket, layout, buffer, last)
        work = state.group.submit_sum(run, buffer, devices=devices_of(buffer))
    return work.get_future()
