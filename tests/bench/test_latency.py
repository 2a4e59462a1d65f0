# SPDX-License-Identifier: Apache-2.0
"""The latency benchmark: every collective is measured with both contenders; the slowest rank counts."""

from weir.bench.case import Run
from weir.bench.collectives.latency import COLLECTIVES, Parameters, Turn, row, run
from weir.bench.ranks import Links


def test_every_collective_is_measured_over_both() -> None:
    given = Parameters(workers=(2,), kilobytes=(1 / 64,), collectives=tuple(COLLECTIVES), rates=(), calls=1)
    (table,) = run(given, Run(repeats=1, seeds=()))
    assert [(one.setting["collective"], one.contender) for one in table.rows] == [
        (name, contender) for name in COLLECTIVES for contender in ("Gloo", "Weir")
    ]
    for one in table.rows:
        assert one.setting["size"] == "0.015625 KiB" and (one.middle("us") or 0) > 0


def test_a_turn_takes_as_long_as_its_slowest_rank() -> None:
    links = Links("memory", 2, None, lambda _rank: ([], {}), ())
    first = [Turn(1.0, 1.0, 5.0), Turn(1.0, 1.0, 7.0)]
    second = [Turn(2.0, 2.0, 0.0), Turn(1.0, 3.0, 0.0)]
    one = row(links, ("reduce", 4096), "weir", [first, second])
    assert one.values == {"us": [2e6, 1e6], "worker us": [1.5e6, 2e6], "switch us": [5e6, 7e6]}
