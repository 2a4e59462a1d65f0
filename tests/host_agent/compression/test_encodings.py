# SPDX-License-Identifier: Apache-2.0
"""Encodings in one process: rules, masks, and packed vectors that give back what was selected."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from weir.host_agent.collectives.dtypes import set_bits
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import (
    DENSE,
    SCALE_BLOCK,
    Encoder,
    Encoding,
    EncodingPlan,
    EncodingRule,
    Selection,
    parse_rule,
)
from weir.host_agent.compression.encodings.shared_mask import words_for, write_mask, write_mask_torch
from weir.host_agent.compression.sparsifiers import Span, Sparsifier, SparsifierOptions, create_sparsifier

MASKS = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def test_rules_are_read_and_written() -> None:
    assert parse_rule("auto") == EncodingRule() and parse_rule("auto").encoding is None
    assert parse_rule("dense").encoding == DENSE
    blocks, shared = parse_rule("blocks:64"), parse_rule("shared-mask:2")
    assert (blocks.encoding, blocks.packet_block) == (Encoding(64), 64)
    assert (shared.encoding, shared.packet_block) == (Encoding(2), None)
    for text in ("auto", "dense", "blocks:32", "shared-mask:256"):
        assert str(parse_rule(text)) == text


@pytest.mark.parametrize(
    "text", ["", "Dense", "dense:1", "blocks", "blocks:16", "blocks:x", "shared-mask:3", "shared-mask:512"]
)
def test_other_rules_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not one of auto, dense|the number must be one of"):
        parse_rule(text)


class Filler(Sparsifier):
    name, summary, fills_union = "filler", "For tests.", True

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        return gradient


def planned(rule: str, sparsifier: Sparsifier, excluded: bool = False) -> EncodingPlan:
    encoder = Encoder(parse_rule(rule), sparsifier)
    return encoder.plan(make_layout([300]), {"0": Span("0", 0, 300, 300)}, lambda segment: excluded)


def test_who_fills_the_union_needs_a_mask() -> None:
    filler = Filler(SparsifierOptions())
    assert planned("auto", filler).encodings == {"0": Encoding(1)}
    assert planned("auto", filler, excluded=True).encodings == {"0": DENSE}
    assert planned("shared-mask:4", filler).encodings == {"0": Encoding(4)}
    with pytest.raises(ValueError, match="'filler' needs a mask, so dense does not fit; use auto"):
        planned("dense", filler)
    fine = create_sparsifier("exdyna")
    for rule in ("auto", "shared-mask:1"):
        assert planned(rule, fine).encodings == {"0": Encoding(1)}
    for rule in ("dense", "blocks:32"):
        with pytest.raises(
            ValueError, match=f"'exdyna' needs the encoding shared-mask:1, so {rule} does not fit"
        ):
            planned(rule, fine)


def test_what_is_sent_whole_is_dense_unless_ruled() -> None:
    dense = create_sparsifier("dense")
    assert planned("auto", dense).encodings == {"0": DENSE}
    ruled = planned("blocks:32", dense)
    assert (ruled.encodings, ruled.packet_block) == ({"0": Encoding(32)}, 32)


def make_layout(lengths: list[int]) -> BucketLayout:
    parameters = [torch.empty(length) for length in lengths]
    return BucketLayout.of(3, [str(i) for i in range(len(lengths))], parameters, SCALE_BLOCK)


@st.composite
def cases(draw: st.DrawFn) -> tuple[BucketLayout, list[int | None], torch.Tensor]:
    """Return a layout, a mask for each parameter (None: dense), and a vector with zero regions of all
    sizes.
    """
    lengths = draw(st.lists(st.integers(0, 1500), min_size=1, max_size=4))
    masks = [draw(st.sampled_from([None, *MASKS])) for _ in lengths]
    layout = make_layout(lengths)
    seed, density = draw(st.integers(0, 2**31)), draw(st.sampled_from([0.0, 0.002, 0.05, 0.6, 1.0]))
    random = np.random.default_rng(seed)
    values = random.standard_normal(layout.length) * (random.random(layout.length) < density)
    values[random.random(layout.length) < density / 20] = draw(st.sampled_from([np.nan, np.inf, 1e-45, -0.0]))
    vector = torch.zeros(layout.length)
    for segment in layout:
        vector[segment.in_vector] = torch.from_numpy(values.astype(np.float32))[segment.in_vector]
    return layout, masks, vector


def reference(values: npt.NDArray[np.float32], mask: int) -> npt.NDArray[np.bool_]:
    """Return which blocks of ``mask`` elements are not zero."""
    padded = np.zeros(-(-values.size // mask) * mask, np.float32)
    padded[: values.size] = values
    return (padded != 0).reshape(-1, mask).any(axis=1)


def masks_of(
    layout: BucketLayout, sizes: list[int | None], vector: torch.Tensor
) -> dict[str, npt.NDArray[np.uint32]]:
    masks = {}
    for segment, size in zip(layout, sizes, strict=True):
        if size is not None:
            masks[segment.name] = np.zeros(words_for(segment.length, size), np.uint32)
            write_mask(vector[segment.in_vector], size, masks[segment.name])
    return masks


def select(layout: BucketLayout, sizes: list[int | None], vector: torch.Tensor) -> Selection:
    encodings = {segment.name: Encoding(size) for segment, size in zip(layout, sizes, strict=True)}
    return Selection.of(EncodingPlan(encodings, packet_block=32), layout, masks_of(layout, sizes, vector))


@given(cases())
@settings(max_examples=examples(60))
def test_masks_say_what_is_not_zero(case: tuple[BucketLayout, list[int | None], torch.Tensor]) -> None:
    layout, sizes, vector = case
    for segment, size in zip(layout, sizes, strict=True):
        values, mask = vector[segment.in_vector], size or 1
        here, there = (np.zeros(words_for(segment.length, mask), np.uint32) for _ in range(2))
        count = write_mask(values, mask, here)
        assert count == write_mask_torch(values, mask, there) == np.count_nonzero(values)
        expected = reference(values.numpy(), mask)
        assert (set_bits(here, expected.size) == expected).all()
        assert not set_bits(here)[expected.size :].any()
        assert (here == there).all()


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.view(torch.int32), right.view(torch.int32))


@given(cases())
@settings(max_examples=examples(100))
def test_what_is_packed_is_what_is_selected(
    case: tuple[BucketLayout, list[int | None], torch.Tensor],
) -> None:
    layout, sizes, vector = case
    selection = select(layout, sizes, vector)
    packed = selection.pack(vector)
    assert packed.numel() == selection.layout.length
    assert selection.everything == all(size is None for size in sizes)
    positive = vector + 0.0  # -0.0 is zero: it may be left behind
    unpacked = selection.unpack(packed)
    assert same(unpacked + 0.0, positive)
    # Only whole blocks with something in them travel; each parameter's start where a scale does.
    for segment, size, target in zip(layout, sizes, selection.layout, strict=True):
        assert target.vector_start % SCALE_BLOCK == 0
        if size is not None:
            chosen = np.repeat(reference(vector[segment.in_vector].numpy(), size), size)[: segment.length]
            assert target.length == chosen.sum()
            assert same(packed[target.in_vector], vector[segment.in_vector][torch.from_numpy(chosen)])
            assert (selection.union(vector)[segment.in_vector].numpy() == chosen).all()
        assert not packed[selection.layout.padding_of(target)].any()
    other = torch.randn(layout.length, generator=torch.Generator().manual_seed(1))
    expected = other.clone()
    union = selection.union(vector)
    expected[union] -= unpacked[union]
    selection.subtract(other, packed)
    assert same(other[union], expected[union]) and same(other[~union], expected[~union])


@given(cases())
@settings(max_examples=examples(60))
def test_every_device_does_as_the_native_code(
    case: tuple[BucketLayout, list[int | None], torch.Tensor],
) -> None:
    layout, sizes, vector = case
    selection = select(layout, sizes, vector)
    packed = selection.pack(vector)
    values = torch.randn(layout.length, generator=torch.Generator().manual_seed(2))
    assert same(selection.pack_torch(vector, torch.empty_like(packed)), packed)
    assert same(selection.unpack_torch(torch.empty_like(vector), packed), selection.unpack(packed))
    assert torch.equal(selection.union_torch(vector, vector.bool()), selection.union(vector))
    ours, theirs = values.clone(), values.clone()
    selection.subtract(ours, packed)
    selection.subtract_torch(theirs, packed)
    assert same(ours, theirs)


@given(cases())
@settings(max_examples=examples(60))
def test_a_bucket_is_overwritten_by_its_sum_without_the_vector_between_them(
    case: tuple[BucketLayout, list[int | None], torch.Tensor],
) -> None:
    layout, sizes, vector = case
    selection = select(layout, sizes, vector)
    packed = selection.pack(vector)
    ours, theirs = torch.full((2, layout.elements), math.nan)
    selection.collect(packed, ours)
    layout.collect(selection.unpack(packed), theirs)
    assert same(ours, theirs)
    strided = torch.full((2 * layout.elements,), math.nan)[::2]
    selection.collect(packed, strided)
    assert same(strided.contiguous(), theirs)


def test_masks_that_are_too_short_are_refused() -> None:
    layout = make_layout([1000])
    plan = EncodingPlan({"0": Encoding(1)}, packet_block=32)
    with pytest.raises(ValueError, match="31 words for 1000 elements, 32 are needed"):
        Selection.of(plan, layout, {"0": np.zeros(31, np.uint32)})


def test_an_element_of_the_packed_vector_is_named_by_its_place_in_the_gradient() -> None:
    layout, vector = make_layout([40, 1000, 7]), torch.zeros(1536)
    vector[256 + 130] = vector[256 + 999] = vector[1280 + 5] = 1.0
    selection = select(layout, [8, 8, None], vector)
    for index, name, element in ((2, "1", 130), (15, "1", 999), (256 + 5, "2", 5)):
        assert f"parameter '{name}'" in selection.describe(index)
        assert f"(element {element}, bucket 3)" in selection.describe(index)
        assert selection.pack(vector)[index] == 1.0
