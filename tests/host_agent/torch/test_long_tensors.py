# SPDX-License-Identifier: Apache-2.0
"""Collectives chunk by chunk through a process group, with tensors that are taken for those of a device."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import weir
import weir.torch
from tests.host_agent.torch.worlds import World, raising
from weir.cluster import LocalCluster
from weir.host_agent.collectives import chunks
from weir.host_agent.compression import transfer
from weir.host_agent.torch import device_vector, staging

SIZE = 2
HOSTS = 2 * SIZE
CHUNK = 1 << 15
LONG = 3 * CHUNK + 77


class Done:
    """An event of a device that is always done."""

    def synchronize(self) -> None:
        pass


@contextlib.contextmanager
def as_on_a_device() -> Iterator[list[str]]:
    """Take tensors in host memory for such on a device, of whose copies the list yielded takes notes."""
    log: list[str] = []

    def back(tensor: torch.Tensor, copy: torch.Tensor) -> None:
        log.append("back")
        tensor.copy_(copy)

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(chunks, "CHUNK_VALUES", CHUNK))
        for module in (device_vector, staging, transfer):
            stack.enter_context(
                patch.object(
                    module, "pinned_like", lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype)
                )
            )
        stack.enter_context(patch.object(device_vector, "to_device", back))
        stack.enter_context(patch.object(device_vector, "mark", lambda _device: Done()))
        stack.enter_context(patch.object(device_vector, "is_on_device", lambda _tensor: True))
        yield log


def values(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(-(2**31), 2**31 - 1, (count,), generator=generator).to(dtype)


def _mapped(tensors: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(tensors, torch.Tensor):
        return change(tensors)
    return [_mapped(part, change) for part in tensors]


def _flat(tensors: Any) -> Iterator[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        yield tensors
    else:
        for part in tensors:
            yield from _flat(part)


def same_in_chunks(call: Callable[..., Any], *tensors: Any) -> None:
    """Make a collective with whole tensors and chunk by chunk; results must have the same bits."""
    others = _mapped(tensors, lambda tensor: tensor.clone())
    call(*tensors)
    with as_on_a_device() as log:
        call(*others)
        assert not log or len(log) >= LONG // CHUNK  # nothing goes back in one piece
    for ours, theirs in zip(_flat(others), _flat(tensors), strict=True):
        assert torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


def every_collective(dtype: torch.dtype) -> None:
    own, whole = values(dtype, LONG), values(dtype, SIZE * LONG, 1)
    parts, outputs = list(torch.chunk(whole, SIZE)), [torch.zeros_like(own) for _ in range(SIZE)]
    same_in_chunks(dist.all_reduce, own.clone())
    if dtype.is_floating_point:
        spoilt = own.clone()
        spoilt[[7, CHUNK - 1, CHUNK, LONG - 1][dist.get_rank() :]] = (
            torch.nan if dist.get_rank() else torch.inf
        )
        same_in_chunks(dist.all_reduce, spoilt)
    same_in_chunks(functools.partial(dist.all_reduce, op=dist.ReduceOp.MAX), own.clone())
    if dtype.is_floating_point:
        same_in_chunks(functools.partial(dist.all_reduce, op=dist.ReduceOp.AVG), own.clone())
    same_in_chunks(functools.partial(dist.broadcast, src=1), own.clone())
    same_in_chunks(functools.partial(dist.reduce, dst=1), own.clone())
    same_in_chunks(dist.all_gather, outputs, own)
    same_in_chunks(dist.all_gather_into_tensor, torch.zeros_like(whole), own)
    same_in_chunks(dist.reduce_scatter, torch.zeros_like(own), parts)
    same_in_chunks(dist.reduce_scatter_tensor, torch.zeros_like(own), whole)
    same_in_chunks(dist.all_reduce_coalesced, [values(dtype, count) for count in (5, LONG, 300, CHUNK + 1)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_every_collective_gives_the_bits_of_the_whole(world: World, dtype: torch.dtype) -> None:
    world.run(every_collective, dtype)


def with_strides() -> None:
    """The front end gives a group a complex tensor's parts, or a column of a matrix, as they lie there."""
    same_in_chunks(dist.all_reduce, torch.view_as_complex(values(torch.float32, 2 * LONG).view(-1, 2)))
    matrix = values(torch.bfloat16, 2 * LONG).view(-1, 2)
    same_in_chunks(lambda matrix: dist.all_reduce(matrix[:, 1]), matrix)
    gathered = torch.zeros(2, SIZE * LONG).t()
    same_in_chunks(
        dist.all_gather_into_tensor,
        gathered,
        values(torch.float32, 2 * LONG),
    )


def test_strides_do_not_matter(world: World) -> None:
    world.run(with_strides)


def in_place() -> None:
    """Scatter into the tensor that is reduced, and gather from it, as ``fully_shard`` does."""
    whole, own = values(torch.float32, SIZE * LONG), torch.empty(LONG)
    sharded = whole.clone()
    dist.reduce_scatter_tensor(own, whole)
    dist.all_gather_into_tensor(whole, own)
    with as_on_a_device():
        part = torch.chunk(sharded, SIZE)[dist.get_rank()]
        dist.reduce_scatter_tensor(part, sharded)
        dist.all_gather_into_tensor(sharded, part)
    assert torch.equal(sharded, whole)


def test_a_part_may_lie_in_the_whole(world: World) -> None:
    world.run(in_place)


def not_a_number() -> None:
    tensor = torch.ones(LONG)
    if dist.get_rank() == 1:
        tensor[2 * CHUNK + 9] = torch.nan
    before = tensor.clone()
    with as_on_a_device() as log:
        with pytest.raises(
            weir.torch.NonFiniteError, match=f"rank 1: all_reduce .*element {2 * CHUNK + 9} of"
        ):
            dist.all_reduce(tensor, group=raising())
        assert not log
    torch.testing.assert_close(tensor, before, rtol=0, atol=0, equal_nan=True)
    dist.all_reduce(healthy := torch.ones(3), group=raising())
    assert healthy.tolist() == [SIZE] * 3


def test_a_value_that_is_not_finite_is_an_error_and_nothing_is_overwritten(world: World) -> None:
    world.run(not_a_number)


def on_one_rank_alone() -> str:
    tensor = torch.ones(LONG)
    where = as_on_a_device() if dist.get_rank() == 1 else contextlib.nullcontext()
    with where, pytest.raises(weir.torch.GroupBrokenError) as error:
        dist.all_reduce(tensor)
    return str(error.value)


def test_ranks_of_which_some_have_theirs_on_a_device_are_told_so(cluster: LocalCluster) -> None:
    with World(SIZE, lambda rank: cluster.environment(SIZE + rank)) as world:
        for words in world.run(on_one_rank_alone):
            assert f"rank 0 called all_reduce(float32[{LONG}], SUM)" in words
            assert f"rank 1 called all_reduce(float32[{LONG}], SUM, on a device, in 4 chunks)" in words
