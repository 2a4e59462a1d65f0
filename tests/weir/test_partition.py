# SPDX-License-Identifier: Apache-2.0
"""``weir partition`` as somebody uses it: what it prints adds up, and what it cannot do it says."""

import json
import re
import sysconfig
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weir.cli import app

LIBRARY = Path(sysconfig.get_paths()["stdlib"])


def partition(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["partition", *arguments], env={"COLUMNS": "120"})
    return done.exit_code, done.output


def test_a_plan_is_compared_explained_and_drawn(tmp_path: Path) -> None:
    picture, plan = tmp_path / "a.png", tmp_path / "plan.json"
    status, output = partition(
        *(str(LIBRARY / "email"), "--lines", "40", "--machines", "4", "--racks", "2"),
        *("--partitioner", "greedy", "--compare", "--explain", "--plot", str(picture), "--plan", str(plan)),
    )
    assert status == 0, output
    for method in ("random/random", "hash", "greedy", "refined"):
        assert re.search(rf"│ {method} ", output)
    # Each parameter is in one row of the explanation, and so is each byte.
    rows = re.findall(r"(?:machines?) +│ +([\d,]+) │ +[\d.]+ k?B │ +(\d+)% │", output)
    total = re.search(r"with ([\d,]+) features", output)
    assert total is not None and len(rows) == 3
    assert sum(int(count.replace(",", "")) for count, _ in rows) == int(total[1].replace(",", ""))
    assert abs(sum(int(share) for _, share in rows) - 100) <= 2
    assert "between 2 racks" in output
    assert picture.read_bytes().startswith(b"\x89PNG") and plan.stat().st_size > 1_000


def test_figures_come_as_json() -> None:
    status, output = partition(str(LIBRARY / "email"), "--machines", "3", "--partitioner", "hash", "--json")
    plan = json.loads(output)["hash"]
    assert status == 0 and len(plan["machines"]) == 3
    assert plan["bytes"] == sum(machine["bytes_sent"] for machine in plan["machines"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((str(LIBRARY / "email"), "nosuch"), "nosuch: no such folder or file"),
        ((str(LIBRARY / "this.py"),), "this.py:1: not 'label index:value"),
        ((str(LIBRARY / "email"), "--partitioner", "best"), "--partitioner best: there are random/random"),
        ((str(LIBRARY / "email"), "--hashing", "clustered"), "labels of two kinds: give two folders"),
        ((str(LIBRARY / "email"), "--machines", "4", "--racks", "3"), "4 machines do not fill 3 racks"),
        ((str(LIBRARY / "email"), "--machines", "4000"), "4000 machines for"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: tuple[str, ...], sentence: str) -> None:
    status, output = partition(*arguments)
    assert status == 2 and sentence in output
