# SPDX-License-Identifier: Apache-2.0
"""Layer and magnitude classes against a plain reference."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.classes import LayerClasses, MagnitudeClassifier, layer_classes
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
    assert layer_classes([10, 1000, 10]) == [0, 2, 5]
    assert layer_classes([1000, 10]) == [0, 5]
    assert layer_classes([7]) == [0]
    assert layer_classes([]) == []


def test_a_module_is_classified_by_its_trained_parameters() -> None:
    module = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(7)))
    module[0].requires_grad_(False)
    layers = LayerClasses.of(module)
    assert [layers[f"{i}.weight"] for i in range(1, 7)] == list(range(6))
    assert layers.counts() == [2] * 6
    assert layers.frontmost(["6.bias", "3.weight", "4.bias"]) == 2
    with pytest.raises(KeyError):
        _ = layers["0.weight"]


# Magnitude classes.


def reference(vector: torch.Tensor, size: int, before: list[float] | None) -> tuple[list[int], list[float]]:
    """Return one tensor's classes and quartiles, block by block."""
    means = []
    for start in range(0, size, BLOCK):
        values = [abs(float(x)) for x in vector[start : min(start + BLOCK, size)]]
        means.append(float(np.float32(sum(values)) / np.float32(len(values))))
    found = sorted(mean for mean in means if mean > 0)
    if not found:
        return [0] * len(means), []
    now = [found[len(found) // 4], found[len(found) // 2], found[len(found) * 3 // 4]]
    limits = before or now
    return [sum(mean >= limit for limit in limits) if mean else 0 for mean in means], now


@st.composite
def tensors(draw: st.DrawFn) -> tuple[list[int], list[torch.Tensor]]:
    """Return sizes of the tensors of a bucket, and vectors for three steps.

    Values are whole: sums are then exact in whatever order, and blocks of equal means abound.
    """
    sizes = draw(st.lists(st.integers(1, 12 * BLOCK), min_size=1, max_size=5))
    layout, vectors = layout_of(sizes), []
    for _ in range(3):
        generator = np.random.default_rng(draw(st.integers(0, 2**32)))
        values = generator.integers(-9, 10, layout.length) * generator.choice(
            [0, 1, 2], layout.length // BLOCK
        ).repeat(BLOCK)
        vector = torch.zeros(layout.length)
        for segment in layout:
            vector[segment.in_vector] = torch.from_numpy(values[segment.in_vector].astype(np.float32))
        vectors.append(vector)
    return sizes, vectors


@given(tensors())
def test_magnitude_classes_are_those_of_the_plain_reference(
    case: tuple[list[int], list[torch.Tensor]],
) -> None:
    sizes, vectors = case
    layout, classifier = layout_of(sizes), MagnitudeClassifier(decay=0.5)
    averages: dict[str, list[float]] = {}
    for vector in vectors:
        found = classifier.classify(layout, vector)
        for segment in layout:
            expected, now = reference(vector[segment.in_vector], segment.length, averages.get(segment.name))
            assert found.classes[layout.blocks_of(segment)].tolist() == expected
            if now:
                before = averages.get(segment.name, now)
                averages[segment.name] = [(a + b) / 2 for a, b in zip(now, before, strict=True)]
        classifier.adopt(found)
        for name, quartiles in classifier.state_dict().items():
            assert quartiles.tolist() == pytest.approx(averages[name], rel=1e-6)
            averages[name] = quartiles.tolist()  # so that rounding of the average decides no tie


def test_a_steady_tensor_has_a_quarter_of_its_blocks_in_each_class() -> None:
    layout, classifier = layout_of([400 * BLOCK]), MagnitudeClassifier()
    generator = torch.Generator().manual_seed(1)
    spread = torch.randn(400, generator=generator).exp()
    for _ in range(20):
        vector = (torch.randn(400, BLOCK, generator=generator) * spread.unsqueeze(1)).flatten()
        found = classifier.classify(layout, vector)
        classifier.adopt(found)
    shares = np.bincount(found.classes, minlength=MAGNITUDE_CLASSES) / 400
    assert shares == pytest.approx(0.25, abs=0.05)


def test_nothing_changes_before_it_is_adopted() -> None:
    layout, classifier = layout_of([8 * BLOCK]), MagnitudeClassifier()
    vector = torch.arange(8 * BLOCK, dtype=torch.float32)
    first = classifier.classify(layout, vector)
    assert classifier.state_dict() == {}
    assert first.classes.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    classifier.classify(layout, vector * 1000)
    assert classifier.classify(layout, vector).classes.tolist() == first.classes.tolist()


def test_sums_beyond_float32_poison_no_average() -> None:
    layout, classifier = layout_of([4 * BLOCK]), MagnitudeClassifier()
    for _ in range(3):
        found = classifier.classify(layout, torch.full((4 * BLOCK,), 3e38))
        classifier.adopt(found)
    assert all(quartiles.isfinite().all() for quartiles in classifier.state_dict().values())


def test_a_saved_classifier_goes_on_bit_for_bit() -> None:
    layout = layout_of([300, 5, 90])
    straight, first, second = MagnitudeClassifier(), MagnitudeClassifier(), MagnitudeClassifier()
    generator = torch.Generator().manual_seed(1)
    for step in range(6):
        vector = torch.randn(layout.length, generator=generator)
        if step == 3:
            second.load_state_dict(first.state_dict())
        found = straight.classify(layout, vector)
        straight.adopt(found)
        other = first if step < 3 else second
        theirs = other.classify(layout, vector)
        other.adopt(theirs)
        assert theirs.classes.tolist() == found.classes.tolist()
    ours, theirs_ = straight.state_dict(), second.state_dict()
    assert ours.keys() == theirs_.keys()
    assert all(torch.equal(ours[name], theirs_[name]) for name in ours)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_outside_its_range_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="weight of the past"):
        MagnitudeClassifier(decay)
