# SPDX-License-Identifier: Apache-2.0
"""PowerSGD, as torch has it, its sums made by the switch: a peer to compare with.

This module must not postpone the evaluation of annotations: DDP looks at the hook's.

Reference: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", NeurIPS 2019; torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.
"""

from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

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
    """

    def __init__(self, group: WeirProcessGroup) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self._collectives = group.collectives

    def allreduce(  # type: ignore[override]
        self, tensors: list[torch.Tensor], opts: Any = None
    ) -> QueuedWork:
        """Overwrite each tensor by its sum over all ranks, before it returns."""

        def run() -> list[torch.Tensor]:
            for tensor in tensors:
                self._collectives.all_reduce(tensor)
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
        self.state = powersgd_state(_GroupInside(group), config.powersgd_rank, config.seed)
        self.meter = WeirMeter([group.connection])
        self._sent = SentCounter(self.state)

    def hook(self, state: PowerSGDState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Run torch's hook, from beginning to end in the group's thread, beside the backward pass."""

        def run() -> torch.Tensor:
            return powerSGD_hook(state, bucket).wait()

        return self._group.submit(run).get_future()

    def sent(self) -> Sent:
        """Return the share of the values that was sent."""
        return self._sent.take()
