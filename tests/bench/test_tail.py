# SPDX-License-Identifier: Apache-2.0
"""Tensors' tails, on a network too small to say anything."""

from dataclasses import replace
from typing import Any

import pytest

from tests.harness.effort import LONG, effort
from weir.bench.case import Run
from weir.bench.results import Plot, Table
from weir.bench.simulated import tail, transports
from weir.bench.simulated.fabric import percentile, rows
from weir.bench.simulated.tail import CONTENDERS, SETTINGS, Contender, Parameters, Scenario, Setting, simulate
from weir.controller.qos import WEIR_CLASSES, ClassSpec, Qos
from weir.host_agent.flows.config import FlowConfig

SMALL = Scenario(
    racks=2, workers=2, others=2, load=0.5, fan_in=2, tensor=8192, tensors=3, warmup=1, pause=0.0005, slots=8
)
QUIET = replace(SMALL, load=0.0)


def acted(contender: Contender, scenario: Scenario) -> bool:
    """Return whether a contender's row shows that its mechanism did something."""
    (row,) = rows({contender: simulate(scenario, contender, 1)}, lambda *_: {})
    return all(row.counts.values())


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("contender", CONTENDERS[:: effort(2, 1)], ids=lambda contender: contender.name)
def test_every_contender_ends_and_follows_from_the_seed(setting: Setting, contender: Contender) -> None:
    if not contender.fits(setting):
        pytest.skip("rings have no long streams, sums no receivers")
    scenario = replace(SMALL, setting=setting)
    outcome = simulate(scenario, contender, 1)
    assert len(outcome.times) == SMALL.tensors
    assert min(outcome.times) > SMALL.tensor * 8 / SMALL.rate / 2
    assert outcome.beside
    if LONG or contender in (CONTENDERS[0], CONTENDERS[6]):  # TCP, and Weir with trimming
        assert simulate(scenario, contender, 1) == outcome
        assert simulate(scenario, contender, 2) != outcome
    if contender.weir and contender.sheds == "nothing":
        assert outcome.counts["missing"] == 0


@pytest.mark.parametrize("setting", SETTINGS)
def test_links_that_lose_slow_everybody_down_and_all_ends_all_the_same(setting: Setting) -> None:
    quiet = replace(QUIET, setting=setting)
    for contender in (CONTENDERS[0], CONTENDERS[5], CONTENDERS[6]):
        clean, lossy = (simulate(replace(quiet, loss=loss), contender, 1) for loss in (0.0, 0.05))
        assert sum(lossy.times) > sum(clean.times)


def test_scenarios_are_compared_with_their_twins_floors_and_cubic() -> None:
    parameters = Parameters(
        racks=2, others=0, workers=(8,), depth=(16, 64), kilobytes=(64,), tensors=1, contenders="adj"
    )
    table, plot = tail.run(parameters, Run(0, range(1, 2), processes=1))
    assert isinstance(table, Table) and isinstance(plot, Plot)
    assert [row.setting["depth"] for row in table.rows] == ["16 packets"] * 3 + ["64 packets"] * 3
    assert [row.values["training"] is None for row in table.rows[:3]] == [False, False, True]
    assert [row.twin for row in table.rows[:3]] == ["", CONTENDERS[0].name, ""]
    assert all(table.of_floor(row) < 1 for row in table.rows)  # type: ignore[operator]
    assert [panel.log for panel in plot.panels] == ["x", "x"]


def test_pushes_that_may_be_missing_take_no_time_of_the_floor() -> None:
    parameters = Parameters(
        racks=2,
        others=0,
        workers=(8,),
        depth=(16,),
        kilobytes=(64,),
        tensors=1,
        contenders="fg",
        setting=("server",),
    )
    table, *_ = tail.run(parameters, Run(0, range(1, 2), processes=1))
    assert isinstance(table, Table)
    lossless, budget = (row.floor for row in table.rows)
    assert lossless is not None and budget == pytest.approx((2 - parameters.budget) / 2 * lossless)


def test_larger_tensors_are_fewer() -> None:
    parameters = Parameters(workers=(8, 32), kilobytes=(64, 4096), megabytes=32)
    assert [(one.tensors, one.warmup) for one in parameters.scenarios()] == [(20, 3), (2, 1), (16, 3), (2, 1)]


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(200, 0, -1)]
    assert percentile(values, 99) == 198
    assert percentile(values, 50) == 100
    assert percentile([3.0], 99) == 3


DEEP = replace(QUIET, depth=64, workers=4, tensor=131072, tensors=2)
NO_CONGESTION = replace(QUIET, depth=1000, tensors=1)
CROWDED = replace(QUIET, depth=8, workers=4, tensor=65536, tensors=2)


def test_every_mechanism_that_acts_is_counted() -> None:
    for contender in CONTENDERS:
        if contender.shows not in (None, "trimmed", "dropped", "stopped early"):
            assert acted(contender, CROWDED), contender.name


def test_trimming_may_do_nothing_where_nothing_was_lost() -> None:
    """It fails otherwise, and where its twin lost packets in the same queues."""
    quick = {"racks": 2, "others": 0, "tensors": 2, "contenders": "fg"}

    def idle(parameters: Parameters) -> list[str]:
        table, _ = tail.run(parameters, Run(0, range(1, 2), processes=1))
        assert isinstance(table, Table)
        return table.idle

    calm = Parameters(workers=(4,), depth=(1000,), kilobytes=(8,), **quick)  # type: ignore[arg-type]
    assert idle(calm) == ["g f + trimming: no trimmed"]
    assert idle(replace(calm, calm=True)) == []


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
    assert not acted(contender, DEEP)


@pytest.mark.parametrize("contender", CONTENDERS[6:8], ids=["trimming", "WRED"])
def test_own_incast_makes_switches_shed(contender: Contender) -> None:
    outcome = simulate(DEEP, contender, 1)
    assert 0 < outcome.counts["missing"] <= DEEP.budget * outcome.counts["lanes"]


def test_receivers_stop_early_within_the_budget_and_a_planted_no_op_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Queues here lose nothing, so what is missing was still on its way."""
    calm = replace(NO_CONGESTION, tensor=131072)
    early, lossless = CONTENDERS[8], CONTENDERS[5]
    outcome = simulate(calm, early, 1)
    assert outcome.counts["stopped early"] > 0
    assert outcome.counts["missing"] <= calm.budget * outcome.counts["lanes"]
    assert simulate(calm, lossless, 1).counts["stopped early"] == 0

    def patient(*given: Any, early_stop: bool, **more: Any) -> FlowConfig:
        return FlowConfig(*given, **more)

    monkeypatch.setattr(transports, "FlowConfig", patient)
    assert not acted(early, calm)


def test_lossless_flows_stay_close_to_dctcp_in_queues_that_overflow() -> None:
    """The sum of all first windows is several times what a queue holds; only virtual time is compared."""
    scenario = Scenario(load=0, others=0, workers=4, depth=32, tensor=131_072, tensors=effort(1, 3))
    flows, streams = (simulate(scenario, CONTENDERS[number], 1) for number in (5, 3))
    assert flows.counts["retransmissions"] > 0
    assert max(flows.times) < 1.1 * max(streams.times)


def test_trimming_that_does_not_work_is_named_where_queues_overflow() -> None:
    crowded = replace(QUIET, depth=16, workers=4, others=0, tensor=65536, tensors=2)
    assert acted(CONTENDERS[6], crowded)
    assert not acted(replace(CONTENDERS[6], sheds="nothing"), crowded)
