# SPDX-License-Identifier: Apache-2.0
"""Training with parameter servers over real links: which ways there are, and what is made of their runs."""

import pytest

from tests.bench.test_training import outcome
from weir.bench.training.links import ways
from weir.bench.training.servers import PEERS_HERE, Parameters, configs, rows, targets_of
from weir.bench.training.ways import Way, WayResult
from weir.train.config import ConfigError, make_config

PARAMETERS = Parameters(links="50mbit")


def test_every_way_has_its_name_and_the_same_links() -> None:
    found = ways(configs(PARAMETERS, "mlp", 7), PEERS_HERE)
    assert [way.name for way in found] == [
        "Gloo",
        "PS",
        "Weir's PS, dense",
        "Weir's PS, dfs",
        "Weir's PS, dense, no overlap",
        "Weir's PS, dense, filter 0.003:lr",
        "Weir's PS, dense, async, filter 0.003:lr",
    ]
    assert {(way.config.links, way.config.seed) for way in found} == {("50mbit", 7)}


def test_ways_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="consistency 'late'"):
        configs(Parameters(methods=(), filter="", consistencies=("late",)), "mlp", 1)


def test_seeds_are_compared_with_themselves() -> None:
    config = make_config(model="mlp", method="dense", mode="ps")
    ring, server, own = (Way(kind, kind, config) for kind in ("gloo", "ps", "weir"))

    def seed(slow: float, *accuracies: float) -> list[WayResult]:
        return [
            outcome(ring, 2 * slow, [0.5, 0.9]),
            outcome(server, 4 * slow, [0.5, 0.9]),
            outcome(own, slow, list(accuracies)),
        ]

    of_seeds = [seed(1.0, 0.5, 0.9), seed(10.0, 0.9, 0.9), seed(1.0, 0.5, 0.8, 0.9)]
    gloo, tcp, weir = rows(of_seeds, None)
    assert list(tcp.x_ps) == [1, 1, 1]
    assert list(gloo.x_ps) == [2, 2, 2]
    assert list(weir.x_ps) == pytest.approx([4, 8, 4 * 4 / 6])
    assert list(weir.x_ring) == pytest.approx([2, 4, 2 * 4 / 6])
    assert list(weir.times) == pytest.approx([4, 20, 6])
    assert targets_of([seed(1.0, 0.5, 0.87)], None) == [0.87], "near the peers: equal accuracy is its best"
    for target in (0.9, None):
        ring_s, _, never = rows([seed(1.0, 0.3, 0.5)], target)
        assert list(never.times) == [None]
        assert list(never.x_ps) == []
        assert list(ring_s.times) == [8], "who has learnt less does not lower what others are to reach"
