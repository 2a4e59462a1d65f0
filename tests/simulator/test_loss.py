# SPDX-License-Identifier: Apache-2.0
"""What bounded loss promises: no more missing than the budget, nothing unaccounted for, one result for all.

Real switch program, real transports, virtual time, links that trim whatever they like. Each example prints
what it takes to run it again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from softp4.switch import Switch
from tests.host_agent.transport.answers import combine
from tests.simulator.rack import Rack
from tests.simulator.reductions import drawn
from weir.host_agent.transport.ledger import Direction, Ledger
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.simulator.entries import aggregation
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES, Op

MS = 1_000_000
REDUCES = 5  # one after the other in each example, lossless and bounded ones mixed
EXAMPLES = 300
BMV2_HEADROOM = 512

Lanes = npt.NDArray[np.uint32]

probabilities = st.sampled_from([0.0, 0.01, 0.1, 0.3])
any_faults = st.builds(
    Faults,
    delay=st.sampled_from([1_000, 100_000, 10 * MS]),
    jitter=st.sampled_from([0, 100_000, 20 * MS]),
    loss=probabilities,
    duplicate=probabilities,
    late=st.sampled_from([0.0, 0.05]),
    lateness=st.sampled_from([100 * MS, 5_000 * MS]),
    trim=probabilities,
    mark=probabilities,
)
only_trimming = st.builds(
    Faults,
    jitter=st.sampled_from([0, 50_000]),
    trim=st.sampled_from([0.01, 0.1, 0.3, 0.5]),
    mark=probabilities,
)


def racks(faults: st.SearchStrategy[Faults]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "workers": st.integers(2, 5),
            "slots": st.one_of(st.integers(1, 4), st.integers(1, 32)),
            "seed": st.integers(0, 2**32 - 1),
            "up": faults,
            "down": faults,
            "first_round": st.sampled_from([1, 2**31 - 2, 2**32 - 3]),
            "fill": st.booleans(),
        }
    )


@dataclass(frozen=True)
class Bucket:
    """One reduce: an operator, a block size, and per worker a vector and its service."""

    op: Op
    block: int
    vectors: list[Lanes]
    services: list[ServiceClass]


def random_service(rng: np.random.Generator, vector: Lanes, block: int, bounded: bool) -> ServiceClass:
    """Return any classes; up to four accounts, each with a budget of a share of its blocks, none or all of
    them.
    """
    blocks = -(-vector.size // block)
    accounts = rng.integers(0, 1 + int(rng.integers(0, 4)), blocks, dtype=np.uint16)
    held = np.bincount(accounts, minlength=4) * block
    share = rng.choice([0.0, 0.02, 0.1, 0.5, 1.0], held.size)
    budgets = (held * share).astype(np.uint64) if bounded and blocks else np.empty(0, np.uint64)
    return ServiceClass(
        layer=int(rng.integers(0, LAYER_CLASSES)),
        magnitudes=rng.integers(0, MAGNITUDE_CLASSES, blocks, dtype=np.uint8),
        accounts=accounts,
        budgets=budgets,
    )


def random_bucket(rng: np.random.Generator, workers: int) -> Bucket:
    """Return half of them bounded, on some workers or on all; the rest lossless, of any operator."""
    bounded = bool(rng.random() < 0.5)
    op = Op.ADD if bounded else Op(int(rng.integers(1, 4)))
    block, blocks = int(rng.choice([32, 64, 128, 256])), int(rng.integers(0, 50))
    count = max(0, blocks * block - int(rng.integers(0, block)))
    density = float(rng.choice([0.05, 0.5, 1.0]))
    vectors, services = [], []
    for _ in range(workers):
        kept = np.repeat(rng.random(blocks) < density, block)[:count]
        vectors.append(rng.integers(0, 2**32, count, dtype=np.uint32) * kept.astype(np.uint32))
        services.append(random_service(rng, vectors[-1], block, bounded and rng.random() < 0.8))
    return Bucket(op, block, vectors, services)


def kept(vector: Lanes, block: int, report: ReduceReport) -> Lanes:
    """Return the vector without the blocks that came back, which must have come back as they were."""
    rest = vector.copy()
    for number, lanes in zip(report.given_back.blocks, report.given_back.lanes, strict=True):
        own = rest[number * block : (number + 1) * block]
        np.testing.assert_array_equal(lanes[: own.size], own)
        assert not lanes[own.size :].any()
        assert own.any()  # blocks of zeros have nothing to give back
        own[:] = 0
    return rest


def missing_lanes(vector: Lanes, block: int, service: ServiceClass, report: ReduceReport) -> list[int]:
    """Return lanes that came back, by account, counted from the blocks themselves."""
    counted = [0] * service.budgets.size
    for number in report.given_back.blocks:
        assert service.accounts is not None
        counted[service.accounts[number]] += min(block, vector.size - int(number) * block)
    return counted


def check(bucket: Bucket, results: list[Lanes], reports: list[ReduceReport]) -> None:
    """All of it, from the data itself and from the transports' books."""
    included = []
    for vector, service, report in zip(bucket.vectors, bucket.services, reports, strict=True):
        counted = missing_lanes(vector, bucket.block, service, report)
        assert counted == report.missing.tolist()
        assert all(missing <= budget for missing, budget in zip(counted, service.budgets, strict=True))
        assert report.returned.lanes == sum(counted)
        assert report.entered.total == int(vector.view(np.int32).sum(dtype=np.int64))
        assert not report.refused
        ledger = Ledger()
        for direction in Direction:
            ledger.record(1, "bucket", direction, report)
        included.append(kept(vector, bucket.block, report))
    expected = combine(bucket.op, included)
    for result in results:
        np.testing.assert_array_equal(result, expected)


def run(
    switch: Switch, job: int, shape: dict[str, Any], most_pause: int = 0
) -> tuple[list[Bucket], list[list[ReduceReport]]]:
    """Reduce some buckets and check them; the reports, by bucket and worker."""
    note(f"Rack(switch, **{shape!r})")
    rng = np.random.default_rng(shape["seed"])
    buckets = [random_bucket(rng, shape["workers"]) for _ in range(REDUCES)]
    arrays = [[vector.copy() for vector in bucket.vectors] for bucket in buckets]
    with Rack(switch, job=job, **shape) as rack:
        for link in (*rack.up, *rack.down):
            if rng.random() < 0.25:
                link.faults = Faults()
        for bucket, lanes in zip(buckets, arrays, strict=True):
            pauses = rng.integers(0, most_pause + 1, len(lanes))
            rack.submit(
                [
                    Work(bucket.op, bucket.block, *one)
                    for one in zip(lanes, map(int, pauses), bucket.services, strict=True)
                ]
            )
        rack.run()
        reports = [[host.reports[i] for host in rack.hosts] for i in range(REDUCES)]
    for bucket, lanes, seen in zip(buckets, arrays, reports, strict=True):
        check(bucket, lanes, seen)
    return buckets, reports


@pytest.fixture(params=[0xFFFF, BMV2_HEADROOM], ids=["grows", "bmv2"])
def headroom(request: pytest.FixtureRequest, switch: Switch) -> Iterator[int]:
    """By how much the switch can lengthen a packet."""
    table, entry = aggregation(headroom=request.param)
    switch.table(table).modify(entry)
    yield request.param
    table, entry = aggregation()
    switch.table(table).modify(entry)


slow = drawn(EXAMPLES)


@slow
@given(shape=racks(any_faults))
def test_budgets_hold_and_sums_are_of_what_was_included_whatever_happens(
    switch: Switch, headroom: int, job_ids: Iterator[int], shape: dict[str, Any]
) -> None:
    if headroom == BMV2_HEADROOM:
        shape = shape | {"fill": True}
    run(switch, next(job_ids), shape, most_pause=200 * MS)


@slow
@given(shape=racks(only_trimming))
def test_no_timer_fires_because_of_a_trim(
    switch: Switch, headroom: int, job_ids: Iterator[int], shape: dict[str, Any]
) -> None:
    if headroom == BMV2_HEADROOM:
        shape = shape | {"fill": True}
    unhurried = {"min_probe": 0.05, "reordering": 0.05}  # longer than any number of trims one after the other
    _, reports = run(switch, next(job_ids), shape | unhurried)
    for report in (report for seen in reports for report in seen):
        assert report.timeouts == 0
        assert report.probes <= report.results_trimmed  # nothing else made a worker ask
        assert report.releases == 0


def dense(workers: int, blocks: int, budget: int | None) -> tuple[list[Lanes], list[ServiceClass]]:
    vectors = [np.full(blocks * 256, worker + 1, np.uint32) for worker in range(workers)]
    service = LOSSLESS if budget is None else ServiceClass(budgets=np.array([budget], np.uint64))
    return vectors, [service] * workers


def reduce_dense(
    switch: Switch, job: int, budget: int | None, *, up: Faults | None = None, down: Faults | None = None
) -> list[ReduceReport]:
    """400 blocks of ones, twos and threes over 16 slots."""
    vectors, services = dense(3, 400, budget)
    bucket = Bucket(Op.ADD, 256, [vector.copy() for vector in vectors], services)
    with Rack(switch, job=job, workers=3, slots=16, seed=1, up=up, down=down) as rack:
        rack.submit([Work(Op.ADD, 256, v, 0, t) for v, t in zip(vectors, services, strict=True)])
        rack.run()
        reports = [host.reports[0] for host in rack.hosts]
    if budget is not None:
        bucket = Bucket(
            bucket.op,
            bucket.block,
            bucket.vectors,
            [ServiceClass(accounts=np.zeros(400, np.uint16), budgets=t.budgets) for t in services],
        )
    check(bucket, vectors, reports)
    return reports


class TestWhatItCosts:
    def test_without_a_budget_trimmed_lanes_are_sent_again_at_once(
        self, switch: Switch, job_ids: Iterator[int]
    ) -> None:
        for report in reduce_dense(switch, next(job_ids), None, up=Faults(trim=0.2)):
            assert (report.timeouts, report.releases, report.trimmed) == (0, 0, 0)
            assert report.repeats_asked == report.retransmissions > 0

    def test_trimmed_results_are_asked_for_at_once(self, switch: Switch, job_ids: Iterator[int]) -> None:
        for report in reduce_dense(switch, next(job_ids), None, down=Faults(trim=0.2)):
            assert report.timeouts == 0
            assert report.results_trimmed == report.probes > 0
            assert report.retransmissions == 0
            assert report.bytes_up < 400 * 1102 + 100 * report.results_trimmed  # by small packets

    def test_within_the_budget_nothing_is_sent_again(self, switch: Switch, job_ids: Iterator[int]) -> None:
        for report in reduce_dense(switch, next(job_ids), 400 * 256, up=Faults(trim=0.2)):
            assert (report.timeouts, report.retransmissions, report.releases) == (0, 0, 0)
            assert report.trimmed * 256 == report.missing[0] == report.returned.lanes > 0
            assert report.packets_up == report.rounds

    def test_a_spent_budget_protects_the_rest(self, switch: Switch, job_ids: Iterator[int]) -> None:
        for report in reduce_dense(switch, next(job_ids), 10 * 256, up=Faults(trim=0.5)):
            assert report.missing.tolist() == [10 * 256]
            assert report.repeats_asked > 0
            assert report.timeouts == 0

    def test_lost_packets_are_released_within_the_budget(
        self, switch: Switch, job_ids: Iterator[int]
    ) -> None:
        for report in reduce_dense(switch, next(job_ids), 400 * 256, up=Faults(loss=0.1)):
            assert report.releases > 10 * report.timeouts  # something overtook most of them
            assert report.missing[0] > 0
            assert report.retransmissions == 0


class TestWindow:
    def test_marks_narrow_it_and_their_absence_widens_it(
        self, switch: Switch, job_ids: Iterator[int]
    ) -> None:
        def windows(mark: float) -> list[int]:
            return [r.window for r in reduce_dense(switch, next(job_ids), None, up=Faults(mark=mark))]

        assert windows(0.0) == [16] * 3
        rare, always = windows(0.02), windows(1.0)
        assert all(3 < window < 16 for window in rare)
        assert always == [3] * 3

    @drawn(200)
    @given(
        marks=st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=2, max_size=5),
        slots=st.integers(1, 40),
        seed=st.integers(0, 2**32 - 1),
        jitter=st.sampled_from([1, 10_000, MS]),
    )
    def test_workers_with_different_windows_do_not_wait_for_each_other(
        self, switch: Switch, job_ids: Iterator[int], marks: list[float], slots: int, seed: int, jitter: int
    ) -> None:
        """Without timers: one slot that everybody holds back would show as a time-out."""
        rng = np.random.default_rng(seed)
        buckets = [random_bucket(rng, len(marks)) for _ in range(REDUCES)]
        arrays = [[vector.copy() for vector in bucket.vectors] for bucket in buckets]
        with Rack(switch, job=next(job_ids), workers=len(marks), slots=slots, seed=seed) as rack:
            for link, mark in zip(rack.down, marks, strict=True):
                link.faults = Faults(delay=1000, jitter=jitter, mark=mark)
            for bucket, lanes in zip(buckets, arrays, strict=True):
                rack.submit([Work(bucket.op, bucket.block, one) for one in lanes])
            rack.run()
            reports = [host.reports for host in rack.hosts]
        assert not any(report.timeouts for seen in reports for report in seen)
        for bucket, lanes in zip(buckets, arrays, strict=True):
            for result in lanes:
                np.testing.assert_array_equal(result, combine(bucket.op, bucket.vectors))
