# SPDX-License-Identifier: Apache-2.0
"""The benchmarks, at their smallest sizes: each measures something that can be shown and written."""

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weir.bench import report
from weir.bench.case import Case, Limits, ParameterError, Run
from weir.bench.results import Plot, Table
from weir.bench.suites import SUITES, UnknownCaseError, find
from weir.cli import app
from weir.netns.namespace import NamespaceError, gain_root
from weir.process.child import ChildError

CASES = [case for suite in SUITES.values() for case in suite]
NEEDS_ROOT = {"training/flows", "training/links", "training/servers"}
SIMILAR = {  # to another case of the same module
    "collectives/allreduce",
    "gradients/dfs",
    "training/big",
    *(f"simulated/{name}" for name in ("tail-grid", "incast", "dlcp", "dlcp-testbed", "mlt")),
}
MINUTES = {  # tested in parts, in files of their own
    "switch/instructions",
    "switch/start",
    "collectives/overlap",
}


# Many processes that import torch, as in a case that is measured by default, or in tests of the case's parts.
LONG = {
    *(f"training/{name}" for name in ("servers", "gpt", "methods", "links", "accuracy", "flows")),
    *(
        f"collectives/{name}"
        for name in ("latency", "fsdp", "servers", "allreduce-gpu", "copy", "spines", "weights")
    ),
    *("training/incast", "gradients/exchange", "switch/threads", "simulated/placement"),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.path, marks=[pytest.mark.long] if case.path in LONG else [])
        for case in CASES
        if case.path not in MINUTES | SIMILAR
    ],
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


@pytest.mark.parametrize(
    ("case", "name", "value", "remedy"),
    [
        ("collectives/allreduce", "densities", "5", "above 0 and at most 1"),
        ("collectives/allreduce", "densities", "0.1,nan", "above 0 and at most 1"),
        ("collectives/allreduce", "rates", "100", "100mbit"),
        ("collectives/allreduce", "contenders", "gloo,weir-4", "weir-16"),
        ("training/accuracy", "model", "vgg", "resnet18"),
        ("simulated/tail", "loss", "1", "0.5"),
        ("switch/rate", "lanes", "33", "32, 64"),
        ("switch/rate", "seconds", "long", "a number"),
    ],
)
def test_values_that_cannot_be_are_refused_with_what_can(
    case: str, name: str, value: str, remedy: str
) -> None:
    with pytest.raises(ParameterError, match=re.escape(remedy)) as error:
        find(case)[0].parameters({name: value})
    assert name in str(error.value) or value in str(error.value)


@pytest.mark.parametrize("case", ["switch/rate", "collectives/allreduce", "training/accuracy"])
def test_a_benchmark_says_so_before_it_imports_anything(case: str) -> None:
    command = [sys.executable, "-m", "weir", "bench", "run", case]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(f"weir bench {case}: ".encode())
        process.terminate()


def test_the_command_shows_a_table_and_writes_every_figure(tmp_path: Path) -> None:
    words = ["bench", "run", "simulated/scale", "--quick", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "simulated-scale.json").read_text())
    assert written["case"] == "simulated/scale" and written["tables"][0]["rows"][0]["medians"]
    assert "command: weir " in done.output


def test_a_run_may_have_one_seed_alone(tmp_path: Path) -> None:
    words = ["bench", "run", "simulated/spines", "--set", "kilobytes=4", "--set", "steps=1", "--seed", "7"]
    done = CliRunner().invoke(app, [*words, "--processes", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "simulated-spines.json").read_text())["seeds"] == [7]
    refused = CliRunner().invoke(app, ["bench", "run", "simulated/scale", "--seed", "7"])
    assert refused.exit_code == 2


def test_what_there_is_not_is_named() -> None:
    with pytest.raises(UnknownCaseError, match=r"no suite .*switch, collectives"):
        find("nonsense")
    with pytest.raises(UnknownCaseError, match=r"no case .*tail"):
        find("simulated/nonsense")
