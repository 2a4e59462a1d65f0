# SPDX-License-Identifier: Apache-2.0
"""The ways to exchange a run's gradients: a method over the switch, or plain Gloo for reference."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from weir.train.config import TrainConfig
from weir.train.hooks import BucketHook
from weir.train.messages import Delivery, Sent, WireCounters
from weir.train.task import average_buffers
from weir.train.wirebytes import Meter, TcpMeter

if TYPE_CHECKING:
    from weir.host_agent.torch.step_stats import StepStats


class Exchange(ABC):
    """A way for replicas to tell each other their gradients, or parameters, and what that costs.

    hook, state: the communication hook to register, if any, and its state. meter: counts its traffic.
    in_step: the replicas are equal after every step, not after the last one alone. steps: ``stepped`` makes
    the optimizer's step, too.
    """

    hook: BucketHook | None = None
    state: Any = None
    meter: Meter
    in_step = True
    steps = False

    def begin(self, optimizer: Optimizer) -> None:  # noqa: B027 may do nothing
        """Do what must be done before the first step. optimizer: as it is then."""

    def stepped(self) -> None:  # noqa: B027 may do nothing
        """Do what must be done after each of the optimizer's steps."""

    def epoch_ended(self, left: int) -> None:  # noqa: B027 may do nothing
        """Do what must be done after each epoch; ``left``: how many there are to come."""

    def finish(self, batches: Iterable[Tensor]) -> None:  # noqa: B027 may do nothing
        """Make the replicas equal when all is done. batches: inputs of this worker's last epoch."""

    @contextlib.contextmanager
    def measured(self, model: nn.Module) -> Iterator[None]:
        """Make every rank's ``model`` the one to be evaluated while the block runs."""
        average_buffers(model)
        yield

    @abstractmethod
    def sent(self) -> Sent:
        """Return what of this worker's gradient was sent in the last step."""

    def delivery(self) -> Delivery:
        """Return how this worker's packets fared in the last step."""
        return Delivery()

    def state_dict(self) -> dict[str, Any]:
        """Return what this worker keeps between steps, for a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 may do nothing
        """Go on from what ``state_dict`` gave."""


class WeirMeter:
    """The packets of Weir groups, as their transports count them; retransmissions are among them."""

    source = "measured: frames of Weir's own transport, headers from Ethernet up"

    def __init__(self, connections: Sequence[Any]) -> None:
        self._connections = connections

    def read(self) -> WireCounters:
        """Return the totals of all reductions so far."""
        return sum((WireCounters.of(connection.stats) for connection in self._connections), WireCounters())


class GlooExchange(Exchange):
    """All values are sent, by one of torch's hooks: as they are, or as halves of floats."""

    def __init__(self, hook: BucketHook = allreduce_hook) -> None:
        self.hook = hook
        self.meter = TcpMeter()

    def sent(self) -> Sent:
        """Return that everything was sent."""
        return Sent()


class SparseExchange(Exchange):
    """Weir's own all-reduce: a sparsifier, error feedback, maybe a loss budget."""

    def __init__(self, ddp: DistributedDataParallel, config: TrainConfig) -> None:
        import weir.torch
        from weir.host_agent.compression.loss_policy import LossPolicy

        self.hook = weir.torch.hook
        self.state = weir.torch.HookState(
            ddp,
            sparsifier=config.method,
            encoding=config.encoding,
            density=config.density,
            threshold=config.threshold,
            block=config.block,
            loss_policy=LossPolicy.of(config.loss_policy or config.loss_budget),
            warmup_steps=config.warmup_steps,
            exclude=config.exclude,
            lane_bits=config.lane_bits,
            lane_error=config.lane_error,
            seed=config.seed,
        )
        self.meter = WeirMeter([self.state.group.connection])

    def sent(self) -> Sent:
        """Return what the hook counted in the last step."""
        return sent_of(self.state.last_step, self.state.exchanger.gradients.sparsifier.fills_union)

    def delivery(self) -> Delivery:
        """Return what the hook counted in the last step."""
        return delivery_of(self.state.last_step)

    def state_dict(self) -> dict[str, Any]:
        """Return residuals, and what the sparsifier and the encoding know."""
        found: dict[str, Any] = self.state.state_dict()
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` gave."""
        self.state.load_state_dict(state)


def sent_of(last: "StepStats | None", fills_union: bool) -> Sent:
    """Return what of a gradient was sent in a step. fills_union: of the sparsifier."""
    assert last is not None, "a step was taken"
    values = last.union_elements if fills_union else last.sent_elements
    return Sent(
        density=values / last.elements,
        blocks=last.blocks_sent,
        blocks_skipped=last.blocks - last.blocks_sent,
        chosen=last.sent_elements,
        values=values,
        union=last.union_elements,
        selection_s=last.selection_seconds,
    )


def delivery_of(last: "StepStats | None") -> Delivery:
    """Return how packets fared in a step."""
    assert last is not None, "a step was taken"
    return Delivery(last.counters, last.entered.lanes, last.missing, last.budget, last.reduces)
