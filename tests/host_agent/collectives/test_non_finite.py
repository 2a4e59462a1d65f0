# SPDX-License-Identifier: Apache-2.0
"""NaN and infinity in reductions: on every rank where IEEE 754 puts them, and nothing beside them changes."""

from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from weir.host_agent.collectives import Collectives, InMemoryGroup, NonFiniteError
from weir.host_agent.collectives.packing import LANE_BITS, Precision
from weir.host_agent.collectives.reductions import RedOpType

Op = dist.ReduceOp
BAD = [np.nan, np.inf, -np.inf]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FORMS = [Precision(bits) for bits in LANE_BITS] + [Precision(exact=True)]
COUNTS = [1, 31, 257, 1024, 1025, 1343, 4096, 8193, 40_000]  # gathered, in limbs, in lanes, of many blocks
COMBINE = {Op.SUM: torch.add, Op.AVG: torch.add, Op.PRODUCT: torch.mul, Op.MAX: torch.maximum}
COMBINE[Op.MIN] = torch.minimum
ERROR = {torch.float16: 2e-3, torch.bfloat16: 2e-2}


def made(count: int, dtype: torch.dtype, ranks: int, seed: int, density: float) -> list[torch.Tensor]:
    """Return a tensor for each rank: a share of its blocks is not zero, and a few values are not finite."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(ranks):
        blocks = np.repeat(random.random(-(-count // 256)) < density, 256)[:count]
        values = random.normal(size=count) * blocks
        places = random.integers(0, count, random.integers(0, 4))
        values[places] = random.choice(BAD, places.size)
        if random.random() < 0.3:  # a rank that has nothing else there
            values[random.integers(0, count) // 256 * 256 :][:256] = random.choice(BAD)
        found.append(torch.from_numpy(values).to(dtype))
    return found


def expected(op: RedOpType, tensors: list[torch.Tensor]) -> torch.Tensor:
    wide = [tensor.to(torch.float64) for tensor in tensors]
    total = reduce(COMBINE[op], wide)
    return total / len(wide) if op == Op.AVG else total


def assert_same(found: torch.Tensor, wanted: torch.Tensor, error: float) -> None:
    """Compare to the bit where not finite, else within an error relative to the largest."""
    found, finite = found.to(torch.float64), wanted.isfinite()
    torch.testing.assert_close(found[~finite], wanted[~finite], rtol=0, atol=0, equal_nan=True)
    largest = float(wanted[finite].abs().max()) if finite.any() else 0.0
    torch.testing.assert_close(found[finite], wanted[finite], rtol=0, atol=error * max(1.0, largest))


def run(precision: Precision, ranks: int, work: Any) -> None:
    group = InMemoryGroup(ranks)
    for communicator in group.communicators:
        communicator.precision = precision
    group.run(
        [lambda c=c, rank=rank: work(Collectives(c), rank) for rank, c in enumerate(group.communicators)]
    )


drawn = {
    "count": st.sampled_from(COUNTS),
    "dtype": st.sampled_from(FLOATS),
    "op": st.sampled_from(list(COMBINE)),
    "precision": st.sampled_from(FORMS),
    "ranks": st.integers(2, 5),
    "density": st.sampled_from([1.0, 0.05, 0.0]),
    "seed": st.integers(0, 2**31),
}


def tolerance(op: RedOpType, precision: Precision, dtype: torch.dtype, ranks: int) -> float:
    lanes = precision.form(ranks).error if op in (Op.SUM, Op.AVG) and dtype != torch.float64 else 0.0
    return 6 * ranks * (lanes + ERROR.get(dtype, 1e-6))


@given(**drawn)
def test_all_reduce_delivers_what_ieee_754_says(
    count: int,
    dtype: torch.dtype,
    op: RedOpType,
    precision: Precision,
    ranks: int,
    density: float,
    seed: int,
) -> None:
    tensors = made(count, dtype, ranks, seed, density)
    wanted = expected(op, tensors)
    results = [tensor.clone() for tensor in tensors]
    run(precision, ranks, lambda collectives, rank: collectives.all_reduce(results[rank], op))
    for result in results:
        assert_same(result, wanted, tolerance(op, precision, dtype, ranks))
        assert torch.equal(result.view(torch.uint8), results[0].view(torch.uint8))


@given(**drawn, root=st.none() | st.integers(0, 1))
def test_so_do_reductions_for_one_rank(
    count: int,
    dtype: torch.dtype,
    op: RedOpType,
    precision: Precision,
    ranks: int,
    density: float,
    seed: int,
    root: int | None,
) -> None:
    tensors = made(count * ranks, dtype, ranks, seed, density)
    wanted, error = expected(op, tensors), tolerance(op, precision, dtype, ranks)

    def work(collectives: Collectives, rank: int) -> None:
        own = tensors[rank].clone()
        if root is not None:
            collectives.reduce(own, root, op)
            if rank == root:
                assert_same(own, wanted, error)
            return
        part = torch.zeros(count, dtype=dtype)
        collectives.reduce_scatter(part, list(own.split(count)), op)  # type: ignore[no-untyped-call]
        assert_same(part, wanted[rank * count :][:count], error)

    run(precision, ranks, work)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("count", [5, 3000])
def test_complex_numbers_have_them_in_either_part(dtype: torch.dtype, count: int) -> None:
    tensors = [torch.ones(count, dtype=dtype) for _ in range(3)]
    tensors[1][4], tensors[2][2] = complex(np.inf, 1), complex(1, np.nan)
    run(Precision(), 3, lambda collectives, rank: collectives.all_reduce(tensors[rank]))
    for tensor in tensors:
        parts = torch.view_as_real(tensor)
        assert parts[4].tolist() == [np.inf, 1]
        assert parts[2, 0] == 3 and parts[2, 1].isnan()
        assert parts[[0, 1, 3]].tolist() == [[3, 0]] * 3


@pytest.mark.parametrize("count", [5, 900, 5000])
@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_beyond_the_largest_number_are_infinite(dtype: torch.dtype, count: int) -> None:
    tensors = [torch.full((count,), torch.finfo(dtype).max * 0.75, dtype=dtype) for _ in range(3)]
    for tensor in tensors:
        tensor[1::2] *= -1
        tensor[3] = 1
    run(Precision(), 3, lambda collectives, rank: collectives.all_reduce(tensors[rank]))
    for tensor in tensors:
        assert (tensor[::2] == np.inf).all() and tensor[1] == -np.inf


@pytest.mark.parametrize("count", [1500, 5000, 200_000])
@pytest.mark.parametrize("precision", FORMS, ids=str)
def test_what_stands_beside_them_has_the_bits_that_it_has_beside_zeros(
    count: int, precision: Precision
) -> None:
    clean = [torch.randn(count, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    places = torch.tensor([0, 255, 256, count - 1])
    for tensor in clean:
        tensor[places] = 0
    spoilt = [tensor.clone() for tensor in clean]
    spoilt[1][places] = torch.tensor([np.nan, np.inf, -np.inf, np.inf])
    spoilt[2][places[3]] = -np.inf
    for tensors in (clean, spoilt):
        run(precision, 3, lambda collectives, rank, own=tensors: collectives.all_reduce(own[rank]))
    for tensor, alike in zip(spoilt, clean, strict=True):
        assert str(tensor[places].tolist()) == "[nan, inf, -inf, nan]"
        tensor[places] = 0
        assert torch.equal(tensor.view(torch.uint8), alike.view(torch.uint8))


@pytest.mark.parametrize("count", [5, 900, 5000])
def test_a_group_that_raises_names_them_and_keeps_the_values(count: int) -> None:
    tensors = [torch.ones(count) for _ in range(3)]
    tensors[2][4] = np.inf

    def work(collectives: Collectives, rank: int) -> None:
        before = tensors[rank].clone()
        with pytest.raises(NonFiniteError, match=r"on rank 2: all_reduce .* element 4"):
            collectives.all_reduce(tensors[rank])
        assert torch.equal(tensors[rank], before)

    run(Precision(non_finite="raise"), 3, work)


def test_there_are_two_ways() -> None:
    assert str(Precision(non_finite="raise")) == "lane_bits=32, non_finite=raise"
    with pytest.raises(ValueError, match="non_finite 'ignore': it must be deliver or raise"):
        Precision(non_finite="ignore")  # type: ignore[arg-type]
