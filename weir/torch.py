# SPDX-License-Identifier: Apache-2.0
"""Weir for torch. Importing this module registers the torch.distributed backend "weir".

Example::

    import weir.torch

    dist.init_process_group("weir")
    model = DistributedDataParallel(model)
    state = weir.torch.HookState(model, sparsifier="topk-block", density=0.05)  # optional: sparsify
    model.register_comm_hook(state, weir.torch.hook)

    layers = weir.torch.LayersFirst(model, optimizer)  # or: the next forward pass begins before all is summed
"""

from typing import TYPE_CHECKING

from weir.host_agent.collectives.non_finite import NonFiniteError
from weir.host_agent.compression.loss_policy import LossPolicy, LossPolicyError
from weir.host_agent.compression.sparsifiers import Span, Sparsifier, SparsifierOptions, sparsifier_names
from weir.host_agent.compression.sparsifiers import register as register_sparsifier
from weir.host_agent.torch.backend import GroupOptions, WeirProcessGroup
from weir.host_agent.torch.backend import register as _register_backend
from weir.host_agent.torch.connection import GroupBrokenError
from weir.host_agent.torch.ds_sync import DsSync, NoSlotsError
from weir.host_agent.torch.hook import HookState, StepStats, hook
from weir.host_agent.torch.overlap import LayersFirst
from weir.host_agent.torch.parameter_server import ParameterServer, PlacedServers, Server
from weir.host_agent.torch.parameter_server.team import register as _register_team
from weir.host_agent.torch.point_to_point import MessageError

if TYPE_CHECKING:
    from weir.cluster import LocalCluster

__all__ = [
    "DsSync",
    "GroupBrokenError",
    "GroupOptions",
    "HookState",
    "LayersFirst",
    "LossPolicy",
    "LossPolicyError",
    "MessageError",
    "NoSlotsError",
    "NonFiniteError",
    "ParameterServer",
    "PlacedServers",
    "Server",
    "Span",
    "Sparsifier",
    "SparsifierOptions",
    "StepStats",
    "WeirProcessGroup",
    "hook",
    "register_sparsifier",
    "sparsifier_names",
]


def _start_cluster(workers: int) -> "LocalCluster":
    """Start switch and controller."""
    from weir.cluster import LocalCluster

    cluster = LocalCluster(workers)
    cluster.start()
    return cluster


_register_backend(_start_cluster)
_register_team(_start_cluster)
