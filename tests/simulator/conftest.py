# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from simulator.entries import aggregation
from softswitch.switch import Switch

PROGRAM = Path(__file__).parents[2] / "p4src" / "build" / "weir_v1model.json"


@pytest.fixture(scope="session")
def switch() -> Iterator[Switch]:
    """The real switch with the real program, aggregating; jobs are the tests' to install."""
    with Switch(PROGRAM) as switch:
        switch.insert_entry(*aggregation())
        yield switch


@pytest.fixture(scope="session")
def job_ids() -> Iterator[int]:
    """Fresh job ids: what makes a switch forget what a slot held."""
    return count(1)
