# SPDX-License-Identifier: Apache-2.0
"""The cost model against the real thing: real transports, the real switch program, bytes counted by both."""

from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softp4.switch import Switch
from tests.harness.effort import examples
from tests.simulator.rack import Rack
from weir.host_agent.compression.encodings import cost, omnireduce
from weir.host_agent.compression.encodings.cost import Flags
from weir.host_agent.transport.report import ReduceReport
from weir.p4src import PROGRAM
from weir.simulator.entries import aggregation
from weir.simulator.host import Work
from weir.wire.definition import BLOCK_SIZES, Op

JOBS = count(1)


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    with Switch(PROGRAM) as switch:
        table, entry = aggregation()
        switch.table(table).insert(entry)
        yield switch


def reduce_really(
    switch: Switch, vectors: list[np.ndarray], block: int, slots: int, fill: bool
) -> list[ReduceReport]:
    with Rack(switch, workers=len(vectors), slots=slots, seed=1, job=next(JOBS), fill=fill) as rack:
        rack.submit([Work(Op.MAX, block, vector) for vector in vectors])
        rack.run()
        return [host.reports[0] for host in rack.hosts]


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    workers=st.integers(1, 6),
    block=st.sampled_from(BLOCK_SIZES),
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
    expected = cost.reduce_cost(occupied, block, slots, fill=fill)
    for rank, report in enumerate(reduce_really(switch, vectors, block, slots, fill)):
        assert (report.packets_up, report.packets_down) == (expected.packets, expected.packets)
        assert (report.bytes_up, report.bytes_down) == (expected.up[rank], expected.down)


# ------------------------------------------------------------------------------------------- OmniReduce


class Wire:
    """Counts messages as RoCEv2 has them: packets of 1024 bytes, each with its headers."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, blocks: int, block: int) -> None:
        payload = blocks * (4 * block + 4)
        while True:
            self.bytes += 14 + 20 + 8 + 12 + min(payload, 1024) + 4
            payload -= min(payload, 1024)
            if not payload:
                break
        self.bytes += 16 + 4


class Thread:
    """A thread of every worker and of the aggregator, as worker.cpp and aggregator.cpp go about it."""

    def __init__(self, occupied: Flags, setup: omnireduce.Setup, first: int, messages: int) -> None:
        self.occupied, self.setup = occupied, setup
        self.columns = setup.message // setup.block
        self.slots = 8 * setup.aggregators
        self.first, self.end = first * self.columns, (first + messages) * self.columns
        self.up, self.down = Wire(), Wire()
        for slot in range(min(messages, self.slots)):
            self.run(slot)

    def next_nonzero(self, worker: int, block: int) -> int | None:
        for later in range(block + self.slots * self.columns, self.end, self.slots * self.columns):
            if later < self.occupied.shape[1] and self.occupied[worker, later]:
                return later
        return None

    def run(self, slot: int) -> None:
        workers = range(len(self.occupied))
        current = [self.first + slot * self.columns + column for column in range(self.columns)]
        offered = {(w, c): self.next_nonzero(w, block) for w in workers for c, block in enumerate(current)}
        for _ in workers:
            self.up.write(self.columns, self.setup.block)
        columns = list(range(self.columns))
        while columns:
            wanted: dict[int, int] = {}
            for column in columns:
                known = [n for w in workers if (n := offered[w, column]) is not None]
                if known:
                    wanted[column] = min(known)
            for worker in workers:
                self.down.write(len(columns), self.setup.block)
                mine = [c for c, block in wanted.items() if self.occupied[worker, block]]
                for column in mine:
                    offered[worker, column] = self.next_nonzero(worker, wanted[column])
                if mine:
                    self.up.write(len(mine), self.setup.block)
            columns = list(wanted)


@settings(max_examples=examples(100))
@given(
    workers=st.integers(1, 4),
    blocks=st.integers(0, 300),
    density=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    columns=st.sampled_from([1, 4]),
    threads=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_omnireduce_costs_what_its_code_would_send(
    workers: int, blocks: int, density: float, columns: int, threads: int, seed: int
) -> None:
    occupied = np.random.default_rng(seed).random((workers, blocks)) < density
    setup = omnireduce.Setup(block=64, message=64 * columns, threads=threads)
    messages, first, up, down = -(-blocks // columns), 0, 0, 0
    for thread in reversed(range(threads)):
        count = messages // threads + (messages % threads > thread)
        each = Thread(occupied, setup, first, count)
        first, up, down = first + count, up + each.up.bytes, down + each.down.bytes
    assert omnireduce.on_the_wire(occupied, setup) == omnireduce.Cost(up, down)


def test_values_and_indexes_alone() -> None:
    """The unit of papers: of two workers' blocks of 4, three are sent up, and the two of their union down."""
    occupied = np.array([[1, 0, 0], [1, 0, 1]], np.bool_)
    assert omnireduce.values_and_indexes(occupied, 4) == omnireduce.Cost(3 * 20, 2 * 2 * 20)
    assert omnireduce.values_and_indexes(occupied, 4, index=0) == omnireduce.Cost(3 * 16, 2 * 2 * 16)
    traffic = cost.reduce_cost(occupied, 32, 64)
    assert traffic.values_and_indexes == omnireduce.values_and_indexes(occupied, 32).total
    assert traffic.total - traffic.payload == 2 * 2 * traffic.packets * cost.headers(32)
