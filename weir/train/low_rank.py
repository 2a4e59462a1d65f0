# SPDX-License-Identifier: Apache-2.0
"""PowerSGD, as torch has it, its sums made by the switch, which can have narrow lanes.

All is torch's own: start, warm start, error feedback and orthogonalization. The thin matrices are linear in
the gradients, so the switch sums them as it sums gradients. Narrow lanes round the right factor, and with it
the product, which every worker subtracts from its own gradient: error feedback makes up for that. The left
factor is orthogonalized after it is summed, so that rounding turns it a little and takes nothing away.

This module must not postpone the evaluation of annotations: DDP looks at the hook's.

Reference: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", NeurIPS 2019; torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.
"""

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from weir.host_agent.collectives.packing import Precision
from weir.host_agent.torch.process_group import WeirProcessGroup
from weir.host_agent.torch.work import QueuedWork
from weir.host_agent.transport.operations import complete
from weir.train.backends import Exchange, WeirMeter
from weir.train.config import TrainConfig
from weir.train.messages import Sent
from weir.train.peers import SentCounter, powersgd_state


class _GroupInside(dist.ProcessGroup):
    """A Weir group for code that runs in that group's own thread: what it returns is done.

    torch's hook waits for one all-reduce within the callback of another, which that thread could not serve.
    Of a bucket it sums first what is sent whole, then the thin matrices.

    Args:
        group: whose thread runs the code.
        factors: the precision of the thin matrices.
    """

    def __init__(self, group: WeirProcessGroup, factors: Precision) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self._collectives, self._factors = group.collectives, factors
        self._sums = 0

    def begin(self) -> None:
        """Begin with a bucket."""
        self._sums = 0

    def allreduce(  # type: ignore[override]
        self, tensors: list[torch.Tensor], opts: Any = None
    ) -> QueuedWork:
        """Overwrite each tensor by its sum over all ranks, before it returns."""

        communicator = self._collectives.communicator
        usual = communicator.precision

        def run() -> list[torch.Tensor]:
            communicator.precision = self._factors if self._sums else usual
            try:
                for tensor in tensors:
                    self._collectives.all_reduce(tensor)
            finally:
                communicator.precision = usual
            self._sums += 1
            return tensors

        outcome: Future[list[torch.Tensor]] = Future()
        complete(outcome, run)
        return QueuedWork(outcome)


class LowRankExchange(Exchange):
    """Each matrix of the gradient is sent as a product of two thin ones; vectors are sent whole."""

    def __init__(self, ddp: DistributedDataParallel, config: TrainConfig) -> None:
        group = ddp.process_group
        assert isinstance(group, WeirProcessGroup)
        self._group = group
        usual = group.connection.precision
        factors = replace(usual, lane_bits=config.lane_bits or usual.lane_bits, lane_error=config.lane_error)
        self._inside = _GroupInside(group, factors)
        self.state = powersgd_state(self._inside, config.powersgd_rank, config.seed)
        self.meter = WeirMeter([group.connection])
        self._sent = SentCounter(self.state)

    def hook(self, state: PowerSGDState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Run torch's hook, from beginning to end in the group's thread, beside the backward pass."""

        def run() -> torch.Tensor:
            self._inside.begin()
            return powerSGD_hook(state, bucket).wait()

        return self._group.submit(run).get_future()

    def sent(self) -> Sent:
        """Return the share of the values that was sent."""
        return self._sent.take()
