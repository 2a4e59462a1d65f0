# SPDX-License-Identifier: Apache-2.0
"""Replicas of a model that step by themselves: their group, one start for all, and one end."""

from collections.abc import Iterable

import torch
import torch.distributed as dist

from weir.host_agent.collectives.collectives import Collectives
from weir.host_agent.torch.process_group import WeirProcessGroup


def weir_group(group: dist.ProcessGroup | None, user: str, advice: str = "") -> WeirProcessGroup:
    """Return a group of the weir backend, by default the default group.

    Args:
        group: of any backend, or None.
        user: name of the part of Weir that needs the group, for the error.
        advice: end of the error, if there is more to say.

    Raises:
        TypeError: the group has another backend.
    """
    group = group or dist.distributed_c10d._get_default_group()
    if not isinstance(group, WeirProcessGroup):
        kind = type(group).__name__
        raise TypeError(f"{user} needs a process group of the weir backend, this one is a {kind}{advice}")
    return group


def trained_parameters(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that an optimizer trains by name: a tied one once, none that is frozen.

    Raises:
        ValueError: a parameter is none of the model's, or there is none to train.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    if strangers := trained - names.keys():
        raise ValueError(f"the optimizer has {len(strangers)} parameters that the model lacks")
    found = {name: one for one, name in names.items() if one in trained and one.requires_grad}
    if not found:
        raise ValueError("the optimizer has no parameters to train")
    return found


@torch.no_grad()
def broadcast_from_first(collectives: Collectives, tensors: Iterable[torch.Tensor]) -> None:
    """Give all ranks rank 0's tensors, on any device."""
    for tensor in tensors:
        host = tensor.detach().cpu().contiguous()
        collectives.broadcast(host, 0)
        tensor.copy_(host)


@torch.no_grad()
def unite_buffers(collectives: Collectives, model: torch.nn.Module) -> None:
    """Give all ranks the mean of floating-point buffers, and rank 0's other ones."""
    for buffer in model.buffers():
        if buffer.is_floating_point():
            host = buffer.detach().cpu().contiguous()
            collectives.all_reduce(host, dist.ReduceOp.AVG)
            buffer.copy_(host)
        else:
            broadcast_from_first(collectives, [buffer])
