# SPDX-License-Identifier: Apache-2.0
"""The tail-latency benchmark, on a network too small to say anything."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weir.bench import tail_cases
from weir.bench.tail import draw, measure, percentile, simulate
from weir.bench.tail_cases import CONTENDERS, SETTINGS, Contender, Scenario, Setting, run
from weir.controller.qos import WEIR_CLASSES, ClassSpec, Qos
from weir.host_agent.flows.config import FlowConfig

SMALL = Scenario(
    racks=2, workers=2, others=2, load=0.5, fan_in=2, tensor=8192, tensors=3, warmup=1, pause=0.0005, slots=8
)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
def test_every_contender_ends_and_follows_from_the_seed(setting: Setting, contender: Contender) -> None:
    if not contender.fits(setting):
        pytest.skip("rings have no long streams, sums no receivers")
    outcome = run(setting, contender, SMALL, 1)
    assert len(outcome.times) == SMALL.tensors
    assert min(outcome.times) > SMALL.tensor * 8 / SMALL.rate / 2
    assert outcome.background
    assert run(setting, contender, SMALL, 1) == outcome
    assert run(setting, contender, SMALL, 2) != outcome
    if contender.weir and contender.sheds == "nothing":
        assert outcome.counts["missing"] == 0


@pytest.mark.parametrize("setting", SETTINGS)
def test_links_that_lose_slow_everybody_down_and_all_ends_all_the_same(setting: Setting) -> None:
    quiet = replace(SMALL, load=0.0)
    for contender in (CONTENDERS[0], CONTENDERS[5], CONTENDERS[6]):
        clean, lossy = (run(setting, contender, replace(quiet, loss=loss), 1) for loss in (0.0, 0.05))
        assert sum(lossy.times) > sum(clean.times)


def test_training_is_stated_over_what_networks_have_as_they_come(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    cubic, dctcp = CONTENDERS[-1], CONTENDERS[0]
    scenario = replace(SMALL, load=0.0, depth=16, workers=8, tensor=131072, tensors=1)
    assert run("server", cubic, scenario, 1) != run("server", dctcp, scenario, 1)
    measure(["server"], [0.0], 1, scenario, [dctcp, cubic], processes=1)
    out = capsys.readouterr().out
    assert "steps over j" in " ".join(out.replace("│", " ").replace("┃", " ").split())
    rows = [line.split("│") for line in out.splitlines() if "│" in line]
    assert [cells[7].strip() == "-" for cells in rows] == [False, True]


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
    measure(["collectives"], [0.5], 1, SMALL, CONTENDERS[1:6:2], processes=1)
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [cells[1].strip() for cells in rows] == [contender.name for contender in CONTENDERS[1:6:2]]
    assert [cells[5].strip()[-4:] for cells in rows] == ["-", "-", "of d"]


DEEP = replace(SMALL, load=0.0, depth=64, workers=4, tensor=131072, tensors=2)
NO_CONGESTION = replace(SMALL, load=0.0, depth=1000, tensors=1)
CROWDED = replace(SMALL, load=0.0, depth=8, workers=4, tensor=65536, tensors=2)


def test_every_mechanism_that_acts_is_counted() -> None:
    for contender in CONTENDERS:
        if contender.shows not in (None, "trimmed", "dropped", "stopped early"):
            assert run("server", contender, CROWDED, 1).shows(contender), contender.name


def test_a_mechanism_that_finds_nothing_to_do_has_no_gain_and_fails_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    idle = measure(["collectives"], [0.0], 1, NO_CONGESTION, CONTENDERS[5:7], processes=1)
    assert idle == ["'g f + trimming' in collectives at a load of 0%: nothing was trimmed"]
    assert "did nothing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("planted", "contender"),
    [
        (Qos(spray="hash", priorities=False), CONTENDERS[2]),
        (Qos(spray="hash", priorities=False), CONTENDERS[3]),
        (Qos(classes={code: ClassSpec(trim_at="never") for code in WEIR_CLASSES}), CONTENDERS[6]),
        (Qos(classes={code: ClassSpec(trim_at="never") for code in WEIR_CLASSES}), CONTENDERS[7]),
    ],
    ids=["spraying", "priority", "trimming", "WRED"],
)
def test_a_mechanism_that_does_not_work_is_found_out(
    monkeypatch: pytest.MonkeyPatch, planted: Qos, contender: Contender
) -> None:
    """Switches that are set to do nothing, whatever the row promises."""
    monkeypatch.setattr(Contender, "qos", lambda _self: planted)
    assert not run("server", contender, DEEP, 1).shows(contender)


@pytest.mark.parametrize("contender", CONTENDERS[6:8], ids=["trimming", "WRED"])
def test_own_incast_makes_switches_shed(contender: Contender) -> None:
    outcome = run("server", contender, DEEP, 1)
    assert outcome.shows(contender)
    assert 0 < outcome.counts["missing"] <= DEEP.budget * outcome.counts["lanes"]


def test_receivers_stop_early_within_the_budget_and_a_planted_no_op_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Queues here lose nothing, so what is missing was still on its way."""
    calm = replace(NO_CONGESTION, tensor=131072)
    early, lossless = CONTENDERS[8], CONTENDERS[5]
    outcome = run("server", early, calm, 1)
    assert outcome.shows(early)
    assert outcome.counts["missing"] <= calm.budget * outcome.counts["lanes"]
    assert not run("server", lossless, calm, 1).shows(early)

    def patient(*given: Any, early_stop: bool, **more: Any) -> FlowConfig:
        return FlowConfig(*given, **more)

    monkeypatch.setattr(tail_cases, "FlowConfig", patient)
    assert not run("server", early, calm, 1).shows(early)
