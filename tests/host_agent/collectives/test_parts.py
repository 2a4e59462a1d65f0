# SPDX-License-Identifier: Apache-2.0
"""Collectives whose result one rank wants, or each a part of: the same bits as of those that all want."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import ReduceOp

from tests.harness.effort import examples
from tests.host_agent.collectives.test_collectives import CASES
from weir.host_agent.collectives import Collectives, InMemoryGroup, NonFiniteError
from weir.host_agent.collectives.packing import LaneBits, Precision

RANKS = 3


def tensors(dtype: torch.dtype, counts: list[int], seed: int, density: float = 1.0) -> list[torch.Tensor]:
    """Return random tensors of these sizes, over the whole range of integers."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for count in counts:
        if dtype.is_floating_point:
            values = torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)
        else:
            values = torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)
            values = values > 0 if dtype == torch.bool else values.to(dtype)
        found.append(values * (torch.rand(count, generator=generator) < density))
    return found


def run(work: Any) -> list[Any]:
    """Run ``work(collectives, rank)`` on each rank of a group in memory."""
    group = InMemoryGroup(RANKS)
    return group.run(
        [lambda c=communicator: work(Collectives(c), c.rank) for communicator in group.communicators]
    )


@pytest.mark.parametrize(("dtype", "op"), CASES, ids=lambda case: str(case).split(".")[-1])
def test_reduce_scatter_and_reduce_give_the_bits_of_all_reduce(dtype: torch.dtype, op: Any) -> None:
    counts = [700, 0, 33]

    def work(collectives: Collectives, rank: int) -> None:
        own = tensors(dtype, counts, rank)
        part, root, expected = torch.zeros(counts[rank], dtype=dtype), own[0].clone(), []
        collectives.reduce_scatter(part, own, op)
        collectives.reduce(root, 2, op)
        for tensor in own:
            expected.append(tensor.clone())
            if tensor.numel():
                collectives.all_reduce(expected[-1], op)
        exact = not dtype.is_floating_point or op in (ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT)
        close = torch.equal if exact else torch.allclose  # blocks, and so their scales, lie elsewhere
        assert close(part, expected[rank])
        assert torch.equal(root, expected[0] if rank == 2 else own[0])

    run(work)


@settings(max_examples=examples(60), deadline=None)
@given(
    counts=st.lists(st.integers(0, 3000), min_size=RANKS, max_size=RANKS),
    density=st.sampled_from([0.0, 0.001, 0.1, 1.0]),
    seed=st.integers(0, 1000),
)
def test_parts_of_any_size_find_their_owners(counts: list[int], density: float, seed: int) -> None:
    def work(collectives: Collectives, rank: int) -> None:
        everyones = [tensors(torch.int32, counts, seed + other, density) for other in range(RANKS)]
        part = torch.full((counts[rank],), 7, dtype=torch.int32)
        collectives.reduce_scatter(part, everyones[rank])
        assert torch.equal(part, sum(own[rank] for own in everyones))

        outputs = [torch.full((counts[rank],), 7, dtype=torch.int32) for _ in range(RANKS)]
        collectives.all_to_all(outputs, everyones[rank])
        assert all(torch.equal(output, own[rank]) for output, own in zip(outputs, everyones, strict=True))

        mine = everyones[rank][0]
        gathered = [torch.full_like(mine, 7) for _ in range(RANKS)] if rank == 1 else []
        collectives.gather(gathered, mine, 1)
        assert all(torch.equal(output, own[0]) for output, own in zip(gathered, everyones, strict=False))

    run(work)


def test_sparse_float_parts_are_summed_where_they_are() -> None:
    """Most blocks are zero on all ranks, so that only the others are handled."""
    counts = [600 * 256, 256, 300 * 256]

    def work(collectives: Collectives, rank: int) -> None:
        everyones = [tensors(torch.float32, counts, other, 1e-4) for other in range(RANKS)]
        part = torch.full((counts[rank],), 7.0)
        collectives.reduce_scatter(part, everyones[rank])
        torch.testing.assert_close(part, sum(own[rank] for own in everyones))

    run(work)


@pytest.mark.parametrize("bits", [32, 16, 8, "auto"])
@pytest.mark.parametrize("density", [1.0, 1e-4])
@pytest.mark.parametrize("counts", [[5000, 0, 2047], [300_000, 2048, 100_000], [700, 600, 500]])
def test_float_parts_in_any_form_of_lanes(bits: LaneBits, density: float, counts: list[int]) -> None:
    def work(collectives: Collectives, rank: int) -> None:
        collectives.communicator.precision = precision = Precision(bits)
        everyones = [tensors(torch.float32, counts, other, density) for other in range(RANKS)]
        part = torch.full((counts[rank],), 7.0)
        collectives.reduce_scatter(part, everyones[rank])
        expected = sum(own[rank] for own in everyones)
        most = max((float(own[rank].abs().max()) for own in everyones if counts[rank]), default=0.0)
        torch.testing.assert_close(
            part, expected, rtol=1e-6, atol=RANKS * most * precision.form(RANKS).error + 1e-6
        )

    run(work)


def test_a_value_that_is_not_finite_is_named_by_its_place_in_the_part() -> None:
    def work(collectives: Collectives, rank: int) -> None:
        collectives.communicator.precision = Precision(non_finite="raise")
        own = [torch.zeros(700) for _ in range(RANKS)]
        if rank == 1:
            own[2][5] = float("nan")
        with pytest.raises(NonFiniteError, match=r"rank 1: reduce_scatter .*element 5 of the part of rank 2"):
            collectives.reduce_scatter(torch.zeros(700), own)

    run(work)
