# SPDX-License-Identifier: Apache-2.0
"""Outer steps for torch: each worker makes steps of its own, and these are summed at intervals."""

import contextlib
import zlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

from weir.host_agent.collectives.operation import Call
from weir.host_agent.collectives.packing import LaneBits
from weir.host_agent.collectives.tensor_memory import byte_view
from weir.host_agent.compression.outer.stage import OuterSettings, OuterStage
from weir.host_agent.compression.outer.sums import make_sum
from weir.host_agent.compression.sparsifiers import Sparsifier
from weir.host_agent.compression.updates.layout import UpdateLayout
from weir.host_agent.torch.packed_state import newest
from weir.host_agent.torch.replicas import broadcast_from_first, trained_parameters, unite_buffers, weir_group
from weir.host_agent.torch.staging import devices_of
from weir.host_agent.torch.unwrapping import unwrapped
from weir.host_agent.torch.work import QueuedWork

_NAME: Final = "weir.torch.OuterStep"


@dataclass
class _UnderWay:
    """A sum that the worker makes further steps beside.

    Attributes:
        work: the sum; None: it is done.
        left: how many steps are still to be made beside it.
        before: this worker's weights when it began.
        after: those that it would have gone on from, without these steps, once the sum is there.
    """

    work: QueuedWork | None
    left: int
    before: torch.Tensor
    after: torch.Tensor


class OuterStep:
    """Makes an outer step of a model at intervals of several steps of an optimizer.

    Each worker trains by itself for ``every`` steps. Then the workers sum how far they have come, and the
    *shared point*, the same on all, moves by the mean. The loop stays as it is: ``optimizer.step()`` makes
    outer steps when they are due. State of the optimizer, such as Adam's moments, stays each worker's own.

    *DiLoCo* is ``method="dense", outer_rate=0.7, outer_momentum=0.9``. *SparseLoCo* is without momentum,
    ``method="chunk-topk", density=1/64, bits=8, decay=0.95, ahead=False``. See docs/guides/outer-steps.md.

    After GroupBrokenError, make a group of the workers that are left and call ``bind``: they go on, and the
    steps that they had made for the next sum are in it.

    Args:
        model: the same on every rank. Worker 0's weights go to all. Of a DistributedDataParallel, the module
            inside it is trained, and its own summing of gradients ends.
        inner_optimizer: any of torch's, of parameters of the model.
        every: its steps from one outer step to the next.
        method: a sparsifier by name, or an object: what it chooses of the progress is sent, the rest is
            kept. "dense": everything. "rows": rows of 256 values in turn, of all workers the same ones.
        density: of what is sent; "dense" sends all.
        bits: of a value on its way up: 1 (with "rows"), 8, 16 or 32; None: 1 with "rows", else as the
            sparsifier says.
        outer_rate: of the outer step.
        outer_momentum: of the outer step, Nesterov's.
        decay: what is left after each outer step of what is kept.
        ahead: what is kept stays in this worker's weights; otherwise it waits beside them.
        overlap: steps that the optimizer makes while a sum is under way, fewer than ``every``.
        process_group: a "weir" group, by default the default one.
        seed: of a sparsifier's draws and of turns, the same on all ranks.

    Raises:
        TypeError: a group of another backend.
        ValueError: a setting out of range, or an optimizer of other parameters than the model's.
        GroupBrokenError: settings that are not the same on all ranks.

    Example::

        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        outer = weir.torch.OuterStep(model, optimizer, every=20)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
        outer.finish()
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inner_optimizer: torch.optim.Optimizer,
        *,
        every: int,
        method: str | Sparsifier = "dense",
        density: float = 1.0,
        bits: LaneBits | int | None = None,
        outer_rate: float = 1.0,
        outer_momentum: float = 0.0,
        decay: float = 1.0,
        ahead: bool = True,
        overlap: int = 0,
        process_group: dist.ProcessGroup | None = None,
        seed: int = 0,
    ) -> None:
        self._model, self._optimizer = unwrapped(model), inner_optimizer
        self._parameters = trained_parameters(self._model, inner_optimizer)
        layout = UpdateLayout(list(self._parameters), [one.shape for one in self._parameters.values()])
        self.settings = OuterSettings(every, outer_rate, outer_momentum, decay, ahead, overlap)
        self._stage = OuterStage(layout, self.settings, make_sum(layout, method, density, bits, seed))
        self._start = torch.empty(0)  # of this round: the weights that progress is counted from
        self._made = 0  # steps of this round
        self._under_way: _UnderWay | None = None
        self._swapped = False  # the model is at the shared point
        self._take(process_group)
        self._submit("begin", self._begin).wait()
        self._hook = inner_optimizer.register_step_post_hook(self._after_step)

    @property
    def rounds(self) -> int:
        """Return how many outer steps were made."""
        self._settle()
        return self._stage.rounds

    def kept(self, name: str) -> torch.Tensor:
        """Return what of this worker's progress no sum has delivered yet, of a parameter, in its shape.

        Args:
            name: of the parameter, as ``named_parameters`` gives it.
        """
        self._settle()
        parts = self._stage.layout.split(self._stage.sum.kept())
        return parts[self._stage.layout.names.index(name)].view(self._parameters[name].shape)

    @contextlib.contextmanager
    def shared_point(self) -> Iterator[torch.nn.Module]:
        """Yield the model at the shared point, the same on all workers: to evaluate it, or to save it.

        After the ``with`` block the weights are this worker's own again, bit for bit. No step may be made
        inside.
        """
        self._refuse_swapped()
        self._settle()
        own = [one.detach().clone() for one in self._parameters.values()]
        self._to_model(self._stage.shared)
        self._swapped = True
        try:
            yield self._model
        finally:
            self._swapped = False
            with torch.no_grad():
                for parameter, before in zip(self._parameters.values(), own, strict=True):
                    parameter.copy_(before)

    def finish(self) -> None:
        """Give all workers the mean of their weights, which is the shared point from then on.

        It is sent at its full width. Floating-point buffers, such as the statistics of batch normalisation,
        become their mean, others worker 0's. To be called on all workers, at the end or in the middle.
        """
        self._refuse_swapped()
        self._apply()
        self._submit("finish", self._finish).wait()
        self._made = 0

    def bind(self, process_group: dist.ProcessGroup | None = None) -> None:
        """Go on in another group, after workers have left or joined. Call it on all its ranks.

        All go on from the shared point of the rank that has made most outer steps. A rank that has made
        fewer, such as a new one, begins there: its own progress since its last outer step is lost. All others
        keep theirs, and the next sum has it.

        Args:
            process_group: of backend "weir"; by default the default group.

        Raises:
            TypeError: the group has another backend.
            GroupBrokenError: settings that are not the same on all ranks.
        """
        self._refuse_swapped()
        with contextlib.suppress(Exception):  # of the group that was left
            self._apply()
        self._take(process_group)
        self._submit("bind", self._agree).wait()

    def close(self) -> None:
        """Let the optimizer make its steps without outer ones again."""
        self._hook.remove()

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank.

        With the rank's model and optimizer, saved with it, training continues bit for bit.
        """
        self._refuse_swapped()
        self._settle()
        beside = self._under_way
        late = (
            None if beside is None else {"left": beside.left, "before": beside.before, "after": beside.after}
        )
        return {**self._stage.state_dict(), "start": self._start, "made": self._made, "late": late}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the state of this rank, whose model and optimizer were loaded, too.

        The next outer step checks that all ranks are at one shared point.

        Args:
            state: of this rank.

        Raises:
            ValueError: it is of other parameters or other settings.
        """
        self._refuse_swapped()
        self._settle()
        self._stage.load_state_dict(state)
        self._start, self._made = state["start"].clone(), state["made"]
        late = state["late"]
        self._under_way = None if late is None else _UnderWay(None, **late)

    # What the optimizer calls.

    def _after_step(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """Count a step; take a sum that is awaited, and begin one that is due."""
        with self._group.issuing():
            self._refuse_swapped()
            self._made += 1
        if (beside := self._under_way) is not None:
            beside.left -= 1
            if beside.left <= 0:
                self._apply()
        if self._under_way is None and self._made >= self.settings.every:
            self._begin_sum()

    def _begin_sum(self) -> None:
        before = self._weights()
        beside = _UnderWay(None, self.settings.overlap, before, torch.empty_like(before))
        local = before - self._start

        def run() -> None:
            beside.after.copy_(self._stage.step(local))

        stage = self._stage
        facts = (stage.rounds, zlib.crc32(byte_view(stage.shared).data), *stage.sum.facts())
        beside.work = self._submit("step", run, *facts)
        self._under_way, self._made = beside, 0
        if not beside.left:
            self._apply()

    def _settle(self) -> None:
        """Wait for a sum that is under way; the weights stay as they are."""
        beside = self._under_way
        if beside is None or beside.work is None:
            return
        try:
            beside.work.wait()
        except BaseException:
            self._under_way = None  # its progress is in the next one
            self._made += self.settings.every
            raise
        beside.work = None

    def _apply(self) -> None:
        """Let the weights be those after the sum that is under way, with the steps made beside it."""
        self._settle()
        beside, self._under_way = self._under_way, None
        if beside is None:
            return
        own = self._weights()
        if torch.equal(own, beside.before):
            self._to_model(beside.after)
            self._start = self._weights()
        else:
            self._to_model(own + (beside.after - beside.before))
            self._start = beside.after

    # What runs on the group's thread.

    def _submit(self, what: str, work: Callable[[], None], *facts: Hashable) -> QueuedWork:
        """Queue ``work`` as an operation of the group, all of whose ranks have the same ``facts``."""
        layout, settings = self._stage.layout, f"{self.settings} {self._stage.sum.settings}"
        words = (what, f"{layout.values} parameters", settings)
        call = Call(_NAME, (what, settings, layout.names, layout.sizes, *facts), words)
        run = partial(self._group.connection.run_call, call, work)
        return self._group.submit(run, devices=devices_of(list(self._parameters.values())))

    def _begin(self) -> None:
        broadcast_from_first(self._group.collectives, (*self._model.parameters(), *self._model.buffers()))
        self._start = self._weights()
        self._stage.begin_from(self._start)

    def _agree(self) -> None:
        """Take the state of the rank that has made most outer steps, and the fewest steps of the round."""
        collectives = self._group.collectives
        state = newest(collectives, self._stage.rounds, self._stage.shared_state())
        if state is not None:
            behind, own = state["rounds"] > self._stage.rounds, self._stage.sum.own_state()
            self._stage.load_shared_state(state)
            if behind:
                self._to_model(self._stage.shared)
                self._start, self._made = self._weights(), 0
            else:
                self._stage.sum.load_own_state(own)
        made = torch.tensor([self._made])
        collectives.all_reduce(made, dist.ReduceOp.MIN)
        self._made = int(made)

    def _finish(self) -> None:
        self._to_model(self._stage.finish(self._weights()))
        self._start = self._weights()
        unite_buffers(self._group.collectives, self._model)

    def _take(self, process_group: dist.ProcessGroup | None) -> None:
        """Take a place in a group."""
        self._group = group = weir_group(process_group, _NAME)
        facts = group.connection.facts
        self._stage.join(self._model, group.collectives.communicator, facts.slot_count, facts.max_lanes)

    # The model's weights.

    def _weights(self) -> torch.Tensor:
        """Return a copy of this worker's weights: float32, flat, in main memory."""
        return torch.cat([one.detach().float().cpu().reshape(-1) for one in self._parameters.values()])

    def _to_model(self, weights: torch.Tensor) -> None:
        with torch.no_grad():
            parts = self._stage.layout.split(weights)
            for parameter, part in zip(self._parameters.values(), parts, strict=True):
                parameter.copy_(part.view(parameter.shape))

    def _refuse_swapped(self) -> None:
        if self._swapped:
            raise RuntimeError("the model is at the shared point: leave shared_point() first")
