# SPDX-License-Identifier: Apache-2.0
"""Torch's own hooks to sum gradients over Gloo: peers of Weir's methods.

This module must not postpone the evaluation of annotations: DDP looks at a hook's.
"""

from typing import Final

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from weir.train.backends import Exchange, GlooExchange
from weir.train.config import TrainConfig
from weir.train.hooks import BucketHook
from weir.train.messages import Sent
from weir.train.wirebytes import TcpMeter

HOOKS: Final[dict[str, BucketHook]] = {
    "gloo": allreduce_hook,
    "gloo-fp16": fp16_compress_hook,
    "gloo-bf16": bf16_compress_hook,
}
"""Hooks whose state is the process group, by the names of their methods."""

ONE_BUCKET_MB: Final = 4096
"""The size of DDP's buckets with torch's PowerSGD over Gloo.

That hook sums once more when a sum is there, and Gloo's threads wait for it: with several buckets all of them
would, and ranks would sum in different orders.
"""

DENSE_STEPS: Final = 2
"""Steps of PowerSGD that send all, which takes no fewer: DDP makes its buckets again after the first."""

_EPSILON: Final = 1e-8  # a column of zeros is not divided by zero


def powersgd_state(group: dist.ProcessGroup | None, rank: int, seed: int = 0) -> PowerSGDState:
    """Return the state of torch's PowerSGD hook; warm start and error feedback are on, as by default."""
    return PowerSGDState(
        group,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=DENSE_STEPS,
        orthogonalization_epsilon=_EPSILON,
        random_seed=seed,
    )


class SentCounter:
    """Counts what a PowerSGD hook has sent, step by step."""

    def __init__(self, state: PowerSGDState) -> None:
        self._state, self._counted = state, (0, 0)

    def take(self) -> Sent:
        """Return the values in thin matrices and those sent whole, against all, since the last call."""
        _, before, after = self._state.compression_stats()  # type: ignore[no-untyped-call]
        elements, sent = before - self._counted[0], after - self._counted[1]
        self._counted = before, after
        return Sent(density=sent / elements if elements else 1.0)


class PowerSgdExchange(Exchange):
    """torch's PowerSGD hook over Gloo."""

    def __init__(self, config: TrainConfig) -> None:
        self.hook = powerSGD_hook
        self.state = powersgd_state(None, config.powersgd_rank, config.seed)
        self.meter = TcpMeter()
        self._sent = SentCounter(self.state)

    def sent(self) -> Sent:
        """Return the share of the values that was sent."""
        return self._sent.take()


def peer_exchange(config: TrainConfig) -> Exchange:
    """Return the exchange of a peer that is a hook; the default group is Gloo's."""
    if config.method == "gloo-powersgd":
        return PowerSgdExchange(config)
    return GlooExchange(HOOKS[config.method])
