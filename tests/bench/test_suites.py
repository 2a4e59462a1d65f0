# SPDX-License-Identifier: Apache-2.0
"""Every benchmark, at its smallest sizes: it measures something that can be shown and written."""

import json
from dataclasses import fields

import pytest

from weir.bench import report
from weir.bench.case import Case, Limits, ParameterError, Run
from weir.bench.results import Plot, Table
from weir.bench.suites import SUITES, UnknownCaseError, find
from weir.netns.namespace import NamespaceError, gain_root
from weir.process.child import ChildError

CASES = [case for suite in SUITES.values() for case in suite]
NEEDS_ROOT = {"training/links", "training/servers"}
MINUTES = {"switch/instructions", "collectives/overlap"}  # tested in parts, in files of their own


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.path not in MINUTES], ids=lambda case: case.path
)
def test_a_case_measures(case: Case) -> None:
    if case.path in NEEDS_ROOT and (reason := gain_root()):
        pytest.skip(reason)
    parameters = case.parameters(case.quick)
    run = Run(min(case.repeats, 1), range(1, 1 + min(case.seeds, 1)), processes=1)
    try:
        outputs = list(case.run(parameters, run))
    except (NamespaceError, ChildError) as error:
        pytest.fail(str(error))
    tables = [output for output in outputs if isinstance(output, Table)]
    assert len(tables) + sum(isinstance(output, Plot) for output in outputs) == len(outputs)
    for table in tables:
        heads, rows = report.cells(table)
        assert all(len(row) == len(heads) for row in rows)
    json.dumps(report.as_json(case.path, parameters, 1, (1,), tables))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_a_case_says_what_it_is_and_what_it_takes(case: Case) -> None:
    assert len(case.summary) > 30 and case.takes
    for each in fields(case.parameters({})):
        assert isinstance(each.metadata["limits"], Limits), each.name
    with pytest.raises(ParameterError, match="no parameter nonsense"):
        case.parameters({"nonsense": "1"})
    assert find(case.path) == (case,)


def test_what_there_is_not_is_named() -> None:
    with pytest.raises(UnknownCaseError, match=r"no suite .*switch, collectives"):
        find("nonsense")
    with pytest.raises(UnknownCaseError, match=r"no case .*tail"):
        find("simulated/nonsense")
