# SPDX-License-Identifier: Apache-2.0
"""Jobs that share a fabric, on one too small to say anything of their times."""

from dataclasses import replace

import numpy as np
import pytest

from weir.bench.simulated import jobs
from weir.bench.simulated.fabric import rows
from weir.bench.simulated.jobs import CONTENDERS, Jobs, simulate

SMALL = Jobs(racks=2, jobs=3, workers=2, spines=1, depth=24, model="mlp", steps=2, warmup=0)


def test_the_smallest_third_carries_less_than_its_share_of_what_is_lost() -> None:
    anything, small = (simulate(SMALL, one, 1) for one in CONTENDERS[2:])
    for outcome in (anything, small):
        assert outcome.counts["trimmed"] > 0
        assert 0 < outcome.share("missing", "lanes") < SMALL.budget
    assert small.share("lost", "missing") < anything.share("lost", "missing") / 2


def test_magnitudes_that_say_nothing_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted classification by nothing but a block's place: energy is lost as if by lot."""
    right = simulate(SMALL, CONTENDERS[3], 1)
    monkeypatch.setattr(
        jobs,
        "shared_magnitude_classes",
        lambda layout, *_: np.arange(layout.length // 256, dtype=np.uint8) % 3,
    )
    planted = simulate(SMALL, CONTENDERS[3], 1)
    assert planted.share("lost", "missing") > 2 * right.share("lost", "missing")


def test_a_fabric_without_congestion_is_named() -> None:
    calm, trimming = replace(SMALL, jobs=1, depth=1000, steps=1), CONTENDERS[3]
    (row,) = rows({trimming: simulate(calm, trimming, 1)}, lambda *_: {})
    assert row.counts == {"trimmed": 0}
