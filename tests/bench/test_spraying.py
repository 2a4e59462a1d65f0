# SPDX-License-Identifier: Apache-2.0
"""Spraying of a job's own traffic: even shares, slow paths avoided, and a mode that does nothing fails."""

from dataclasses import replace

import pytest

from softp4.runtime.queueing import Queueing
from weir.bench.simulated.fabric import Outcome, rows
from weir.bench.simulated.spraying import CONTENDERS, Contender, Pairs, Permutation, simulate, taken
from weir.controller.qos import Qos, SprayName
from weir.controller.topology import leaf_spine
from weir.simulator.network import LinkSpec, Network

SMALL = Permutation(racks=2, hosts=2, spines=2, kilobytes=64, rounds=1)


@pytest.mark.parametrize("contender", CONTENDERS[3:], ids=lambda contender: contender.name)
def test_paths_get_even_shares_of_a_jobs_own_traffic(contender: Contender) -> None:
    found = simulate(SMALL, contender, 1)
    assert len(found.times) == 4
    assert max(found.beside) < 1.04
    assert simulate(SMALL, contender, 1) == found


def test_a_mode_that_leaves_a_path_without_packets_fails() -> None:
    """Spraying that does nothing: the row promises it, the switches hash."""
    planted = replace(CONTENDERS[3], spray="hash")
    every = [simulate(SMALL, planted, seed) for seed in range(1, 9)]
    found: Outcome = next(one for one in every if max(one.beside) == 2)
    (row,) = rows({planted: found}, lambda *_: {})
    assert row.counts == {"sprayed": 0}


def share_of_a_slow_path(mode: SprayName) -> float:
    """Return what part of a leaf's packets takes a path that has a tenth of the other's rate."""
    topology = leaf_spine(2, 2, 2, target="soft", qos=Qos(spray=mode))
    with Network(topology, seed=1, link=LinkSpec(SMALL.fabric.rate)) as network:
        slow = Queueing(depth_packets=SMALL.depth, rate_bps=SMALL.fabric.rate // 10)
        network.nodes["leaf1"].switch.queues(SMALL.hosts + 1).set(slow)
        here = [name for name, station in network.stations.items() if station.host.switch == "leaf1"]
        there = [name for name in network.stations if name not in here]
        Pairs(network, weir=True, waits=SMALL.fabric.waits).send_pairs(
            dict(zip(here, there, strict=True)), 4 * SMALL.tensor
        )
        first, second = next(taken(network, replace(SMALL, racks=1)))
        return first / (first + second)


def test_least_loaded_avoids_a_path_whose_queue_grows() -> None:
    assert share_of_a_slow_path("round_robin") == pytest.approx(0.5, abs=0.02)
    assert share_of_a_slow_path("least_loaded") < 0.25
