# SPDX-License-Identifier: Apache-2.0
"""What a sparsifier finds natively is what torch finds, on any device."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings.shared_mask import mark_blocks, words_for
from weir.host_agent.compression.sparsifiers.density import ranked, worthiest, worthiest_torch
from weir.host_agent.compression.sparsifiers.dfs_blocks import (
    copy_blocks,
    copy_blocks_torch,
    marginal,
    mark_largest,
    norms,
)

LENGTHS = st.sampled_from([1, 7, 255, 1000, 40_003, 70_000])
SIZES = st.sampled_from([1, 2, 8, 64, 256])


def drawn(length: int, seed: int, kind: str) -> torch.Tensor:
    """Return values: different ones, few different ones, or some that are not finite."""
    found = torch.randn(length, generator=torch.Generator().manual_seed(seed))
    if kind == "few":
        return found.round()
    if kind == "tiny":
        return found * 1e-30
    if kind == "zero":
        return found * 0
    if kind == "not finite":
        found[::3], found[1::7] = math.nan, -math.inf
    return found


@given(
    length=LENGTHS,
    share=st.sampled_from([0.0, 0.001, 0.05, 0.5, 1.0, 1.1]),
    kind=st.sampled_from(["different", "few", "not finite"]),
    seed=st.integers(0, 3),
)
def test_the_worthiest_are_those_that_torch_finds(length: int, share: float, kind: str, seed: int) -> None:
    values, count = drawn(length, seed, kind), round(share * length)
    assert torch.equal(worthiest(values, count), worthiest_torch(values, count))


@pytest.mark.parametrize("length", [1_500_000, 3_000_000])
def test_the_worthiest_of_many_values_too(length: int) -> None:
    values = drawn(length, 1, "different")
    for count in (3, length // 100, length // 2):
        assert torch.equal(worthiest(values, count), worthiest_torch(values, count))


@given(length=LENGTHS, step=st.sampled_from([1, 2, 11, 100]), share=st.floats(0, 1), seed=st.integers(0, 3))
def test_what_has_a_rank_has_as_many_above_it(length: int, step: int, share: float, seed: int) -> None:
    values = drawn(length, seed, "not finite" if seed else "few")
    magnitudes = values[::step].abs().nan_to_num(nan=math.inf, posinf=math.inf).sort(descending=True).values
    rank = 1 + round(share * (magnitudes.numel() - 1))
    assert ranked(values, rank, step) == magnitudes[rank - 1]
    assert ranked(values.repeat_interleave(2)[::2], rank, step) == magnitudes[rank - 1], "not contiguous"


@pytest.mark.parametrize("size", [1, 2, 8, 256])
def test_three_in_four_of_the_blocks_that_travel_are_above_the_least(size: int) -> None:
    travelled = drawn(40 * size, 1, "different")
    norms = travelled.view(-1, size).double().square().mean(dim=1).sqrt()
    assert int((norms > marginal(travelled, size) * (1 + 1e-5)).sum()) == 30
    assert marginal(torch.empty(0), size) == 0.0


@given(
    lengths=st.lists(LENGTHS, min_size=1, max_size=3),
    size=SIZES,
    share=st.sampled_from([0.0, 0.001, 0.05, 1.0]),
    kinds=st.lists(
        st.sampled_from(["different", "few", "not finite", "tiny", "zero"]), min_size=3, max_size=3
    ),
    seed=st.integers(0, 3),
)
def test_the_largest_blocks_are_marked_of_all_parameters_at_once(
    lengths: list[int], size: int, share: float, kinds: list[str], seed: int
) -> None:
    vectors = [drawn(length, seed, kind) for length, kind in zip(lengths, kinds, strict=False)]
    counts = [round(share * length / size) for length in lengths]
    masks = [np.zeros(words_for(length, size), np.uint32) for length in lengths]
    found = mark_largest(vectors, [size] * len(vectors), counts, masks)
    for vector, count, mask, elements in zip(vectors, counts, masks, found, strict=True):
        expected = np.zeros_like(mask)
        number = mark_blocks(vector, worthiest(norms(vector, size), count), size, expected)
        if elements is None:
            peak = vector.abs().max()
            assert not 1e-20 < peak < math.inf, "no room for all that is not finite, or squares vanish"
            assert not mask.any()
        else:
            assert elements == number and np.array_equal(mask, expected)


@given(length=st.integers(0, 20_000), size=SIZES, seed=st.integers(0, 3))
def test_the_least_that_travels_is_the_same_on_every_device(length: int, size: int, seed: int) -> None:
    travelled = drawn(min(length, 600_000 // size) * size, seed, "not finite" if seed == 3 else "different")
    assert marginal(travelled, size) == marginal(travelled.repeat_interleave(2)[::2], size)


@given(length=LENGTHS, size=SIZES, share=st.sampled_from([0.0, 0.1, 1.0]), seed=st.integers(0, 3))
def test_blocks_are_copied_as_torch_copies_them(length: int, size: int, share: float, seed: int) -> None:
    vector = drawn(length, seed, "different")
    flags = torch.rand(-(-length // size), generator=torch.Generator().manual_seed(seed)) < share
    chosen, ours, theirs = flags.nonzero().squeeze(1), vector.clone(), vector.clone()
    copy_blocks(vector, chosen, size, ours)
    copy_blocks_torch(vector, chosen, size, theirs)
    assert torch.equal(ours, theirs)


@given(lengths=st.lists(st.integers(1, 700), min_size=1, max_size=4), divisor=st.sampled_from([1, 3, 4]))
def test_a_bucket_is_spread_natively_as_by_torch(lengths: list[int], divisor: int) -> None:
    names = [str(index) for index in range(len(lengths))]
    layout = BucketLayout.of(0, names, [torch.empty(length) for length in lengths], 256)
    bucket = drawn(layout.elements, 1, "different")
    residuals = {name: drawn(length, 2, "different") for name, length in zip(names, lengths, strict=True)}
    del residuals[names[0]]
    strided = {name: one.repeat_interleave(2)[::2] for name, one in residuals.items()}
    expected = layout.spread(bucket.repeat_interleave(2)[::2], divisor, strided)
    assert torch.equal(layout.spread(bucket, divisor, residuals), expected)
    assert torch.equal(layout.spread(bucket, divisor)[: lengths[0]], bucket[: lengths[0]] / divisor)
    largest, same = np.full((2, layout.length // 256), np.nan, np.float32)
    layout.spread(bucket, divisor, residuals, largest)
    layout.spread(bucket, divisor, strided, same)
    assert np.array_equal(largest, expected.view(-1, 256).abs().amax(dim=1).numpy())
    assert np.array_equal(largest, same)
    bucket[-1] = math.nan
    layout.spread(bucket, divisor, residuals, largest)
    assert np.isnan(largest[-1])


def test_a_residual_of_another_length_is_refused() -> None:
    layout = BucketLayout.of(0, ["w"], [torch.empty(5)], 256)
    with pytest.raises(ValueError, match="the residual of 'w' has 4 elements, the parameter 5"):
        layout.spread(torch.zeros(5), 1, {"w": torch.zeros(4)})
    with pytest.raises(ValueError, match="the bucket has 4 elements, its parameters 5"):
        layout.spread(torch.zeros(4))
