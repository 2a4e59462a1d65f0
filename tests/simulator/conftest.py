# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from itertools import count

import pytest

from softp4.switch import Switch
from weir.p4src import PROGRAM
from weir.simulator.clock import Clock
from weir.simulator.entries import aggregation

MOST_EVENTS = 1_000_000


@pytest.fixture(autouse=True)
def no_endless_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run in which packets go in a circle fail, which virtual time alone would not end in time."""
    monkeypatch.setattr(Clock, "most_events", MOST_EVENTS)


@pytest.fixture(scope="session")
def switch() -> Iterator[Switch]:
    """Yield the real switch with the real program, aggregating; jobs are the tests' to install."""
    with Switch(PROGRAM) as switch:
        table, entry = aggregation()
        switch.table(table).insert(entry)
        yield switch


@pytest.fixture(scope="session")
def job_ids() -> Iterator[int]:
    """Fresh job ids: what makes a switch forget what a slot held."""
    return count(1)
