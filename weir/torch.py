# SPDX-License-Identifier: Apache-2.0
"""Weir for torch: the torch.distributed backend "weir", its options, and the hooks and servers that use it.

Importing this module registers the backend. If Weir is installed, ``import torch`` has already registered it,
through an entry point that imports this module when the first group is made.

Example::

    import weir.torch

    dist.init_process_group("weir")
    model = DistributedDataParallel(model)
    state = weir.torch.HookState(model, sparsifier="dfs", density=0.05)  # optional: sparsify
    model.register_comm_hook(state, weir.torch.hook)

    compressed = weir.torch.compress(model, optimizer)  # or: updates in one bit a value instead of gradients
    outer = weir.torch.OuterStep(model, optimizer, every=20)  # or: own steps, of which 20 are summed at once
    layers = weir.torch.LayersFirst(model, optimizer)  # or: the next forward pass begins before all is summed
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import Store

from weir.host_agent.collectives.non_finite import NonFiniteError
from weir.host_agent.compression.loss_policy import LossPolicy, LossPolicyError
from weir.host_agent.compression.sparsifiers import Span, Sparsifier, SparsifierOptions, sparsifier_names
from weir.host_agent.compression.sparsifiers import register as register_sparsifier
from weir.host_agent.torch.backend import GroupOptions
from weir.host_agent.torch.backend import group_from_store as _group_from_store
from weir.host_agent.torch.backend import register as _register_backend
from weir.host_agent.torch.compress import CompressedUpdates, compress
from weir.host_agent.torch.connection import GroupBrokenError
from weir.host_agent.torch.ds_sync import DsSync, NoSlotsError
from weir.host_agent.torch.hook import HookState, StepStats, hook
from weir.host_agent.torch.outer_step import OuterStep
from weir.host_agent.torch.overlap import LayersFirst
from weir.host_agent.torch.parameter_server import ParameterServer
from weir.host_agent.torch.parameter_server.job_group import register as _register_team
from weir.host_agent.torch.point_to_point import MessageError
from weir.host_agent.torch.process_group import WeirProcessGroup
from weir.host_agent.torch.weights import (
    JoinedSubscription,
    Publication,
    Subscription,
    WeightsError,
    publish,
    subscribe,
    weights_digest,
)

if TYPE_CHECKING:
    from weir.cluster import LocalCluster

__all__ = [
    "CompressedUpdates",
    "DsSync",
    "GroupBrokenError",
    "GroupOptions",
    "HookState",
    "JoinedSubscription",
    "LayersFirst",
    "LossPolicy",
    "LossPolicyError",
    "MessageError",
    "NoSlotsError",
    "NonFiniteError",
    "OuterStep",
    "ParameterServer",
    "Publication",
    "Span",
    "Sparsifier",
    "SparsifierOptions",
    "StepStats",
    "Subscription",
    "WeightsError",
    "WeirProcessGroup",
    "compress",
    "group_from_store",
    "hook",
    "publish",
    "register_sparsifier",
    "sparsifier_names",
    "subscribe",
    "weights_digest",
]


def group_from_store(
    store: Store,
    rank: int,
    size: int,
    *,
    timeout: timedelta = timedelta(minutes=30),
    options: GroupOptions | None = None,
    name: str = "from-store",
) -> WeirProcessGroup:
    """Make a process group of the processes that share a store. Blocks until all of them have called this.

    The group needs no default process group, and ``torch.distributed`` cannot translate ranks of the default
    group into ranks of this one. So pass ranks of this one:
    ``dist.broadcast(tensor, group_src=0, group=group)``.

    Args:
        store: the store that all processes of the group share. No other group may use its keys, so give each
            group a ``PrefixStore``.
        rank: rank of this process, from 0 to ``size - 1``.
        size: number of processes in the group.
        timeout: the longest wait for the other processes, and for progress in a reduction.
        options: options of the group; the same on all ranks.
        name: name of the group in messages and in the controller's list of jobs; the same on all ranks.

    Returns:
        The group. Call its ``shutdown()`` at the end, or ``abort()`` if other ranks may be gone.

    Raises:
        ValueError: ``rank`` is not between 0 and ``size - 1``.
        RendezvousError, AgentError, OSError: the group could not be made; the error says what is missing.

    Example::

        store = dist.TCPStore("10.0.0.1", 29400, is_master=rank == 0)
        group = weir.torch.group_from_store(dist.PrefixStore("step-7", store), rank, size)
        dist.all_reduce(tensor, group=group)
        group.shutdown()
    """
    return _group_from_store(_start_cluster, store, rank, size, timeout, options, name)


def _start_cluster(workers: int) -> "LocalCluster":
    """Start switch and controller."""
    from weir.cluster import LocalCluster

    cluster = LocalCluster(workers)
    cluster.start()
    return cluster


_register_backend(_start_cluster)
_register_team(_start_cluster)
