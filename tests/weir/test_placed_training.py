# SPDX-License-Identifier: Apache-2.0
"""``weir train --placement``: the switch's ports carry what a plan predicts, and the model learns."""

import json
import re
import sysconfig
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.harness.effort import effort
from weir.cli import app
from weir.partition.planfile import PlanFile
from weir.train.placed import predict, show, train_placed
from weir.train.sparse_models import SparseModelName

MACHINES = effort(2, 3)


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return plans of two of Python's packages: is a text from email, or from unittest?"""
    folder, library = tmp_path_factory.mktemp("plans"), Path(sysconfig.get_paths()["stdlib"])
    made = {}
    for name, options in (("greedy", ()), ("local", ("--hashing", "local"))):
        made[name] = folder / f"{name}.json"
        status, output = run(
            *("partition", str(library / "email"), str(library / "unittest"), "--lines", "40"),
            *("--hold-out", "5", "--machines", str(MACHINES), "--partitioner", "greedy", *options),
            *("--plan", str(made[name])),
        )
        assert status == 0, output
    return made


@pytest.mark.root
@pytest.mark.parametrize(
    ("plan", "model"), [pytest.param("greedy", "logistic", marks=pytest.mark.long), ("local", "deepfm")]
)
def test_ports_carry_what_is_predicted_per_link(
    plans: dict[str, Path], plan: str, model: SparseModelName
) -> None:
    trained = train_placed(plans[plan], model, epochs=6, batch_size=100, namespaces=True)
    for machine in range(MACHINES):
        for way in ("up", "down"):
            predicted = int(getattr(trained.predicted, way)[machine])
            measured = int(getattr(trained.measured, way)[machine])
            assert 0.95 * predicted < measured < 1.05 * predicted, (machine, way)
    figures = json.loads(json.dumps(trained.as_json()))
    assert sum(figures["measured"]["up"]) == trained.measured.total and len(figures["losses"]) == 6
    console = Console(width=150)
    with console.capture() as capture:
        show(plans[plan], trained, console)
    assert all(words in capture.get() for words in ("sends, predicted", "AUC", "on the links"))
    for result in trained.results:
        assert result.losses[-1] < 0.6 * result.losses[0]
        assert result.auc > 0.9


def test_a_better_placement_is_predicted_to_carry_less(plans: dict[str, Path], tmp_path: Path) -> None:
    plan = PlanFile.load(plans["greedy"])
    worse = tmp_path / "worse.json"
    turned = (plan.placement.of_parameter + 1) % MACHINES
    PlanFile(
        plan.source, type(plan.placement)(MACHINES, plan.placement.of_sample, turned), plan.buckets
    ).save(worse)
    better, turned_away = (predict(one, "fm", 1, 10).total for one in (plan, PlanFile.load(worse)))
    assert better < 0.8 * turned_away


@pytest.mark.long
def test_the_command_trains_by_a_plan_and_says_what_its_links_carried(plans: dict[str, Path]) -> None:
    status, output = run("train", "--mode", "ps", "--placement", str(plans["local"]), "--epochs", "2")
    assert status == 0, output
    assert "sends, predicted" in output and "AUC" in output and "on the links" in output
    off = [float(share) for share in re.findall(r"([+-]\d+\.\d)%", output)]
    assert len(off) == 2 * MACHINES and max(map(abs, off)) < 10, output  # it is a short one


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--placement", "nosuch.json", "--mode", "ps"), "nosuch.json cannot be read: No such file"),
        (("--placement", "nosuch.json"), "--placement needs --mode ps"),
        (
            ("--placement", "nosuch.json", "--mode", "ps", "--model", "cnn"),
            "--model logistic, fm, deepfm, not cnn",
        ),
        (("--placement", "dynamic"), "--placement needs --mode ps"),
        (
            ("--placement", "dynamic", "--mode", "ps", "--set", "lane_bits=16"),
            "--placement dynamic: pushes travel by flows, where values have 32 bits",
        ),
    ],
)
def test_what_does_not_fit_is_said(arguments: tuple[str, ...], sentence: str) -> None:
    status, output = run("train", *arguments)
    assert status == 2 and sentence in output


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--method", "dense", "--set", "push_filter=1e-3:lr:256"), marks=pytest.mark.long),
        ("--method", "dfs", "--consistency", "async", "--set", "pull_filter=1e-3:lr"),
    ],
    ids=lambda options: options[1],
)
def test_blocks_of_a_network_migrate_while_it_trains(options: tuple[str, ...], tmp_path: Path) -> None:
    status, output = run(
        *("train", "--mode", "ps", "--placement", "dynamic", "--model", "mlp", *options),
        *("--workers", "2", "--set", "servers=2", "--epochs", str(effort(1, 2))),
        *("--no-reference", "--out", str(tmp_path)),
    )
    assert status == 0, output
    (summary,) = tmp_path.rglob("summary.json")
    migrations = json.loads(summary.read_text())["runs"]["weir"]["migrations"]
    assert migrations["units"] > 0 and migrations["bytes"] >= 4 * migrations["units"]
    assert "units that migrated" in output and "bytes that they took along" in output
