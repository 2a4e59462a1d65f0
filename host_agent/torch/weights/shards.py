# SPDX-License-Identifier: Apache-2.0
"""Shards of weights: the rows that each rank of an FSDP2 job holds and publishes, and those of a whole model.

Parameters are cut by rows, as ``torch.chunk`` cuts them and FSDP2 does. All other tensors belong to shard 0.
Each shard is a publication of its own, with a stamp: random bytes that the ranks of one job share. So an
engine never joins shards of two jobs.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeGuard

import torch
import torch.distributed as dist

from weir.host_agent.torch.weights.members import WeightsError, tensors_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Model = torch.nn.Module | Mapping[str, torch.Tensor]

STAMP: Final = "weir.shards"
"""Name of the stamp among a shard's tensors; it comes first."""

_STAMP_BYTES: Final = 16


@dataclass(frozen=True)
class OwnShard:
    """A rank's shard: its tensors, with the stamp if there are several, and its number among the shards."""

    tensors: dict[str, torch.Tensor]
    shard: int
    shards: int


def shard_name(name: str, shard: int, shards: int) -> str:
    """Return the name of a shard's publication."""
    return name if shards == 1 else f"{name}[{shard} of {shards}]"


def rows_of(rows: int, shard: int, shards: int) -> tuple[int, int]:
    """Return the first of a shard's rows, and the first one after them."""
    each = -(-rows // shards)
    return min(rows, shard * each), min(rows, (shard + 1) * each)


def cut(model: Model, shard: int, shards: int) -> dict[str, torch.Tensor]:
    """Return a shard of a whole model's weights where they are, with a stamp that is still zero."""
    parameters = _parameters(model)
    found = {STAMP: torch.zeros(_STAMP_BYTES, dtype=torch.uint8)}
    for name, tensor in tensors_of(model).items():
        found |= _part(name, tensor, shard, shards, cut=name in parameters)
    return _not_empty(found, shard)


def own_shard(model: Model) -> OwnShard:
    """Return this rank's shard of a model that FSDP2 has sharded; of a whole model, its only one.

    All ranks call it at the same time: rank 0 draws the stamp.

    Raises:
        WeightsError: the model is sharded in another way.
    """
    if isinstance(model, torch.nn.Module):
        _refuse_fsdp1(model)
    state = model.state_dict() if isinstance(model, torch.nn.Module) else model
    sharded = {name: tensor for name, tensor in state.items() if _is_distributed(tensor)}
    if not sharded:
        return OwnShard(tensors_of(model), 0, 1)
    mesh = next(iter(sharded.values())).device_mesh
    for name, tensor in sharded.items():
        by_rows = len(tensor.placements) == 1 and tensor.placements[0].is_shard(0)
        if not by_rows or tensor.device_mesh != mesh:
            raise WeightsError(
                f"{name} is distributed as {tensor.placements} over {tensor.device_mesh}: weights are "
                "published by shards of rows over one mesh of one dimension, as fully_shard makes them"
            )
    shard, shards = mesh.get_local_rank(), mesh.size()
    parameters = _parameters(model)
    found = {} if shards == 1 else {STAMP: _shared_stamp(mesh.get_group())}
    for name, whole in state.items():
        if name in sharded:
            found |= _local(name, sharded[name], shard, shards)
        else:  # the same on all ranks
            found |= _part(name, whole, shard, shards, cut=name in parameters)
    return OwnShard(_not_empty(tensors_of(found), shard), shard, shards)


def _part(name: str, tensor: torch.Tensor, shard: int, shards: int, *, cut: bool) -> dict[str, torch.Tensor]:
    """Return a shard's part of a whole tensor, by its name; nothing if there is none."""
    if not cut or not tensor.dim():
        return {name: tensor} if shard == 0 else {}
    first, after = rows_of(tensor.shape[0], shard, shards)
    return {_named(name, first, after, tensor.shape[0]): tensor[first:after]} if after > first else {}


def _local(name: str, tensor: "DTensor", shard: int, shards: int) -> dict[str, torch.Tensor]:
    """Return this rank's rows of a sharded tensor, by their name; nothing if there are none."""
    first, after = rows_of(tensor.shape[0], shard, shards)
    own = tensor.to_local()
    if own.shape[0] != after - first:
        raise WeightsError(f"{name} has {own.shape[0]} rows on rank {shard}, not {after - first}")
    return {_named(name, first, after, tensor.shape[0]): own} if after > first else {}


def _named(name: str, first: int, after: int, rows: int) -> str:
    return name if after - first == rows else f"{name}[{first}:{after}]"


def _is_distributed(tensor: object) -> "TypeGuard[DTensor]":
    """Return whether this is a DTensor. The module of that class takes long to import, so this does not."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _parameters(model: Model) -> set[str]:
    """Return the names of tensors that are cut: of a mapping, all."""
    if isinstance(model, torch.nn.Module):
        return {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return set(model)


def _not_empty(tensors: dict[str, torch.Tensor], shard: int) -> dict[str, torch.Tensor]:
    if not tensors.keys() - {STAMP}:
        raise WeightsError(
            f"shard {shard} has no rows of any parameter: the model is too small for its shards"
        )
    return tensors


def _shared_stamp(group: dist.ProcessGroup) -> torch.Tensor:
    """Return random bytes, the same on all ranks."""
    drawn: list[object] = [list(os.urandom(_STAMP_BYTES))]
    dist.broadcast_object_list(drawn, dist.get_global_rank(group, 0), group)
    return torch.tensor(drawn[0], dtype=torch.uint8)


def _refuse_fsdp1(model: torch.nn.Module) -> None:
    """FSDP1's state has copies of the weights, which no optimizer changes."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise WeightsError("FullyShardedDataParallel (FSDP1) cannot publish; fully_shard (FSDP2) can")
