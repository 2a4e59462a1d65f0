# SPDX-License-Identifier: Apache-2.0
"""The tail-latency benchmark, on a network too small to say anything."""

from dataclasses import replace
from pathlib import Path

import pytest

from weir.bench.tail import draw, measure, percentile, simulate
from weir.bench.tail_cases import CONTENDERS, SETTINGS, Contender, Scenario, Setting, run

SMALL = Scenario(
    racks=2, workers=2, others=2, load=0.5, fan_in=2, tensor=8192, tensors=3, warmup=1, pause=0.0005, slots=8
)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
def test_every_contender_ends_and_follows_from_the_seed(setting: Setting, contender: Contender) -> None:
    outcome = run(setting, contender, SMALL, 1)
    assert len(outcome.times) == SMALL.tensors
    assert min(outcome.times) > SMALL.tensor * 8 / SMALL.rate / 2
    assert outcome.background
    assert run(setting, contender, SMALL, 1) == outcome
    assert run(setting, contender, SMALL, 2) != outcome
    if contender.weir and not contender.trims:
        assert outcome.counts["missing"] == 0


@pytest.mark.parametrize("setting", SETTINGS)
def test_links_that_lose_slow_everybody_down_and_all_ends_all_the_same(setting: Setting) -> None:
    quiet = replace(SMALL, load=0.0)
    for contender in (CONTENDERS[0], CONTENDERS[3], CONTENDERS[4]):
        clean, lossy = (run(setting, contender, replace(quiet, loss=loss), 1) for loss in (0.0, 0.05))
        assert sum(lossy.times) > sum(clean.times)


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(200, 0, -1)]
    assert percentile(values, 99) == 198
    assert percentile(values, 50) == 100
    assert percentile([3.0], 99) == 3


def test_a_table_and_a_plot_come_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    plot = tmp_path / "deeper" / "tail.png"
    measure(["collectives"], [0.5], 1, SMALL, CONTENDERS[:3], processes=1, plot=plot)
    out = capsys.readouterr().out
    assert all(contender.name in out for contender in CONTENDERS[:3])
    assert plot.read_bytes().startswith(b"\x89PNG")
    draw(simulate(["server"], [0.5], [1], SMALL, CONTENDERS[:2], 1), plot)


def test_rows_can_be_chosen_and_are_compared_with_those_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    measure(["collectives"], [0.5], 1, SMALL, CONTENDERS[3:5], processes=1)
    rows = [line for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [line.split("│")[1].strip() for line in rows] == [each.name for each in CONTENDERS[3:5]]
    assert all([cell.strip() for cell in line.split("│")[5:7]] == ["-", "-"] for line in rows)
