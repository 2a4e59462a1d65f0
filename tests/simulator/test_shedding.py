# SPDX-License-Identifier: Apache-2.0
"""Results that the root cuts for all: real switch program and transports, strangers in the same class."""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softp4.runtime.queueing import Queueing
from tests.harness.effort import examples
from weir.background import Sender, Victim, frame
from weir.bench.simulated.fabric import treated
from weir.controller.qos import ClassSpec, Qos
from weir.controller.topology import leaf_spine, single_switch
from weir.host_agent.transport.ledger import Direction, Ledger
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.simulator.network import Allocation, LinkSpec, Network
from weir.wire.definition import MAGNITUDE_CLASSES, Event, Op, Treatment, dscp

BLOCK = 256
BLOCKS = 400
MBIT = 1_000_000
CLEAN = Faults(delay=5_000)
EVENTS = "WeirIngress.events"
FRONT_QUEUE = dscp(0) >> 3

Lanes = npt.NDArray[np.uint32]


def budget_of(blocks: int, share: float, small: int | None = None) -> ServiceClass:
    """Return the service of a vector whose first blocks, a third of them, may go, a share of all at most."""
    classes = np.full(blocks, MAGNITUDE_CLASSES - 1, np.uint8)
    classes[: blocks // 3 if small is None else small] = 0
    budgets = np.array([int(share * blocks) * BLOCK, 0, 0], np.uint64)
    return ServiceClass(0, classes, classes.astype(np.uint16), budgets)


def counted(network: Network, event: Event) -> int:
    return sum(node.switch.counter(EVENTS).read(event).packets for node in network.nodes.values())


def trimmed(network: Network) -> int:
    return treated(network, Treatment.TRIMMED, [FRONT_QUEUE])


class Strangers:
    """A host that sends bursts of full frames to one worker, in the class of the workers' front layers."""

    def __init__(
        self, network: Network, sender: str, receiver: str, burst: int, period_ms: float, first_ms: float = 0
    ) -> None:
        self._network, self._burst, self._period = network, burst, int(period_ms * 1e6)
        self._station, there = network.stations[sender], network.stations[receiver].host
        host = self._station.host
        mac = there.mac
        if host.switch != there.switch:
            mac = network.topology.switch(host.switch).aggregation.mac
        from_ = Sender(ip=host.ip, mac=host.mac, victims=())
        self._frame = frame(from_, Victim(ip=there.ip, mac=mac), dscp(0), 0)
        network.clock.after(int(first_ms * 1e6), self)

    def __call__(self) -> None:
        for _ in range(self._burst):
            self._station.send(self._frame)
        self._network.clock.after(self._period, self)


def summed(
    network: Network, job: Allocation, services: Sequence[ServiceClass], steps: int, seed: int
) -> list[list[ReduceReport]]:
    """Sum vectors in this many steps. Every worker has the sum of what no report gave back, to the bit, no
    report has more missing than its budget, and each lane that entered is accounted for.
    """
    numbers, found = np.random.default_rng(seed), []
    for step in range(steps):
        given_in = [numbers.integers(1, 1 << 32, BLOCKS * BLOCK, dtype=np.uint32) for _ in job.workers]
        lanes = [own.copy() for own in given_in]
        for worker, own, service in zip(job.workers, lanes, services, strict=True):
            worker.submit(Work(Op.ADD, BLOCK, own, service=service))
        network.run(lambda: job.idle, limit=600)
        reports = [worker.reports[-1] for worker in job.workers]
        expected, ledger = np.sum(given_in, axis=0, dtype=np.uint32), Ledger()
        for own, report in zip(given_in, reports, strict=True):
            back = report.given_back
            assert np.array_equal(back.lanes, own.reshape(-1, BLOCK)[back.blocks])
            expected.reshape(-1, BLOCK)[back.blocks] -= back.lanes
            assert (report.missing <= report.budgets).all()
            assert int(report.missing.sum()) == report.returned.lanes
            ledger.record(step, "vector", Direction.UP, report)  # raises ConservationError
        for own in lanes:
            assert np.array_equal(own, expected)
        found.append(reports)
    return found


def rack(seed: int, faults: Faults = CLEAN, **options: Any) -> Network:
    return Network(
        single_switch(4, "unix:/s1", target="soft").model_copy(update={"qos": Qos(**options)}),
        seed=seed,
        link=LinkSpec(100 * MBIT, faults),
        queueing=Queueing(depth_packets=64),
    )


def two_racks(seed: int, faults: Faults = CLEAN, **options: Any) -> Network:
    return Network(
        leaf_spine(2, 2, 3, target="soft", qos=Qos(**options)),
        seed=seed,
        link=LinkSpec(100 * MBIT, faults),
        queueing=Queueing(depth_packets=64),
    )


def test_a_rack_cuts_results_for_all_where_one_workers_queue_is_deep() -> None:
    with rack(1) as network:
        job = network.admit(["h1", "h2", "h3"], slots=64)
        Strangers(network, "h4", "h1", burst=60, period_ms=12)
        reports = summed(network, job, [budget_of(BLOCKS, 0.1)] * 3, 3, seed=1)
        shed = counted(network, Event.ROUND_SHED)
        assert shed > 10
        assert trimmed(network) == 0, "no contribution met a queue"
        # every one of them is missing for all, and nothing else is
        assert sum(own.returned.lanes for step in reports for own in step) == 3 * shed * BLOCK


def test_racks_let_the_root_cut_what_their_workers_queues_would_hold_up() -> None:
    with two_racks(1) as network:
        job = network.admit(["h1", "h2", "h4", "h5"], slots=64)
        Strangers(network, "h3", "h1", burst=60, period_ms=12)
        reports = summed(network, job, [budget_of(BLOCKS, 0.1)] * 4, 3, seed=1)
        shed = counted(network, Event.ROUND_SHED)
        assert shed > 10
        assert trimmed(network) >= shed, "a rack's sums, each time"
        blocks = [[set(own.given_back.blocks.tolist()) for own in step] for step in reports]
        assert all(own == step[0] for step in blocks for own in step)


@pytest.mark.parametrize("make", [rack, two_racks], ids=["rack", "racks"])
@pytest.mark.parametrize("why", ["no queue", "one worker keeps its lanes", "lossless", "larger magnitudes"])
def test_nothing_is_cut_without_a_deep_queue_or_against_a_workers_will(make: Any, why: str) -> None:
    with make(1) as network:
        hosts = ["h1", "h2", "h3"] if make is rack else ["h1", "h2", "h4", "h5"]
        job = network.admit(hosts, slots=12 if why == "no queue" else 64)
        if why != "no queue":
            Strangers(network, "h4" if make is rack else "h3", "h1", burst=60, period_ms=12)
        services = [budget_of(BLOCKS, 0.1)] * len(hosts)
        if why == "one worker keeps its lanes":
            services[1] = LOSSLESS
        elif why == "lossless":
            services = [LOSSLESS] * len(hosts)
        elif why == "larger magnitudes":
            services = [
                ServiceClass(
                    0, np.ones(BLOCKS, np.uint8), None, np.array([int(0.1 * BLOCKS) * BLOCK], np.uint64)
                )
            ] * len(hosts)
        summed(network, job, services, 2, seed=2)
        assert counted(network, Event.ROUND_SHED) == 0


def test_classes_that_are_never_trimmed_are_never_cut_by_their_rack() -> None:
    classes = {dscp(0, magnitude): ClassSpec(trim_at="never") for magnitude in range(MAGNITUDE_CLASSES)}
    with two_racks(1, classes=classes) as network:
        job = network.admit(["h1", "h2", "h4", "h5"], slots=64)
        Strangers(network, "h3", "h1", burst=60, period_ms=12)
        summed(network, job, [budget_of(BLOCKS, 0.1)] * 4, 1, seed=1)
        assert trimmed(network) == 0


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.sampled_from([0.0, 0.02, 0.1]),
    st.sampled_from([0.0, 0.02, 0.1]),
    st.sampled_from([0.0, 0.05]),
    st.lists(st.sampled_from([0.0, 0.02, 0.1, 0.5]), min_size=4, max_size=4),
)
def test_replicas_budgets_and_ledger_are_exact_whatever_is_lost(
    seed: int, racks: bool, loss: float, duplicate: float, late: float, shares: list[float]
) -> None:
    """Whichever copies of results and contributions are lost, doubled or late, and whatever each may lose."""
    faults = Faults(
        delay=5_000, jitter=20_000, loss=loss, duplicate=duplicate, late=late, lateness=40_000_000
    )
    with (two_racks if racks else rack)(seed, faults) as network:
        hosts = ["h1", "h2", "h4", "h5"] if racks else ["h1", "h2", "h3"]
        job = network.admit(hosts, slots=48)
        Strangers(network, "h3" if racks else "h4", "h1", burst=60, period_ms=12)
        numbers = Random(seed)
        services = [
            budget_of(BLOCKS, share, numbers.randrange(BLOCKS)) if share else LOSSLESS
            for share in shares[: len(hosts)]
        ]
        summed(network, job, services, 2, seed)
