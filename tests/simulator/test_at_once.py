# SPDX-License-Identifier: Apache-2.0
"""Reductions of several groups of the same hosts at once, each in a class of its own.

What one group suffers changes no sum of another, whatever the network does.
"""

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from softp4.runtime.queueing import Queueing
from tests.simulator.reductions import MS, check_exact, drawn, network_faults, submit, vectors
from weir.bench.simulated.layers import overtaking
from weir.controller.topology import leaf_spine
from weir.host_agent.transport.service_class import ServiceClass
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.simulator.network import LinkSpec, Network
from weir.wire.definition import LAYER_CLASSES, Op

HOSTS = ["h1", "h2", "h3", "h4"]


@drawn(40)
@given(
    seed=st.integers(0, 2**32 - 1),
    faults=network_faults,
    slots=st.sampled_from([1, 4, 32]),
    restart=st.booleans(),
)
def test_all_sums_are_exact_whatever_is_on_its_way_beside_them(
    seed: int, faults: Faults, slots: int, restart: bool
) -> None:
    """Every host begins its groups' reductions at times of its own; a spine may forget all in between."""
    note(f"seed={seed}, {faults}, slots={slots}, restart={restart}")
    rng = np.random.default_rng(seed)
    with Network(
        leaf_spine(2, 2, 2, target="soft"), seed=seed, link=LinkSpec(100_000_000, faults)
    ) as network:
        groups = [network.admit(HOSTS, slots=slots) for _ in range(LAYER_CLASSES)]
        todo = []
        for layer, group in enumerate(groups):
            for number in range(int(rng.integers(1, 4))):
                before = vectors(seed + number, len(HOSTS), int(rng.integers(1, 20)))
                after = [lanes.copy() for lanes in before]
                todo.append((before, after))
                for worker, lanes in zip(group.workers, after, strict=True):
                    pause = int(rng.integers(0, 5 * MS))
                    worker.submit(Work(Op.ADD, 256, lanes, pause, ServiceClass(layer=layer)))
        if restart:
            network.clock.after(3 * MS, network.kill, "spine1")
            network.clock.after(4 * MS, network.restart, "spine1")
            network.clock.after(4 * MS, network.program)
        network.run(lambda: all(group.idle for group in groups))
        for before, after in todo:
            check_exact(before, after)


@pytest.mark.parametrize("classes", [True, False])
def test_front_layers_overtake_back_ones_in_switches(classes: bool) -> None:
    """Two groups meet on a slow spine: with classes, the front one is done first, though it began last."""
    with Network(
        leaf_spine(2, 1, 2, target="soft"),
        seed=1,
        link=LinkSpec(1_000_000_000),
        trunk=LinkSpec(10_000_000),
        queueing=Queueing(depth_packets=128),
    ) as network:
        back, front = (network.admit(HOSTS, slots=64) for _ in range(2))
        before = vectors(1, len(HOSTS), 60)
        behind = submit(back, before, ServiceClass(layer=3 if classes else 0))
        network.run_for(0.01)
        ahead = submit(front, before, ServiceClass(layer=0))
        network.run(lambda: front.idle)
        first = not back.idle
        network.run(lambda: back.idle)
        check_exact(before, behind)
        check_exact(before, ahead)
        assert first is classes
        assert (overtaking(network) > 0) is classes
