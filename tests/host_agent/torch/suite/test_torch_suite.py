# SPDX-License-Identifier: Apache-2.0
"""Torch's own distributed tests: what Gloo passes on this machine, Weir passes.

``fast.txt`` names those that are always run; ``WEIR_TESTS=long`` runs every one. ``differences.py`` says
which ones Weir does not pass, and why not.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.harness.effort import LONG
from tests.host_agent.torch.suite.differences import DIFFERENCES, EITHER_WAY
from tests.host_agent.torch.suite.ranks import PASSED, SIZE, Ranks
from weir.cluster import LocalCluster

HERE: Final = Path(__file__).parent
HOSTS: Final = SIZE


def every_name(suite: str = "ranks") -> list[str]:
    """Return the names of torch's tests, from a process of its own: importing them changes a process."""
    code = f"from tests.host_agent.torch.suite.{suite} import names; print(*names(), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def chosen() -> list[str]:
    """Return the names of the tests to run; listed ones are run only then."""
    if LONG:
        return every_name()
    return [name for name in (HERE / "fast.txt").read_text().split() if name not in DIFFERENCES]


@pytest.fixture(scope="module")
def ours(cluster: LocalCluster) -> Iterator[Ranks]:
    ranks = Ranks("weir", cluster.environment)
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def gloo() -> Iterator[Ranks]:
    ranks = Ranks("gloo")
    yield ranks
    ranks.close()


@pytest.mark.parametrize("name", chosen())
def test_weir_passes_what_gloo_passes(ours: Ranks, gloo: Ranks, name: str) -> None:
    passes_as_gloo(name, ours, gloo, DIFFERENCES)


def passes_as_gloo(name: str, ours: Ranks, gloo: Ranks, differences: Mapping[str, str]) -> None:
    """Run a test. Fails where Gloo passes it and we do not, or where we do and it is listed."""
    found = ours.run(name)
    if name in differences:
        assert found.state != PASSED, "it passes: take it out of differences.py"
        pytest.xfail(differences[name])
    if found.state != PASSED and (theirs := gloo.run(name)).state != PASSED:
        pytest.skip(f"Gloo does not pass it here: {theirs.last_line}")
    if found.state != PASSED and name in EITHER_WAY:
        pytest.xfail(EITHER_WAY[name])
    assert found.state == PASSED, f"{found.state}: {found.why}"


@pytest.mark.long
def test_lists_name_tests_that_there_are() -> None:
    known = set(every_name())
    assert {*DIFFERENCES, *(HERE / "fast.txt").read_text().split()} <= known
