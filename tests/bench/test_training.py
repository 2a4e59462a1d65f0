# SPDX-License-Identifier: Apache-2.0
"""The training benchmark: what it derives from runs, and its all-reduce in virtual time."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.weir.test_record import step
from weir.bench.case import ParameterError
from weir.bench.results import Column, Plot, Row, Table
from weir.bench.simulated import step as virtual
from weir.bench.training.dense_curve import dense_curve
from weir.bench.training.links import Parameters, dense_steps, of_all_seeds, report, time_to, ways
from weir.bench.training.ways import Way, WayResult
from weir.calibrate.trial import Trial
from weir.calibrate.trial import run as run_trial
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.network import NetworkSpec, parse_shape
from weir.process.processor import ProcessorTime
from weir.train.config import make_config
from weir.train.messages import Evaluated, Ready
from weir.train.record import RunRecord
from weir.train.watch import NetworkCounts
from weir.train.words import idle_mechanisms

RACKS = NetworkSpec(parse_shape("leaf-spine-2x2"), rate_bps=10**8)
CONFIGS = {
    method: make_config(
        method=method, topology="leaf-spine-2x2", links="100mbit", loss=0.01, background="incast"
    )
    for method in ("dense", "topk-block")
}
DENSE, SPARSE = Way("Weir, dense", "weir", CONFIGS["dense"]), Way("Weir, topk", "weir", CONFIGS["topk-block"])
GLOO, SERVER = Way("Gloo", "gloo", CONFIGS["dense"]), Way("PS", "ps", CONFIGS["dense"])


def outcome(way: Way, step_s: float, accuracies: list[float], *, complete: bool = True) -> WayResult:
    """Return a run with an evaluation after every second step."""
    record = RunRecord("weir" if way.kind == "weir" else "gloo", [0], epochs=3)
    record.add(Ready(rank=0, parameters=1000, steps_per_epoch=2, samples=4, traffic_source=""))
    for number in range(1, 2 * max(1, len(accuracies)) + 1):
        record.add(step(0, number, seconds=step_s))
        record.clock(ProcessorTime(0, number, number))
    for number, accuracy in enumerate(accuracies, 1):
        record.add(Evaluated(0, number, 1.0, accuracy, step=2 * number))
    record.status = "complete" if complete else "interrupted"
    record.counts = NetworkCounts() if way.kind == "weir" else None
    return WayResult(way, record)


def no_curve() -> Iterator[tuple[int, float]]:
    raise AssertionError("nobody needs it")


def test_a_row_counts_what_was_switched_on_and_an_idle_spine_is_named() -> None:
    """The benchmark fails where one of these is 0."""
    lossy = Way("Weir, budget", "weir", CONFIGS["dense"].model_copy(update={"loss_budget": 0.1}))
    found = outcome(lossy, 0.5, [0.5])
    found.record.counts = NetworkCounts(trims=3, lost=7, background=9, spines={"spine1": 5, "spine2": 0})
    (row,) = next(iter(report([found], lossy.config, None))).rows
    assert list(row.counts.values()) == [7, 9, 3, 0]
    assert idle_mechanisms(lossy.config, found.record) == ["--topology: one of the spines has summed nothing"]
    found.record.counts = NetworkCounts(spines={"spine1": 5, "spine2": 0}, dead={"spine2": "killed"})
    assert len(idle_mechanisms(lossy.config, found.record)) == 3, "a spine that died is not idle"


def test_time_to_an_accuracy_is_that_of_the_first_evaluation_that_has_it() -> None:
    dense = outcome(DENSE, 0.5, [0.5, 0.8, 0.9])
    assert dense.time_to(0.8) == pytest.approx(2.0)
    assert dense.time_to(0.85) == pytest.approx(3.0)
    assert dense.time_to(0.95) is None


def test_a_peer_cut_short_takes_the_steps_of_a_dense_run_at_its_own_pace() -> None:
    dense, gloo = outcome(DENSE, 0.5, [0.5, 0.8, 0.9]), outcome(GLOO, 3.0, [], complete=False)
    steps, _ = dense_steps(0.8, [gloo, dense], no_curve)
    assert time_to(0.8, gloo, steps) == pytest.approx(4 * 3.0)


def test_without_a_dense_run_its_steps_are_counted_in_one_process() -> None:
    """A sparse run's steps are not a dense peer's."""
    sparse, gloo = outcome(SPARSE, 0.5, [0.5, 0.8, 0.9]), outcome(GLOO, 3.0, [0.6], complete=False)
    steps, source = dense_steps(0.8, [gloo, sparse], lambda: iter([(3, 0.7), (7, 0.85), (9, 0.9)]))
    assert time_to(0.8, gloo, steps) == pytest.approx(7 * 3.0)
    assert "without a network" in source
    assert time_to(0.6, gloo, None) == pytest.approx(2 * 3.0)  # it came so far itself
    assert time_to(0.95, sparse, steps) is None


def test_the_curve_without_a_network_is_that_of_dense_training() -> None:
    config = make_config(model="mlp", method="dense", workers=3, epochs=1, max_steps=9, evaluate_every=4)
    curve = list(dense_curve(config))
    assert [steps for steps, _ in curve] == [4, 8, 9]
    assert curve[-1][1] == run_trial(Trial(config, LossPolicy.of(0.0))).accuracy


def test_all_ways_to_train_are_peers_methods_and_a_run_with_a_budget() -> None:
    found = ways([CONFIGS["topk-block"], CONFIGS["dense"]], ["gloo", "ps"], 0.1, 60.0)
    assert [(way.name, way.dense) for way in found] == [
        ("Gloo", True),
        ("PS", True),
        ("Weir, topk-block", False),
        ("Weir, dense", True),
        ("Weir, topk-block, budget 0.1", False),
    ]
    assert [way.limit_s for way in found[:3]] == [60.0, 60.0, float("inf")]


def test_a_table_and_a_plot_come_out() -> None:
    outcomes = [
        outcome(GLOO, 3.0, [], complete=False),
        outcome(SERVER, 8.0, [], complete=False),
        outcome(DENSE, 0.5, [0.5, 0.8, 0.9]),
        outcome(SPARSE, 0.2, [0.5, 0.8, 0.9]),
    ]
    table, plot = report(outcomes, CONFIGS["dense"], None)
    assert isinstance(table, Table) and isinstance(plot, Plot)
    assert "less time than PS: Weir, dense 93.75%; Weir, topk 97.50%" in table.notes
    assert any("as Weir, dense needed" in note for note in table.notes)
    gains = [table.gain(row, table.beside(row, "PS")) for row in table.rows]
    assert gains == pytest.approx([8 / 3, 1, 16, 40])
    (panel,) = plot.panels
    assert [line.label for line in panel.lines] == [
        "Gloo (from 2 steps)", "PS (from 2 steps)", "Weir, dense", "Weir, topk"
    ]  # fmt: skip


def test_memory_is_told_beside_that_of_plain_ddp_over_gloo() -> None:
    runs = [outcome(way, 1.0, [0.5]) for way in (GLOO, DENSE, SPARSE)]
    for run, held in zip(runs, (2e9, 2.5e9, 3e9), strict=True):
        run.record.memory = int(held)
    runs[1] = replace(runs[1], switch_memory=10**8)
    table = next(iter(report(runs, CONFIGS["dense"], None)))
    assert isinstance(table, Table)
    assert [row.values["memory"] for row in table.rows] == [2e9, 2.5e9, 3e9]
    assert [row.values["switch memory"] for row in table.rows] == [None, 10**8, None]
    assert "memory, in Gloo's: Weir, dense 1.25; Weir, topk 1.50" in table.notes


def test_outer_steps_are_told_apart() -> None:
    of = [
        make_config(model="gpt", method="outer", outer_steps=10, outer_method=method)
        for method in ("dense", "rows")
    ]
    assert [way.name for way in ways(of, [])] == [
        "Weir, outer, dense every 10",
        "Weir, outer, rows every 10",
    ]


def test_the_share_of_the_line_is_that_of_the_workers_own_rate() -> None:
    (way,) = ways([CONFIGS["dense"]], [])
    plain = outcome(way, 1.0, [0.1] * 3)
    sent = 8 * plain.record.mean_traffic.bytes_up / plain.record.training_s
    assert sent > 0 and plain.of_line is None
    assert replace(plain, up_bps=10_000).of_line == pytest.approx(sent / 10_000)


def test_of_a_loss_less_is_better() -> None:
    peers = ["gloo", "gloo-powersgd:powersgd_rank=4:lr=0.002:epochs=2"]
    found = ways([make_config(model="gpt", method="compress", lr=0.006)], peers)
    assert [(way.name, way.config.method, way.config.lr) for way in found] == [
        ("Gloo", "compress", 0.003),
        ("Gloo, PowerSGD hook, rank 4, rate 0.002, epochs 2", "gloo-powersgd", 0.002),
        ("Weir, compress, rate 0.006", "compress", 0.006),
    ]
    runs = [outcome(way, seconds, [0.1] * 3) for way, seconds in zip(found, (3.0, 2.0, 1.0), strict=True)]
    for run, losses in zip(runs, ((3.0, 2.5, 2.0), (3.0, 2.6, 2.2), (3.0, 2.1, 2.3)), strict=True):
        run.record.evaluations[:] = [
            replace(each, loss=loss) for each, loss in zip(run.record.evaluations, losses, strict=True)
        ]
    table, _ = report(runs, found[-1].config, None)
    assert [row.values["to 2.200"] for row in table.rows if isinstance(table, Table)] == [18.0, 12.0, 4.0]
    assert [row.values["loss"] for row in table.rows if isinstance(table, Table)] == [2.0, 2.2, 2.3]
    for words in ("gloo-powersgd:rank=4", "nccl"):
        with pytest.raises(ParameterError):
            Parameters(peers=(words,))


RING, WEIR, LOSSY = virtual.WAYS[1:4]


def test_in_virtual_time_an_all_reduce_takes_at_least_what_the_rate_allows() -> None:
    ideal = 100_000 * 4 * 8 / 10**8
    exact = virtual.simulate(WEIR, RACKS, 4, 100_000, 0.0)
    assert ideal < exact.times[0]
    assert virtual.simulate(RING, RACKS, 4, 100_000, 0.0).times[0] > 1.5 * ideal
    assert exact.counts["missing"] == 0
    assert virtual.simulate(WEIR, RACKS, 4, 100_000, 0.0) == exact


@pytest.mark.parametrize("way", [RING, WEIR], ids=lambda way: way.name)
def test_in_virtual_time_bursts_hold_up_neither_weir_nor_the_ring(way: virtual.Way) -> None:
    quiet = NetworkSpec(rate_bps=10**8)
    bursts = NetworkSpec(rate_bps=10**8, background="incast", load=0.9)
    loud, still = (virtual.simulate(way, spec, 4, 100_000, 0.0).times[0] for spec in (bursts, quiet))
    assert loud < 1.2 * still


def test_in_virtual_time_no_more_is_missing_than_the_budget() -> None:
    spec = NetworkSpec(RACKS.shape, rate_bps=10**8, loss=0.02, background="incast")
    found = virtual.simulate(LOSSY, spec, 4, 100_000, 0.05)
    assert found.counts["releases"] > 0 and 0 < found.share("missing", "lanes") <= 0.05
    assert virtual.simulate(WEIR, spec, 4, 100_000, 0.0).counts["missing"] == 0


def test_seeds_with_targets_of_their_own_share_a_table() -> None:
    def table(target: str, reached: float | None) -> Table:
        columns = (Column(target), Column("step"))
        rows = (Row("Gloo", {target: 4.0, "step": 2.0}), Row("Weir", {target: reached, "step": 1.0}))
        return Table("title", columns, rows, peers=("Gloo",))

    both = of_all_seeds([table("to 90%", 2.0), table("to 95%", 3.0)])
    assert [row.values for row in both.rows] == [
        {"to the target": [4.0, 4.0], "step": [2.0, 2.0]},
        {"to the target": [2.0, 3.0], "step": [1.0, 1.0]},
    ]
    unknown = of_all_seeds([table("to 90%", 2.0), table("to 95%", None)])
    assert unknown.rows[1].values["to the target"] is None
