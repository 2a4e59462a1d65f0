# SPDX-License-Identifier: Apache-2.0
"""The benchmark of methods on untuned models: settings, best rates, what is kept, the journal."""

import math
from pathlib import Path

import pytest

from weir.bench.case import ParameterError, Run
from weir.bench.grid import Journal
from weir.bench.training.methods import Outcome, Parameters, Training, run, settings_of, table
from weir.train.config import PRESETS, ConfigError
from weir.train.steppers import WAYS as STEPPERS

RATES = (0.5, 1.0, 2.0)
LOSSES = {"alone": (2.8, 2.7, 2.9), "gloo": (2.5, 2.4, 2.6), "dfs": (2.55, 2.6, math.inf)}


def parameters(*ways: str, model: str = "gpt") -> Parameters:
    return Parameters(models=(model,), ways=ways, rates=RATES, workers=2, steps=30)


def outcomes(asked: Parameters, seeds: int = 3) -> dict[Training, Outcome]:
    """Return losses by way and rate; the seeds are apart by 0.01."""
    return {
        Training("gpt", way, rate, seed, 2, 30): Outcome(
            LOSSES[way][column] + seed / 100, 0.5, 100.0, 200.0, 50.0, 60.0
        )
        for way in asked.ways
        for column, rate in enumerate(RATES)
        for seed in range(seeds)
    }


def test_each_way_stands_at_its_best_rate_and_with_the_share_of_the_gain_that_it_keeps() -> None:
    asked = parameters("alone", "gloo", "dfs")
    made = table("gpt", asked, outcomes(asked))
    rows = {row.contender: row for row in made.rows}
    assert made.better == "less" and made.columns[0].name == "loss"
    assert rows["gloo"].values["loss"] == pytest.approx([2.4, 2.41, 2.42])
    assert [rows[way].values["kept"] for way in LOSSES] == pytest.approx([0, 1, (2.7 - 2.55) / (2.7 - 2.4)])
    own = PRESETS["gpt"].lr
    assert [rows[way].values["best rate"] for way in LOSSES] == [f"{own:g}", f"{own:g}", f"<{own / 2:g}"]
    assert rows["dfs"].values[f"at {2 * own:g}"] == [math.inf] * 3
    assert rows["dfs"].values["up, of dense"] == 1


def test_where_dense_training_gains_nothing_nothing_is_kept_and_the_table_says_so() -> None:
    asked = parameters("alone", "gloo")
    same = {training: Outcome(2.5, 0.5, 100.0, 200.0, 50.0, 60.0) for training in outcomes(asked)}
    made = table("gpt", asked, same)
    assert all(row.values["kept"] is None for row in made.rows)
    assert any("gains nothing" in note for note in made.notes)


def test_more_is_better_of_an_accuracy() -> None:
    asked = parameters("alone", "gloo", model="vit")
    found = {
        Training("vit", way, rate, 1, 2, 30): Outcome(1.0, share * rate, 9.0, 9.0, 9.0, 9.0)
        for way, share in (("alone", 0.3), ("gloo", 0.4))
        for rate in RATES
    }
    made = table("vit", asked, found)
    assert made.better == "more" and [row.values["kept"] for row in made.rows] == [0, 1]
    assert made.rows[1].values["best rate"] == f">{2 * PRESETS['vit'].lr:g}"


def test_a_way_is_a_method_with_settings() -> None:
    assert settings_of("dfs:density=0.01:block=64") == {"method": "dfs", "density": "0.01", "block": "64"}
    assert Training("gpt", "dfs:density=0.01", 2.0, 1, 2, 300).config.density == 0.01
    with pytest.raises(ParameterError, match="a setting of weir train, not 'deep=1'"):
        parameters("dfs:deep=1")
    with pytest.raises(ConfigError, match="no such method: 'best'"):
        list(run(parameters("best"), Run(0, (1,))))
    assert {"alone", "gloo-local", "compress", "outer"} == STEPPERS.keys()


@pytest.mark.parametrize(("model", "steps"), [("gpt", 300), ("vit", 100), ("dlrm", 7)])
def test_a_training_has_as_many_steps_as_asked_for_or_the_rest_of_a_pass_more(model: str, steps: int) -> None:
    config = Training(model, "gloo", 1.0, 1, 2, steps).config  # type: ignore[arg-type]
    assert config.max_steps is not None
    assert steps <= config.epochs * config.max_steps < steps + config.epochs


def test_what_the_journal_has_is_not_trained_again(tmp_path: Path) -> None:
    asked = parameters("alone", "gloo", "dfs")
    journal = Journal(tmp_path / "journal")
    for training, outcome in outcomes(asked).items():
        journal.put((training,), outcome)
    said: list[str] = []
    (made,) = run(asked, Run(0, (0, 1, 2), journal=tmp_path / "journal", say=said.append))
    assert [row.values for row in made.rows] == [
        row.values for row in table("gpt", asked, outcomes(asked)).rows
    ]
    assert said == [f"27 trainings are in {tmp_path / 'journal'}"]
