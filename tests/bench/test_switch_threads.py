# SPDX-License-Identifier: Apache-2.0
"""Threads of the soft switch: what counts as a measurement of them."""

import os

import pytest

from weir.bench.case import Run
from weir.bench.switch import threads
from weir.bench.switch.threads import Parameters, Turn, in_memory, of_turns

EQUAL = Turn((100.0, 104.0, 96.0, 100.0), {2: 198.0}, {2: 180.0})
SLOWED = Turn((100.0, 104.0, 60.0, 100.0), {2: 160.0}, {2: 100.0})
ONE_CORE = Turn((100.0, 104.0, 96.0, 100.0), {2: 110.0}, {2: 105.0})


def test_one_thread_is_measured_on_each_processor_before_and_after() -> None:
    processors = os.sched_getaffinity(0)
    turns = in_memory(Parameters(slots=64, lanes=32, turns=2), Run(1, ()))
    assert 1 <= len(turns) <= 2
    for turn in turns:
        assert len(turn.alone) == 2 * len(processors)
        assert min(*turn.alone, turn.beside[2]) > 0
        assert turn.gain(2) > 0
    assert os.sched_getaffinity(0) == processors


def test_turns_go_on_until_enough_had_equal_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Parameters(slots=16, lanes=32, frames=10_000, turns=3)
    monkeypatch.setattr(threads, "EQUAL", 1e9)
    assert len(in_memory(given, Run(2, ()))) == 2
    monkeypatch.setattr(threads, "EQUAL", 0.5)
    assert len(in_memory(given, Run(2, ()))) == 6, "and end without"


def test_only_turns_with_equal_processors_count() -> None:
    table = of_turns([SLOWED, EQUAL, SLOWED], Parameters())
    assert {row.contender: row.values["packets/s"] for row in table.rows} == {
        "1 thread": [100.0],
        "2 switches of 1": [198.0],
        "2 threads": [180.0],
    }
    assert [table.gain(row, table.rows[0]) for row in table.rows[1:]] == [1.98, 1.8]
    assert table.notes[0].startswith("1 of 3 turns had processors equally fast")
    assert "only they count. Of all turns: 1.10 with 2." in table.notes[0]


def test_without_any_such_turn_all_count_and_it_is_said() -> None:
    table = of_turns([SLOWED], Parameters())
    assert table.rows[2].values["packets/s"] == [100.0]
    assert "within 10%; all count." in table.notes[0]


def test_processors_that_share_a_core_are_not_equal_at_the_same_time() -> None:
    assert EQUAL.steady
    assert not SLOWED.steady
    assert not ONE_CORE.steady


def test_more_threads_than_processors_are_no_reason_to_go_on() -> None:
    assert Turn((100.0, 104.0, 96.0, 100.0), {4: 198.0}, {4: 120.0}).steady
