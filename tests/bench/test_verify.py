# SPDX-License-Identifier: Apache-2.0
"""``weir bench verify``: floors are of real cases, and a planted regression falls below one."""

from dataclasses import replace

import pytest

from weir.bench.case import Case, Floor, Run
from weir.bench.results import Column, Row, Table
from weir.bench.simulated.tail import Contender
from weir.bench.suites import SUITES, Verdict, find, verify
from weir.controller.qos import WEIR_CLASSES, ClassSpec, Qos

RUN = Run(0, range(1, 2), processes=1)
FLOORED = [case for suite in SUITES.values() for case in suite if case.floors]


@pytest.mark.parametrize("case", FLOORED, ids=lambda case: case.path)
def test_floors_are_of_the_cases_own_parameters_and_above_nothing(case: Case) -> None:
    for floor in case.floors:
        case.parameters(floor.values)
        assert floor.least > 0


def test_the_worst_setting_counts_and_a_row_that_is_missing_is_no_proof() -> None:
    def row(contender: str, time: float, depth: int) -> Row:
        return Row(contender, {"time": time}, {"depth": depth})

    rows = (row("a TCP", 4, 16), row("b Weir", 2, 16), row("a TCP", 3, 32), row("b Weir", 2, 32))
    table = Table("times", (Column("time"),), rows)
    floor = Floor("time", "b ", "a ", 1.6, {})
    assert floor.reached([table]) == 1.5
    assert replace(floor, contender="c ").reached([table]) is None
    assert replace(floor, column="energy").reached([table]) is None


def found() -> list[Verdict | str]:
    return list(verify(find("simulated/tail"), RUN))


def test_the_pages_hold_and_trimming_that_does_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(isinstance(one, Verdict) and one.kept for one in found())
    never = Qos(spray="round_robin", classes={code: ClassSpec(trim_at="never") for code in WEIR_CLASSES})
    monkeypatch.setattr(Contender, "qos", lambda _self: never)
    sentences = [one for one in found() if isinstance(one, str)]
    assert any("no trimmed" in one for one in sentences)
