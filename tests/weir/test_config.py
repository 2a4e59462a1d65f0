# SPDX-License-Identifier: Apache-2.0
"""Settings are checked before anything starts, and an error names the option and what would do."""

import pytest

from weir.train.config import PRESETS, ConfigError, make_config


@pytest.mark.parametrize("model", PRESETS)
def test_a_model_brings_its_preset(model: str) -> None:
    config = make_config(model=model)
    assert (config.data, config.batch_size, config.lr) == (
        PRESETS[model].data,
        PRESETS[model].batch_size,
        PRESETS[model].lr,
    )


def test_what_is_given_wins_over_the_preset() -> None:
    assert make_config(model="cnn", batch_size=3, lr=0.5).batch_size == 3


@pytest.mark.parametrize(
    ("given", "named", "remedy"),
    [
        ({"density": 0.0}, "--density", "greater than 0"),
        ({"density": 1.01}, "--density", "less than or equal to 1"),
        ({"density": float("nan")}, "--density", "nan"),
        ({"workers": 0}, "--workers", "greater than or equal to 1"),
        ({"workers": 33}, "--workers", "less than or equal to 32"),
        ({"block": 100}, "--block", "32, 64, 128 or 256"),
        ({"sparsifier": "best"}, "--sparsifier", "'topk-block'"),
        ({"model": "vgg"}, "--model", "'resnet18', 'cnn' or 'lm'"),
        ({"model": "cnn", "data": "stdlib"}, "'cnn'", "'digits'"),
        ({"epochs": 0}, "--epochs", "greater than or equal to 1"),
        ({"batch_size": 0}, "--batch-size", "greater than or equal to 1"),
        ({"name": "a/b"}, "--name", "'a/b'"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, object], named: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(**given)
    assert named in str(caught.value) and remedy in str(caught.value)


def test_every_wrong_setting_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(workers=0, density=2, model="vgg")
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "--workers",
        "--model",
        "--density",
    ]
