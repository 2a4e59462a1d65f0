# SPDX-License-Identifier: Apache-2.0
"""Sparsifiers: what they keep, what they leave, what they refuse."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from tests.host_agent.compression.sparsified_job import spans_of
from weir.host_agent.compression.sparsifiers import (
    Span,
    Sparsifier,
    SparsifierOptions,
    create_sparsifier,
    register,
    sparsifier_class,
    sparsifier_names,
)
from weir.host_agent.compression.sparsifiers.density import keep_largest, positions, ranked


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


def many_layers() -> list[Span]:
    """Return sizes as in a ResNet: a few large parameters, many tiny ones."""
    return spans_of(
        [1728, 64, 64, 36864, 64, 64, 73728, 128, 128, 8192, 128, 128, 147456, 256, 256, 5120, 10]
    )


@pytest.mark.parametrize("name", ["topk", "topk-block", "omnireduce", "random-k"])
@pytest.mark.parametrize("density", [0.001, 0.02])
def test_the_density_holds_over_many_small_parameters(name: str, density: float) -> None:
    spans = many_layers()
    sparsifier = create_sparsifier(name, SparsifierOptions(density=density, block=64))
    sent = torch.zeros(100, len(spans))
    for step in range(100):
        for number, span in enumerate(spans):
            values = gradient(span.length, step)
            sent[step, number] = torch.count_nonzero(sparsifier.encode(values, span))
        sparsifier.end_step()
    total = spans[0].total
    assert sent.sum() / 100 / total == pytest.approx(density, rel=0.05)
    if name in {"topk", "random-k"}:
        assert (sent.sum(1) - density * total).abs().max() <= 1
        # No parameter is forgotten, however small.
        assert (sent[:, :3].sum(0) > torch.tensor([1728, 64, 64]) * density * 100 - 2).all()


def test_random_k_draws_the_same_for_all_workers_and_all_elements_in_time() -> None:
    one, other = (create_sparsifier("random-k", SparsifierOptions(density=0.05)) for _ in range(2))
    other.join(1, 2)
    seen = torch.zeros(1000, dtype=torch.int)
    for step in range(200):
        mine, theirs = (
            s.encode(gradient(1000, seed), span(seen)) != 0 for s, seed in ((one, step), (other, step + 1000))
        )
        assert torch.equal(mine, theirs)
        assert int(mine.sum()) == 50
        seen += mine
        one.end_step()
        other.end_step()
    assert seen.min() > 0
    assert seen.max() < 30  # 10 on average


def test_omnireduce_sends_blocks_of_the_size_it_chooses_by() -> None:
    assert create_sparsifier("omnireduce").encoding == "blocks:256"
    assert create_sparsifier("omnireduce", SparsifierOptions(block=64)).encoding == "blocks:64"
    assert create_sparsifier("topk-block").encoding == "auto"


@given(
    length=st.sampled_from([1, 7, 1000, 65536, 65537, 90001]),
    share=st.floats(0.0, 1.0),
    kind=st.sampled_from(["normal", "levels", "zeros", "sorted"]),
    seed=st.integers(0, 100),
)
@settings(max_examples=examples(40))
def test_selection_is_exact(length: int, share: float, kind: str, seed: int) -> None:
    values = gradient(length, seed)
    if kind == "levels":
        values = values.round()
    elif kind == "zeros":
        values *= (torch.arange(length) % 50 == 0).float()
    elif kind == "sorted":
        values = values.sort().values
    count = max(1, round(share * length))
    ordered = np.sort(values.abs().numpy())[::-1]
    assert ranked(values, count) == ordered[count - 1]
    kept = keep_largest(values, count)
    assert torch.equal(torch.where(kept != 0, values, 0.0), kept)
    assert int(torch.count_nonzero(kept)) == min(count, int(torch.count_nonzero(values)))
    assert kept.abs().sum().item() == pytest.approx(ordered[:count].sum(), rel=1e-4)


def test_a_rank_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="rank is 0: it must be 1 to 5"):
        ranked(torch.ones(5), 0)
    with pytest.raises(ValueError, match="rank is 4: it must be 1 to 3"):
        ranked(torch.ones(5), 4, 2)


@given(offset=st.integers(0, 9), length=st.integers(0, 60), seed=st.integers(0, 100))
def test_positions_are_where_a_mask_is_true(offset: int, length: int, seed: int) -> None:
    mask = (gradient(offset + length, seed) > 0.5)[offset:]
    assert torch.equal(positions(mask), mask.nonzero().squeeze(1))


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
    with pytest.raises(ValueError, match="no sparsifier is called 'topq'"):
        sparsifier_class("topq")
    assert sparsifier_class("topk").uses == ("density",)


def test_a_name_is_registered_once() -> None:
    class Again(Sparsifier):
        name = "topk"

        summary = "Twice."

        def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
            return gradient

    with pytest.raises(ValueError, match="class Again is called 'topk', as another method is"):
        register(Again)


def test_another_sparsifiers_state_is_refused() -> None:
    state = create_sparsifier("topk").state_dict()
    create_sparsifier("topk").load_state_dict(state)
    with pytest.raises(ValueError, match="'topk', this one is 'dense'"):
        create_sparsifier("dense").load_state_dict(state)
