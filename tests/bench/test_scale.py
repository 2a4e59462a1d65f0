# SPDX-License-Identifier: Apache-2.0
"""The benchmark of one sum over ever more workers, up to three tiers of switches."""

import pytest

from weir.bench.simulated.scale import network_for, simulate


@pytest.mark.parametrize(("workers", "tiers"), [(1, 1), (32, 1), (33, 2), (256, 2), (257, 3), (1024, 3)])
def test_racks_are_full_and_tiers_as_few_as_can_be(workers: int, tiers: int) -> None:
    topology, found = network_for(workers)
    assert found == tiers
    assert len(topology.hosts) >= workers
    assert (len(topology.leaves) > 1, bool(topology.cores)) == (tiers > 1, tiers > 2)


def test_a_worker_more_costs_nobody_bytes_and_hardly_time() -> None:
    """In virtual time, which no machine changes. The vector is short, so that the way through the tiers
    shows.
    """
    few, many = (simulate(workers, 32 * 256, 16, 10**9, 1_000) for workers in (32, 288))
    assert (few.tiers, many.tiers) == (1, 3)
    assert many.bytes_up / many.workers == few.bytes_up / few.workers
    assert many.bytes_down / many.workers == few.bytes_down / few.workers
    assert few.seconds < many.seconds < 1.5 * few.seconds


def test_sums_over_links_that_lose_packets_are_checked_and_timed_one_by_one() -> None:
    few = simulate(32, 8 * 256, 16, 10**9, 1_000, loss=0.01, sums=2)
    assert len(few.each) == 2 and few.seconds == sum(few.each)
