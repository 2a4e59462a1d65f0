# SPDX-License-Identifier: Apache-2.0
"""The senders' windows at a shared bottleneck: fair between jobs, and short queues."""

import numpy as np
import pytest

from softp4.runtime.queueing import Queueing
from tests.simulator.test_shedding import Strangers
from weir.bench.simulated.fabric import treated
from weir.bench.simulated.share import beside_streams
from weir.controller.qos import Qos
from weir.controller.topology import leaf_spine
from weir.simulator.congestion import Algorithm
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.simulator.network import Allocation, LinkSpec, Network
from weir.wire.definition import Op, Treatment, dscp

BLOCK = 256
FAST = LinkSpec(1_000_000_000, Faults(delay=5_000))
BOTTLENECK = LinkSpec(200_000_000, Faults(delay=5_000))
FRONT_QUEUE = dscp(0) >> 3


def begin_long(job: Allocation, blocks: int = 40_000) -> None:
    for worker in job.workers:
        worker.submit(Work(Op.ADD, BLOCK, np.ones(blocks * BLOCK, np.uint32)))


def rounds(job: Allocation) -> int:
    return job.workers[0].transport.rounds


def test_a_job_that_comes_later_gets_its_share_of_a_bottleneck() -> None:
    """Two jobs over the same two racks; the link between rack and spine is what both want."""
    topology = leaf_spine(2, 1, 2, target="soft", qos=Qos())
    queueing = Queueing(depth_packets=256)
    with Network(topology, seed=3, link=FAST, trunk=BOTTLENECK, queueing=queueing) as network:
        first = network.admit(["h1", "h3"], slots=128)
        second = network.admit(["h2", "h4"], slots=128)
        begin_long(first)
        network.run_for(0.1)
        begin_long(second)
        network.run_for(0.3)  # to settle
        before = rounds(first), rounds(second)
        network.run_for(0.4)
        gained = rounds(first) - before[0], rounds(second) - before[1]
        assert 0.75 < gained[0] / gained[1] < 1.33
        lost = sum(
            statistics.dropped_packets
            for node in network.nodes.values()
            for port in range(1, 4)
            for statistics in node.switch.queues(port).statistics()
        )
        assert treated(network, Treatment.MARKED, [FRONT_QUEUE]) > 0
        assert lost == 0, "the windows close before queues overflow"
        # full slots of both directions' frames: the bottleneck is used, not only shared
        frame_bits = 8 * (14 + 28 + 28 + 8 + 4 * BLOCK)
        assert BOTTLENECK.rate_bps is not None
        assert sum(gained) * frame_bits > 0.8 * 0.4 * BOTTLENECK.rate_bps


def test_a_job_keeps_its_share_where_workers_queues_fill_by_turns() -> None:
    """Strangers in the job's class take three fifths of two workers' links, one after the other.

    So there is always a worker with a full queue, for which all wait, and nearly every window has a
    mark.
    """
    rate, burst, hosts, load = 50_000_000, 24, 4, 0.6
    period_ms = hosts * burst * 1514 * 8 / (load * rate) * 1e3
    link = LinkSpec(rate, Faults(delay=10_000))
    topology = leaf_spine(2, 2, 4, target="soft", qos=Qos())
    with Network(topology, seed=1, link=link, queueing=Queueing(depth_packets=64)) as network:
        for victim, first_ms in (("h1", 0.0), ("h5", period_ms / 2)):
            for stranger in ("h3", "h4", "h7", "h8"):
                Strangers(network, stranger, victim, burst, period_ms, first_ms)
        job = network.admit(["h1", "h2", "h5", "h6"], slots=256)
        blocks, steps = 1000, 3
        began = network.clock.now
        for _ in range(steps):
            begin_long(job, blocks)
        network.run(lambda: job.idle, limit=60)
        taken = (network.clock.now - began) / 1e9
        share = steps * blocks * 8 * (14 + 28 + 28 + 8 + 4 * BLOCK) / ((1 - load) * rate)
        assert taken < 1.4 * share, taken / share


@pytest.mark.parametrize("algorithm", ["dctcp", "cubic"])
def test_a_job_beside_a_stream_in_its_class_takes_about_a_half(algorithm: Algorithm) -> None:
    found = beside_streams(algorithm, 1, 50_000_000, 1.0)
    assert 0.5 < found.fair < 1.5
