# SPDX-License-Identifier: Apache-2.0
"""``weir bench verify``: floors are of real cases, and a planted regression falls below one."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from weir.bench.case import Case, Floor, Run, UnavailableError
from weir.bench.collectives import allreduce
from weir.bench.results import Column, Row, Table
from weir.bench.simulated.tail import Contender
from weir.bench.suites import SUITES, Verdict, find, verify
from weir.controller.qos import WEIR_CLASSES, ClassSpec, Qos
from weir.netns import lab
from weir.netns.offloads import ALL, offloads_off

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


@pytest.mark.root
def test_gloos_link_carries_many_frames_at_a_time_and_one_without_offloads_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = find("collectives/allreduce")
    assert not list(verify(peers, RUN))
    bridge: Callable[..., None] = lab._bridge

    def without(made: lab.Lab, name: str, *others: object) -> None:
        bridge(made, name, *others)
        for namespace in made.namespaces:
            namespace.call(partial(offloads_off, name, ALL))

    monkeypatch.setattr(lab, "_bridge", without)
    assert list(verify(peers, RUN)) == [
        "collectives/allreduce: a mechanism did nothing: 1gbit, 100%, Gloo: no frames at a time"
    ]


def test_a_machine_without_links_has_the_other_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_given: object) -> None:
        raise UnavailableError("shaped links: no root")

    monkeypatch.setattr(allreduce, "run", unavailable)
    said: list[str] = []
    assert not list(verify(find("collectives/allreduce"), replace(RUN, say=said.append)))
    assert said[-1] == "collectives/allreduce: shaped links: no root"
