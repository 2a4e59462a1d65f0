# SPDX-License-Identifier: Apache-2.0
"""The benchmark of methods on untuned models: settings, best rates, what is kept, the journal."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from weir.bench.case import ParameterError, Run
from weir.bench.grid import Journal
from weir.bench.training.methods import Found, Outcome, Parameters, Training, run, table
from weir.bench.training.ways import settings_of
from weir.train.config import PRESETS, ConfigError
from weir.train.steppers import WAYS as STEPPERS

RATES = (0.5, 1.0, 2.0)
LOSSES = {"alone": (2.8, 2.7, 2.9), "gloo": (2.5, 2.4, 2.6), "dfs": (2.55, 2.6, math.inf)}


def parameters(*ways: str, model: str = "gpt") -> Parameters:
    return Parameters(models=(model,), ways=ways, rates=RATES, workers=2, steps=30)


def outcomes(asked: Parameters, seeds: int = 3) -> dict[str, Found]:
    """Return losses by way and rate; the seeds are apart by 0.01."""
    return {
        way: Found(
            {
                Training("gpt", way, rate, seed, 2, 30): Outcome(
                    LOSSES[way][column] + seed / 100, 0.5, 100.0, 200.0, 50.0, 60.0
                )
                for seed in range(seeds)
                for column, rate in enumerate(RATES)
            }
        )
        for way in asked.ways
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
    same = {
        way: Found(dict.fromkeys(own, Outcome(2.5, 0.5, 100.0, 200.0, 50.0, 60.0)))
        for way, own in outcomes(asked).items()
    }
    made = table("gpt", asked, same)
    assert all(row.values["kept"] is None for row in made.rows)
    assert any("gains nothing" in note for note in made.notes)


def test_more_is_better_of_an_accuracy() -> None:
    asked = parameters("alone", "gloo", model="vit")
    found = {
        way: Found(
            {
                Training("vit", way, rate, 1, 2, 30): Outcome(1.0, share * rate, 9.0, 9.0, 9.0, 9.0)
                for rate in RATES
            }
        )
        for way, share in (("alone", 0.3), ("gloo", 0.4))
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
    asked = replace(parameters("alone", "gloo", "dfs"), further=0)
    journal = Journal(tmp_path / "journal")
    for own in outcomes(asked).values():
        for training, outcome in own.items():
            journal.put((training,), outcome)
    said: list[str] = []
    (made,) = run(asked, Run(0, (0, 1, 2), journal=tmp_path / "journal", say=said.append))
    assert [row.values["loss"] for row in made.rows] == [
        pytest.approx([min(losses) + seed / 100 for seed in range(3)]) for losses in LOSSES.values()
    ]
    assert said == []


def test_rates_are_tried_until_the_best_is_between_two_and_other_seeds_train_at_that_alone(
    tmp_path: Path,
) -> None:
    asked = replace(parameters("gloo"), rates=(1.0, 2.0), further=3)
    losses = {(1.0, 7): 2.5, (2.0, 7): 2.4, (4.0, 7): 2.3, (8.0, 7): 2.6, (4.0, 8): 2.35}
    journal = Journal(tmp_path / "journal")
    for (rate, seed), loss in losses.items():
        training = Training("gpt", "gloo", rate, seed, 2, 30)
        journal.put((training,), Outcome(loss, 0.5, 1.0, 1.0, 1.0, 1.0))
    (made,) = run(asked, Run(0, (7, 8), journal=tmp_path / "journal"))
    own = PRESETS["gpt"].lr
    assert made.rows[0].values["best rate"] == f"{4 * own:g}"
    assert made.rows[0].values["loss"] == [2.3, 2.35]
    assert made.rows[0].values[f"at {8 * own:g}"] == [2.6]


def test_the_lowest_rate_is_halved() -> None:
    trainings = {rate: Training("gpt", "gloo", rate, 1, 2, 30) for rate in (1.0, 2.0)}
    own = Found({each: Outcome(rate, 0.5, 1.0, 1.0, 1.0, 1.0) for rate, each in trainings.items()})
    assert own.edge == "<" and own.further == replace(trainings[1.0], rate=0.5)
