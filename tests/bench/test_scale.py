# SPDX-License-Identifier: Apache-2.0
"""The benchmark of one sum over ever more workers, up to three tiers of switches."""

import pytest

from weir.bench.simulated.scale import Parameters, network_for, simulate


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
    given = Parameters(kilobytes=32, slots=16)
    few, many = (simulate(workers, given) for workers in (32, 288))
    for way in ("bytes_up", "bytes_down"):
        assert many.counts[way] / 288 == few.counts[way] / 32
    assert sum(few.times) < sum(many.times) < 1.5 * sum(few.times)


def test_sums_over_links_that_lose_packets_are_checked_and_timed_one_by_one() -> None:
    few = simulate(32, Parameters(kilobytes=8, slots=16, loss=0.01, sums=2))
    assert len(few.times) == 2 and few.counts["retransmissions"] > 0
