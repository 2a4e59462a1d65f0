# SPDX-License-Identifier: Apache-2.0
"""Every collective of the backend beside Gloo's, through a real switch and controller."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from tests.host_agent.torch.worlds import World
from weir.host_agent.collectives.quantize import error_bound, exponents
from weir.host_agent.collectives.tensor_memory import byte_view

SIZE = 3
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]
LENGTHS = [0, 1, 7, 257, 5000]
ROUNDING = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6, torch.float64: 1e-14}

_gloo: dict[str, Any] = {}


@pytest.fixture(scope="module")
def world(world: World) -> World:
    world.run(make_gloo)
    return world


def make_gloo() -> None:
    _gloo["group"] = dist.new_group(backend="gloo")


def values(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """This rank's random values of a dtype, over its whole range for integers."""
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    low, high = (0, 2) if dtype == torch.bool else (-(2**63), 2**63 - 1)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values in memory with gaps."""
    wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)[..., 1]
    wide.copy_(tensor)
    return wide


def check_equal(ours: torch.Tensor, theirs: torch.Tensor, rounding: float = 0.0) -> None:
    if rounding:
        torch.testing.assert_close(ours, theirs, rtol=rounding, atol=rounding * SIZE)
    elif ours.dtype == torch.bool:  # Gloo leaves a count in a bool's byte
        assert torch.equal(ours.view(torch.uint8) != 0, theirs.view(torch.uint8) != 0)
    else:
        assert torch.equal(ours, theirs)


def check_same_everywhere(tensor: torch.Tensor) -> None:
    """Bit-identical on all ranks, judged over Gloo."""
    bits = torch.from_numpy(byte_view(tensor))
    everyone = [torch.empty_like(bits) for _ in range(SIZE)]
    dist.all_gather(everyone, bits, group=_gloo["group"])
    assert all(torch.equal(other, bits) for other in everyone)


def both(ours: Any, call: Callable[[Any, Any], None]) -> Any:
    """Run a collective on a copy over Gloo and on ``ours`` over Weir; returns the copy."""
    theirs = [part.clone() for part in ours] if isinstance(ours, list) else ours.clone()
    call(theirs, _gloo["group"])
    call(ours, None)
    return theirs


def all_reduce_like_gloo(dtype: torch.dtype, op: Any) -> None:
    for length in LENGTHS:
        tensor = strided(values(dtype, (length,), length))
        theirs = both(tensor, lambda t, group: dist.all_reduce(t, op, group=group))
        rounds = dtype.is_floating_point and op not in (ReduceOp.MIN, ReduceOp.MAX)
        check_equal(tensor, theirs, ROUNDING[dtype] if rounds else 0.0)
        check_same_everywhere(tensor.contiguous())


ARITHMETIC = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
BITWISE = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
CASES = (
    [(dtype, op) for dtype in DTYPES for op in ARITHMETIC]
    + [(dtype, ReduceOp.AVG) for dtype in FLOATS]
    + [(dtype, op) for dtype in [*INTEGERS, torch.bool] for op in BITWISE]
)


@pytest.mark.parametrize(("dtype", "op"), CASES, ids=lambda case: str(case).split(".")[-1])
def test_all_reduce(world: World, dtype: torch.dtype, op: Any) -> None:
    world.run(all_reduce_like_gloo, dtype, op)


def sparse_like_gloo(places: list[list[int]]) -> None:
    tensor = torch.zeros(600 * 256 + 17)
    tensor[places[dist.get_rank()]] = 1.5 + dist.get_rank()
    theirs = both(tensor, lambda t, group: dist.all_reduce(t, group=group))
    check_equal(tensor, theirs)


@pytest.mark.parametrize(
    "places",
    [
        [[], [], []],
        [[0], [0, 1], []],
        [[], [600 * 256 + 16], []],  # in the last, partial block alone
        [[300, 9000], [9001], [255, 600 * 256]],
        [list(range(0, 600 * 256, 200)), [7], []],
    ],
)
def test_all_reduce_of_a_few_blocks(world: World, places: list[list[int]]) -> None:
    world.run(sparse_like_gloo, places)


def movement_like_gloo(dtype: torch.dtype) -> None:
    for length in LENGTHS:
        move_like_gloo(dtype, length)


def move_like_gloo(dtype: torch.dtype, length: int) -> None:
    rank, gloo = dist.get_rank(), _gloo["group"]
    shape = (length, 3) if length < 1000 else (length,)

    tensor = strided(values(dtype, shape))
    check_equal(tensor, both(tensor, lambda t, group: dist.broadcast(t, 1, group=group)))

    own = strided(values(dtype, shape, 1))
    outputs = [strided(torch.zeros(shape, dtype=dtype)) for _ in range(SIZE)]
    theirs = both(outputs, lambda o, group: dist.all_gather(o, own.contiguous(), group=group))
    for output, expected in zip(outputs, theirs, strict=True):
        check_equal(output, expected)

    whole = torch.zeros((SIZE * length, *shape[1:]), dtype=dtype)
    check_equal(whole, both(whole, lambda o, group: dist.all_gather_single(o, own.contiguous(), group=group)))

    gathered = [torch.zeros(shape, dtype=dtype) for _ in range(SIZE)] if rank == 2 else None
    dist.gather(own, gathered, dst=2)
    if gathered is not None:
        for output, expected in zip(gathered, theirs, strict=True):
            check_equal(output, expected)

    inputs = [values(dtype, shape, 2 + target) for target in range(SIZE)] if rank == 1 else None
    output = strided(torch.zeros(shape, dtype=dtype))
    expected = output.contiguous()
    dist.scatter(expected, inputs, src=1, group=gloo)
    dist.scatter(output, inputs, src=1)
    check_equal(output, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_movement(world: World, dtype: torch.dtype) -> None:
    world.run(movement_like_gloo, dtype)


def all_to_all_like_gloo(dtype: torch.dtype) -> None:
    rank = dist.get_rank()
    for scale in (0, 1, 100):
        # Rank r sends r + t rows to rank t.
        splits = [scale * (rank + other) for other in range(SIZE)]
        inputs = [values(dtype, (rows, 2), rows) for rows in splits]
        outputs = [strided(torch.zeros(rows, 2, dtype=dtype)) for rows in splits]
        output = strided(torch.zeros(sum(splits), 2, dtype=dtype))
        expected = output.contiguous()
        dist.all_to_all_single(expected, torch.cat(inputs), splits, splits, group=_gloo["group"])
        dist.all_to_all_single(output, torch.cat(inputs), splits, splits)
        check_equal(output, expected)

        dist.all_to_all(outputs, inputs)  # Gloo's own takes no uneven sizes
        check_equal(torch.cat(outputs), expected)

        even = values(dtype, (SIZE * scale, 2))
        swapped = torch.zeros_like(even)
        expected = swapped.clone()
        dist.all_to_all_single(expected, even, group=_gloo["group"])
        dist.all_to_all_single(swapped, even)
        check_equal(swapped, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int8, torch.bool], ids=str)
def test_all_to_all(world: World, dtype: torch.dtype) -> None:
    world.run(all_to_all_like_gloo, dtype)


def reductions_to_one_like_gloo(dtype: torch.dtype) -> None:
    rank, rounding = dist.get_rank(), ROUNDING.get(dtype, 0.0)
    for length in LENGTHS:
        tensor = values(dtype, (length,))
        before = tensor.clone()
        theirs = both(tensor, lambda t, group: dist.reduce(t, 2, group=group))
        check_equal(tensor, theirs if rank == 2 else before, rounding)

        inputs = [values(dtype, (length + target,), target) for target in range(SIZE)]
        output = torch.zeros(length + rank, dtype=dtype)
        expected = sum_of_all(inputs)[rank]
        dist.reduce_scatter(output, inputs)
        check_equal(output, expected, rounding)

        whole = values(dtype, (SIZE * length, 2))
        part = strided(torch.zeros(length, 2, dtype=dtype))
        expected = part.contiguous()
        dist.reduce_scatter_single(expected, whole, group=_gloo["group"])
        dist.reduce_scatter_single(part, whole)
        check_equal(part, expected, rounding)


def sum_of_all(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    totals = [tensor.clone() for tensor in inputs]
    for total in totals:
        dist.all_reduce(total, group=_gloo["group"])
    return totals


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions_to_one(world: World, dtype: torch.dtype) -> None:
    world.run(reductions_to_one_like_gloo, dtype)


def int16_and_complex() -> None:
    rank = dist.get_rank()
    narrow = torch.tensor([30000, -5, rank], dtype=torch.int16)
    dist.all_reduce(narrow)
    assert narrow.tolist() == [3 * 30000 - 65536, -15, 3]
    numbers = torch.tensor([1 + 1j, -2j]) * (rank + 1)
    dist.all_reduce(numbers)
    assert numbers.tolist() == [6 + 6j, -12j]


def test_dtypes_that_gloo_lacks(world: World) -> None:
    world.run(int16_and_complex)


def extremes(dtype: torch.dtype) -> None:
    """Infinities are ordinary values of MIN and MAX; NaN wins both."""
    rank = dist.get_rank()
    rows = torch.tensor([[-torch.inf, 1.0, -0.0], [2.0, torch.inf, 0.0], [3.0, -5.0, torch.nan]])
    for op, expected in [
        (ReduceOp.MAX, [3.0, torch.inf, torch.nan]),
        (ReduceOp.MIN, [-torch.inf, -5.0, torch.nan]),
    ]:
        tensor = rows[rank].to(dtype, copy=True)
        dist.all_reduce(tensor, op)
        torch.testing.assert_close(
            tensor, torch.tensor(expected, dtype=dtype), equal_nan=True, rtol=0, atol=0
        )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_extremes(world: World, dtype: torch.dtype) -> None:
    world.run(extremes, dtype)


def coalesced() -> None:
    rank = dist.get_rank()
    tensors = [torch.full((n,), float(rank + n)) for n in (1, 300)]
    with dist.distributed_c10d._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert [tensor.unique().tolist() for tensor in tensors] == [[6.0], [903.0]]
    lists = [[torch.zeros(n, dtype=torch.int32) for n in (2, 3)] for _ in range(SIZE)]
    dist.all_gather_coalesced(lists, [torch.full((n,), rank * 10 + n, dtype=torch.int32) for n in (2, 3)])
    assert [[part.unique().tolist() for part in parts] for parts in lists] == [
        [[2], [3]],
        [[12], [13]],
        [[22], [23]],
    ]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_coalesced(world: World) -> None:
    world.run(coalesced)


def objects() -> None:
    rank = dist.get_rank()
    everyone: list[Any] = [None] * SIZE
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * rank * 1000})
    assert [one["rank"] for one in everyone] == [0, 1, 2]
    message = [("from", rank), None]
    dist.broadcast_object_list(message, src=2)
    assert message == [("from", 2), None]


def test_objects(world: World) -> None:
    world.run(objects)


def asynchronous_in_order() -> None:
    tensors = [torch.full((1000,), float(n)) for n in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    barrier = dist.barrier(async_op=True)
    barrier.wait()
    assert all(work.is_completed() and work.is_success() for work in works)
    assert [tensor[0].item() for tensor in tensors] == [3.0 * n for n in range(8)]
    assert works[3].get_future().wait()[0] is tensors[3]


def test_asynchronous_operations_keep_their_order(world: World) -> None:
    world.run(asynchronous_in_order)


def sub_groups() -> None:
    rank = dist.get_rank()
    pairs = {members: dist.new_group(members) for members in [(0, 1), (1, 2), (0, 2)]}
    for members, group in pairs.items():
        if rank in members:
            tensor = torch.full((300,), float(rank + 1))
            dist.all_reduce(tensor, group=group)
            assert tensor.unique().tolist() == [sum(members) + 2.0]
            dist.broadcast(tensor, members[1], group=group)
            assert dist.get_backend(group) == "weir"
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3.0] * 3
    for group in pairs.values():
        dist.destroy_process_group(group)


def test_sub_groups_are_jobs_of_their_own(world: World) -> None:
    world.run(sub_groups)


def float_error_over_bound() -> float:
    """Return the largest error of a sum, as a share of the documented bound."""
    worst = 0.0
    for scale in (1e-30, 1e-3, 1.0, 1e30):
        tensor = values(torch.float64, (2500,), 9) * torch.logspace(-6, 0, 2500, dtype=torch.float64) * scale
        tensor = tensor.float()
        everyone = [torch.empty_like(tensor) for _ in range(SIZE)]
        dist.all_gather(everyone, tensor, group=_gloo["group"])
        exact = torch.stack(everyone).double().sum(0).numpy()
        shared = np.max([exponents(one.numpy(), 256) for one in everyone], axis=0)
        bound = error_bound(shared, 256, SIZE, tensor.numel()) + np.abs(exact) * 2.0**-24
        dist.all_reduce(tensor)
        worst = max(worst, float((np.abs(tensor.numpy() - exact) / bound).max()))
    return worst


def test_float_sums_keep_the_documented_bound(world: World) -> None:
    assert 0 < max(world.run(float_error_over_bound)) <= 1
