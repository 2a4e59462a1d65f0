# SPDX-License-Identifier: Apache-2.0
"""Layer and magnitude classes against a plain reference."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.classes import (
    LayerClasses,
    layer_classes,
    magnitude_classes,
    shared_magnitude_classes,
)
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES

BLOCK = 32


def layout_of(sizes: Sequence[int]) -> BucketLayout:
    names = [f"p{i}" for i in range(len(sizes))]
    return BucketLayout.of(0, names, [torch.empty(size) for size in sizes], BLOCK)


# Layer classes.


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=200))
def test_classes_never_fall_from_front_to_back_and_use_the_ends(sizes: list[int]) -> None:
    classes = layer_classes(sizes)
    assert classes == sorted(classes)
    assert classes[0] == 0
    assert classes[-1] in {0, LAYER_CLASSES - 1}
    assert (classes[-1] == 0) == (len(set(classes)) == 1)


@given(st.integers(1, 1000), st.integers(1, 40))
def test_equal_tensors_make_classes_of_equal_size(size: int, each: int) -> None:
    classes = layer_classes([size] * (each * LAYER_CLASSES))
    assert classes == [found for found in range(LAYER_CLASSES) for _ in range(each)]


def test_one_tensor_with_nearly_everything_is_between_the_ends() -> None:
    assert layer_classes([10, 1000, 10]) == [0, 1, 3]
    assert layer_classes([1000, 10]) == [0, 3]
    assert layer_classes([7]) == [0]
    assert layer_classes([]) == []


def test_a_module_is_classified_by_its_trained_parameters() -> None:
    module = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5)))
    module[0].requires_grad_(False)
    layers = LayerClasses.of(module)
    assert [layers[f"{i}.weight"] for i in range(1, 5)] == list(range(4))
    assert layers.counts() == [2] * 4
    assert layers.frontmost(["4.bias", "2.weight", "3.bias"]) == 1
    with pytest.raises(KeyError):
        _ = layers["0.weight"]


# Magnitude classes.


def reference(vector: torch.Tensor, size: int) -> list[int]:
    """Return one tensor's classes, block by block."""
    means = []
    for start in range(0, size, BLOCK):
        values = [abs(float(x)) for x in vector[start : min(start + BLOCK, size)]]
        means.append(float(np.float32(sum(values)) / np.float32(len(values))))
    found = sorted(mean for mean in means if mean > 0)
    limits = [found[len(found) // 3], found[len(found) * 2 // 3]] if found else []
    return [sum(mean >= limit for limit in limits) if mean else 0 for mean in means]


@st.composite
def tensors(draw: st.DrawFn) -> tuple[list[int], torch.Tensor]:
    """Return sizes of the tensors of a bucket, and a vector.

    Values are whole: sums are then exact in whatever order, and blocks of equal means abound.
    """
    sizes = draw(st.lists(st.integers(1, 12 * BLOCK), min_size=1, max_size=5))
    layout = layout_of(sizes)
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = generator.integers(-9, 10, layout.length) * generator.choice(
        [0, 1, 2], layout.length // BLOCK
    ).repeat(BLOCK)
    vector = torch.zeros(layout.length)
    for segment in layout:
        vector[segment.in_vector] = torch.from_numpy(values[segment.in_vector].astype(np.float32))
    return sizes, vector


@given(tensors())
def test_magnitude_classes_are_those_of_the_plain_reference(case: tuple[list[int], torch.Tensor]) -> None:
    sizes, vector = case
    layout = layout_of(sizes)
    found = magnitude_classes(layout, vector)
    for segment in layout:
        expected = reference(vector[segment.in_vector], segment.length)
        assert found[layout.blocks_of(segment)].tolist() == expected


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_third_of_the_blocks_is_in_each_class_whatever_their_size(scale: float) -> None:
    layout, generator = layout_of([300 * BLOCK]), torch.Generator().manual_seed(1)
    spread = torch.randn(300, generator=generator).exp()
    vector = scale * (torch.randn(300, BLOCK, generator=generator) * spread.unsqueeze(1)).flatten()
    vector[: 60 * BLOCK] = 0  # not sent: in no class's share
    found = magnitude_classes(layout, vector)[60:]
    assert np.bincount(found, minlength=MAGNITUDE_CLASSES).tolist() == [80, 80, 80]


def test_sums_beyond_float32_are_the_largest() -> None:
    layout = layout_of([4 * BLOCK])
    vector = torch.full((4 * BLOCK,), 3e38)
    vector[: 2 * BLOCK] = 1.0
    assert magnitude_classes(layout, vector).tolist() == [1, 1, 2, 2]


# Classes that all workers share.


def test_shared_classes_follow_the_scales_of_each_tensor() -> None:
    layout = layout_of([7 * BLOCK, 3 * BLOCK])
    scales = np.array([5, 1, 0, 6, 2, 3, 4, 9, 0x7F800000, 0x7F7FFFFF], np.uint32)
    for step in range(2 * MAGNITUDE_CLASSES):
        found = shared_magnitude_classes(layout, scales, step).tolist()
        assert found == [2, 0, 0, 2, 0, 1, 1, 0, 2, 1]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 1000), st.integers(1, 3))
def test_each_third_of_a_tensor_is_as_large_whatever_the_scales(
    sizes: list[int], step: int, most: int
) -> None:
    layout = layout_of([size * BLOCK for size in sizes])
    scales = np.random.default_rng(step).integers(1, most + 1, sum(sizes)).astype(np.uint32)
    found = shared_magnitude_classes(layout, scales, step)
    for segment, size in zip(layout, sizes, strict=True):
        counts = np.bincount(found[layout.blocks_of(segment)], minlength=MAGNITUDE_CLASSES)
        assert counts.tolist() == [size * (k + 1) // 3 - size * k // 3 for k in range(MAGNITUDE_CLASSES)]


def test_blocks_of_one_scale_take_turns_to_be_the_smallest() -> None:
    layout, scales = layout_of([300 * BLOCK]), np.full(300, 7, np.uint32)
    for first in (0, 5):
        small = [shared_magnitude_classes(layout, scales, first + step) == 0 for step in range(3)]
        often = np.sum(small, axis=0)
        assert often.max() <= 2
        assert (often == 1).mean() > 0.95
