# SPDX-License-Identifier: Apache-2.0
"""Loss budgets: never more than was said, by tensor and by kind; files checked with reasons."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.classes import LayerClasses
from weir.host_agent.compression.loss_policy import CHOICE, LossPolicy, LossPolicyError
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES

BLOCK = 64
shares = st.floats(0, 1)
policies = st.builds(
    LossPolicy,
    budgets=st.tuples(*[st.tuples(*[shares] * MAGNITUDE_CLASSES)] * LAYER_CLASSES),
    tensor=st.tuples(*[shares] * LAYER_CLASSES),
)


def layout_of(sizes: list[int]) -> tuple[BucketLayout, LayerClasses]:
    names = [f"p{i}" for i in range(len(sizes))]
    layers = LayerClasses({name: i % LAYER_CLASSES for i, name in enumerate(names)})
    return BucketLayout.of(0, names, [torch.empty(size) for size in sizes], BLOCK), layers


@given(policies, st.lists(st.integers(1, 3000), min_size=1, max_size=9), st.integers(0, 2**32))
def test_budgets_hold_for_each_kind_and_for_the_tensor(
    policy: LossPolicy, sizes: list[int], seed: int
) -> None:
    layout, layers = layout_of(sizes)
    generator = np.random.default_rng(seed)
    blocks = layout.length // BLOCK
    magnitudes = generator.integers(0, MAGNITUDE_CLASSES, blocks).astype(np.uint8)
    occupied = generator.random(blocks) < 0.7
    accounts = policy.accounts_for(layout, layers, magnitudes, occupied)
    assert (accounts.of_block.dtype, accounts.budgets.dtype) == (np.uint16, np.uint64)
    assert accounts.of_block.size == blocks
    share = policy.shares(layout, layers)[accounts.of_block]
    for segment in layout:
        row = policy.budgets[layers[segment.name]]
        whole = 0
        lanes_of_tensor = 0
        for magnitude in range(MAGNITUDE_CLASSES):
            mine = np.zeros(blocks, bool)
            mine[layout.blocks_of(segment)] = magnitudes[layout.blocks_of(segment)] == magnitude
            lanes = BLOCK * int((mine & occupied).sum())
            lanes_of_tensor += lanes
            if not mine.any():
                continue
            (account,) = set(accounts.of_block[mine].tolist())
            budget = int(accounts.budgets[account])
            assert budget <= row[magnitude] * lanes + 1e-5
            assert set(share[mine]) == {row[magnitude]}
            whole += budget
        assert whole <= policy.tensor[layers[segment.name]] * lanes_of_tensor + 1e-5


def test_budgets_are_whole_where_the_product_is() -> None:
    layout, layers = layout_of([100 * BLOCK])
    policy = LossPolicy(budgets=((0.29,) * 3,) * 4, tensor=(1.0,) * 4)
    accounts = policy.accounts_for(layout, layers, np.zeros(100, np.uint8), np.ones(100, bool))
    assert accounts.budgets.tolist() == [29 * BLOCK, 0, 0]


@given(st.just(0.0) | st.floats(0.001, 1))
def test_one_number_makes_a_table_that_protects_the_back_and_the_large(p: float) -> None:
    policy = LossPolicy.from_budget(p)
    assert policy.tensor[0] == p
    assert (np.diff(policy.tensor) <= 0).all()
    for share, row in zip(policy.tensor, policy.budgets, strict=True):
        assert list(row) == sorted(row, reverse=True) and set(row) <= {0.0, 1.0}  # the smallest, none beside
        chosen = sum(row) / MAGNITUDE_CLASSES
        assert chosen >= min(1, CHOICE * share) - 1e-6
        assert chosen < CHOICE * share + 1 / MAGNITUDE_CLASSES
    assert policy.lossless == (p == 0)


def test_only_the_smallest_third_shares_a_budget_of_a_tenth() -> None:
    layout, layers = layout_of([90 * BLOCK])
    magnitudes = np.repeat(np.arange(3, dtype=np.uint8), 30)
    accounts = LossPolicy.from_budget(0.1).accounts_for(layout, layers, magnitudes, np.ones(90, bool))
    assert accounts.budgets.tolist() == [9 * BLOCK, 0, 0]


def test_a_tensor_of_one_kind_only_still_loses_no_more_than_its_share() -> None:
    layout, layers = layout_of([100 * BLOCK])
    accounts = LossPolicy.from_budget(0.1).accounts_for(
        layout, layers, np.zeros(100, np.uint8), np.ones(100, bool)
    )
    assert accounts.budgets.tolist() == [10 * BLOCK, 0, 0]


@given(policies)
def test_a_file_gives_back_what_was_saved(
    tmp_path_factory: pytest.TempPathFactory, policy: LossPolicy
) -> None:
    path = tmp_path_factory.mktemp("policy") / "policy.json"
    policy.save(path)
    assert LossPolicy.load(path) == LossPolicy.of(path) == LossPolicy.of(str(path)) == policy


def test_a_policy_comes_from_a_number_or_is_itself() -> None:
    policy = LossPolicy.from_budget(0.05)
    assert LossPolicy.of(policy) is policy
    assert LossPolicy.of(0.05) == policy


@pytest.mark.parametrize("budget", [-0.01, 1.01, float("nan")])
def test_a_budget_is_a_share(budget: float) -> None:
    with pytest.raises(LossPolicyError, match="from 0 to 1"):
        LossPolicy.from_budget(budget)


def valid() -> dict[str, Any]:
    return json.loads(LossPolicy.from_budget(0.1).model_dump_json())


def broken(**changes: Any) -> str:
    return json.dumps({**valid(), **changes})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "it is not JSON"),
        ("[]", "the whole file"),
        (broken(budgets=[[0.1] * 3] * 5), r"4 rows .* of 3 shares .* these are 5 of 3, 3, 3, 3, 3"),
        (broken(budgets=[[0.1] * 3] * 3 + [[0.1]]), "these are 4 of 3, 3, 3, 1"),
        (broken(budgets=[[0.1] * 4] * 6), "these are 6 of 4.* for the classes of wire version 2: calibrate"),
        (
            broken(budgets=[[0.1] * 3] * 2 + [[0.1, 1.5, 0.1]] + [[0.1] * 3]),
            r"budgets of layer class 2, magnitude class 1: .* less than or equal to 1, not 1\.5",
        ),
        (broken(tensor=[0.1] * 7), r"tensor: 4 shares \(layer classes\) are needed, not 7"),
        (broken(tensor=[0.1] * 3 + ["x"]), "tensor 3: .* not 'x'"),
        (broken(format="weir-loss-policy-9"), "format: .* not 'weir-loss-policy-9'"),
        (broken(bugdets=[]), "bugdets: extra inputs are not permitted"),
        (json.dumps({"format": "weir-loss-policy-1"}), "budgets: field required"),
        (broken(tensor=[float("nan")] * 4), "NaN is no number"),
    ],
)
def test_a_file_with_a_mistake_is_refused_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(LossPolicyError, match=complaint) as caught:
        LossPolicy.load(path)
    assert str(path) in str(caught.value)


def test_a_bucket_with_too_many_parameters_says_what_to_do() -> None:
    layout, layers = layout_of([1] * 21846)
    with pytest.raises(LossPolicyError, match="make buckets smaller"):
        LossPolicy.from_budget(0.1).accounts_for(
            layout, layers, np.zeros(21846, np.uint8), np.ones(21846, bool)
        )
