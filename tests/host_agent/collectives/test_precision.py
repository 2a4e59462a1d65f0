# SPDX-License-Identifier: Apache-2.0
"""Float sums by every form of lanes: within the chosen error, exact where they are small or must be."""

import logging
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist

from tests.host_agent.torch.worlds import WorkerError, World
from weir.host_agent.collectives import NonFiniteError, float_sum
from weir.host_agent.collectives.collectives import Collectives
from weir.host_agent.collectives.in_memory import InMemoryGroup, OutOfStepError
from weir.host_agent.collectives.packing import LANE_BITS, LaneBits, Precision
from weir.host_agent.torch.backend import GroupOptions

Floats = npt.NDArray[np.float32]

SIZE = 4


def summed(vectors: list[Floats], precision: Precision | None = None) -> list[Floats]:
    """Return every worker's sum, through lanes in memory."""
    group = InMemoryGroup(len(vectors))
    results = [vector.copy() for vector in vectors]
    for communicator in group.communicators:
        communicator.precision = precision or Precision()
    group.run(
        [
            lambda c=communicator, v=vector: float_sum.sum_float32(c, v, lambda index: f"element {index}")
            for communicator, vector in zip(group.communicators, results, strict=True)
        ]
    )
    return results


def normal(count: int, density: float = 1.0) -> list[Floats]:
    """Return a vector for each worker, in which a share of the blocks of 256 are not zero, each its own."""
    vectors = []
    for rank in range(SIZE):
        random = np.random.default_rng(rank)
        blocks = random.random(-(-count // 256)) < density
        vectors.append((random.normal(size=count) * np.repeat(blocks, 256)[:count]).astype(np.float32))
    return vectors


@pytest.mark.parametrize("bits", LANE_BITS)
@pytest.mark.parametrize("density", [1.0, 0.3, 0.05, 0.0])
@pytest.mark.parametrize("count", [1025, 600 * 256 + 17])
def test_sums_are_within_the_error_and_the_same_everywhere(
    bits: LaneBits, density: float, count: int
) -> None:
    vectors, precision = normal(count, density), Precision(bits)
    results = summed(vectors, precision)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    blocks = np.zeros((SIZE, -(-count // 256) * 256), np.float32)
    blocks[:, :count] = vectors
    largest = np.repeat(np.abs(blocks.reshape(SIZE, -1, 256)).max(axis=(0, 2)), 256)[:count]
    exact = np.sum(vectors, axis=0, dtype=np.float64)
    error = np.abs(results[0] - exact) / SIZE
    assert (error <= precision.form(SIZE).error * largest + np.abs(exact) * 2**-24).all()
    assert (results[0][largest == 0] == 0).all()


MIXED = [5e9, 2.3, 0.001, -3e-4]


def test_a_small_sum_loses_nothing_that_float32_holds() -> None:
    vectors = [np.array(MIXED, np.float32)] * SIZE
    np.testing.assert_array_equal(summed(vectors)[0], np.array(MIXED, np.float32) * 4)


def test_a_small_sum_over_many_workers_loses_nothing_either() -> None:
    vectors = [np.array(MIXED, np.float32)] * 100
    np.testing.assert_array_equal(
        summed(vectors)[99], (vectors[0].astype(np.float64) * 100).astype(np.float32)
    )


def test_nan_is_named_among_many_workers() -> None:
    vectors = [np.ones(3, np.float32) for _ in range(70)]
    vectors[33][1] = vectors[69][2] = np.nan
    with pytest.raises(NonFiniteError, match="ranks 33, 69: element 1"):
        summed(vectors, Precision(non_finite="raise"))


@pytest.mark.parametrize("bits", [32, 8])
def test_exact_sums_lose_nothing_at_any_size(bits: LaneBits) -> None:
    vectors = [np.tile(np.array(MIXED, np.float32), 1000)] * SIZE
    np.testing.assert_array_equal(summed(vectors, Precision(bits, exact=True))[0], vectors[0] * 4)


@pytest.fixture
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_sum, "_has_warned", False)


@pytest.mark.usefixtures("_nothing_said")
def test_a_large_sum_of_mixed_magnitudes_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    vectors = [np.ones(3000, np.float32) for _ in range(SIZE)]
    for vector in vectors:
        vector[1000] = 5e9  # the other values of its block become zero
    summed(vectors)
    summed(vectors)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said.startswith("rank 0: element 768: the magnitudes within a block of 256 values differ")
    assert "GroupOptions(exact=True)" in said


@pytest.mark.usefixtures("_nothing_said")
@pytest.mark.parametrize("precision", [Precision(), Precision(8), Precision(exact=True)])
def test_what_float32_users_expect_is_not_warned_of(
    precision: Precision, caplog: pytest.LogCaptureFixture
) -> None:
    for vectors in (
        normal(200_000, 0.01),  # chosen rows
        [np.full(3000, sign, np.float32) for sign in (1, -1, 1, -1)],  # they cancel
        [np.logspace(-4, 0, 3000, dtype=np.float32)] * SIZE,
    ):
        summed(vectors, precision)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_ranks_whose_groups_were_made_with_other_options_disagree() -> None:
    group = InMemoryGroup(2)
    group.communicators[1].precision = Precision(exact=True)  # which sends the same lanes of so few values
    with pytest.raises(OutOfStepError):
        group.run(
            [
                lambda c=communicator: Collectives(c).all_reduce(torch.ones(5))
                for communicator in group.communicators
            ]
        )
    assert str(Precision("auto", 0.1)) == "lane_bits=auto, lane_error=0.1"


# ------------------------------------------------------------------------------------- through a real switch


_groups: dict[Any, dist.ProcessGroup] = {}


def group_of(options: GroupOptions) -> dist.ProcessGroup:
    if options not in _groups:
        group = dist.new_group(backend="weir", pg_options=options)
        assert group is not None
        _groups[options] = group
    return _groups[options]


def reduced(options: GroupOptions) -> tuple[torch.Tensor, int]:
    """Return a sum over a group with these options, and the lanes that it took."""
    group = group_of(options)
    tensor = torch.from_numpy(normal(100_000)[dist.get_rank()])
    before = group.connection.stats.lanes  # type: ignore[attr-defined]
    dist.all_reduce(tensor, group=group)
    return tensor, group.connection.stats.lanes - before  # type: ignore[attr-defined]


@pytest.mark.parametrize(("bits", "per_lane"), [(16, 2), (8, 4)])
def test_packed_sums_through_the_switch_are_those_in_memory(
    world: World, bits: LaneBits, per_lane: int
) -> None:
    expected = summed(normal(100_000), Precision(bits))[0]
    for tensor, lanes in world.run(reduced, GroupOptions(slots=16, lane_bits=bits)):
        np.testing.assert_array_equal(tensor.numpy(), expected)
        assert lanes < 1.02 * 100_000 / per_lane


def average(dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.full((2000,), 1.0 + dist.get_rank(), dtype=dtype)
    dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group_of(GroupOptions(slots=16, lane_bits=8)))
    return tensor


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_averages_and_narrow_floats_are_packed_too(world: World, dtype: torch.dtype) -> None:
    for tensor in world.run(average, dtype):
        assert tensor.dtype == dtype
        assert (tensor.float() - 2.5).abs().max() < 0.02 * 4


def with_nan() -> str:
    tensor = torch.ones(5000)
    if dist.get_rank() == 2:
        tensor[4567] = float("nan")
    with pytest.raises(NonFiniteError) as raised:
        dist.all_reduce(tensor, group=group_of(GroupOptions(slots=16, lane_bits=8, non_finite="raise")))
    assert (tensor[:4567] == 1).all()  # nothing was summed
    return str(raised.value)


def test_nan_is_named_in_packed_sums(world: World) -> None:
    for said in world.run(with_nan):
        assert "NaN or infinity on rank 2" in said
        assert "element 4567" in said


def test_it_crosses_processes_whole() -> None:
    error = NonFiniteError("gradient of 'a'", (1, 3), 7, 0)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.ranks, copy.index) == (str(error), (1, 3), 7)


def refused() -> None:
    dist.new_group(backend="weir", pg_options=GroupOptions(lane_bits=12))  # type: ignore[arg-type]


def test_lane_bits_that_there_are_not_are_refused_when_the_group_is_made(world: World) -> None:
    with pytest.raises(WorkerError, match="lane bits 12: there are 32, 16, 8, auto"):
        world.run(refused)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_few_values_take_one_round_trip_and_are_exact(dtype: Any) -> None:
    """Whatever cancels out before smaller values are added."""
    rows = np.array([[1e16, 3.0, 1e-3], [1.0, 2.0, -1e10], [-1e16, 0.1, 5.0], [0.5, -5.1, 1e10]]).astype(
        dtype
    )
    expected = [float(sum(map(Fraction, column.tolist()))) for column in rows.T]
    group, results, reductions = InMemoryGroup(SIZE), rows.copy(), []
    count_reductions(group, reductions)
    add = float_sum.sum_float32 if dtype is np.float32 else float_sum.sum_float64
    group.run([lambda c=c, v=v: add(c, v, str) for c, v in zip(group.communicators, results, strict=True)])
    for result in results:
        np.testing.assert_array_equal(result, np.array(expected).astype(dtype))
    assert len(reductions) == SIZE  # one on each worker


def count_reductions(group: InMemoryGroup, made: list[int]) -> None:
    """Note the size of every reduction that a worker of the group makes."""
    reduce = group.reduce_call

    def noting(call: Any) -> Any:
        made.append(call.lanes.size)
        return reduce(call)

    group.reduce_call = noting  # type: ignore[method-assign]


def test_few_values_that_are_not_finite_are_named_and_overflow_is_infinite() -> None:
    rows = np.array([[3e38, 1.0], [3e38, 1.0]], np.float32)
    assert summed(list(rows))[0].tolist() == [np.inf, 2.0]
    rows = np.array([[1.0, 1.0], [1.0, np.nan], [np.inf, 1.0]], np.float32)
    with pytest.raises(NonFiniteError, match="ranks 1, 2: element 0") as raised:
        summed(list(rows), Precision(non_finite="raise"))
    assert (raised.value.ranks, raised.value.index) == ((1, 2), 0)
