# SPDX-License-Identifier: Apache-2.0
"""Scales agreed on together with masks: the true ones, whatever was predicted."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from tests.host_agent.compression.test_reductions_per_step import WORKERS, Counted
from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.contribution import HostVector, Scales
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.collectives.non_finite import NonFiniteError
from weir.host_agent.collectives.packing import LaneFormat, PackedLanes, WholeLanes
from weir.host_agent.collectives.shared_scales import contribute, encode
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import SCALE_BLOCK, EncodingPlan, Proposal
from weir.host_agent.compression.encodings.encoding import Encoding
from weir.host_agent.compression.encodings.mask_scales import (
    REGION_SIZES,
    WHOLE,
    MaskScales,
    Predictions,
    Regions,
    Steps,
    steps_of,
)

Vector = npt.NDArray[np.float32]

SIZES = (3000, 1, 20_000, 300)
NAMES = ("a", "b", "c", "d")
LAYOUT = BucketLayout.of(0, NAMES, [torch.empty(size) for size in SIZES], SCALE_BLOCK)


def levels_of(steps: Steps, scales: Lanes) -> Lanes:
    """Return the levels of scales."""
    fine = np.where(scales == 0, 0, (scales >> steps.dropped) + 1).astype(np.uint32)
    return fine if steps.fine else scales


def drawn(seed: int, density: float, spread: int, size: int = LAYOUT.length) -> Vector:
    """Return numbers of exponents up to ``spread`` binades apart, by runs, of which most are zero."""
    random = np.random.default_rng(seed)
    magnitudes = np.exp2(np.repeat(random.integers(-spread, spread + 1, -(-size // 100)), 100)[:size])
    kept = random.random(size) < density
    vector: Vector = np.where(kept, random.standard_normal(size) * magnitudes, 0).astype(np.float32)
    for segment in LAYOUT:
        vector[LAYOUT.padding_of(segment)] = 0
    return vector


def agreed(
    vectors: Sequence[Vector], plan: EncodingPlan, predictions: Sequence[Predictions], form: LaneFormat
) -> list[npt.NDArray[np.uint32]]:
    """Return what each of the workers finds the scales of all blocks to be."""
    group = InMemoryGroup(len(vectors))

    def worker(communicator: Communicator) -> npt.NDArray[np.uint32]:
        own = torch.from_numpy(vectors[communicator.rank])
        scales = MaskScales(plan, LAYOUT, own, predictions[communicator.rank], form)
        Proposal(plan, LAYOUT, own).agree(communicator, piggybacks=scales.codes)
        return scales.settle(communicator, scales.codes, LAYOUT.describe)

    return group.run([functools.partial(worker, c) for c in group.communicators])


def plan_of(mask_block: int, region: int, levels: int = 1) -> EncodingPlan:
    encodings = {name: Encoding(None if name == "d" else mask_block) for name in NAMES}
    return EncodingPlan(encodings, 32, levels, regions=dict.fromkeys(NAMES[:3], region))


@settings(max_examples=examples(60), deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**31), min_size=2, max_size=3),
    density=st.sampled_from([0.0, 0.001, 0.05, 1.0]),
    spread=st.sampled_from([0, 3, 20, 120]),
    region=st.sampled_from(REGION_SIZES),
    levels=st.integers(1, 3),
    believed=st.lists(st.integers(0, 0x3FC), max_size=4),
    form=st.sampled_from([WholeLanes(3), PackedLanes(2, 3), PackedLanes(4, 3)]),
)
def test_scales_are_the_true_ones_whatever_was_predicted(
    seeds: list[int],
    density: float,
    spread: int,
    region: int,
    levels: int,
    believed: list[int],
    form: LaneFormat,
) -> None:
    vectors, steps = [drawn(seed, density, spread) for seed in seeds], steps_of(form)
    plan, predictions = plan_of(4, region, levels), [Predictions() for _ in seeds]
    for one in predictions:
        one.learn(NAMES[: len(believed)], np.array(believed, np.uint32), steps)
    blocks = np.max([form.scales(vector, SCALE_BLOCK) for vector in vectors], axis=0)
    regions = Regions.of(plan, LAYOUT)
    true = np.repeat(np.maximum.reduceat(blocks, regions.starts), regions.sizes)
    for _ in range(2):  # then with what the first time taught
        for found in agreed(vectors, plan, predictions, form):
            np.testing.assert_array_equal(found, steps.scales(levels_of(steps, true)))
    assert len({one.known(NAMES) for one in predictions}) == 1


@settings(max_examples=examples(40), deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**31), min_size=2, max_size=3),
    spread=st.sampled_from([3, 20, 120]),
    mask_block=st.sampled_from([1, 32, 256]),
    believed=st.lists(st.integers(0, 0x3FC), max_size=4),
    form=st.sampled_from([WholeLanes(3), PackedLanes(2, 3)]),
)
def test_scales_of_what_travels_are_the_true_ones(
    seeds: list[int], spread: int, mask_block: int, believed: list[int], form: LaneFormat
) -> None:
    vectors, steps = [drawn(seed, 0.5, spread) for seed in seeds], steps_of(form)
    chosen = [np.where(np.abs(vector) >= 1, vector, 0).astype(np.float32) for vector in vectors]
    chosen[0][LAYOUT.segments[1].in_vector] = 0
    plan, group = plan_of(mask_block, SCALE_BLOCK), InMemoryGroup(len(seeds))
    everybody = [Predictions() for _ in seeds]
    for one in everybody:
        one.learn(NAMES[: len(believed)], np.array(believed, np.uint32), steps)

    def worker(communicator: Communicator) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.bool_]]:
        rank = communicator.rank
        scales = MaskScales(plan, LAYOUT, torch.from_numpy(vectors[rank]), everybody[rank], form)
        proposal = Proposal(plan, LAYOUT, torch.from_numpy(chosen[rank]))
        selection = proposal.agree(communicator, piggybacks=scales.codes)
        travels = selection.travelling(SCALE_BLOCK)
        return scales.settle(communicator, scales.codes, LAYOUT.describe, selected=lambda: travels), travels

    true = np.max([form.scales(vector, SCALE_BLOCK) for vector in vectors], axis=0)
    some = np.any([np.abs(one).reshape(-1, SCALE_BLOCK).max(axis=1) > 0 for one in chosen], axis=0)
    whole = LAYOUT.in_blocks(SCALE_BLOCK).blocks_of(LAYOUT.segments[3])
    for found, travels in group.run([functools.partial(worker, c) for c in group.communicators]):
        np.testing.assert_array_equal(np.delete(travels, np.r_[whole]), np.delete(some, np.r_[whole]))
        assert travels[whole].all()
        np.testing.assert_array_equal(found[travels], steps.scales(levels_of(steps, true))[travels])
    assert len({one.known(NAMES) for one in everybody}) == 1


@pytest.mark.parametrize("travels", [False, True])
def test_a_level_far_below_costs_a_reduction_only_where_something_travels(travels: bool) -> None:
    vector = np.zeros(LAYOUT.length, np.float32)
    vector[: 2 * SCALE_BLOCK] = np.repeat([1.0, 1e-9], SCALE_BLOCK)
    chosen = vector.copy()
    chosen[SCALE_BLOCK:] *= travels
    plan, predictions, reductions = plan_of(1, SCALE_BLOCK), Predictions(), list[int]()
    group = InMemoryGroup(1, watch=lambda _sent, block: reductions.append(block))

    def worker() -> None:
        own, form = torch.from_numpy(vector), PackedLanes(2, 1)
        scales = MaskScales(plan, LAYOUT, own, predictions, form)
        proposal = Proposal(plan, LAYOUT, torch.from_numpy(chosen))
        selection = proposal.agree(group.communicators[0], piggybacks=scales.codes)
        reductions.clear()
        settled = scales.settle(
            group.communicators[0],
            scales.codes,
            LAYOUT.describe,
            selected=lambda: selection.travelling(SCALE_BLOCK),
        )
        assert (settled[1] > 0) == travels

    group.run([worker])
    assert reductions, "nothing was predicted"
    group.run([worker])
    assert bool(reductions) == travels


@settings(max_examples=examples(200), deadline=None)
@given(st.floats(0, width=32), st.sampled_from([PackedLanes(2, 3), PackedLanes(4, 3)]))
def test_a_scale_of_packed_lanes_is_no_less_than_the_largest_value_and_little_more(
    value: float, form: LaneFormat
) -> None:
    steps = steps_of(form)
    scale = steps.scales(levels_of(steps, form.scales(np.array([value], np.float32), 1)))
    found = float(scale.view(np.float32)[0])
    if math.isinf(value):
        assert int(scale[0]) >= form.not_finite
        return
    assert value <= found
    assert math.isfinite(found)
    assert found <= value * 1.25 or value < 2.0**-126  # of subnormal values there is less to tell apart
    assert (found == 0) == (value == 0)


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 2**31),
    density=st.sampled_from([0.001, 0.05, 0.5, 1.0]),
    mask_block=st.sampled_from([1, 4, 32, 64, 256]),
    unit=st.sampled_from([32, 64, 128, 256]),
)
def test_a_unit_has_the_greatest_exponent_of_the_regions_that_it_is_from(
    seed: int, density: float, mask_block: int, unit: int
) -> None:
    vector, plan = drawn(seed, density, 5), plan_of(mask_block, SCALE_BLOCK)
    exponents = np.random.default_rng(seed).integers(1, 255, LAYOUT.length // SCALE_BLOCK).astype(np.uint32)
    group = InMemoryGroup(1)
    proposal = Proposal(plan, LAYOUT, torch.from_numpy(vector))
    (selection,) = group.run([lambda: proposal.agree(group.communicators[0])])
    places = torch.arange(1, LAYOUT.length + 1, dtype=torch.float32)
    for segment in LAYOUT:
        places[LAYOUT.padding_of(segment)] = 0
    packed = selection.pack(places).numpy().astype(np.int64) - 1
    blocks = np.where(packed < 0, 0, exponents[packed // SCALE_BLOCK])
    found = selection.largest(exponents, SCALE_BLOCK, unit).repeat(unit)
    needed = blocks.reshape(-1, unit).max(axis=1).repeat(unit)
    np.testing.assert_array_equal(found[packed >= 0], needed[packed >= 0])


def test_sums_are_no_less_exact_than_with_scales_of_the_packed_vector() -> None:
    vectors = [drawn(seed, 0.05, 6) for seed in range(WORKERS)]
    exact = np.sum(vectors, axis=0, dtype=np.float64)
    plan = plan_of(1, WHOLE.region_size(1000, lambda size: 20_000 // size))
    group = InMemoryGroup(WORKERS)

    def worker(communicator: Communicator, together: bool) -> Vector:
        own, form = torch.from_numpy(vectors[communicator.rank]), WholeLanes(WORKERS)
        scales = MaskScales(plan, LAYOUT, own, Predictions(), form)
        selection = Proposal(plan, LAYOUT, own).agree(communicator, piggybacks=scales.codes)
        packed = selection.pack(own).numpy()
        if together:
            settled = scales.settle(communicator, scales.codes, LAYOUT.describe)
            shared = Scales(selection.largest(settled, SCALE_BLOCK, WHOLE.unit), WHOLE.unit)
            mine = contribute(communicator, HostVector(packed), shared, form)
        else:
            mine = encode(communicator, HostVector(packed), str, SCALE_BLOCK, form=form, dense=True)
        total = mine.add(communicator, keep=False)[0].values()
        return selection.unpack(torch.from_numpy(total)).numpy()

    errors = [
        np.abs(
            group.run([functools.partial(worker, c, together) for c in group.communicators])[0] - exact
        ).sum()
        for together in (True, False)
    ]
    assert errors[0] <= errors[1]


class Gradients(Counted):
    """Steps whose gradients are of any magnitude."""

    def run(self, number: int, scale: float, *, forget: bool = False, spoil: bool = False) -> list[bytes]:
        """Return the averages and residuals of all workers after a step."""
        buckets = []
        for worker in self.workers:
            if forget:
                worker.predictions.clear()
            random = torch.Generator().manual_seed(100 * number + len(buckets))
            buckets.append(torch.randn(self.layout.elements, generator=random) * scale)
        if spoil:
            buckets[-1][-1] = math.nan
        self.group.run(
            [
                functools.partial(w.exchange_bucket, self.layout, b)
                for w, b in zip(self.workers, buckets, strict=True)
            ]
        )
        kept = [worker.state_dict()["residuals"] for worker in self.workers]
        return [bucket.numpy().tobytes() for bucket in buckets] + [
            owed[name].numpy().tobytes() for owed in kept for name in sorted(owed)
        ]


@pytest.mark.parametrize("lane_bits", [32, 16, 8])
@pytest.mark.parametrize("method", ["topk", "dfs", "exdyna"])
def test_training_is_the_same_with_predictions_and_without(method: str, lane_bits: int) -> None:
    predicted, unpredicted, restored = (Gradients(method, lane_bits=lane_bits) for _ in range(3))
    jumps = [1.0, 1.0, 1.0, 1e4, 1e-12, 0.0, 1e30, 1.0]
    for number, scale in enumerate(jumps):
        if number == 4:  # as by checkpoints, and as for workers that have joined
            for ours, theirs in zip(restored.workers, predicted.workers, strict=True):
                ours.load_state_dict(theirs.state_dict())
        expected = predicted.run(number, scale)
        assert unpredicted.run(number, scale, forget=True) == expected
        if number >= 4:
            assert restored.run(number, scale) == expected
        averages = expected[:WORKERS]
        assert averages == [averages[0]] * WORKERS
    assert predicted.made[0] < unpredicted.made[0]


@pytest.mark.parametrize("lane_bits", [32, 8])
def test_nan_is_named_before_anything_is_summed_and_the_step_can_be_repeated(lane_bits: int) -> None:
    job, twin = (Gradients("topk", lane_bits=lane_bits) for _ in range(2))
    for number in range(3):
        job.run(number, 1.0), twin.run(number, 1.0)
    with pytest.raises(NonFiniteError, match=rf"on rank {WORKERS - 1}: gradient of parameter 'parts.2'"):
        job.run(3, 1.0, spoil=True)
    assert job.run(3, 1.0) == twin.run(3, 1.0)


def test_predictions_are_forgotten_where_workers_may_know_different_ones() -> None:
    job: Any = Gradients("topk")
    for number in range(3):
        job.run(number, 1.0)
    worker, names = job.workers[0], ("parts.0", "parts.1", "parts.2")
    assert any(worker.predictions.known(names))
    worker.load_state_dict(worker.state_dict())
    assert not any(worker.predictions.known(names))
