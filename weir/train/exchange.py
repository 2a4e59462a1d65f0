# SPDX-License-Identifier: Apache-2.0
"""The choice among the ways to exchange a run's gradients, and DS-Sync: a way without any.

With it each worker steps by itself, then averages parameters in a small group.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from weir.host_agent.torch.ds_sync import DsSync
from weir.methods import find_method
from weir.train.backends import Exchange, GlooExchange, SparseExchange, WeirMeter
from weir.train.config import TrainConfig
from weir.train.messages import Sent, WorkerSpec, backend_of
from weir.train.peers import peer_exchange
from weir.train.steppers import WAYS, StepperExchange


def make_exchange(spec: WorkerSpec, ddp: DistributedDataParallel) -> Exchange:
    """Return what a backend's process group, which must be initialized, is used for."""
    config = spec.config
    if spec.backend != backend_of(config):
        return GlooExchange()  # the reference
    if config.mode == "ps":
        from weir.train.servers import ServersExchange, rendezvous

        return ServersExchange(ddp, config, rendezvous(spec))
    if config.method in WAYS:
        return StepperExchange(WAYS[config.method], ddp, config)
    match find_method(config.method).kind:
        case "sparsifier":
            return SparseExchange(ddp, config)
        case "low rank":
            from weir.train.low_rank import LowRankExchange

            return LowRankExchange(ddp, config)
        case "parameter averaging":
            return AveragingExchange(ddp, config)
    return peer_exchange(config)


class AveragingExchange(Exchange):
    """Parameters averaged in groups that change; all replicas are equal after ``finish``, not before."""

    in_step = False

    def __init__(self, ddp: DistributedDataParallel, config: TrainConfig) -> None:
        self._averager = DsSync(ddp, group_size=config.group_size, seed=config.seed)
        self._collected_epochs = config.swa_epochs
        self.meter = WeirMeter(self._averager.connections)

    def stepped(self) -> None:
        """Make this round's average."""
        self._averager.step()

    @contextlib.contextmanager
    def measured(self, model: nn.Module) -> Iterator[None]:
        """Give the model the mean of all replicas while the block runs."""
        with self._averager.averaged():
            yield

    def epoch_ended(self, left: int) -> None:
        """Take the parameters after the last epochs into the final mean."""
        if left < self._collected_epochs:
            self._averager.collect()

    def finish(self, batches: Iterable[Tensor]) -> None:
        """Take the mean of all workers' parameters, and of those of the last epochs if so configured."""
        self._averager.finish(batches if self._collected_epochs else None)

    def state_dict(self) -> dict[str, Any]:
        """Return the averager's round, and the means that it collects."""
        return self._averager.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` gave."""
        self._averager.load_state_dict(state)

    def sent(self) -> Sent:
        """Return all parameters, every time."""
        return Sent()
