# SPDX-License-Identifier: Apache-2.0
"""Ways to train that take the place of the optimizer's step: each worker has gradients of its own.

A way is a function of model, optimizer, process group and settings that returns a ``Stepper``. ``WAYS`` has
them by the names of their methods, and ``StepperExchange`` trains with any of them.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from weir.host_agent.torch.compress import CompressedUpdates, compress
from weir.host_agent.torch.outer_step import OuterStep
from weir.host_agent.torch.process_group import WeirProcessGroup
from weir.train.backends import Exchange, WeirMeter
from weir.train.config import OUTER_STEPS, TrainConfig
from weir.train.messages import Sent, WireCounters
from weir.train.task import average_buffers
from weir.train.wirebytes import Meter, TcpMeter


class Stepper(ABC):
    """The step of one worker of a group.

    Attributes:
        in_step: replicas are equal after every step, not after ``finish`` alone.
        meter: counts what it sends; None: all that the group sends.
        density: share of the values that were sent in the last step.
    """

    in_step = False
    meter: Meter | None = None
    density = 1.0

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup, config: TrainConfig
    ) -> None:
        self.model, self.optimizer, self.group, self.config = model, optimizer, group, config

    @abstractmethod
    def step(self) -> None:
        """Make a step of this worker's gradients, and send what is sent of it."""

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Make every worker's model the one that all would end with, while the block runs."""
        with _kept(self.model):
            self.finish()
            yield

    @abstractmethod
    def finish(self) -> None:
        """Make the replicas equal for good."""

    def state_dict(self) -> dict[str, Any]:
        """Return what this worker keeps between steps beside model and optimizer."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 may do nothing
        """Go on from what ``state_dict`` gave."""


class StepperExchange(Exchange):
    """Training with a stepper; DDP sums nothing."""

    steps = True

    def __init__(self, way: "Way", ddp: DistributedDataParallel, config: TrainConfig) -> None:
        ddp.require_backward_grad_sync = False  # as under ``no_sync``
        self._way, self._ddp, self._config = way, ddp, config

    def begin(self, optimizer: Optimizer) -> None:
        """Make the stepper."""
        group = self._ddp.process_group
        self._stepper = self._way(self._ddp.module, optimizer, group, self._config)
        self.in_step = self._stepper.in_step
        of_group = WeirMeter([group.connection]) if isinstance(group, WeirProcessGroup) else TcpMeter()
        self.meter = self._stepper.meter or of_group

    def stepped(self) -> None:
        """Clip this worker's own gradient, and step."""
        if (limit := self._config.max_norm) is not None:
            clip_grad_norm_(self._ddp.parameters(), limit)
        self._stepper.step()

    @contextlib.contextmanager
    def measured(self, model: nn.Module) -> Iterator[None]:
        """Give the model what all share while the block runs."""
        with self._stepper.shared():
            yield

    def finish(self, batches: Iterable[Tensor]) -> None:
        """Make the replicas equal."""
        self._stepper.finish()

    def sent(self) -> Sent:
        """Return the share of the values that the last step sent."""
        return Sent(density=self._stepper.density)

    def state_dict(self) -> dict[str, Any]:
        """Return what the stepper keeps."""
        return self._stepper.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` gave."""
        self._stepper.load_state_dict(state)


class _Nothing:
    """The meter of who sends nothing."""

    source = "nothing is sent"

    def read(self) -> WireCounters:
        return WireCounters()


class Alone(Stepper):
    """Every worker by itself; the first one's model is what is measured. The floor of all methods."""

    density = 0.0
    meter = _Nothing()

    def step(self) -> None:
        """Make the optimizer's step."""
        self.optimizer.step()

    def finish(self) -> None:
        """Give all workers the first one's model."""
        for values in _values(self.model):
            dist.broadcast(values, 0, group=self.group)


class LocalSteps(Stepper):
    """Steps of each worker's own; models are averaged every ``local_steps`` steps.

    Reference: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019.
    """

    _done = 0

    def step(self) -> None:
        """Make the optimizer's step; average the models if it is time."""
        self.optimizer.step()
        self._done += 1
        due = self._done % self.config.local_steps == 0
        self.density = float(due)
        if due:
            self.finish()

    def finish(self) -> None:
        """Give all workers the mean of the models."""
        found = _values(self.model)
        flat = torch.cat([values.flatten() for values in found]) / self.group.size()
        dist.all_reduce(flat, group=self.group)
        for values, part in zip(found, torch.split(flat, [values.numel() for values in found]), strict=True):
            values.copy_(part.view_as(values))


class InsideOptimizer(Stepper):
    """Steps of the optimizer, to which a part of ``weir.torch`` has added its own."""

    _added: CompressedUpdates | OuterStep

    def step(self) -> None:
        """Make the optimizer's step, and what belongs to it."""
        self.optimizer.step()

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Show the shared point while the block runs; floating-point buffers become their mean."""
        average_buffers(self.model)
        with self._added.shared_point():
            yield

    def finish(self) -> None:
        """Give all workers the same model."""
        self._added.finish()

    def state_dict(self) -> dict[str, Any]:
        """Return the shared point, and what is this worker's own."""
        return self._added.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` gave, bit for bit."""
        self._added.load_state_dict(state)


class Compressed(InsideOptimizer):
    """The optimizer's updates, compressed: ``weir.torch.compress``."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup, config: TrainConfig
    ) -> None:
        super().__init__(model, optimizer, group, config)
        self._added = self._updates = compress(
            model,
            optimizer,
            process_group=group,
            bits=config.update_bits,
            share=config.update_share,
            most_pending=config.update_most_pending,
            sample_share=config.update_sample_share,
            seed=config.seed,
        )

    def step(self) -> None:
        """Make the optimizer's step, and note the share of the values that it has sent."""
        super().step()
        self.density = self._updates.share


class Outer(InsideOptimizer):
    """Outer steps: ``weir.torch.OuterStep``."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup, config: TrainConfig
    ) -> None:
        super().__init__(model, optimizer, group, config)
        every = config.outer_steps or OUTER_STEPS
        self.density = config.outer_density / every  # mean of all steps
        self._added = OuterStep(
            model,
            optimizer,
            every=every,
            method=config.outer_method,
            density=config.outer_density,
            bits=config.outer_bits,
            outer_rate=config.outer_rate,
            outer_momentum=config.outer_momentum,
            decay=config.outer_decay,
            ahead=config.outer_ahead,
            overlap=config.outer_overlap,
            process_group=group,
            seed=config.seed,
        )


def _values(model: nn.Module) -> list[Tensor]:
    """Return a model's parameters and floating-point buffers."""
    return [
        values.detach() for values in (*model.parameters(), *model.buffers()) if values.is_floating_point()
    ]


@contextlib.contextmanager
def _kept(model: nn.Module) -> Iterator[None]:
    """Undo all changes of a model's values that are made in the block."""
    before = [values.clone() for values in _values(model)]
    yield
    for values, old in zip(_values(model), before, strict=True):
        values.copy_(old)


Way = Callable[[nn.Module, Optimizer, dist.ProcessGroup, TrainConfig], Stepper]

WAYS: Final[dict[str, Way]] = {
    "alone": Alone,
    "gloo-local": LocalSteps,
    "compress": Compressed,
    "outer": Outer,
}
"""Ways that take the place of the optimizer's step, by the names of their methods."""
