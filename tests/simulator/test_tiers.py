# SPDX-License-Identifier: Apache-2.0
"""Three tiers of real switches: exact sums whatever links and switches do, and a job of a thousand
workers.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tests.harness.effort import effort
from tests.host_agent.transport.answers import combine
from tests.simulator.reductions import (
    BLOCK,
    MS,
    Lanes,
    check_exact,
    check_wanted,
    delivered,
    drawn,
    network_faults,
    submit,
    vectors,
)
from weir.controller.qos import Qos
from weir.controller.topology import Topology, leaf_spine_core
from weir.controller.wiring import WIDE_PROGRAM
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.simulator.link import Faults
from weir.simulator.network import Allocation, LinkSpec, Network
from weir.wire.definition import AUDIENCE_EXCEPT, WIDE_LANES, Op

BUDGET = 3 * BLOCK


def three_tiers(pods: int, racks: int, spines: int, cores: int, hosts: int) -> Topology:
    return leaf_spine_core(pods, racks, spines, cores, hosts, qos=Qos(spray="random"))


def with_wide_packets(topology: Topology) -> Topology:
    """Return it with switches and links that take wide packets."""
    switches = [switch.model_copy(update={"program": WIDE_PROGRAM}) for switch in topology.switches]
    return Topology.model_validate({**topology.model_dump(), "switches": switches, "mtu": 9000})


def check(before: list[Lanes], after: list[Lanes], job: Allocation, budget: int = 0) -> None:
    """Every replica holds the sum of all but what came back, which is within the budget; books agree."""
    for worker in job.workers:
        report = worker.reports[-1]
        assert report.entered == report.included + report.returned
        assert report.returned.lanes <= budget
    check_exact(delivered(before, job), after)


deaths = st.tuples(
    st.sampled_from(["spine1", "spine3", "core1"]),
    st.sampled_from([1, 100_000, 1 * MS, 20 * MS, 300 * MS]),  # when
    st.sampled_from([1, 1 * MS, 500 * MS]),  # noticed after so long
)
networks = st.fixed_dictionaries(
    {
        "pods": st.integers(1, 3),
        "racks": st.integers(1, 3),
        "hosts": st.integers(1, 2),
        "slots": st.one_of(st.integers(1, 4), st.integers(1, 40)),
        "seed": st.integers(0, 2**32 - 1),
        "rate": st.sampled_from([None, 100_000_000]),
        "faults": network_faults,
        "first_round": st.sampled_from([1, 2**32 - 3]),
        "bounded": st.booleans(),
        "death": st.none() | deaths,
    }
)


@contextlib.contextmanager
def running(shape: dict[str, Any], wide: bool = False) -> Iterator[tuple[Network, Allocation]]:
    """Yield a network of this shape, with a job of all its hosts, in which the death will happen.

    wide: it takes wide packets.
    """
    topology = three_tiers(shape["pods"], shape["racks"], 2, 2, shape["hosts"])
    topology = with_wide_packets(topology) if wide else topology
    link = LinkSpec(shape["rate"], shape["faults"])
    with Network(topology, seed=shape["seed"], link=link) as network:
        names = [host.name for host in topology.hosts]
        job = network.admit(names, slots=shape["slots"], first_round=shape["first_round"])
        if shape["death"] is not None and shape["death"][0] in network.nodes:
            who, when, noticed = shape["death"]
            network.clock.at(when, network.kill, who)
            network.clock.at(when + noticed, network.program)
        yield network, job


@drawn(150)
@given(shape=networks)
def test_three_tiers_sum_exactly_what_they_include_whatever_happens(shape: dict[str, Any]) -> None:
    note(f"{shape!r}")
    with running(shape) as (network, job):
        for step in range(3):
            before = vectors(shape["seed"] + step, len(job.workers), 10)
            bounded = shape["bounded"] and step != 1
            service = ServiceClass(layer=step, budgets=np.array([BUDGET], np.uint64)) if bounded else LOSSLESS
            after = submit(job, before, service)
            network.run(lambda: job.idle)
            check(before, after, job, BUDGET if bounded else 0)


@drawn(60)
@given(shape=networks)
def test_whoever_wants_a_block_gets_exactly_its_result_whatever_happens(shape: dict[str, Any]) -> None:
    """Some blocks are for one worker, some for all but one."""
    note(f"{shape!r}")
    rng = np.random.default_rng(shape["seed"])
    with running(shape) as (network, job):
        for step in range(3):
            before = vectors(shape["seed"] + step, len(job.workers), 12)
            audiences = np.repeat(rng.choice(job.paths, 4), 3).astype(np.uint16)
            audiences[rng.random(12) < 0.5] |= AUDIENCE_EXCEPT
            after = submit(job, before, audiences=audiences)
            network.run(lambda: job.idle)
            expected = combine(Op.ADD, before)
            for path, lanes in zip(job.paths, after, strict=True):
                check_wanted(audiences, path, BLOCK, lanes, expected)


@drawn(40)
@given(shape=networks)
def test_wide_packets_sum_exactly_whatever_happens(shape: dict[str, Any]) -> None:
    """In turn with ordinary ones, in the same slots. Some workers' blocks are zero, and some all workers'."""
    note(f"{shape!r}")
    rng = np.random.default_rng(shape["seed"])
    count = 9  # of wide blocks; then comes an ordinary one
    with running(shape, wide=True) as (network, job):
        for step in range(4):
            before = vectors(shape["seed"] + step, len(job.workers), count * WIDE_LANES // BLOCK + 1)
            everywhere = rng.random(count) < 0.2
            for lanes in before:
                zero = everywhere | (rng.random(count) < 0.3)
                lanes[:-BLOCK].reshape(count, WIDE_LANES)[zero] = 0
            after = submit(job, before, block=BLOCK if step == 2 else WIDE_LANES)
            network.run(lambda: job.idle)
            check(before, after, job)


@pytest.mark.parametrize("who", ["spine1", "core1"])
@pytest.mark.parametrize("when", [100_000, 500_000, 1_300_000, 2_100_000])
def test_whenever_a_switch_dies_the_rounds_that_some_have_reach_the_others(who: str, when: int) -> None:
    """Results are on their way down to some switches only, and spines that follow must come to the same
    sums.
    """
    topology = three_tiers(2, 3, 2, 2, 1)
    with Network(topology, seed=when, link=LinkSpec(10**9, Faults(delay=1_000))) as network:
        slow = {"leaf1": 1_000, "leaf2": 200_000, "leaf3": 600_000, "spine2": 100_000, "spine3": 700_000}
        for there, delay in slow.items():
            for here in topology.neighbours(there):
                network.link(here[1].name, there).faults = Faults(delay=delay, trim=0.2)
        job = network.admit([host.name for host in topology.hosts], slots=16)
        before = vectors(when, 6, 200)
        after = submit(job, before, ServiceClass(layer=0, budgets=np.array([40 * BLOCK], np.uint64)))
        network.clock.at(when, network.kill, who)
        network.clock.at(when + 20 * MS, network.program)
        network.run(lambda: job.idle, limit=20)
        check(before, after, job, 40 * BLOCK)


def test_many_workers_sum_exactly_over_lossy_links_while_switches_die() -> None:
    """4 pods of 8 racks of 8, or 32: loss, duplication, reordering, spraying; two spines and a core go."""
    hosts = effort(8, 32)
    topology = three_tiers(4, 8, 2, 2, hosts)
    faults = Faults(delay=1_000, jitter=20_000, loss=0.01, duplicate=0.01)
    with Network(topology, seed=1, link=LinkSpec(10**9, faults)) as network:
        names = [host.name for host in topology.hosts]
        assert len(names) == 32 * hosts
        job = network.admit(names, slots=8, initial_rto=0.01, min_rto=0.005, max_rto=0.05)
        before = vectors(1, len(names), 24)
        after = submit(job, before)
        for who, when in (("spine1", 1 * MS), ("core2", 40 * MS), ("spine6", 90 * MS)):
            network.clock.at(when, network.kill, who)
            network.clock.at(when + 2 * MS, network.program)
        network.run(lambda: job.idle, limit=20)
        assert network.clock.now > 90 * MS  # they went in the middle of it
        check(before, after, job)
