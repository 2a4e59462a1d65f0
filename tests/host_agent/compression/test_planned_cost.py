# SPDX-License-Identifier: Apache-2.0
"""The cost model of a bucket's exchange against the exchange itself, in every form of lanes."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from weir.bench.gradients.replay import Replay, ReplayedStep
from weir.host_agent.collectives.packing import LaneBits


def module() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(256, 100), torch.nn.Linear(100, 20))


class Gradients:
    """Of each worker and element always of one sign and of about one magnitude.

    rows: of 256 elements, all but one in ten have ``rest`` of it.
    """

    def __init__(self, workers: int, elements: int, seed: int, *, rows: bool, rest: float = 0.0) -> None:
        self._random = np.random.default_rng(seed)
        large = self._random.random(-(-elements // 256)) < (0.1 if rows else 1)
        sizes = np.where(large, 1.0, rest).repeat(256)[:elements]
        self._signs = self._random.choice([-1, 1], (workers, elements)) * sizes

    def draw(self) -> np.ndarray:
        return (self._signs * self._random.uniform(1, 2, self._signs.shape)).astype(np.float32)


def is_as_modelled(step: ReplayedStep) -> bool:
    """Return whether no scale was beyond what had been predicted, which takes a reduction more, and nothing
    that was sent was zero, or became it by rounding, which takes less.
    """
    masked = any(mask is not None for mask in step.masks)
    agreeing = 1 if step.plan.capacities is not None or not masked else step.plan.levels
    zeros = any(
        (total.numpy()[chosen.any(axis=0)] == 0).any()
        for total, chosen in zip(step.total, step.chosen, strict=True)
    )
    return step.reductions <= agreeing + 1 and not step.counters and not zeros


@settings(max_examples=examples(40))
@given(
    method=st.sampled_from(["dfs", "topk"]),
    density=st.sampled_from([0.002, 0.02, 0.1, 0.3, 0.7]),
    workers=st.integers(1, 10),
    lane_bits=st.sampled_from([32, 16, 8, "auto"]),
    leave_out=st.sampled_from([(), ("lists",), ("portions", "sizes")]),
    rows=st.booleans(),
    seed=st.integers(0, 9),
)
def test_planned_cost_is_what_is_counted(
    method: str,
    density: float,
    workers: int,
    lane_bits: LaneBits,
    leave_out: tuple[str, ...],
    rows: bool,
    seed: int,
) -> None:
    replay = Replay(module(), method, workers, density, lane_bits=lane_bits, leave_out=leave_out)
    # None is zero: the model takes dfs to have a scale in every region.
    gradients = Gradients(workers, replay.layout.elements, seed, rows=rows, rest=2.0**-9)
    steps = [replay.step(gradients.draw()) for _ in range(8)]
    exact = [step for step in steps if is_as_modelled(step)]
    assume(exact)
    for step in exact:
        assert step.counted == step.traffic()


@pytest.mark.parametrize("lane_bits", [32, 8])
@pytest.mark.parametrize(
    ("density", "leave_out", "rows", "lists", "mask"),
    [(0.02, (), False, True, 1), (0.02, ("lists",), False, False, 1), (0.3, (), True, False, 256)],
)
def test_lists_masks_and_blocks_are_among_what_is_compared(
    lane_bits: LaneBits, density: float, leave_out: tuple[str, ...], rows: bool, lists: bool, mask: int
) -> None:
    replay = Replay(module(), "dfs", 3, density, lane_bits=lane_bits, leave_out=leave_out)
    gradients = Gradients(3, replay.layout.elements, 1, rows=rows)
    steps = [replay.step(gradients.draw()) for _ in range(8)]
    found = [step for step in steps if is_as_modelled(step) and mask in step.masks]
    assert found and all(step.counted == step.traffic() for step in found)
    assert all((step.plan.capacities is not None) == lists for step in found)


@pytest.mark.parametrize(("workers", "lane_bits"), [(2, 32), (2, 16), (2, 8), (10, 8)])
@pytest.mark.parametrize(("outputs", "reductions"), [(160, 2), (2048, 3)])
def test_blocks_that_nobody_has_cost_what_is_counted(
    workers: int, lane_bits: LaneBits, outputs: int, reductions: int
) -> None:
    """In a long vector workers first ask each other which these are."""
    whole = torch.nn.Linear(1024, outputs, bias=False)
    replay = Replay(whole, "topk", workers, 1.0, "dense", lane_bits=lane_bits)
    gradients = Gradients(workers, replay.layout.elements, 1, rows=True)
    replay.step(gradients.draw())  # of the first one they do not know yet whether to ask is worth it
    step = replay.step(gradients.draw())
    assert step.reductions == reductions and step.counted == step.traffic()
