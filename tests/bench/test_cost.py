# SPDX-License-Identifier: Apache-2.0
"""What things cost: on settings too small to say anything."""

import numpy as np
import pytest

from weir.bench.gradients.cost import (
    BASELINE,
    PACKED,
    Bytes,
    Measured,
    Parameters,
    Setting,
    bitmaps,
    lists,
    measure,
    saving_at_energy,
)
from weir.bench.gradients.density import Point
from weir.bench.gradients.replay import Replay, ReplayedStep, recordings, train
from weir.host_agent.compression.encodings import EncodingPlan
from weir.train.config import make_config
from weir.train.task import make_task


@pytest.fixture(scope="module")
def measured() -> list[Measured]:
    with recordings():
        return [measure(one, 3, 4) for one in Parameters(("mlp",), (0.01, 0.2), (2, 3), 4).settings()]


def test_every_setting_is_measured_and_the_baseline_is_near_what_papers_count(
    measured: list[Measured],
) -> None:
    assert [(m.setting.density, m.setting.workers) for m in measured] == [
        (0.01, 2),
        (0.01, 3),
        (0.2, 2),
        (0.2, 3),
    ]
    for one in measured:
        for cost in one.bytes.values():
            assert cost.bare > 0 and cost.up > 0 and cost.down > 0
        # 20 % everywhere is nearly every block; headers and first blocks come on top.
        assert one.bytes[BASELINE].bare < one.bytes[BASELINE].total < 2 * one.bytes[BASELINE].bare


def test_who_sends_more_delivers_more(measured: list[Measured]) -> None:
    for few, many in ((measured[0], measured[2]), (measured[1], measured[3])):
        assert 0 < few.energy["planner"] < many.energy["planner"] < 1
        assert few.density["planner"] == pytest.approx(0.01, rel=0.02)


def test_planned_formats_are_near_the_best_fixed_one_and_below_omnireduce(measured: list[Measured]) -> None:
    for one in measured:
        assert one.saving("planner") > 0
        assert one.saving("planner", one.best("weir:")) > -0.1


def test_equal_energy_may_take_another_density() -> None:
    def one(density: float, baseline: int, dfs: int, topk: float, delivered: float) -> Measured:
        costs = {BASELINE: Bytes(up=baseline), "dfs": Bytes(up=dfs)}
        return Measured(Setting("mlp", density, 2), 1, costs, {}, {"planner": topk, "dfs": delivered})

    few, more = one(0.01, 1000, 10, 0.3, 0.2), one(0.1, 2000, 100, 0.9, 0.5)
    assert saving_at_energy(few, [few, more], "dfs") == pytest.approx(0.9)
    assert saving_at_energy(more, [few, more], "dfs") is None


def test_more_workers_cost_more(measured: list[Measured]) -> None:
    by = {(one.setting.density, one.setting.workers): one for one in measured}
    for density in (0.01, 0.2):
        few, many = by[density, 2], by[density, 3]
        assert all(few.bytes[name].total < many.bytes[name].total for name in few.bytes)


def test_gathered_lists_are_sent_once_and_arrive_at_all_others() -> None:
    flat = np.zeros((3, 1000), np.bool_)
    flat[0, :10], flat[1, :200] = True, True
    cost = lists(flat)
    assert cost.up == (80 + 42) + (1600 + 2 * 42)
    assert cost.down == 2 * cost.up
    assert cost.bare == 3 * 1680


def test_replayed_workers_send_all_they_ever_had() -> None:
    """What was delivered in all steps, and what is still owed, is what the gradients came to."""
    module = make_task(make_config(model="mlp")).model
    replay, training = Replay(module, "topk", 2, 0.05), train("mlp", 2).steps
    owed = np.zeros((2, replay.layout.elements), np.float32)
    delivered = np.zeros(replay.layout.elements, np.float32)
    for _ in range(3):
        gradients, seconds = next(training)
        owed += gradients / 2
        sent = replay.step(gradients)
        delivered += np.concatenate([part.numpy() for part in sent.total])
        assert len(seconds) == 2 and sent.seconds.total > 0
    left = [
        np.concatenate(
            [
                residual.numpy()
                for s in replay.layout
                if (residual := rank.gradients.feedback.residual(s.name)) is not None
            ]
        )
        for rank in replay.ranks
        if rank.gradients.feedback is not None
    ]
    np.testing.assert_allclose(delivered + left[0] + left[1], owed.sum(axis=0), rtol=1e-4, atol=1e-6)


def test_imbalance_is_what_the_busiest_worker_has_more_than_the_mean() -> None:
    chosen = np.zeros((2, 100), np.bool_)
    chosen[0, :30], chosen[1, 30:40] = True, True
    point = Point.of(ReplayedStep((chosen,), EncodingPlan({}), (None,), 40, 0, fills_union=True))
    assert (point.union, point.own, point.most) == (0.4, 0.2, 0.3)
    assert point.imbalance == pytest.approx(0.5)


def test_a_bitmap_costs_a_bit_an_element_and_packed_values_their_bits() -> None:
    flat = np.zeros((2, 8000), np.bool_)
    flat[0, :400], flat[1, :600] = True, True
    assert bitmaps(flat).bare == 2 * (2 * 1000 + 4 * 1000)
    assert bitmaps(flat, 8).bare == 2 * (2 * 1000 + 1000)
    assert lists(flat, 8).bare == 2 * 5 * 1000


def test_dfs_is_compared_with_the_cheapest_rival_that_packs_as_it_does(measured: list[Measured]) -> None:
    for one in measured:
        rival = one.best(PACKED)
        assert one.bytes[rival].total <= min(
            one.bytes[f"{PACKED}{name}"].total for name in ("lists", "bitmaps", BASELINE)
        )
        assert one.bytes[f"{PACKED}{BASELINE}"].total < 0.6 * one.bytes[BASELINE].total
        assert one.saving("dfs", rival) < one.saving("dfs")
