# SPDX-License-Identifier: Apache-2.0
"""The value-bounded filter: its schedules, its blocks, and what a worker holds back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.host_agent.parameter_server.residual import ALL, MomentumResidual, Residual
from weir.host_agent.parameter_server.value_filter import FilterRule, above, parse_filter


def test_schedules() -> None:
    assert parse_filter("0.5").at(100, 0.1) == 0.5
    assert parse_filter("0.5:lr").at(100, 0.1) == pytest.approx(0.05)
    assert parse_filter("0.5:sqrt").at(16, 0.1) == pytest.approx(0.125)
    assert parse_filter("0.5:cbrt").at(8) == pytest.approx(0.25)
    assert parse_filter("0.5:root4").at(16) == pytest.approx(0.25)
    assert parse_filter("0.5:root2") != parse_filter("0.5:sqrt")
    assert parse_filter("0.5:root2").at(7) == parse_filter("0.5:sqrt").at(7)


@pytest.mark.parametrize("text", ["0.1", "2:lr", "0.25:sqrt:32", "1e-05:root7:256"])
def test_a_rule_is_written_as_it_is_read(text: str) -> None:
    assert parse_filter(str(parse_filter(text))) == parse_filter(text)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "THRESHOLD"), ("-1", "0 or a positive"), ("nan", "0 or a positive"), ("inf", "0 or a positive"),
        ("1:log", "constant, lr, sqrt"), ("1:root0", "whole number"), ("1:lr:3", "1, 2, 4"), ("1:lr:x", "x"),
    ],
)  # fmt: skip
def test_other_texts_are_refused_in_words(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        parse_filter(text)


def test_elements_and_blocks() -> None:
    values = np.array([0.0, 3.0, -0.5, 0.0, -9.0, 1.0, 0.5, 0.0, 2.5], np.float32)
    assert np.flatnonzero(above(values, 1.0)).tolist() == [1, 4, 8]
    assert np.flatnonzero(above(values, 0.0)).tolist() == [1, 2, 4, 5, 6, 8]
    # means of magnitudes by four: 0.875, 2.625, and 2.5 of the one that is left
    assert np.flatnonzero(above(values, 1.0, 4)).tolist() == [4, 5, 6, 8]
    assert np.flatnonzero(above(values, 2.5, 4)).tolist() == [4, 5, 6]


def test_what_is_no_number_is_not_hidden() -> None:
    values = np.array([np.nan, 1e-9, np.inf, 0.0], np.float32)
    assert above(values, 1.0).tolist() == [True, False, True, False]
    assert above(values, 1.0, 2).tolist() == [True, True, True, False]


_STEPS = st.lists(st.lists(st.integers(-50, 50), min_size=6, max_size=6), min_size=1, max_size=12)


@given(_STEPS, st.integers(0, 120), st.sampled_from([1, 2, 4]))
def test_residual_loses_nothing_and_holds_nothing_large(
    steps: list[list[int]], threshold: int, block: int
) -> None:
    residual, sent = Residual(6), np.zeros(6, np.float32)
    for step in steps:
        due = residual.add(ALL, np.array(step, np.float32))
        sent += residual.take(ALL, above(due, threshold, block))
        assert not above(residual.arrays()["sum"], threshold, block).any()
    assert np.array_equal(sent + residual.arrays()["sum"], np.sum(steps, axis=0))


@given(_STEPS, st.integers(0, 120))
def test_momentum_held_is_momentum_divided_and_multiplied_again(
    steps: list[list[int]], threshold: int
) -> None:
    """PF-Caffe's own arithmetic, with a momentum that divides without rounding."""
    ours, buffer = MomentumResidual(6, 0.5), np.zeros(6, np.float32)
    for step in steps:
        update = np.array(step, np.float32)
        buffer = np.float32(0.5) * buffer + update
        passes = above(buffer, threshold)
        theirs = np.where(passes, buffer, np.float32(0))
        buffer = np.where(passes, buffer, buffer / np.float32(0.5))
        due = ours.add(ALL, update)
        assert np.array_equal(ours.take(ALL, above(due, threshold)), theirs)


def test_momentum_must_be_one() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        MomentumResidual(3, 1.0)


def test_the_default_rule_lets_everything_pass() -> None:
    assert above(np.array([1e-30], np.float32), FilterRule().at(1)).all()
