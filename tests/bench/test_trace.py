# SPDX-License-Identifier: Apache-2.0
"""A replayed training step: it takes as long as the ideal model says, and it overlaps."""

import pytest

from weir.bench.simulated.trace import WAYS, Parameters, Way, replay

GIGABIT = 1_000_000_000
GIVEN = Parameters(scale=2000, workers=4)


@pytest.mark.parametrize("way", [WAYS[0], *WAYS[3:]], ids=lambda way: way.name)
@pytest.mark.parametrize("rate", [GIGABIT, 10 * GIGABIT])
def test_a_step_takes_as_long_as_the_ideal_model_says_or_little_longer(way: Way, rate: int) -> None:
    found = replay(way, GIVEN.trace, GIVEN, rate).times[0]
    ideal = GIVEN.ideal(way, rate)
    assert ideal < found < 1.12 * ideal


def test_gradients_are_exchanged_while_others_are_computed() -> None:
    way = next(way for way in WAYS if way.bits == 8)
    computing = GIVEN.trace[-1][0]
    exchange = [(0.0, values) for _, values in GIVEN.trace]
    alone = replay(way, exchange, GIVEN, GIGABIT).times[0]
    together = replay(way, GIVEN.trace, GIVEN, GIGABIT).times[0]
    assert max(alone, computing) < together < alone + computing


def test_a_scale_keeps_the_steps_shape() -> None:
    whole, tenth = Parameters(scale=1000).trace, Parameters(scale=10_000).trace
    for (seconds, values), (less, fewer) in zip(whole, tenth, strict=True):
        assert less == pytest.approx(seconds / 10)
        assert fewer == pytest.approx(values / 10, abs=1)
