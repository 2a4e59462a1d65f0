# SPDX-License-Identifier: Apache-2.0
"""64-bit numbers in 32-bit lanes: sums of integers are exact, sums of floats as good as promised."""

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from weir.host_agent.collectives.limbs import (
    NOT_FINITE64,
    exponents64,
    join_float64,
    join_int64,
    split_float64,
    split_int64,
)

shapes = st.tuples(st.integers(1, 32), st.integers(0, 100))
integers = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-(2**63), 2**63 - 1, -1, 1 << 26, -(1 << 26), (1 << 53) - 1, 1 << 27]),
)
floats = st.one_of(
    st.floats(-8, 8),
    st.floats(-1e300, 1e300),
    st.sampled_from([0.0, 5e-324, -2.3e-308, 1.0, 1 / 3, 1e308, -1e308]),
)


def add_lanes(lanes: list[npt.NDArray[np.uint32]]) -> npt.NDArray[np.uint32]:
    return np.add.reduce(lanes, axis=0, dtype=np.uint32)


@given(shapes.flatmap(lambda shape: hnp.arrays(np.int64, shape, elements=integers)))
def test_integer_sums_are_exact_modulo_2_to_the_64(vectors: npt.NDArray[np.int64]) -> None:
    total = join_int64(add_lanes([split_int64(v, len(vectors)) for v in vectors]), len(vectors))
    np.testing.assert_array_equal(total, np.add.reduce(vectors, axis=0))


def test_small_integers_of_either_sign_leave_the_upper_limbs_zero() -> None:
    lanes = split_int64(np.array([-1, 5, -(1 << 26), (1 << 26) - 1]), 32)
    assert lanes.shape == (3, 4)
    assert not lanes[1:].any()


@given(
    shapes.flatmap(lambda shape: hnp.arrays(np.float64, shape, elements=floats)),
    st.sampled_from([32, 64, 128, 256]),
)
def test_float_sums_are_within_the_bound(vectors: npt.NDArray[np.float64], block: int) -> None:
    workers, count = vectors.shape
    exps = np.maximum.reduce([exponents64(vector, block) for vector in vectors])
    lanes = add_lanes([split_float64(v, exps, block, workers) for v in vectors])
    total = join_float64(lanes, exps, block, workers)
    for i in range(count):
        exact = sum(map(Fraction, map(float, vectors[:, i])), Fraction(0))
        if abs(exact) > Fraction(np.finfo(np.float64).max):
            assert np.isinf(total[i])
            continue
        bound = workers * Fraction(2) ** (int(exps[i // block]) - 1022 - 78)
        last_rounding = Fraction(float(np.spacing(abs(float(exact))))) / 2
        assert abs(Fraction(float(total[i])) - exact) <= bound + last_rounding


@pytest.mark.parametrize("workers", [32, 33, 512, 1000, 1024, 32768])
def test_many_workers_limbs_do_not_overflow(workers: int) -> None:
    """All of them hold the same extreme values, so that the sum of their lanes is a product."""
    many = np.uint32(workers)
    x = np.array([2**63 - 1, -(2**63), -1, 2**26 - 1, -(2**26), 0x5555_5555_5555_5555], np.int64)
    np.testing.assert_array_equal(join_int64(split_int64(x, workers) * many, workers), x * np.int64(workers))
    largest = np.nextafter(2.0, 1.0)
    y = np.array([largest, -largest, 1.0, 1 / 3, -1e-9, 0.0])
    exps = exponents64(y, 32)
    total = join_float64(split_float64(y, exps, 32, workers) * many, exps, 32, workers)
    error = np.abs(total - workers * y).max()
    precision = 92 - 3 * max(5, (workers - 1).bit_length())
    assert error <= workers * 2.0 ** (1 - precision - 1) + np.spacing(workers * largest)


def test_one_workers_floats_come_back_bit_for_bit() -> None:
    x = np.random.default_rng(2).standard_normal(1000)
    exps = exponents64(x, 256)
    np.testing.assert_array_equal(join_float64(split_float64(x, exps, 256, 1), exps, 256, 1), x)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_mark_their_block(value: float) -> None:
    x = np.ones(64)
    x[3] = value
    exps = exponents64(x, 32)
    np.testing.assert_array_equal(exps, [NOT_FINITE64, 1023])
    decoded = join_float64(split_float64(x, exps, 32, 2), exps, 32, 2)
    assert np.isnan(decoded[:32]).all()
    np.testing.assert_array_equal(decoded[32:], 1)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(TypeError, match="float64"):
        exponents64(np.ones(3, np.float32), 32)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="above their shared exponent"):
        split_float64(np.ones(32), np.array([3], np.uint32), 32, 2)
    with pytest.raises(ValueError, match="4 lanes are no multiple of 3"):
        join_int64(np.zeros(4, np.uint32), 2)
