# SPDX-License-Identifier: Apache-2.0
"""Every packet-level test runs on the soft switch and, where it is installed, on BMv2.

They run with the program that takes wide packets, too. Those of a module that says `EVERY_TARGET` run with
the program for Tofino besides: translated, and compiled, each with sums of 32 and 64 lanes where the long
tests are asked for; those of one that says `WIDE_ONLY` run with that for
wide packets alone.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.harness.bmv2 import Bmv2Target
from tests.harness.effort import effort
from tests.harness.lab import Lab
from tests.harness.soft import SoftTarget
from tests.harness.target import Target
from tests.harness.tna import NarrowTarget, TnaTarget
from tests.harness.tofino import BfaTarget
from weir.p4src import WIDE_PROGRAM
from weir.wire.definition import GROUP_LANES

_TARGETS: Final[dict[str, Callable[[], Target]]] = {
    "soft": SoftTarget,
    "soft-wide": functools.partial(SoftTarget, WIDE_PROGRAM),
    "bmv2": Bmv2Target,
    "tna": TnaTarget,
    "tna-64-lanes": functools.partial(TnaTarget, lanes=64),
    "bfa": BfaTarget,
    "bfa-64-lanes": functools.partial(BfaTarget, lanes=64),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        targets = ["soft", "soft-wide", pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.root])]
        if getattr(metafunc.module, "WIDE_ONLY", False):
            targets = ["soft-wide"]
        if getattr(metafunc.module, "EVERY_TARGET", False):
            translated = effort(["tna"], ["tna", "tna-64-lanes"])
            targets += [pytest.param(name, marks=pytest.mark.p4c) for name in translated]
            targets += effort(["bfa-64-lanes"], ["bfa", "bfa-64-lanes"])
        metafunc.parametrize("target", targets, indirect=True, scope="session")


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Yield the switch under test, started once."""
    made = _TARGETS[request.param]()
    yield made
    made.close()


@pytest.fixture
def lab(target: Target) -> Lab:
    """Return the switch under test, reset, with the aggregation address installed."""
    return Lab(target)


@pytest.fixture(scope="module", params=[1, 2])
def groups(request: pytest.FixtureRequest) -> int:
    """Return how many lane groups packets of ADD have."""
    return int(request.param)


@pytest.fixture
def targets(programs: tuple[SoftTarget, NarrowTarget], groups: int) -> tuple[SoftTarget, NarrowTarget]:
    """Return the program for v1model and that for Tofino, which the module has, for jobs with this many lane
    groups.
    """
    programs[1].lanes = groups * GROUP_LANES
    return programs


@pytest.fixture
def tna(targets: tuple[SoftTarget, NarrowTarget]) -> Lab:
    """Return the program for Tofino alone."""
    return Lab(targets[1])
