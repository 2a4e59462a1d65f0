# SPDX-License-Identifier: Apache-2.0
"""``weir bench ps-filter``: what a filter saves, that its training works, and the table."""

from statistics import mean

import pytest
from typer.testing import CliRunner

from weir.bench.cli import app
from weir.bench.ps_filter import Setting, train
from weir.host_agent.parameter_server.value_filter import FilterRule
from weir.train.config import Model

SETTING = Setting("mlp", 4, 3)


def test_a_filter_saves_data_in_both_directions_and_runs_repeat() -> None:
    plain, filtered = train(SETTING, FilterRule(), 1), train(SETTING, FilterRule(0.003), 1)
    assert filtered.pushed < 0.25 * plain.pushed
    assert filtered.sent < 0.25 * plain.sent
    assert filtered.accuracy > 0.8
    assert train(SETTING, FilterRule(0.003), 1) == filtered


def test_momentum_that_is_held_trains() -> None:
    assert train(Setting("mlp", 2, 2, 0.9), FilterRule(0.001, "lr"), 1).accuracy > 0.7


@pytest.mark.parametrize(
    ("model", "workers", "epochs", "steps"), [("mlp", 2, 3, None), ("lm", 2, 1, 8), ("resnet18", 4, 1, 11)]
)
def test_asynchronous_training_with_late_and_filtered_pushes_learns(
    model: Model, workers: int, epochs: int, steps: int | None
) -> None:
    setting = Setting(model, workers, epochs, delay=3, max_steps=steps)
    losses = train(setting, FilterRule(0.001, "lr"), 1).losses
    third = len(losses) // 3
    assert mean(losses[-third:]) < 0.9 * mean(losses[:third])


def test_the_table() -> None:
    words = ["ps-filter", "--epochs", "1", "--seeds", "1", "--thresholds", "0.01", "--schedules", "sqrt"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "0.01:sqrt" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--schedules", "log"], "constant, lr"), (["--model", "x"], "mlp"), (["--block", "3"], "block 3")],
)
def test_what_cannot_be_is_refused(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["ps-filter", *words])
    assert done.exit_code != 0
    assert said in done.output
