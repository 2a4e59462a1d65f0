# SPDX-License-Identifier: Apache-2.0
"""The choice among the ways to exchange a run's gradients."""

from torch.nn.parallel import DistributedDataParallel

from weir.methods import find_method
from weir.train.backends import Exchange, GlooExchange, SparseExchange
from weir.train.messages import WorkerSpec


def make_exchange(spec: WorkerSpec, ddp: DistributedDataParallel) -> Exchange:
    """Return what a backend's process group, which must be initialized, is to be used for."""
    config = spec.config
    if spec.backend == "gloo":
        return GlooExchange()
    if config.mode == "ps":
        from weir.train.servers import ServersExchange, rendezvous

        return ServersExchange(ddp, config, rendezvous(spec))
    match find_method(config.method).kind:
        case "sparsifier":
            return SparseExchange(ddp, config)
        case "low rank":
            from weir.train.low_rank import LowRankExchange

            return LowRankExchange(ddp, config)
        case "parameter averaging":
            from weir.train.exchange import AveragingExchange

            return AveragingExchange(ddp, config)
