# SPDX-License-Identifier: Apache-2.0
"""Mistakes that are planted in compressed updates each fail a test of ``test_updates``."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.host_agent.compression import test_updates as checks
from weir.host_agent.compression.updates import delivery, rules
from weir.host_agent.compression.updates.harm import Sums
from weir.host_agent.compression.updates.parts import Parts
from weir.host_agent.compression.updates.stage import UpdateStage

Plant = Callable[[pytest.MonkeyPatch], None]


def momentum_twice(patch: pytest.MonkeyPatch) -> None:
    """By the worker, and again by the mean of what is delivered."""
    settle, last = Parts.settle, dict[int, torch.Tensor]()

    def wrong(parts: Parts, rows: Any, own: Any, mean: torch.Tensor, shared: torch.Tensor, more: Any) -> None:
        key = shared.data_ptr()
        last[key] = mean + 0.9 * last.get(key, torch.zeros_like(mean))
        settle(parts, rows, own, last[key], shared, more)

    patch.setattr(Parts, "settle", wrong)


def not_walked_ahead(patch: pytest.MonkeyPatch) -> None:
    """The next gradient is computed at the shared point."""
    step = UpdateStage.step

    def wrong(stage: UpdateStage, group: Any, weights: Any, *more: Any) -> None:
        step(stage, group, weights, *more)
        stage.layout.scatter(stage.shared, weights)

    patch.setattr(UpdateStage, "step", wrong)


def scale_of_one_worker(patch: pytest.MonkeyPatch) -> None:
    """Each quantises by its own scale."""
    patch.setattr(delivery, "sum_whole", lambda communicator, values: values * communicator.size)


def clipped_twice(patch: pytest.MonkeyPatch) -> None:
    clip = UpdateStage._clip

    def wrong(stage: UpdateStage, sample: Any, limit: float) -> Any:
        sample, factor = clip(stage, sample, limit)
        return sample, factor**2

    patch.setattr(UpdateStage, "_clip", wrong)


def decay_through_the_residual(patch: pytest.MonkeyPatch) -> None:
    """Weight decay is a part of the step, and waits with it."""
    update = rules.Adam.update

    def wrong(rule: rules.Adam, parts: Parts, step: rules.Step, sample: Any, shared: torch.Tensor) -> Sums:
        sums = update(rule, parts, step, sample, shared)
        for index, one in enumerate(parts.values):
            pull = step.options["lr"][index] * step.options["weight_decay"][index]
            one.sub_(float(pull) * parts.layout.part(shared, index).view(one.shape))
        return sums

    patch.setattr(rules.Adam, "update", wrong)
    patch.setattr(rules.Adam, "decay", lambda _rule, parts, _step, _shared: torch.ones(parts.count))


MISTAKES: dict[str, tuple[Plant, Callable[[], None]]] = {
    "momentum twice": (
        momentum_twice,
        lambda: checks.test_everything_at_full_width_is_the_dense_optimizer("damped", 3, None),
    ),
    "pending part not walked ahead": (
        not_walked_ahead,
        checks.test_gradients_are_computed_ahead_of_the_wire,
    ),
    "scale of one worker": (
        scale_of_one_worker,
        checks.test_all_workers_quantise_by_one_scale_the_mean_of_theirs,
    ),
    "clipped twice": (
        clipped_twice,
        checks.test_every_worker_scales_its_gradient_by_the_same_factor_once,
    ),
    "decay through the residual": (
        decay_through_the_residual,
        checks.test_decay_is_of_the_shared_point_and_does_not_wait,
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, check = MISTAKES[mistake]
    check()
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check()
