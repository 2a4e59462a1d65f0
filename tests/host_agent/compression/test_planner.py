# SPDX-License-Identifier: Apache-2.0
"""The planner's choices against all fixed ones in hindsight, on gradients of real trainings."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from weir.bench.gradients.replay import SLOTS, Replay, train
from weir.host_agent.collectives.shared_scales import WORTH_A_ROUND_TRIP
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import (
    DENSE,
    SCALE_BLOCK,
    Encoding,
    EncodingPlan,
    Selection,
    Summed,
    pyramid,
)
from weir.host_agent.compression.encodings.cost import Flags, Occupancy, exchange_cost
from weir.host_agent.compression.encodings.planner import MASKS, Planner
from weir.host_agent.compression.encodings.shared_mask import words_for, write_mask
from weir.train.config import Model, make_config
from weir.train.task import make_task
from weir.wire.definition import BLOCK_SIZES

LEVELS = (1, 2, 3)


# -------------------------------------------------------------------------------------- on real gradients


@pytest.mark.parametrize(
    ("model", "method", "density", "workers", "steps"),
    [
        ("mlp", "topk", 0.01, 4, 5),
        ("mlp", "topk-block", 0.1, 8, 4),
        ("cnn", "topk", 0.05, 3, 3),
        ("lm", "topk", 0.01, 2, 3),
    ],
)
def test_no_fixed_choice_would_have_been_much_better(
    model: Model, method: str, density: float, workers: int, steps: int
) -> None:
    replay = Replay(make_task(make_config(model=model)).model, method, workers, density, "auto")
    ours = predicted = 0.0
    fixed: dict[tuple[int | None, int], int] = {}
    for number, (gradients, _) in zip(range(steps), train(model, workers, batch_size=2).steps, strict=False):
        sent = replay.step(gradients)
        traffic, parts = sent.traffic().total, [Occupancy(chosen) for chosen in sent.chosen]
        if number == 0:  # nothing is known: dense, but for the counters that ride along
            assert traffic <= 1.01 * best_of(parts, None, 256) + 2000 * workers
            continue
        levels = 1 if sent.plan.capacities else sent.plan.levels
        ours += traffic + waiting(levels, workers)
        predicted += sent.plan.predicted * workers + waiting(levels, workers)
        for mask in MASKS:
            for block in BLOCK_SIZES:
                fixed[mask, block] = fixed.get((mask, block), 0) + best_of(parts, mask, block)
    best = min(fixed, key=lambda choice: fixed[choice])
    print(f"{ours / fixed[best]:.4f} of mask and block {best}, predicted {predicted / ours:.3f}")
    assert ours <= 1.02 * fixed[best], f"mask {best[0]} and packets of {best[1]} lanes were better"
    assert ours <= 1.01 * min(fixed[None, block] for block in BLOCK_SIZES)
    assert 0.75 * ours < predicted < 1.25 * ours


def waiting(levels: int, workers: int) -> int:
    """Return the bytes that round trips for further levels of a mask tree count as."""
    return 2 * workers * (levels - 1) * WORTH_A_ROUND_TRIP


def best_of(parts: list[Occupancy], mask: int | None, block: int) -> int:
    """Return bytes of a fixed choice, round trips counted, with one level of the mask tree or two, whichever
    were best in this step.
    """
    levels = LEVELS[:2] if mask is not None else LEVELS[:1]
    masks, workers = [mask] * len(parts), parts[0].workers
    return min(
        exchange_cost(parts, masks, packet_block=block, levels=n, slots=SLOTS).total + waiting(n, workers)
        for n in levels
    )


# --------------------------------------------------------------------------------------- on made-up ones

Bucket = dict[str, Flags]  # by parameter, bool[workers, length]


def made_up(rng: np.random.Generator, workers: int, lengths: list[int], density: float, run: int) -> Bucket:
    """Return what workers might send: runs of elements, a part of them the same on all workers."""
    sent = {}
    for number, length in enumerate(lengths):
        starts = rng.random((workers, -(-length // run))) < density
        starts |= rng.random(starts.shape[1]) < density / 2
        sent[f"p{number}"] = np.repeat(starts, run, axis=1)[:, :length]
    return sent


def layout_of(bucket: Bucket) -> BucketLayout:
    parameters = [torch.empty(flags.shape[1]) for flags in bucket.values()]
    return BucketLayout.of(0, list(bucket), parameters, SCALE_BLOCK)


def exchange(planner: Planner, bucket: Bucket, plan: EncodingPlan | None = None) -> EncodingPlan:
    """Return one bucket's part of a step, on all workers."""
    layout = layout_of(bucket)
    plan = plan or planner.plan(layout, {}, None)
    packed = [selected(flags, plan.encodings[name].mask_block) for name, flags in bucket.items()]
    shorter = layout.resized([flags.shape[1] for flags in packed], SCALE_BLOCK)
    rows = zip(*packed, strict=True)
    counts = np.stack([planner.count(shorter, spread(shorter, list(row))) for row in rows])
    union = spread(layout, [np.asarray(flags.any(axis=0)) for flags in bucket.values()])
    total, masks = union.float(), {}
    for segment in layout:
        if (mask_block := plan.encodings[segment.name].mask_block) is not None:
            masks[segment.name] = np.zeros(words_for(segment.length, mask_block), np.uint32)
            write_mask(total[segment.in_vector], mask_block, masks[segment.name])
    selection = Selection.of(plan, layout, masks)
    planner.observe(layout, plan, planner.tally(Summed(selection, selection.pack(total))), counts)
    return plan


def selected(sent: Flags, mask: int | None) -> Flags:
    """Return what is packed of one parameter: bool[workers, elements]."""
    if mask is None:
        return sent
    rows = np.pad(sent, ((0, 0), (0, -sent.shape[1] % mask))).reshape(len(sent), -1, mask)
    return rows[:, rows.any(axis=(0, 2))].reshape(len(sent), -1)


def spread(layout: BucketLayout, parts: list[Flags]) -> torch.Tensor:
    vector = torch.zeros(layout.length, dtype=torch.bool)
    for segment, part in zip(layout, parts, strict=True):
        vector[segment.in_vector] = torch.from_numpy(part)
    return vector


def play(case: dict, planner: Planner) -> list[EncodingPlan]:  # type: ignore[type-arg]
    rng, plans = np.random.default_rng(case["seed"]), []
    for density in case["densities"]:
        plans.append(exchange(planner, made_up(rng, case["workers"], case["lengths"], density, case["run"])))
        planner.end_step()
    return plans


cases = st.fixed_dictionaries(
    {
        "workers": st.integers(1, 32),
        "lengths": st.lists(st.sampled_from([1, 10, 255, 256, 3000, 20000]), min_size=1, max_size=4),
        "densities": st.lists(st.sampled_from([0.0, 0.001, 0.02, 0.3, 1.0]), min_size=1, max_size=5),
        "run": st.sampled_from([1, 8, 100]),
        "seed": st.integers(0, 2**32 - 1),
    }
)


@settings(max_examples=examples(20))
@given(case=cases)
def test_plans_are_valid_and_follow_from_what_was_seen(case: dict) -> None:  # type: ignore[type-arg]
    first, second, restored = (Planner(case["workers"], SLOTS) for _ in range(3))
    assert play(case, first) == play(case, second)
    layout = layout_of(made_up(np.random.default_rng(0), 1, case["lengths"], 0.5, 1))
    plan = first.plan(layout, {}, None)
    assert {encoding.mask_block for encoding in plan.encodings.values()} <= set(MASKS)
    assert plan.packet_block in BLOCK_SIZES and plan.levels in LEVELS and plan.predicted >= 0
    restored.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert restored.plan(layout, {}, None) == plan
    assert play(case, restored) == play(case, second)
    assert restored.state_dict() == second.state_dict()
    restored.resize(case["workers"] % 32 + 1, 16)
    assert restored.plan(layout, {}, None).encodings == second.plan(layout, {}, None).encodings


def test_a_prescribed_format_is_kept() -> None:
    bucket = made_up(np.random.default_rng(2), 4, [20000, 300], 0.02, 1)
    planner, fixed = Planner(4, SLOTS), {"p0": Encoding(64), "p1": DENSE}
    for _ in range(3):
        plan = planner.plan(layout_of(bucket), fixed, 64)
        assert (plan.encodings, plan.packet_block) == (fixed, 64)
        exchange(planner, bucket, plan)
        planner.end_step()


def test_a_mask_does_not_depend_on_the_bucket() -> None:
    rng = np.random.default_rng(1)
    whole, apart = Planner(4, SLOTS), Planner(4, SLOTS)
    for _ in range(3):
        bucket = made_up(rng, 4, [20000, 500, 3000], 0.02, 8)
        encodings = exchange(whole, bucket).encodings
        last = {"p2": bucket.pop("p2")}
        assert {**exchange(apart, last).encodings, **exchange(apart, bucket).encodings} == encodings
        for planner in (whole, apart):
            planner.end_step()
    assert any(encoding != DENSE for encoding in encodings.values())


def test_a_step_that_failed_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    first, second, failed = (made_up(rng, 4, [20000], density, 1) for density in (0.01, 0.01, 0.5))
    repeated, once = Planner(4, SLOTS), Planner(4, SLOTS)
    for planner in (repeated, once):
        exchange(planner, first)
        planner.end_step()
    plan = exchange(repeated, failed)
    assert repeated.plan(layout_of(first), {}, None) == plan
    for planner in (repeated, once):
        assert exchange(planner, second) == plan
        planner.end_step()
    assert repeated.state_dict() == once.state_dict()


def test_small_gains_change_no_mask() -> None:
    """Around 97 % of all elements, a mask of single ones costs as much as it saves."""
    rng, planner, chosen = np.random.default_rng(3), Planner(4, SLOTS), set()
    for number in range(6):
        bucket = made_up(rng, 4, [50_000], 0.53 if number % 2 else 0.58, 1)
        chosen.add(exchange(planner, bucket).encodings["p0"])
        planner.end_step()
    assert chosen == {DENSE}


def test_counting_costs_little() -> None:
    """Counts that stay as they are are asked for less and less often, of small parameters hardly ever."""
    rng, planner, asked = np.random.default_rng(4), Planner(4, SLOTS), []
    for _ in range(40):
        bucket = made_up(rng, 4, [50_000, 10], 0.05, 1)
        layout = layout_of(bucket)
        asked.append(planner.count(layout, torch.zeros(layout.length)).size)
        exchange(planner, bucket)
        planner.end_step()
    assert asked[0] == 2 * pyramid.LEVELS and sum(map(bool, asked)) <= 8


def test_a_change_is_noticed_between_two_counts() -> None:
    rng, planner, encodings = np.random.default_rng(5), Planner(4, SLOTS), []
    for number in range(26):
        bucket = made_up(rng, 4, [20_000], 0.01 if number < 20 else 0.9, 1)
        encodings.append(exchange(planner, bucket).encodings["p0"])
        planner.end_step()
    assert encodings[2:21] == [Encoding(1)] * 19 and encodings[-1] == DENSE


@given(
    length=st.integers(0, 3000),
    density=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    dtype=st.sampled_from([torch.bool, torch.float32]),
    offset=st.integers(0, 9),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=examples(60))
def test_the_pyramid_counts_blocks(
    length: int, density: float, dtype: torch.dtype, offset: int, seed: int
) -> None:
    flags = np.random.default_rng(seed).random(length) < density
    expected = [
        int(np.pad(flags, (0, -length % (1 << level))).reshape(-1, 1 << level).any(axis=1).sum())
        for level in range(14)
    ]
    vector = torch.nn.functional.pad(torch.from_numpy(flags).to(dtype), (offset, 0), value=1)[offset:]
    assert pyramid.counts(vector, 14).tolist() == expected
    assert pyramid.counts_torch(vector, 14).tolist() == expected
    assert pyramid.counts(vector).tolist() == expected[: pyramid.LEVELS]


@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=3),
    masks=st.lists(st.sampled_from([None, 1, 2, 32, 256]), min_size=3, max_size=3),
    density=st.floats(0, 0.3),
    seed=st.integers(0, 9),
)
def test_blocks_are_counted_alike_in_what_travelled_and_in_the_whole_sum(
    lengths: list[int], masks: list[int | None], density: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    bucket = made_up(rng, 2, lengths, density, 3)
    layout = layout_of(bucket)
    encodings = {segment.name: Encoding(mask) for segment, mask in zip(layout, masks, strict=False)}
    total = torch.zeros(layout.length)
    words = {}
    for segment in layout:
        chosen = torch.from_numpy(bucket[segment.name].any(axis=0)).float()
        mask = encodings[segment.name].mask_block
        if mask is not None:
            words[segment.name] = np.zeros(words_for(segment.length, mask), np.uint32)
            write_mask(chosen, mask, words[segment.name])
        total[segment.in_vector] = chosen * torch.from_numpy(rng.integers(0, 2, segment.length)).float()
    selection = Selection.of(EncodingPlan(encodings, SCALE_BLOCK), layout, words)
    summed = Summed(selection, selection.pack(total))
    for index, part in enumerate(selection.parts):
        expected = pyramid.counts(total[part.source.in_vector])
        assert torch.equal(pyramid.counts_of_part(summed, index, pyramid.LEVELS), expected)
