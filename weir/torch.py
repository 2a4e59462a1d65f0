# SPDX-License-Identifier: Apache-2.0
"""Weir for torch. Importing this module registers the torch.distributed backend "weir".

Example::

    import weir.torch

    dist.init_process_group("weir")
    model = DistributedDataParallel(model)
    state = weir.torch.HookState(model, sparsifier="topk-block", density=0.05)  # optional: sparsify
    model.register_comm_hook(state, weir.torch.hook)
"""

from host_agent.comm_hook import HookState, StepStats, hook
from host_agent.connection import GroupBrokenError
from host_agent.ds_sync import DsSync, NoSlotsError
from host_agent.float_sum import NonFiniteError
from host_agent.loss_policy import LossPolicy, LossPolicyError
from host_agent.sparsifiers import Span, Sparsifier, SparsifierOptions, sparsifier_names
from host_agent.sparsifiers import register as register_sparsifier
from host_agent.torch_backend import GroupOptions, WeirProcessGroup
from host_agent.torch_backend import register as _register_backend

__all__ = [
    "DsSync",
    "GroupBrokenError",
    "GroupOptions",
    "HookState",
    "LossPolicy",
    "LossPolicyError",
    "NoSlotsError",
    "NonFiniteError",
    "Span",
    "Sparsifier",
    "SparsifierOptions",
    "StepStats",
    "WeirProcessGroup",
    "hook",
    "register_sparsifier",
    "sparsifier_names",
]

_register_backend()
