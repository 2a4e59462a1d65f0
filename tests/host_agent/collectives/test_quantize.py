# SPDX-License-Identifier: Apache-2.0
"""Block floating point: the derived bound holds, nothing overflows, nothing odd gets through unseen."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from weir.host_agent.collectives.quantize import (
    NOT_FINITE,
    error_bound,
    exponents,
    from_fixed,
    from_fixed_rows,
    headroom,
    to_fixed,
    to_fixed_rows,
)

BLOCKS = st.sampled_from([32, 64, 128, 256])
LARGEST = float(np.finfo(np.float32).max)


def shared_exponents(vectors: npt.NDArray[np.float32], block: int) -> npt.NDArray[np.uint32]:
    return np.maximum.reduce([exponents(vector, block) for vector in vectors])


def network_sum(vectors: npt.NDArray[np.float32], block: int) -> npt.NDArray[np.float32]:
    """Return what the workers' sum becomes: encoded, added as a switch does, decoded."""
    workers = len(vectors)
    exps = shared_exponents(vectors, block)
    lanes = [to_fixed(vector, exps, block, workers).view(np.uint32) for vector in vectors]
    total = np.add.reduce(lanes, axis=0, dtype=np.uint32).view(np.int32)
    return from_fixed(total, exps, block, workers)


floats = st.one_of(
    st.floats(-10, 10, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-38, LARGEST, -LARGEST]),
)
worlds = st.tuples(st.integers(1, 32), st.integers(0, 300)).flatmap(
    lambda shape: hnp.arrays(np.float32, shape, elements=floats, fill=floats)
)


@given(worlds, BLOCKS)
def test_sums_are_within_the_bound(vectors: npt.NDArray[np.float32], block: int) -> None:
    workers, count = vectors.shape
    exact = np.sum(vectors, axis=0, dtype=np.longdouble)
    bound = error_bound(shared_exponents(vectors, block), block, workers, count)
    with np.errstate(over="ignore"):
        got = network_sum(vectors, block)
        last_rounding = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64) / 2
    fits = np.abs(exact) <= LARGEST
    error = np.abs(got.astype(np.longdouble) - exact)
    assert np.all(error[fits] <= bound[fits] + last_rounding[fits] * 1.001)


@given(
    st.integers(1, 32), BLOCKS, st.sampled_from([LARGEST, 1.0, 1e-30, 1e-45, np.nextafter(2.0, 0, dtype="f")])
)
def test_the_largest_values_of_all_workers_do_not_overflow(workers: int, block: int, value: float) -> None:
    vectors = np.full((workers, block), value, np.float32)
    exps = shared_exponents(vectors, block)
    lanes = to_fixed(vectors[0], exps, block, workers).astype(np.int64)
    assert abs(lanes * workers).max() < 2**31
    with np.errstate(over="ignore"):
        expected = (vectors[0].astype(np.float64) * workers).astype(np.float32)
    np.testing.assert_array_equal(
        from_fixed((lanes * workers).astype(np.int32), exps, block, workers), expected
    )


@pytest.mark.parametrize("workers", [1, 2, 4, 32])
def test_values_near_the_largest_are_exact(workers: int) -> None:
    binades = 7 - headroom(workers)
    x = np.random.default_rng(1).uniform(2.0**-binades, 1, 256).astype(np.float32)
    exps = exponents(x, 256)
    np.testing.assert_array_equal(from_fixed(to_fixed(x, exps, 256, workers), exps, 256, workers), x)


def test_subnormal_blocks_are_exact() -> None:
    x = np.array([1e-45, -3e-45, 1e-39, 0, 1.1e-38], np.float32)
    exps = exponents(x, 32)
    np.testing.assert_array_equal(exps, [1])
    np.testing.assert_array_equal(from_fixed(to_fixed(x, exps, 32, 32), exps, 32, 32), x)


def test_exponents_are_of_the_largest_magnitude_in_each_block() -> None:
    x = np.zeros(100, np.float32)
    x[3], x[31], x[40] = 0.25, -1.5, 2.0
    np.testing.assert_array_equal(exponents(x, 32), [127, 128, 0, 0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_mark_their_block_for_every_worker(value: float) -> None:
    vectors = np.ones((2, 64), np.float32)
    vectors[1, 40] = value
    exps = shared_exponents(vectors, 32)
    np.testing.assert_array_equal(exps, [127, NOT_FINITE])
    lanes = to_fixed(vectors[1], exps, 32, 2)
    assert not lanes[32:].any()
    decoded = from_fixed(lanes, exps, 32, 2)
    assert np.isfinite(decoded[:32]).all()
    assert np.isnan(decoded[32:]).all()


def test_rounding_is_to_nearest_ties_to_even() -> None:
    x = np.array([1.0, 0.5 * 2**-30, 1.5 * 2**-30, -0.5 * 2**-30, 0.75 * 2**-30], np.float32)
    lanes = to_fixed(x, exponents(x, 32), 32, 1)  # E = 1, so the quantum is 2^-30
    np.testing.assert_array_equal(lanes, [2**30, 0, 2, 0, 1])


def test_exponents_that_are_no_maximum_are_refused() -> None:
    x = np.ones(64, np.float32)
    with pytest.raises(ValueError, match="1 of 2 blocks hold a value above their shared exponent"):
        to_fixed(x, np.array([127, 126], np.uint32), 32, 2)


@pytest.mark.parametrize(
    ("x", "exps", "error", "message"),
    [
        (np.ones(8, np.float64), np.ones(1, np.uint32), TypeError, "float32, not float64"),
        (np.ones((8, 8), np.float32)[:, 0], np.ones(1, np.uint32), ValueError, "C-contiguous"),
        (np.ones(8, np.float32), np.ones(2, np.uint32), ValueError, "exps has 2 elements, 1 are needed"),
    ],
)
def test_arrays_that_do_not_fit(x: Any, exps: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        to_fixed(x, exps, 32, 2)


def test_headroom_follows_the_number_of_workers() -> None:
    assert [headroom(n) for n in (1, 2, 3, 4, 5, 32, 33, 128)] == [0, 1, 2, 2, 3, 5, 6, 7]
    assert [headroom(n) for n in (129, 255, 256, 1023, 1024, 32768)] == [8, 8, 9, 10, 11, 16]
    with pytest.raises(ValueError, match="1 to 32768 workers, not 32769"):
        headroom(32769)


@pytest.mark.parametrize("workers", [128, 129, 255, 256, 1023, 1024, 32768])
def test_many_workers_largest_values_do_not_overflow(workers: int) -> None:
    """Beyond 128 workers the largest float of a binade is rounded up."""
    largest = np.full(64, np.nextafter(np.float32(2), np.float32(1)), np.float32)
    exps = exponents(largest, 32)
    total = workers * to_fixed(largest, exps, 32, workers).astype(np.int64)
    assert np.abs(total).max() < 2**31
    decoded = from_fixed(total.astype(np.int32), exps, 32, workers)
    np.testing.assert_allclose(decoded, workers * largest, rtol=2.0**-14)


@pytest.mark.parametrize("rows", [[], [0], [1, 3], [0, 1, 2, 3]])
def test_chosen_blocks_are_encoded_as_all_are(rows: list[int]) -> None:
    x = np.random.default_rng(5).normal(size=3 * 32 + 7).astype(np.float32)  # the last block is partial
    chosen = np.array(rows, np.uint32)
    exps = exponents(x, 32)
    everything = np.zeros(4 * 32, np.int32)
    everything[: x.size] = to_fixed(x, exps, 32, 3)
    out = np.full(len(rows) * 32, 77, np.int32)
    to_fixed_rows(x, chosen, exps[chosen], 32, 3, out=out)
    np.testing.assert_array_equal(out.reshape(-1, 32), everything.reshape(-1, 32)[chosen])

    decoded = np.full(x.size, 5, np.float32)
    from_fixed_rows(out, chosen, exps[chosen], 32, 3, out=decoded)
    untouched = np.repeat(~np.isin(np.arange(4), rows), 32)[: x.size]
    expected = np.where(untouched, np.float32(5), from_fixed(everything[: x.size], exps, 32, 3))
    np.testing.assert_array_equal(decoded, expected)


def test_a_chosen_block_beyond_the_vector_is_refused() -> None:
    x = np.ones(40, np.float32)
    rows, exps, out = np.array([2], np.uint32), np.array([127], np.uint32), np.zeros(32, np.int32)
    with pytest.raises(ValueError, match="row 2 is beyond the 2 blocks of 40 lanes"):
        to_fixed_rows(x, rows, exps, 32, 1, out=out)
    with pytest.raises(ValueError, match="row 2 is beyond the 2 blocks of 40 lanes"):
        from_fixed_rows(out, rows, exps, 32, 1, out=x)
