# SPDX-License-Identifier: Apache-2.0
"""Every packet-level test runs on the soft switch and, where it is installed, on BMv2."""

from collections.abc import Iterator

import pytest

from tests.harness.bmv2 import Bmv2Target
from tests.harness.lab import Lab
from tests.harness.soft import SoftTarget
from tests.harness.target import Target


@pytest.fixture(
    scope="session",
    params=["soft", pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.root])],
)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Yield the switch under test, started once."""
    made: Target = SoftTarget() if request.param == "soft" else Bmv2Target()
    yield made
    made.close()


@pytest.fixture
def lab(target: Target) -> Lab:
    """Return the switch under test, reset, with the aggregation address installed."""
    return Lab(target)
