# SPDX-License-Identifier: Apache-2.0
"""Placement: a row for every way, what partitions cost in it, and how long they take."""

from weir.bench.case import Run
from weir.bench.simulated import placement
from weir.bench.simulated.placement import Parameters, corpora, plans, split

RUN = Run(0, ())


def test_every_way_has_a_row_and_what_is_compressed_and_placed_travels_least() -> None:
    parameters = Parameters(machines=(4,), buckets=(8,), samples=200, text=False)
    samples, held_out = split(corpora(parameters)["power law"])
    found = list(plans(samples, held_out, parameters, RUN))
    assert {(one.method, one.hashing) for one in found} >= {
        way for way in placement.WAYS if way[0] not in ("metis", "mtkahypar")
    }
    costs = {(one.method, one.hashing): one.plan.traffic.total for one in found}
    assert costs["refined", "clustered"] < 0.5 * costs["refined", "plain"]
    for one in found:
        assert one.plan.traffic.total <= one.in_batches[64] <= one.in_batches[16]
    assert costs["refined", "none"] < 0.9 * min(costs["hash", "none"], costs["greedy", "none"])


def test_partitions_are_timed() -> None:
    (table,) = placement.run(Parameters(machines=(4,), samples=300, only_time=True), RUN)
    assert {"random", "hash", "greedy", "refined"} <= {row.contender for row in table.rows}
