# SPDX-License-Identifier: Apache-2.0
"""Sparsifiers: what they keep, what they leave, what they refuse."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from host_agent.sparsifiers import (
    Span,
    Sparsifier,
    SparsifierOptions,
    create_sparsifier,
    register,
    sparsifier_names,
)


def span(values: torch.Tensor) -> Span:
    """Of a model with one parameter."""
    return Span("weight", 0, values.numel(), values.numel())


def gradient(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(seed))


@given(
    name=st.sampled_from(sparsifier_names()),
    length=st.integers(1, 2000),
    density=st.floats(0.001, 1.0),
    block=st.sampled_from([32, 64, 128, 256]),
    seed=st.integers(0, 1000),
)
def test_every_element_is_sent_bit_for_bit_or_left_whole(
    name: str, length: int, density: float, block: int, seed: int
) -> None:
    values = gradient(length, seed)
    before = values.clone()
    sent = create_sparsifier(name, SparsifierOptions(density, 0.5, block)).encode(values, span(values))
    assert torch.equal(values, before)
    assert sent.shape == values.shape
    assert torch.equal(torch.where(sent != 0, values, 0.0), sent)
    assert torch.equal(sent + (values - sent), values)


def test_dense_sends_everything() -> None:
    values = gradient(1000)
    assert torch.equal(create_sparsifier("dense").encode(values, span(values)), values)


def test_topk_keeps_the_largest_elements() -> None:
    values = gradient(1000)
    sent = create_sparsifier("topk", SparsifierOptions(density=0.031)).encode(values, span(values))
    assert torch.count_nonzero(sent) == 31
    assert values.abs()[sent == 0].max() < sent.abs()[sent != 0].min()


@pytest.mark.parametrize("length", [1024, 1000])
def test_topk_block_keeps_the_blocks_of_largest_norm(length: int) -> None:
    values = torch.full((length,), 0.01)
    values[70] = -3.0  # block 2 of 32 lanes
    values[length - 1] = 2.0  # the last block, which may be short
    sent = create_sparsifier("topk-block", SparsifierOptions(density=2 / 32, block=32)).encode(
        values, span(values)
    )
    expected = torch.zeros(length)
    expected[64:96] = values[64:96]
    expected[992:] = values[992:]
    assert torch.equal(sent, expected)


def test_threshold_keeps_what_reaches_it() -> None:
    values = torch.tensor([0.5, -0.5, 0.49, 0.0, -3.0])
    sent = create_sparsifier("threshold", SparsifierOptions(threshold=0.5)).encode(values, span(values))
    assert sent.tolist() == [0.5, -0.5, 0.0, 0.0, -3.0]


@pytest.mark.parametrize("name", sparsifier_names())
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_element_is_never_held_back(name: str, bad: float) -> None:
    values = gradient(5000) * 1e10
    values[1234] = bad
    sent = create_sparsifier(name, SparsifierOptions(density=0.001, threshold=1e30)).encode(
        values, span(values)
    )
    assert not torch.isfinite(sent).all()


@pytest.mark.parametrize("density", [0.0, -0.1, 1.0001, math.nan])
def test_density_out_of_range_is_refused(density: float) -> None:
    with pytest.raises(ValueError, match=r"density is .*above 0 and at most 1"):
        SparsifierOptions(density=density)


def test_other_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="threshold is -1"):
        SparsifierOptions(threshold=-1.0)
    with pytest.raises(ValueError, match=r"block is 100 lanes.*32, 64, 128, 256"):
        SparsifierOptions(block=100)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'topq'.*dense.*threshold, topk, topk-block"):
        create_sparsifier("topq")


def test_a_name_is_registered_once() -> None:
    class Again(Sparsifier):
        name = "topk"

        summary = "Twice."

        def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
            return gradient

    with pytest.raises(ValueError, match="two sparsifiers are called 'topk'"):
        register(Again)


def test_another_sparsifiers_state_is_refused() -> None:
    state = create_sparsifier("topk").state_dict()
    create_sparsifier("topk").load_state_dict(state)
    with pytest.raises(ValueError, match="'topk', this one is 'dense'"):
        create_sparsifier("dense").load_state_dict(state)
