# SPDX-License-Identifier: Apache-2.0
"""Switches and controllers for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.switch_process import SwitchProcess

KINDS = ["soft", pytest.param("bmv2", marks=pytest.mark.bmv2)]


@pytest.fixture(scope="session", params=KINDS)
def any_switch(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SwitchProcess]:
    """Yield one of each kind, started once; what tests leave in it, the next controller mends."""
    switch = SwitchProcess(request.param, tmp_path_factory.mktemp(request.param))
    switch.start()
    yield switch
    switch.stop()


@pytest.fixture(params=KINDS)
def own_switch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SwitchProcess]:
    """Yield one of each kind that the test may stop and start; not started yet."""
    switch = SwitchProcess(request.param, tmp_path)
    yield switch
    switch.stop()
