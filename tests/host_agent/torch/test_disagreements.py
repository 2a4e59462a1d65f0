# SPDX-License-Identifier: Apache-2.0
"""Ranks that disagree: every rank says at once what each of them called."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.harness.forked import run_ranks
from tests.host_agent.torch import disagreements
from tests.host_agent.torch.disagreements import FAILURES, GROUPS, ROWS

RANKS = 3
MOMENTS_S = 30.0
REMEDY = "Every rank must call the same collectives in the same order with the same sizes."

Outcomes = list[dict[str, dict[str, Any]]]


def run(folder: Path, *names: str, environment: Mapping[str, str] | None = None) -> Outcomes:
    """Return what each rank wrote, in the order of the ranks."""
    program, place = Path(disagreements.__file__), {"OMP_NUM_THREADS": "1", **(environment or {})}
    run_ranks(RANKS, program, str(folder), *names, environment=place)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Return those of all programs, which share a start."""
    return run(tmp_path_factory.mktemp("d"))


def check(name: str, outcomes: Outcomes) -> None:
    """Assert that every rank said in moments what all of them called, and that the group says so later."""
    row = ROWS[name]
    for rank, outcome in enumerate(one[name] for one in outcomes):
        said = outcome["said"]
        assert "GroupBrokenError: rank " in said and f"rank {rank} of {RANKS} in job" in said
        number = f"operation {row.operation}: " if row.operation is not None else "operation "
        assert f"ranks disagree about {number}" in said and REMEDY in said
        usual, odd = row.calls
        asked = said.partition("ranks disagree")[2].partition(REMEDY)[0]
        assert usual in asked and odd in asked, said
        assert "rank 1 called" in asked and ("ranks 0, 2 called" in asked or "rank 0 called" in asked)
        assert outcome["seconds"] < MOMENTS_S
        assert f"the group is broken: ranks disagree about {number}" in outcome["after"]


@pytest.mark.parametrize("name", ROWS)
def test_every_rank_says_what_each_called(outcomes: Outcomes, name: str) -> None:
    check(name, outcomes)


@pytest.mark.parametrize("name", FAILURES)
def test_a_rank_that_fails_alone_tells_the_others_why(outcomes: Outcomes, name: str) -> None:
    failure = FAILURES[name]
    for rank, outcome in enumerate(one[name] for one in outcomes):
        said, broken = outcome["said"], r"operation \d+ cannot be completed: rank 1 failed"
        if rank == 1:
            assert failure.error in said
        else:
            assert "GroupBrokenError: rank " in said and re.search(broken, said), said
            assert failure.error in said and all(words in said for words in failure.calls), said
        assert outcome["seconds"] < MOMENTS_S
        assert re.search(broken, outcome["after"]), outcome["after"]


@pytest.mark.parametrize("name", GROUPS)
def test_groups_that_not_all_want_are_refused_everywhere(outcomes: Outcomes, name: str) -> None:
    for outcome in (one[name] for one in outcomes):
        assert outcome["said"].startswith("RendezvousError: ranks disagree about a group: ")
        assert all(words in outcome["said"] for words in GROUPS[name][1]), outcome["said"]
        assert outcome["seconds"] < MOMENTS_S
