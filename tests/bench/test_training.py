# SPDX-License-Identifier: Apache-2.0
"""The training benchmark: what it derives from runs, and its all-reduce in virtual time."""

from pathlib import Path

import pytest

from bench import training_virtual
from bench.training import Outcome, time_to
from bench.training_plot import draw
from tests.weir.test_record import step
from weir.network import NetworkSpec, parse_shape
from weir.train.config import make_config
from weir.train.messages import Evaluated, Ready
from weir.train.record import RunRecord
from weir.train.watch import NetworkCounts

RACKS = NetworkSpec(parse_shape("leaf-spine-2x2"), rate_bps=10**8)


def outcome(name: str, step_s: float, accuracies: list[float], *, complete: bool = True) -> Outcome:
    """A run of two steps an epoch."""
    record = RunRecord("gloo" if name == "Gloo" else "weir", [0], epochs=3)
    record.add(Ready(rank=0, parameters=1000, steps_per_epoch=2, samples=4, traffic_source=""))
    for number in range(1, 2 * max(1, len(accuracies)) + 1):
        record.add(step(0, number, seconds=step_s))
    for epoch, accuracy in enumerate(accuracies, 1):
        record.add(Evaluated(0, epoch, 1.0, accuracy))
    record.status = "complete" if complete else "interrupted"
    return Outcome(name, record, NetworkCounts())


def test_time_to_an_accuracy_is_that_of_the_first_evaluation_that_has_it() -> None:
    lossless = outcome("Weir, lossless", 0.5, [0.5, 0.8, 0.9])
    gloo = outcome("Gloo", 3.0, [], complete=False)
    assert time_to(0.8, lossless, [lossless, gloo]) == pytest.approx(2.0)
    assert time_to(0.85, lossless, [lossless, gloo]) == pytest.approx(3.0)
    assert time_to(0.8, gloo, [lossless, gloo]) == pytest.approx(4 * 3.0)  # lossless Weir's steps at its pace


def test_a_plot_comes_out(tmp_path: Path) -> None:
    config = make_config(topology="leaf-spine-2x2", links="100mbit", loss=0.01, background="incast")
    outcomes = [
        outcome("Gloo", 3.0, [], complete=False),
        outcome("Weir, lossless", 0.5, [0.5, 0.8, 0.9]),
        outcome("Weir, budget 0.1", 0.4, [0.5, 0.8, 0.9]),
    ]
    reached = {one.name: time_to(0.9, one, outcomes) for one in outcomes}
    draw(tmp_path / "deeper" / "training.png", outcomes, reached, 0.9, config)
    assert (tmp_path / "deeper" / "training.png").read_bytes().startswith(b"\x89PNG")


def test_in_virtual_time_an_all_reduce_takes_at_least_what_the_rate_allows() -> None:
    ideal = 100_000 * 4 * 8 / 10**8
    exact = training_virtual.weir(RACKS, 4, 100_000, 0.0)
    assert ideal < exact.seconds < training_virtual.ring(RACKS, 4, 100_000).seconds
    assert exact.missing == 0
    again = training_virtual.weir(RACKS, 4, 100_000, 0.0)
    assert again == exact


def test_in_virtual_time_no_more_is_missing_than_the_budget() -> None:
    spec = NetworkSpec(RACKS.shape, rate_bps=10**8, loss=0.02, background="incast")
    found = training_virtual.weir(spec, 4, 100_000, 0.05)
    assert found.releases > 0 and 0 < found.missing <= 0.05
    assert training_virtual.weir(spec, 4, 100_000, 0.0).missing == 0
