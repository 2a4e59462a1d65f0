# SPDX-License-Identifier: Apache-2.0
"""Compressed updates for torch: the optimizer's step becomes a compressed one, the loop stays as it is."""

import contextlib
import logging
import weakref
import zlib
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

from weir.host_agent.collectives.operation import Call
from weir.host_agent.collectives.tensor_memory import byte_view
from weir.host_agent.compression.updates.delivery import ValueBits
from weir.host_agent.compression.updates.harm import Harm
from weir.host_agent.compression.updates.layout import UpdateLayout
from weir.host_agent.compression.updates.samples import SampleBits
from weir.host_agent.compression.updates.stage import UpdateSettings, UpdateStage
from weir.host_agent.torch.compress.optimizers import options_of, parameters_of, rule_of
from weir.host_agent.torch.compress.timing import StepClock, Timing
from weir.host_agent.torch.process_group import WeirProcessGroup
from weir.host_agent.torch.replicas import broadcast_from_first, unite_buffers, weir_group
from weir.host_agent.torch.staging import devices_of
from weir.host_agent.torch.unwrapping import unwrapped
from weir.host_agent.torch.work import QueuedWork

_log = logging.getLogger(__name__)

_NAME: Final = "weir.torch.compress"
_COMPRESSED: Final[weakref.WeakSet[torch.optim.Optimizer]] = weakref.WeakSet()  # whose steps are compressed


class CompressedUpdates:
    """Compressed steps of a model; made by ``weir.torch.compress``.

    Attributes:
        settings: what it was made with.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: UpdateSettings,
        group: WeirProcessGroup,
    ) -> None:
        if optimizer in _COMPRESSED:
            raise ValueError("this optimizer's steps are compressed already: close() that first")
        self.settings = settings
        self._rule = rule_of(optimizer)
        self._model, self._optimizer, self._group = unwrapped(model), optimizer, group
        self._parameters = parameters_of(self._model, optimizer)
        layout = UpdateLayout(list(self._parameters), [one.shape for one in self._parameters.values()])
        self._stage = UpdateStage(layout, settings, self._rule, group.size())
        self._clock = StepClock(settings.sample_whole_steps, layout.values, group.collectives.all_reduce)
        self._own: torch.Tensor | None = None  # this worker's weights, while the model is at the shared point
        self._loaded = False  # since the last step
        self._hidden: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        self._submit("begin", self._begin).wait()
        _COMPRESSED.add(optimizer)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    @property
    def steps(self) -> int:
        """Return how many steps were made."""
        return self._stage.steps

    @property
    def share(self) -> float:
        """Return which share of the values the last step has sent."""
        return self._stage.share

    @property
    def norm(self) -> float | None:
        """Mean gradient's norm at the last step, before it was clipped; None without
        ``clip_norm``.
        """
        return self._stage.norm

    @property
    def timing(self) -> Timing | None:
        """Return how long a step takes, and a sum of whole gradients; None before some steps were timed.

        Worker 0 logs a warning where compressed steps save no time.
        """
        return self._clock.timing

    def harm(self, name: str | None = None) -> Harm:
        """Return the harm of the last step on this worker. Nothing is sent for it.

        Args:
            name: A parameter, as ``named_parameters`` names it; None: all together.

        Returns:
            Norms, cosine and ages; ``as_dict()`` is for loggers.

        Raises:
            ValueError: There is no such parameter.
        """
        return self._stage.harm(None if name is None else self._stage.layout.names.index(name))

    def pending(self, name: str) -> torch.Tensor:
        """Return the updates that this worker has applied and not yet delivered.

        Args:
            name: A parameter, as ``named_parameters`` names it.

        Returns:
            A tensor of the parameter's shape.

        Raises:
            ValueError: There is no such parameter.
        """
        index = self._stage.layout.names.index(name)
        parameter = self._parameters[name].detach()
        shared = self._stage.layout.part(self._stage.shared, index)
        return parameter.cpu() - shared.view(parameter.shape)

    @contextlib.contextmanager
    def shared_point(self) -> Iterator[torch.nn.Module]:
        """Yield the model at the shared point, the same on all workers: to evaluate it, or to save it.

        After the ``with`` block the weights are this worker's own again, bit for bit. No step may be made
        inside.
        """
        self._own = self._weights()
        self._to_model(self._stage.shared)
        try:
            yield self._model
        finally:
            own, self._own = self._own, None
            self._to_model(own)

    def finish(self) -> None:
        """Deliver all that is pending, at its full width; then all workers have the same weights.

        Floating-point buffers, such as the statistics of batch normalisation, become their mean, others
        worker 0's. To be called on all workers, at the end or in the middle.
        """
        self._refuse_swapped()
        self._submit("finish", self._finish).wait()

    def close(self) -> None:
        """Let the optimizer make its own steps again, from no state. What is pending stays."""
        for hook in self._hooks:
            hook.remove()
        _COMPRESSED.discard(self._optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's state, to go on bit for bit: save it on every rank.

        It holds the shared point and this worker's weights, of which the difference is pending, beside the
        optimizer's moments. Rates are in the optimizer's own state, as ever.
        """
        self._refuse_swapped()
        return {**self._stage.state_dict(), "weights": self._weights()}

    def load_state_dict(self, state: dict[str, Any], *, joins: bool = False) -> None:
        """Go on from a state, weights included; in a group of as many workers bit for bit.

        In a group of other workers, each that stays loads its own state. Updates that a worker had pending
        when it left are lost: call ``finish()`` before, if it can be. The next step checks that all workers
        are at one shared point.

        Args:
            state: This rank's state.
            joins: The state is another worker's, and this one is new: it begins at the shared point, with
                that worker's moments, and nothing pending.

        Raises:
            ValueError: The state is of other parameters or other settings.
        """
        self._refuse_swapped()
        self._stage.load_state_dict(state)
        self._to_model(state["shared"] if joins else state["weights"])
        self._loaded = True

    # What the optimizer calls.

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Make the step, and hide the gradients from the optimizer, which then has nothing to do."""
        with self._group.issuing():
            if any(value is not None for value in (*args[1:], *kwargs.values())):
                raise TypeError("step() takes no closure with weir.torch.compress: gradients come before it")
            self._refuse_swapped()
            options = options_of(optimizer, self._parameters, self._rule)
            gradients = [one.grad for one in self._parameters.values()]
            for name, gradient in zip(self._parameters, gradients, strict=True):
                if gradient is not None and gradient.is_sparse:
                    raise TypeError(
                        f"{name} has a sparse gradient (sparse=True in an Embedding): make it dense"
                    )
            # If these differed, the shared point would differ.
            agreed: list[Hashable] = [zlib.crc32(repr(options).encode())]
            if self._loaded:
                agreed += [self.steps, self.share, zlib.crc32(byte_view(self._stage.shared).data)]
            work = self._submit("step", partial(self._step, gradients, options), *agreed)
        work.wait()
        self._loaded = False
        self._hidden = [(one, one.grad) for one in self._parameters.values() if one.grad is not None]
        for parameter, _ in self._hidden:
            parameter.grad = None

    def _after_step(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """Show the gradients again."""
        for parameter, gradient in self._hidden:
            parameter.grad = gradient
        self._hidden = []

    # What runs on the group's thread.

    def _submit(self, what: str, work: Callable[[], None], *facts: Hashable) -> QueuedWork:
        """Queue ``work`` as an operation of the group, all of whose ranks have the same ``facts``."""
        names, sizes = tuple(self._parameters), self._stage.layout.sizes
        words = (what, f"{self._stage.layout.values} parameters", str(self.settings))
        call = Call(_NAME, (what, self._rule, self.settings, names, sizes, *facts), words)
        run = partial(self._group.connection.run_call, call, work)
        return self._group.submit(run, devices=devices_of(list(self._parameters.values())))

    def _begin(self) -> None:
        broadcast_from_first(self._group.collectives, (*self._model.parameters(), *self._model.buffers()))
        self._stage.begin_from(list(self._parameters.values()))

    def _step(self, gradients: list[torch.Tensor | None], options: dict[str, list[float]]) -> None:
        numbers = {name: torch.tensor(each, dtype=torch.float64) for name, each in options.items()}
        given = [None if one is None else _in_main_memory(one) for one in gradients]
        known = self._clock.timing
        with self._in_main_memory() as weights, self._clock.step(self._group.connection):
            self._stage.step(self._group.connection, weights, given, numbers)
        found = self._clock.timing
        if known is None and found is not None and not found.pays and self._group.rank() == 0:
            _log.warning("%s: %s; compressed updates save bytes here, but no time", _NAME, found)

    def _finish(self) -> None:
        with self._in_main_memory() as weights:
            self._stage.finish(self._group.connection, weights)
        unite_buffers(self._group.collectives, self._model)

    # The model's weights.

    @contextlib.contextmanager
    def _in_main_memory(self) -> Iterator[list[torch.Tensor]]:
        """Yield the parameters' memory, to be overwritten; of others a copy, which is written back."""
        with torch.no_grad():
            parameters = list(self._parameters.values())
            memory = [_in_main_memory(one) for one in parameters]
            try:
                yield memory
            finally:
                for parameter, own in zip(parameters, memory, strict=True):
                    if parameter.data_ptr() != own.data_ptr():
                        parameter.copy_(own)
                torch.autograd.graph.increment_version(parameters)

    def _weights(self) -> torch.Tensor:
        """Return a copy of this worker's weights, in rows."""
        return self._stage.layout.gather(list(self._parameters.values()), self._stage.layout.empty())

    def _to_model(self, rows: torch.Tensor) -> None:
        with torch.no_grad():
            self._stage.layout.scatter(rows, list(self._parameters.values()))

    def _refuse_swapped(self) -> None:
        if self._own is not None:
            raise RuntimeError("the model is at the shared point: leave shared_point() first")


def _in_main_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as C reads it: its own memory, or a copy."""
    return tensor.detach().cpu().contiguous()


def compress(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    process_group: dist.ProcessGroup | None = None,
    bits: ValueBits = 1,
    share: float = 1.0,
    most_pending: float | None = None,
    sample_share: float = 0.06,
    sample_bits: SampleBits = 4,
    sample_whole_steps: int = 40,
    clip_norm: float | None = None,
    seed: int = 0,
) -> CompressedUpdates:
    """Let an optimizer's steps be compressed: what it applies is sent, in one bit a value, not gradients.

    Each worker makes the step of its own gradient at once, in its own weights. What no sum has delivered yet
    stays there, so the next gradient is computed ahead of the wire. Adam and AdamW divide by the second
    moments of the mean gradient, which samples tell to all. See docs/guides/compress.md.

    The model's weights are this worker's own. Where all workers need the same, evaluate or save the model
    within ``shared_point()``, and call ``finish()`` at the end. Gradients are dense; parameters are float32,
    under autocast as well; a GradScaler does not fit, since it skips steps on one worker alone.

    *Clipping.* ``clip_grad_norm_`` before ``step()`` clips this worker's own gradient, whose norm is larger
    than that of the mean. ``clip_norm`` clips all workers' gradients by the one factor that clips their mean,
    whose norm the samples tell. Use one of them.

    Args:
        model: the same on every rank. Worker 0's weights go to all. Of a DistributedDataParallel, the module
            inside it is trained, and its own summing of gradients ends.
        optimizer: torch's SGD, Adam or AdamW, without amsgrad and before its first step. Its options are read
            at each step, so schedules work as ever. Its own state stays empty.
        process_group: a "weir" group, by default the default one.
        bits: of a value on its way up: 1, or fixed point of 8, 16 or 32.
        share: of the values that are sent at a step, in rotation; 1: all.
        most_pending: a bound of harm: steps of a worker's own that may wait, as ``harm().pending`` counts
            them. While more do, on average over the workers, steps send a larger share than ``share``, at
            most all. None: the share stays.
        sample_share: of the mean gradient, sampled at a step, for Adam's second moments and for clipping.
        sample_bits: of these: 4, or 32.
        sample_whole_steps: at this many first steps all of the mean gradient is sampled.
        clip_norm: the norm that the mean gradient is clipped to; None: it is not.
        seed: of rotations and rounding, the same on all ranks.

    Returns:
        The compressed steps: ``optimizer.step()`` makes them from now on.

    Raises:
        TypeError: another optimizer, parameters that are not float32, or a group of another backend.
        ValueError: a setting out of range, or an optimizer that has made steps, or whose steps are compressed
            already.

    Example::

        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        compressed = weir.torch.compress(model, optimizer, clip_norm=1.0)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
        compressed.finish()
    """
    settings = UpdateSettings(
        bits, share, sample_share, sample_bits, sample_whole_steps, clip_norm, seed, most_pending
    )
    return CompressedUpdates(model, optimizer, settings, weir_group(process_group, _NAME))
