# SPDX-License-Identifier: Apache-2.0
"""Jobs that share a fabric, on one too small to say anything of their times."""

from dataclasses import replace

import numpy as np
import pytest

from weir.bench import jobs
from weir.bench.jobs import ROWS, Fabric, measure, run

SMALL = Fabric(racks=2, jobs=3, workers=2, spines=1, depth=24, model="mlp", steps=2, warmup=0)


def test_the_smallest_third_carries_less_than_its_share_of_what_is_lost() -> None:
    anything, small = (run(SMALL, row, 1) for row in ROWS[2:])
    for outcome in (anything, small):
        assert outcome.trimmed > 0
        assert 0 < outcome.missing < SMALL.budget * outcome.lanes
    assert small.lost / small.missing < anything.lost / anything.missing / 2


def test_magnitudes_that_say_nothing_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted classification by nothing but a block's place: energy is lost as if by lot."""
    right = run(SMALL, ROWS[3], 1)
    monkeypatch.setattr(
        jobs, "magnitude_classes", lambda layout, *_: np.arange(layout.length // 256, dtype=np.uint8) % 3
    )
    planted = run(SMALL, ROWS[3], 1)
    assert planted.lost / planted.missing > 2 * right.lost / right.missing


def test_a_table_comes_out_and_a_fabric_without_congestion_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    idle = measure([replace(SMALL, jobs=1, depth=1000, steps=1)], 1, ROWS[:1] + ROWS[3:], processes=1)
    assert [row.name in capsys.readouterr().out for row in ROWS[:1]] == [True]
    assert idle == ["'d b + trimming the smallest' with queues of 1000: nothing was trimmed"]
