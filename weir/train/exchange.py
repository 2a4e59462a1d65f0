# SPDX-License-Identifier: Apache-2.0
"""The choice among the ways to exchange a run's gradients."""

from torch.nn.parallel import DistributedDataParallel

from weir.methods import find_method
from weir.train.backends import Exchange, GlooExchange, SparseExchange
from weir.train.config import TrainConfig
from weir.train.spec import BackendName


def make_exchange(backend: BackendName, ddp: DistributedDataParallel, config: TrainConfig) -> Exchange:
    """Return what a backend's process group, which must be initialized, is to be used for."""
    if backend == "gloo":
        return GlooExchange()
    match find_method(config.method).kind:
        case "sparsifier":
            return SparseExchange(ddp, config)
        case "low rank":
            from weir.train.low_rank import LowRankExchange

            return LowRankExchange(ddp, config)
        case "parameter averaging":
            from weir.train.averaging import AveragingExchange

            return AveragingExchange(ddp, config)
