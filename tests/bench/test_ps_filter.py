# SPDX-License-Identifier: Apache-2.0
"""Parameter Flow's filter: what it saves, that its training works, and which filters there are not."""

from dataclasses import replace
from statistics import mean

import pytest

from weir.bench.case import ParameterError
from weir.bench.training.filters import Parameters, Setting, train
from weir.host_agent.parameter_server.value_filter import FilterRule

SETTING = Setting("mlp", 2, 1)


def test_a_filter_saves_data_in_both_directions_and_runs_repeat() -> None:
    few = replace(SETTING, max_steps=20)
    plain, filtered = (train(few, rule, 1) for rule in (FilterRule(), FilterRule(0.003)))
    assert filtered.pushed < 0.25 * plain.pushed
    assert filtered.sent < 0.25 * plain.sent
    assert train(few, FilterRule(0.003), 1) == filtered


@pytest.mark.parametrize("setting", [Setting("mlp", 2, 2, momentum=0.9), Setting("mlp", 2, 2, delay=3)])
def test_held_momentum_and_late_filtered_pushes_learn(setting: Setting) -> None:
    losses = train(setting, FilterRule(0.001, "lr"), 1).losses
    third = len(losses) // 3
    assert mean(losses[-third:]) < 0.9 * mean(losses[:third])


@pytest.mark.parametrize(
    ("given", "said"), [({"schedules": ("log",)}, "constant, lr"), ({"block": 3}, "block 3")]
)
def test_what_cannot_be_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        Parameters(**given)  # type: ignore[arg-type]
