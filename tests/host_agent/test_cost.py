# SPDX-License-Identifier: Apache-2.0
"""The cost model against the real thing: real transports, the real switch program, bytes counted by both."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from host_agent.formats import cost
from host_agent.report import ReduceReport
from simulator.entries import aggregation
from simulator.host import Work
from simulator.rack import Rack
from softswitch.switch import Switch
from wire.definition import Op

PROGRAM = Path(__file__).parents[2] / "p4src" / "build" / "weir_v1model.json"
JOBS = count(1)


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    with Switch(PROGRAM) as switch:
        switch.insert_entry(*aggregation())
        yield switch


def reduce_really(
    switch: Switch, vectors: list[np.ndarray], block: int, slots: int, fill: bool
) -> list[ReduceReport]:  # type: ignore[type-arg]
    with Rack(switch, workers=len(vectors), slots=slots, seed=1, job=next(JOBS), fill=fill) as rack:
        rack.submit([Work(Op.MAX, block, vector) for vector in vectors])
        rack.run()
        return [host.reports[0] for host in rack.hosts]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    workers=st.integers(1, 6),
    block=st.sampled_from(cost.BLOCKS),
    blocks=st.integers(0, 60),
    short=st.integers(0, 31),
    slots=st.sampled_from([1, 2, 3, 8, 64]),
    density=st.sampled_from([0.0, 0.02, 0.2, 0.7, 1.0]),
    runs=st.sampled_from([1, 5]),
    fill=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_reduce_costs_what_the_model_says(
    switch: Switch,
    workers: int,
    block: int,
    blocks: int,
    short: int,
    slots: int,
    density: float,
    runs: int,
    fill: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    occupied = np.repeat(rng.random((workers, -(-blocks // runs))) < density, runs, axis=1)[:, :blocks]
    lanes = max(0, blocks * block - short)
    vectors = [np.repeat(row, block)[:lanes].astype(np.uint32) for row in occupied]
    expected = cost.reduce_traffic(occupied, block, slots, fill=fill)
    for rank, report in enumerate(reduce_really(switch, vectors, block, slots, fill)):
        assert (report.packets_up, report.packets_down) == (expected.packets, expected.packets)
        assert (report.bytes_up, report.bytes_down) == (expected.up[rank], expected.down)
