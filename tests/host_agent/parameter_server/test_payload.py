# SPDX-License-Identifier: Apache-2.0
"""Sparse payloads: what comes back, what it costs, and that damage is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from weir.host_agent.compression.encodings.encoding import MASK_SIZES
from weir.host_agent.parameter_server.payload import (
    HEAD_WORDS,
    Form,
    PayloadError,
    decode,
    encode,
    plan,
)

_RUNS = st.lists(st.tuples(st.integers(0, 70_000), st.integers(1, 300)), max_size=12)


@st.composite
def chosen(draw: st.DrawFn) -> np.ndarray:
    """Masks of any length and shape: stretches at any distance, all, none, at random."""
    how = draw(st.sampled_from(["runs", "random", "all"]))
    length = draw(st.integers(1, 5000))
    if how == "all":
        return np.ones(length, np.bool_)
    if how == "random":
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        return rng.random(length) < draw(st.sampled_from([0.001, 0.02, 0.1, 0.5]))
    parts = [np.repeat([False, True], run) for run in draw(_RUNS)]
    return np.concatenate([*parts, np.zeros(draw(st.integers(1, 100)), np.bool_)])


def words_of(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, length, dtype=np.uint32)


@given(chosen(), st.sampled_from([MASK_SIZES, (1,), (16,), (256,)]))
def test_comes_back_and_costs_what_was_planned(mask: np.ndarray, blocks: tuple[int, ...]) -> None:
    planned, vector = plan(mask, blocks), words_of(mask.size)
    payload = encode(planned, vector)
    assert 4 * payload.size == planned.bytes
    patch = decode(payload, mask.size)
    assert np.array_equal(patch.places, planned.covered)
    assert not (mask & ~planned.covered).any()
    assert np.array_equal(patch.dense(), np.where(planned.covered, vector, 0))


@given(chosen())
@settings(max_examples=examples(30))
def test_no_form_is_smaller_than_the_chosen_one(mask: np.ndarray) -> None:
    best = plan(mask).words
    assert best == min(plan(mask, (block,)).words for block in MASK_SIZES)
    assert best <= HEAD_WORDS + mask.size
    assert best <= HEAD_WORDS + 2 * np.count_nonzero(mask)


def test_each_form_is_somewhere_the_cheapest() -> None:
    few, some, stretches = (np.zeros(200_000, np.bool_) for _ in range(3))
    few[[7, 190_000]] = True
    some[::9] = True
    stretches.reshape(-1, 32)[::60] = True
    found = [plan(mask) for mask in (few, some, stretches, np.ones(99, np.bool_))]
    assert [p.form for p in found] == [Form.WIDE_LIST, Form.TREE, Form.LIST, Form.DENSE]
    assert found[2].block > 1


@given(chosen(), st.data())
def test_damage_is_refused_or_harmless(mask: np.ndarray, data: st.DataObject) -> None:
    payload = encode(plan(mask), words_of(mask.size))
    place = data.draw(st.integers(0, payload.size - 1))
    payload[place] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    cut = payload[: data.draw(st.integers(0, payload.size))]
    for damaged in (payload, cut):
        try:
            patch = decode(damaged, mask.size)
        except PayloadError:
            continue
        assert patch.values.size == np.count_nonzero(patch.places)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 3000))
def test_any_words_are_a_patch_or_an_error(words: list[int], length: int) -> None:
    payload = np.array(words, np.uint32)
    if payload.size > 1:
        payload[0] &= 0x00030803
        payload[1] = length
    try:
        patch = decode(payload, length)
    except PayloadError:
        return
    assert patch.dense().size == length


def test_another_vector_is_refused() -> None:
    payload = encode(plan(np.ones(10, np.bool_)), words_of(10))
    with pytest.raises(PayloadError, match="a vector of 10 words, not 11"):
        decode(payload, 11)
    with pytest.raises(ValueError, match="1 to 2"):
        plan(np.zeros(0, np.bool_))
