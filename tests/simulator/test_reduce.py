# SPDX-License-Identifier: Apache-2.0
"""The promise of the whole protocol: every replica gets the exact reduction, whatever the network does.

Real switch program, real transports, virtual time. Each example prints what it takes to run it again.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, note
from hypothesis import strategies as st

from softp4.switch import Switch
from tests.host_agent.transport.answers import combine
from tests.simulator.rack import Rack
from tests.simulator.reductions import check_wanted, drawn
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.slot_transport import Congestion
from weir.simulator.entries import aggregation
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.wire.definition import AUDIENCE_EXCEPT, Op

MS = 1_000_000
REDUCES = 4  # one after the other in each example, without waiting for the slowest worker
EXAMPLES = 700

Vectors = list[npt.NDArray[np.uint32]]

probabilities = st.sampled_from([0.0, 0.01, 0.1, 0.3])
faults = st.builds(
    Faults,
    delay=st.sampled_from([1_000, 100_000, 10 * MS]),
    jitter=st.sampled_from([0, 100_000, 20 * MS]),
    loss=probabilities,
    duplicate=probabilities,
    late=st.sampled_from([0.0, 0.05]),
    lateness=st.sampled_from([100 * MS, 5_000 * MS]),
)
LOSSY = Faults(delay=1000, jitter=100_000, loss=0.3)
racks = st.fixed_dictionaries(
    {
        "workers": st.one_of(st.integers(1, 8), st.integers(1, 32)),
        "slots": st.one_of(st.integers(1, 4), st.integers(1, 64)),
        "seed": st.integers(0, 2**32 - 1),
        "up": faults,
        "down": faults,
        "first_round": st.sampled_from([1, 2**31 - 2, 2**32 - 3]),
        "fill": st.booleans(),
        "congestion": st.sampled_from(Congestion),
    }
)


def random_work(rng: np.random.Generator, workers: int) -> tuple[Op, int, Vectors]:
    """Return an operator, a block size and a vector per worker, of a random density of non-zero blocks."""
    op, block = Op(int(rng.integers(1, 4))), int(rng.choice([32, 64, 128, 256]))
    blocks = int(rng.integers(0, 40 if workers <= 8 else 12))
    count = max(0, blocks * block - int(rng.integers(0, block)))
    density = float(rng.choice([0.0, 0.05, 0.5, 1.0]))
    limit = int(rng.choice([2, 2**26, 2**32]))
    vectors = []
    for _ in range(workers):
        kept = np.repeat(rng.random(blocks) < density, block)[:count]
        vectors.append(rng.integers(0, limit, count, dtype=np.uint32) * kept.astype(np.uint32))
    return op, block, vectors


def check_conservation(op: Op, before: Vectors, after: Vectors, reports: list[ReduceReport]) -> None:
    """Rule 5, from the transports' books and from the data itself."""
    for vector, result, report in zip(before, after, reports, strict=True):
        assert report.entered == report.included + report.returned
        assert report.returned.lanes == 0  # nothing is ever given up without a loss budget
        assert report.entered.total == int(vector.view(np.int32).sum(dtype=np.int64))
        assert report.applied.total == int(result.view(np.int32).sum(dtype=np.int64))
        assert not report.refused
    if op is Op.ADD and max((int(v.max(initial=0)) for v in before), default=0) * len(before) < 2**31:
        assert sum(report.included.total for report in reports) == reports[0].applied.total


SLOW = {
    "workers": 8,
    "slots": 1,
    "seed": 1,
    "up": LOSSY,
    "down": LOSSY,
    "first_round": 2**32 - 3,
    "fill": False,
    "congestion": Congestion.PATH,
}
"""Waits for most of its time: timers must not go off without need."""


@drawn(EXAMPLES)
@given(shape=racks)
@example(shape=SLOW)
def test_reduce_is_exact_under_loss_duplication_reordering_and_delay(
    switch: Switch, job_ids: Iterator[int], shape: dict[str, Any]
) -> None:
    note(f"Rack(switch, **{shape!r})")
    rng = np.random.default_rng(shape["seed"])
    todo = [random_work(rng, shape["workers"]) for _ in range(REDUCES)]
    arrays = [[vector.copy() for vector in vectors] for _, _, vectors in todo]
    with Rack(switch, job=next(job_ids), **shape) as rack:
        for (op, block, _), given_arrays in zip(todo, arrays, strict=True):
            pauses = rng.integers(0, 200 * MS, len(given_arrays))
            rack.submit(
                [Work(op, block, lanes, int(p)) for lanes, p in zip(given_arrays, pauses, strict=True)]
            )
        rack.run()
        for i, ((op, _, vectors), results) in enumerate(zip(todo, arrays, strict=True)):
            expected = combine(op, vectors)
            for result in results:
                np.testing.assert_array_equal(result, expected)
            check_conservation(op, vectors, results, [host.reports[i] for host in rack.hosts])


@drawn(150)
@given(rack=racks)
def test_whoever_wants_a_block_gets_exactly_its_result(
    switch: Switch, job_ids: Iterator[int], rack: dict[str, Any]
) -> None:
    """Some blocks are for one worker, some for all but one."""
    note(f"rack={rack}")
    rng = np.random.default_rng(rack["seed"])
    workers = rack["workers"]
    with Rack(switch, job=next(job_ids), **rack) as running:
        for _ in range(REDUCES):
            op, block, vectors = random_work(rng, workers)
            blocks = -(-vectors[0].size // block)
            audiences = np.repeat(rng.integers(0, workers, blocks), rng.integers(1, 9))[:blocks].astype(
                np.uint16
            )
            audiences[rng.random(blocks) < 0.5] |= AUDIENCE_EXCEPT
            after = [vector.copy() for vector in vectors]
            running.submit([Work(op, block, lanes, audiences=audiences) for lanes in after])
            running.run()
            expected = combine(op, vectors)
            for worker, lanes in enumerate(after):
                check_wanted(audiences, worker, block, lanes, expected)


def test_all_of_it_follows_from_the_seed(switch: Switch, job_ids: Iterator[int]) -> None:
    def story(seed: int) -> list[Any]:
        lossy = Faults(jitter=MS, loss=0.2, duplicate=0.2, late=0.1, lateness=100 * MS)
        with Rack(switch, job=next(job_ids), workers=3, slots=4, seed=seed, up=lossy, down=lossy) as rack:
            rack.submit([Work(Op.ADD, 64, np.arange(3000, dtype=np.uint32)) for _ in rack.hosts])
            rack.run()
            reports = [host.reports[0] for host in rack.hosts]
            return [rack.clock.now, *((r.packets_up, r.packets_down, r.duplicates) for r in reports)]

    assert story(5) == story(5)
    assert story(5) != story(6)


def test_an_outage_of_30_seconds_delays_and_does_no_more(switch: Switch, job_ids: Iterator[int]) -> None:
    arrays = [np.full(20_000, worker + 1, np.uint32) for worker in range(4)]
    with Rack(switch, job=next(job_ids), workers=4, slots=8, seed=1, up=Faults(delay=MS)) as rack:
        rack.submit([Work(Op.ADD, 256, lanes) for lanes in arrays])
        rack.clock.at(5 * MS, lambda: setattr(rack.up[2], "down", True))
        rack.clock.at(30_005 * MS, lambda: setattr(rack.up[2], "down", False))
        rack.run(limit=60)
        assert 30_005 * MS < rack.clock.now < 31_500 * MS
    for lanes in arrays:
        np.testing.assert_array_equal(lanes, 10)


@pytest.mark.parametrize("density", [0.0, 0.01, 0.1, 1.0])
def test_blocks_that_no_worker_has_are_not_sent(
    switch: Switch, job_ids: Iterator[int], density: float
) -> None:
    workers, blocks, slots = 4, 2000, 16
    rng = np.random.default_rng(3)
    kept = rng.random((workers, blocks)) < density
    arrays = [np.repeat(row, 256).astype(np.uint32) for row in kept]
    with Rack(switch, job=next(job_ids), workers=workers, slots=slots, seed=1) as rack:
        rack.submit([Work(Op.ADD, 256, lanes) for lanes in arrays])
        rack.run()
        reports = [host.reports[0] for host in rack.hosts]
    anywhere = int(kept.any(axis=0).sum())
    for report, row in zip(reports, kept, strict=True):
        assert report.blocks_sent == int(row.sum())
        assert report.applied.lanes == 256 * anywhere
        # one round per block that someone has, and at most one more per slot, for its first block
        assert anywhere <= report.rounds <= anywhere + slots
        assert report.packets_up == report.packets_down == report.rounds
        assert report.bytes_up == report.packets_up * 78 + report.blocks_sent * 1024
        assert report.retransmissions == 0


@pytest.fixture
def growing_by_half(switch: Switch) -> Iterator[Switch]:
    """Yield the switch while it can make packets half a slot longer, not more."""
    table, entry = aggregation(headroom=512)
    switch.table(table).modify(entry)
    yield switch
    table, entry = aggregation()
    switch.table(table).modify(entry)


@pytest.mark.parametrize("block", [32, 64, 256])
def test_a_switch_that_can_grow_a_packet_by_half_a_slot_serves_workers_that_fill(
    growing_by_half: Switch, job_ids: Iterator[int], block: int
) -> None:
    arrays = [np.zeros(50_000, np.uint32) for _ in range(3)]
    for worker, lanes in enumerate(arrays):
        lanes[worker * 10_000 : worker * 15_000] = 1
    expected = combine(Op.ADD, arrays)
    with Rack(growing_by_half, job=next(job_ids), workers=3, slots=4, seed=1, fill=True) as rack:
        rack.submit([Work(Op.ADD, block, lanes) for lanes in arrays])
        rack.run(limit=1)
        sent = [host.reports[-1].blocks_sent for host in rack.hosts]
    for lanes in arrays:
        np.testing.assert_array_equal(lanes, expected)
    assert sent[0] == (sent[1] if block == 256 else 0)  # the first worker has nothing but zeros


def test_what_one_worker_has_for_the_others_travels_once_past_such_a_switch(
    growing_by_half: Switch, job_ids: Iterator[int]
) -> None:
    arrays = [np.full(50_000, 7 * (worker == 0), np.uint32) for worker in range(3)]
    audiences = np.full(-(-50_000 // 256), AUDIENCE_EXCEPT, np.uint16)  # all but worker 0
    with Rack(growing_by_half, job=next(job_ids), workers=3, slots=4, seed=1, fill=True) as rack:
        rack.submit([Work(Op.ADD, 256, lanes, audiences=audiences) for lanes in arrays])
        rack.run(limit=1)
        sent = [host.reports[-1].blocks_sent for host in rack.hosts]
    for lanes in arrays:
        np.testing.assert_array_equal(lanes, 7)
    assert sent == [-(-50_000 // 128), 0, 0]


def test_a_finished_job_does_not_haunt_the_next_on_its_slots(switch: Switch, job_ids: Iterator[int]) -> None:
    for _ in range(2):
        arrays = [np.full(5000, 1, np.uint32) for _ in range(2)]
        with Rack(switch, job=next(job_ids), workers=2, slots=3, seed=1) as rack:
            rack.submit([Work(Op.ADD, 32, lanes) for lanes in arrays])
            rack.run()
        for lanes in arrays:
            np.testing.assert_array_equal(lanes, 2)
