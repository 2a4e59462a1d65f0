# SPDX-License-Identifier: Apache-2.0
"""A grid that was stopped goes on, and does not make again what it has."""

from dataclasses import dataclass
from pathlib import Path

from weir.bench.case import Run
from weir.bench.grid import simulate


@dataclass
class Square:
    """A run's outcome."""

    value: int


def square(number: int, made: Path) -> Square:
    with made.open("a") as file:
        file.write(f"{number}\n")
    return Square(number * number)


def test_runs_that_a_journal_has_are_not_made_again(tmp_path: Path) -> None:
    made, journal = tmp_path / "made", tmp_path / "deeper" / "journal"
    run = Run(0, (), processes=1, journal=journal)
    cases = [(number, made) for number in range(4)]
    assert simulate(square, Square, cases[1:3], run) == [Square(1), Square(4)]
    journal.write_text(journal.read_text() + '{"run": "cut of')
    assert simulate(square, Square, cases, run) == [Square(n * n) for n in range(4)]
    assert sorted(made.read_text().split()) == ["0", "1", "2", "3"]
    assert simulate(square, Square, cases, run) == [Square(n * n) for n in range(4)]
    assert len(made.read_text().split()) == 4
