# SPDX-License-Identifier: Apache-2.0
"""The all-reduce that one training step waits for, in virtual time, on the same bad links.

The real switch program, the real entries and the real transport, in the simulator: what comes out depends on
the seed and not on how busy this machine is. The peer is Gloo's ring of two segments a chunk over simulated
TCP as Linux has it (`weir.simulator.tcp`), with time-outs of 200 ms at least, without marks, in the class
that switches serve first.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from softp4.runtime.queueing import Queueing
from weir.agent_service import MOST_SLOTS
from weir.background import FLOWS, frame
from weir.host_agent.collectives.packing import LaneBits, lane_format
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.transport.service_class import ServiceClass
from weir.network import NetworkPlan, NetworkSpec, incast, make_plan
from weir.simulator.congestion import Algorithm
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.simulator.network import LinkSpec, Network
from weir.simulator.ring import Ring
from weir.simulator.tcp import TcpConfig
from weir.wire.definition import RELIABLE_DSCP, SLOT_LANES, Op

LAYER: Final = 2
DELAY_NS: Final = 10_000  # of every link
LINUX_MIN_RTO_NS: Final = 200_000_000
_LIMIT_S: Final = 36_000.0


@dataclass(frozen=True)
class Reduced:
    """One all-reduce: virtual seconds to the last worker's end; share of its lanes that is missing."""

    seconds: float
    missing: float = 0.0
    retransmissions: int = 0
    releases: int = 0


def weir(spec: NetworkSpec, workers: int, parameters: int, budget: float, bits: LaneBits = 32) -> Reduced:
    """Return the gradient as Weir sums it: shared scales first, then fixed-point lanes, all blocks
    non-zero.

    budget: the share of the lanes that may go missing, in one account. bits: of a value on the wire.
    """
    scales = -(-parameters // SCALE_BLOCK)
    blocks = -(-scales * lane_format(bits, 0.0, workers).lanes(SCALE_BLOCK) // SLOT_LANES)
    numbers = np.random.default_rng(0)
    with _network(spec, workers) as (network, plan):
        job = network.admit([host.name for host in plan.workers], slots=MOST_SLOTS)
        for worker in job.workers:
            exponents = numbers.integers(1, 255, scales, dtype=np.uint32)
            lanes = numbers.integers(1, 1 << 32, blocks * SLOT_LANES, dtype=np.uint32)
            worker.submit(Work(Op.MAX, SLOT_LANES, exponents, service=ServiceClass(layer=LAYER)))
            worker.submit(Work(Op.ADD, SLOT_LANES, lanes, service=_service(blocks, budget)))
        network.run(lambda: job.idle, limit=_LIMIT_S)
        reports = [report for worker in job.workers for report in worker.reports]
        return Reduced(
            seconds=network.clock.now / 1e9,
            missing=sum(int(report.missing.sum()) for report in reports) / (workers * blocks * SLOT_LANES),
            retransmissions=sum(report.retransmissions for report in reports),
            releases=sum(report.releases for report in reports),
        )


def ring(spec: NetworkSpec, workers: int, parameters: int, algorithm: Algorithm) -> Reduced:
    """Return the gradient as a ring of TCP streams sums it, with that congestion control."""
    with _network(spec, workers) as (network, plan):
        config = TcpConfig(min_rto=LINUX_MIN_RTO_NS, algorithm=algorithm, dscp=RELIABLE_DSCP)
        members = Ring(network, [host.name for host in plan.workers], config)
        done: list[int] = []
        for rank in range(workers):
            members.reduce(rank, 4 * parameters, partial(done.append, rank))
        network.run(lambda: len(done) == workers, limit=_LIMIT_S)
        seconds = network.clock.now / 1e9
        return Reduced(seconds, retransmissions=sum(s.sender.retransmissions for s in members.streams))


def _service(blocks: int, budget: float) -> ServiceClass:
    if not budget:
        return ServiceClass(layer=LAYER)
    return ServiceClass(
        layer=LAYER,
        magnitudes=np.zeros(blocks, np.uint8),
        accounts=np.zeros(blocks, np.uint16),
        budgets=np.array([int(budget * blocks * SLOT_LANES)], np.uint64),
    )


@contextmanager
def _network(spec: NetworkSpec, workers: int) -> Iterator[tuple[Network, NetworkPlan]]:
    """Yield the network of ``spec`` with its background traffic, in virtual time."""
    plan = make_plan(spec, workers, grpc=lambda name: f"unix:/{name}")
    link = LinkSpec(spec.rate_bps, Faults(delay=DELAY_NS))  # what is lost is lost in the switches
    with Network(plan.topology, seed=1, link=link, queueing=Queueing(depth_packets=spec.depth)) as network:
        _disturb(network, plan)
        yield network, plan


def _disturb(network: Network, plan: NetworkPlan) -> None:
    """Send bursts as ``weir.background`` does, on the virtual clock."""
    spec = incast(plan)
    if spec is None:
        return
    victims = len(plan.victims)
    step = round(spec.period_s / victims * 1e9)
    senders = [network.stations[host.name] for host in plan.background]
    frames = [
        [[frame(sender, victim, spec.dscp, flow) for flow in range(FLOWS)] for victim in sender.victims]
        for sender in spec.senders
    ]
    flows = itertools.cycle(range(FLOWS))

    def burst(number: int) -> None:
        for flow in itertools.islice(flows, spec.burst):
            for station, own in zip(senders, frames, strict=True):
                station.send(own[number % victims][flow])
        network.clock.after(step, burst, number + 1)

    network.clock.after(0, burst, 0)
