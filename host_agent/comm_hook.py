# SPDX-License-Identifier: Apache-2.0
"""DDP communication hook: sparsified all-reduce through the switch, of which a bounded part may go missing.

This module must not postpone the evaluation of annotations: DDP looks at the hook's.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from host_agent.bucket_layout import BucketLayout
from host_agent.classes import LayerClasses
from host_agent.float_sum import Contribution, encode
from host_agent.ledger import Direction, Ledger
from host_agent.local_gradients import LocalGradients, Outgoing
from host_agent.loss_policy import LossPolicy
from host_agent.reducer import ReducerStats
from host_agent.report import Account, ReduceReport
from host_agent.sparsifiers import Sparsifier, SparsifierOptions, create_sparsifier
from host_agent.tagging import Tagging
from host_agent.torch_backend import WeirProcessGroup

_HOOKABLE = frozenset({torch.float16, torch.bfloat16, torch.float32})
_COUNTED = (
    *("packets_up", "packets_down", "bytes_up", "bytes_down"),
    *("timeouts", "retransmissions", "releases", "repeats_asked", "trimmed", "marked", "missing", "budget"),
)


@dataclass(frozen=True)
class StepStats:
    """What one training step did on this worker, over all buckets.

    elements: of the gradients; sent_elements: those sent non-zero. blocks, blocks_sent: the same in blocks.
    seconds: in the hook's operations, from the copy out of the buckets to the copy back; reduce_seconds: of
    that, in reductions. Packets and bytes are on the wire, all headers included. entered = included +
    returned, in fixed-point lanes.
    timeouts: timers that fired; retransmissions: packets sent again, of which releases gave their lanes up;
    repeats_asked: by the aggregator; marked: results that told of congestion; trimmed: rounds whose result
    lacks this worker's lanes. missing: lanes that no result included, at most budget of them.
    """

    step: int = 0
    elements: int = 0
    sent_elements: int = 0
    seconds: float = 0.0
    reduce_seconds: float = 0.0
    packets_up: int = 0
    packets_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    blocks: int = 0
    blocks_sent: int = 0
    timeouts: int = 0
    retransmissions: int = 0
    releases: int = 0
    repeats_asked: int = 0
    trimmed: int = 0
    marked: int = 0
    missing: int = 0
    budget: int = 0
    entered: Account = field(default_factory=Account)
    included: Account = field(default_factory=Account)
    returned: Account = field(default_factory=Account)

    @property
    def density(self) -> float:
        """Share of the elements that were sent non-zero."""
        return self.sent_elements / self.elements if self.elements else 0.0

    def plus(self, other: "StepStats") -> "StepStats":
        """The sum of two parts of one step."""
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return StepStats(**{**sums, "step": other.step})


class HookState:
    """What ``hook`` needs from step to step: the method, its settings, every parameter's residual.

    Packets carry the layer class of their bucket, so that what the next forward pass needs first is summed
    first where the network is congested.

    module: the DDP module the hook is registered on (or any module that holds the parameters); it gives the
    names that errors and checkpoints use. process_group: a "weir" group, by default the module's, else the
    default group. sparsifier: a registered name, or an object. density, threshold, block: its options.
    loss_policy: how much of each gradient may go missing in a step rather than be waited for: a share from 0
    to 1, a LossPolicy, or the path of a file with one; 0, the default: nothing. error_feedback: keep what is
    not delivered for the next step (dense and without loss there is nothing to keep). warmup_steps: over that
    many first steps the density goes down to its target. exclude: parameters that are sent whole: name
    patterns (fnmatch), or "1d" for all of one dimension. seed: of what a sparsifier draws at random, the same
    on all ranks.

    A residual is this rank's own: save ``state_dict()`` on every rank, beside the model.

    Example::

        ddp = DistributedDataParallel(model)
        state = weir.torch.HookState(ddp, sparsifier="topk-block", density=0.05)
        ddp.register_comm_hook(state, weir.torch.hook)
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        process_group: dist.ProcessGroup | None = None,
        sparsifier: str | Sparsifier = "topk-block",
        density: float = 0.05,
        threshold: float = 1e-3,
        block: int = 256,
        loss_policy: LossPolicy | float | str | Path = 0.0,
        error_feedback: bool = True,
        warmup_steps: int = 0,
        exclude: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        self.options = SparsifierOptions(density, threshold, block, warmup_steps, seed)
        if isinstance(sparsifier, str):
            sparsifier = create_sparsifier(sparsifier, self.options)
        policy = LossPolicy.of(loss_policy)
        self.gradients = LocalGradients(sparsifier, policy, error_feedback=error_feedback, exclude=exclude)
        self.step = 0
        self.ledger = Ledger()
        self.last_step: StepStats | None = None
        self._this_step = StepStats()
        self._names: dict[torch.Tensor, str] = {}
        self._layers = LayerClasses({})
        self._group: WeirProcessGroup | None = None
        self.bind(module, process_group)

    def bind(self, module: torch.nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        """Connects the state to a module and a group: at the start, and again after unpickling."""
        if isinstance(module, DistributedDataParallel):
            process_group = process_group or module.process_group
            module = module.module
        process_group = process_group or dist.distributed_c10d._get_default_group()
        if not isinstance(process_group, WeirProcessGroup):
            raise TypeError(
                "weir.torch.hook needs a process group of the weir backend, this one is a "
                f'{type(process_group).__name__}: call init_process_group("weir", ...), or give HookState '
                'a process_group made by new_group(backend="weir")'
            )
        self._group = process_group
        self._names = {parameter: name for name, parameter in module.named_parameters()}
        self._layers = LayerClasses.of(module)
        self.gradients.join(module, process_group.rank(), process_group.size())

    def layout_of(self, bucket: GradBucket) -> BucketLayout:
        """Where the parameters of one of DDP's buckets are."""
        parameters = bucket.parameters()
        names = [self._names[parameter] for parameter in parameters]
        return BucketLayout.of(bucket.index(), names, parameters, self.options.block)

    def residual(self, name: str) -> torch.Tensor | None:
        """What a parameter's gradient still owes to the sums: flat, float32; None when there is nothing."""
        feedback = self.gradients.feedback
        return feedback.residual(name) if feedback is not None else None

    @property
    def group(self) -> WeirProcessGroup:
        """The group the gradients are summed over."""
        if self._group is None:
            raise RuntimeError("this HookState was unpickled: call bind(module) before it is used again")
        return self._group

    def exchange(self, layout: BucketLayout, bucket: torch.Tensor, last: bool) -> torch.Tensor:
        """One bucket's step: overwrites it by the average over all ranks of what was sent, and returns it.

        Runs on the group's thread. Until the sum is there nothing of the state has changed, so a step that
        raised can be repeated.
        """
        started, before = time.perf_counter(), self.group.connection.stats
        outgoing = self.gradients.prepare(layout, bucket)
        peers, layer = self.group.collectives.peers, self._layers.frontmost(s.name for s in layout)
        mine = encode(peers, outgoing.sent.numpy(), layout.describe, layout.block, Tagging(layer))
        keep = self.gradients.keeps_rounding
        total, report = mine.add(peers, keep=keep, tagging=self._tagging(layer, outgoing, mine))
        summed = torch.from_numpy(total.values())
        layout.collect(self.gradients.sparsifier.decode(summed), bucket)
        lost = mine.blocks_of(report.given_back.blocks)
        self.gradients.settle(outgoing, torch.from_numpy(mine.values()) if keep else outgoing.without(lost))
        self.gradients.observe(layout, summed)
        for direction in Direction:
            self.ledger.record(self.step, f"bucket {layout.index}", direction, report)
        part = self._part(layout, outgoing.sent, report, before)
        so_far = self._this_step if layout.index else StepStats()  # a step that raised left its part behind
        self._this_step = so_far.plus(replace(part, seconds=time.perf_counter() - started))
        if last:
            self.gradients.end_step()
            self.step += 1
            self.last_step, self._this_step = self._this_step, StepStats()
        return bucket

    def _tagging(self, layer: int, outgoing: Outgoing, mine: Contribution) -> Tagging:
        """Classes and budgets of the blocks that ``mine`` has lanes of."""
        if outgoing.magnitudes is None:
            return Tagging(layer)
        classes, rows, occupied = outgoing.magnitudes.classes, mine.rows, mine.occupied()
        if rows is not None:
            sent_here, occupied = occupied, np.zeros(classes.size, np.bool_)
            occupied[rows] = sent_here
        accounts = self.gradients.policy.accounts_for(outgoing.layout, self._layers, classes, occupied)
        chosen = slice(None) if rows is None else rows
        return Tagging(layer, classes[chosen], accounts.of_block[chosen], accounts.budgets)

    def _part(
        self, layout: BucketLayout, sent: torch.Tensor, report: ReduceReport, before: ReducerStats
    ) -> StepStats:
        """One bucket's statistics; ``before``: the group's when it began."""
        after = self.group.connection.stats
        counted: dict[str, Any] = {name: getattr(after, name) - getattr(before, name) for name in _COUNTED}
        return StepStats(
            step=self.step + 1,
            elements=sum(segment.length for segment in layout),
            sent_elements=int(torch.count_nonzero(sent)),
            reduce_seconds=after.seconds - before.seconds,
            blocks=layout.length // layout.block,
            blocks_sent=report.blocks_sent,
            entered=report.entered,
            included=report.included,
            returned=report.returned,
            **counted,
        )

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals, classes, step and sparsifier's state: enough to go on bit for bit."""
        return {"step": self.step, **self.gradients.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what ``state_dict`` gave on this rank; ValueError when it is of other parameters."""
        for what in ("residuals", "quartiles"):
            unknown = sorted(set(state[what]) - set(self._names.values()))
            if unknown:
                raise ValueError(
                    f"the saved state has {what} of parameters this module lacks: {', '.join(unknown)}"
                )
        self.gradients.load_state_dict(state)
        self.step = state["step"]

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the module and the group, which another process does not have."""
        return {**self.__dict__, "_group": None, "_names": {}}


def hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook to register: ``ddp.register_comm_hook(state, weir.torch.hook)``.

    Gradients may be float16, bfloat16 or float32. A NaN or infinity raises NonFiniteError on every rank
    and names the parameter; nothing hangs and the group stays usable.
    """
    buffer = bucket.buffer()
    if buffer.dtype not in _HOOKABLE:
        raise TypeError(
            f"weir.torch.hook sums gradients in float32, these are {buffer.dtype}: "
            "train without the hook, which the weir backend sums them in 64 bits"
        )
    layout, last = state.layout_of(bucket), bucket.is_last()
    return state.group.submit(lambda: state.exchange(layout, buffer, last)).get_future()
