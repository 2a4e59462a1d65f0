# SPDX-License-Identifier: Apache-2.0
"""Packed lanes: sums are those of the fields, whatever the input; what cannot be held is refused or named."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from weir.host_agent.collectives.packing import NOT_FINITE, LaneBits, PackedLanes, WholeLanes, lane_format

Floats = npt.NDArray[np.float32]

LARGEST = float(np.finfo(np.float32).max)
TINIEST = float(np.finfo(np.float32).smallest_subnormal)
BLOCK = 256


def take(count: int) -> npt.NDArray[np.int32]:
    return np.full(count, 77, np.int32)


def shared_scales(packed: PackedLanes, vectors: list[Floats], block: int = BLOCK) -> npt.NDArray[np.uint32]:
    return np.maximum.reduce([packed.scales(vector, block) for vector in vectors])


def added(parts: list[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    """Add lanes as the switch does, modulo 2^32."""
    return np.add.reduce([part.view(np.uint32) for part in parts], axis=0, dtype=np.uint32).view(np.int32)


def decoded(
    packed: PackedLanes, lanes: npt.NDArray[np.int32], scales: npt.NDArray[np.uint32], n: int
) -> Floats:
    out = np.full(n, 5, np.float32)
    packed.decode(lanes, None, scales, BLOCK, out)
    return out


def check_sum(packed: PackedLanes, vectors: list[Floats]) -> None:
    """Check that the sum of the lanes is that of what each worker's lanes stand for, and near the values'."""
    n = vectors[0].size
    scales = shared_scales(packed, vectors)
    lanes = [packed.encode(vector, None, scales, BLOCK, take) for vector in vectors]
    own = [decoded(packed, part, scales, n).astype(np.float64) for part in lanes]
    with np.errstate(over="ignore"):
        expected = np.sum(own, axis=0).astype(np.float32)  # 24 bits are enough for every sum of fields
        np.testing.assert_array_equal(decoded(packed, added(lanes), scales, n), expected)
    largest = np.repeat(scales.view(np.float32).astype(np.float64), BLOCK)[:n]
    for vector, sent in zip(vectors, own, strict=True):
        assert (np.abs(sent - vector) <= packed.error * largest * (1 + 1e-6) + TINIEST / 2).all()


@pytest.mark.parametrize(("fields", "workers"), [(4, 127), (4, 64), (4, 42), (3, 511), (3, 256)])
def test_every_sum_of_small_fields_is_read_back(fields: int, workers: int) -> None:
    """Go through every combination of extreme, zero and any sums of three fields of the lane."""
    packed = PackedLanes(fields, workers)
    most = packed.steps * workers
    sums = np.array(sorted({-most, -most + 1, -1, 0, 1, most - 1, most, *range(-most, most, most // 6)}))
    combinations = np.array(list(itertools.product(sums, repeat=fields)), np.int64)
    blocks = -(-len(combinations) // 32)
    padded = np.zeros((blocks * 32, fields), np.int64)
    padded[: len(combinations)] = combinations
    lanes = (padded << (packed.width * np.arange(fields))).sum(axis=1).astype(np.uint32).view(np.int32)
    scales = np.full(blocks, np.float32(packed.steps).view(np.uint32), np.uint32)  # so the quantum is 1
    out = np.empty(blocks * 32 * fields, np.float32)
    packed.decode(lanes, None, scales, 32 * fields, out)
    values = out.reshape(blocks, fields, 32).transpose(0, 2, 1).reshape(-1, fields)
    np.testing.assert_array_equal(values, padded)


@pytest.mark.parametrize("fields", [2, 3, 4])
def test_all_sums_of_two_workers_fields(fields: int) -> None:
    """Add every pair of what two workers can send in a field, its neighbours at their extremes."""
    packed = PackedLanes(fields, 2)
    reach = (
        np.arange(-packed.steps, packed.steps + 1)
        if fields > 2
        else np.arange(-packed.steps, packed.steps + 1, 97)
    )
    first, second = (pair.reshape(-1) for pair in np.meshgrid(reach, reach))
    for sign in (-1, 1):
        vectors = []
        for values in (first, second):
            grid = np.full((-(-values.size // 32) * 32, fields), sign * packed.steps, np.float32)
            grid[: values.size, 1] = values
            vectors.append(np.ascontiguousarray(grid.reshape(-1, 32, fields).transpose(0, 2, 1)).reshape(-1))
        block = 32 * fields
        scales = shared_scales(packed, vectors, block)
        lanes = [packed.encode(vector, None, scales, block, take) for vector in vectors]
        out = np.empty_like(vectors[0])
        packed.decode(added(lanes), None, scales, block, out)
        np.testing.assert_array_equal(out, vectors[0] + vectors[1])


floats = st.one_of(
    st.floats(-10, 10, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, TINIEST, -TINIEST, 3e-39, LARGEST, -LARGEST, 1 - 2**-24]),
)


@given(st.data())
def test_sums_are_those_of_the_quantized_inputs(data: st.DataObject) -> None:
    fields = data.draw(st.integers(2, 4))
    workers = data.draw(st.integers(1, 12))
    most = data.draw(st.sampled_from([workers, 32, 127]))
    count = data.draw(st.integers(0, 600))
    vectors = data.draw(hnp.arrays(np.float32, (workers, count), elements=floats, fill=floats))
    check_sum(PackedLanes(fields, max(most, workers)), list(vectors))


@given(
    st.sampled_from([(2, 1024), (2, 32767), (3, 34), (3, 511), (4, 8), (4, 127)]),
    st.sampled_from([LARGEST, 1.0, 1 - 2**-24, 1 + 2**-23, 3e-38, 1e-39, TINIEST, 127 * TINIEST]),
    st.sampled_from(["same", "alternating", "random"]),
)
def test_extremes_of_all_workers_do_not_overflow(setup: tuple[int, int], value: float, signs: str) -> None:
    fields, workers = setup
    packed = PackedLanes(fields, workers)
    x = np.full(BLOCK, value, np.float32)
    if signs == "alternating":
        x[::2] *= -1
    elif signs == "random":
        x *= np.random.default_rng(workers).choice([-1, 1], BLOCK).astype(np.float32)
    scales = packed.scales(x, BLOCK)
    lanes = packed.encode(x, None, scales, BLOCK, take)
    own = decoded(packed, lanes, scales, BLOCK)
    total = (lanes.view(np.uint32).astype(np.uint64) * workers % 2**32).astype(np.uint32).view(np.int32)
    with np.errstate(over="ignore"):
        expected = (own.astype(np.float64) * workers).astype(np.float32)
    np.testing.assert_array_equal(decoded(packed, total, scales, BLOCK), expected)


def test_a_fields_share_of_its_range_is_what_the_workers_leave() -> None:
    for fields, width in ((2, 16), (3, 10), (4, 8)):
        for workers in range(1, 1 << width - 1):
            most = PackedLanes(fields, workers).steps
            assert most * workers < 1 << width - 1 <= (most + 1) * workers
        with pytest.raises(ValueError, match=f"fields of {width} bits hold sums of 1 to {workers} workers"):
            PackedLanes(fields, workers + 1)


@pytest.mark.parametrize("fields", [2, 3, 4])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_mark_their_block(fields: int, value: float) -> None:
    packed = PackedLanes(fields, 3)
    x = np.ones(2 * BLOCK, np.float32)
    x[BLOCK + 7] = value
    scales = packed.scales(x, BLOCK)
    assert scales[0] < NOT_FINITE <= scales[1]
    lanes = packed.encode(x, None, scales, BLOCK, take)
    out = decoded(packed, lanes, scales, x.size)
    assert np.isfinite(out[:BLOCK]).all()
    assert np.isnan(out[BLOCK:]).all()


@pytest.mark.parametrize("fields", [2, 3, 4])
def test_values_of_zero_are_lanes_of_zero(fields: int) -> None:
    packed = PackedLanes(fields, 4)
    x = np.zeros(BLOCK, np.float32)
    x[32 * fields] = -1  # the first value of the second group of lanes
    lanes = packed.encode(x, None, np.full(1, np.float32(1).view(np.uint32)), BLOCK, take)
    assert np.flatnonzero(lanes).tolist() == [32]


@pytest.mark.parametrize("fields", [2, 3, 4])
@pytest.mark.parametrize("rows", [[], [0], [1, 3], [0, 1, 2, 3]])
def test_chosen_blocks_are_packed_as_all_are(fields: int, rows: list[int]) -> None:
    packed = PackedLanes(fields, 4)
    x = np.random.default_rng(5).normal(size=3 * BLOCK + 7).astype(np.float32)  # the last block is partial
    chosen, scales = np.array(rows, np.uint32), packed.scales(x, BLOCK)
    everything = packed.encode(x, None, scales, BLOCK, take).reshape(4, -1)
    some = packed.encode(x, chosen, scales[chosen], BLOCK, take)
    np.testing.assert_array_equal(some.reshape(-1, packed.lanes(BLOCK)), everything[chosen])
    out = np.full(x.size, 5, np.float32)
    packed.decode(some, chosen, scales[chosen], BLOCK, out)
    untouched = np.repeat(~np.isin(np.arange(4), rows), BLOCK)[: x.size]
    expected = decoded(packed, everything.reshape(-1), scales, x.size)
    np.testing.assert_array_equal(out, np.where(untouched, np.float32(5), expected))


def test_scales_that_are_no_maximum_are_refused() -> None:
    packed = PackedLanes(4, 2)
    x = np.ones(2 * BLOCK, np.float32)
    scales = packed.scales(x, BLOCK)
    scales[1] -= 1
    with pytest.raises(ValueError, match="1 of 2 blocks hold a value above"):
        packed.encode(x, None, scales, BLOCK, take)


@pytest.mark.parametrize(
    ("bits", "error", "workers", "fields"),
    [
        (32, 0.0, 1024, 1),
        (16, 0.0, 4, 2),
        (16, 0.0, 1024, 2),
        (8, 0.0, 2, 4),
        (8, 0.0, 8, 4),
        (8, 0.0, 9, 3),
        (8, 0.0, 34, 3),
        ("auto", 0.02, 4, 4),
        ("auto", 0.02, 8, 3),
        ("auto", 0.02, 32, 2),
        ("auto", 0.0001, 4, 2),
        ("auto", 0.00001, 4, 1),
        ("auto", 0.99, 600, 2),
    ],
)
def test_the_form_follows_from_bits_error_and_workers(
    bits: LaneBits, error: float, workers: int, fields: int
) -> None:
    chosen = lane_format(bits, error, workers) if workers <= 32 or bits != 32 else WholeLanes(workers)
    assert chosen.fields == fields
    if bits == "auto":
        assert chosen.error <= error


@pytest.mark.parametrize(
    ("bits", "workers", "message"),
    [
        (8, 35, r"lane bits 8 are for up to 34 workers: sums of 35 take 6 bits .* Choose 16 .*, 32 or auto"),
        (8, 1024, "sums of 1024 take 10 bits"),
        (12, 4, "lane bits 12: there are 32, 16, 8, auto"),
        ("auto", 4, "lane error 0.0: it is a share"),
        (16, 3000, r"lane bits 16 are for up to 2184 workers.* Choose 32 or auto"),
    ],
)
def test_too_many_workers_are_refused_in_words(bits: LaneBits, workers: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lane_format(bits, 0.0, workers)
