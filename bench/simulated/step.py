# SPDX-License-Identifier: Apache-2.0
"""The all-reduce that one training step waits for, on bad links: Weir's sums and rings over TCP.

The real switch program, entries and transport. The peer is Gloo's ring of two segments a chunk over
simulated TCP as Linux has it (`weir.simulator.tcp`), without marks, in the class that switches serve first.
TCP waits for answers as its fabric suggests (`waits`), Weir as users have it, which is longer. Nothing
depends on how busy this machine is.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from softp4.runtime.queueing import Queueing
from weir.agent_service import MOST_SLOTS
from weir.background import FLOWS, frame
from weir.bench.case import Run, parameter
from weir.bench.ranks import least_seconds
from weir.bench.results import Column, Row, Table, share
from weir.bench.simulated.fabric import Outcome
from weir.bench.simulated.transports import Rings, Sums, Transport
from weir.bench.simulated.waits import Waits
from weir.host_agent.collectives.packing import LaneBits, lane_format
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.transport.service_class import ServiceClass
from weir.network import NetworkPlan, NetworkSpec, incast, make_plan
from weir.report.words import duration
from weir.simulator.clock import SECOND
from weir.simulator.congestion import Algorithm
from weir.simulator.link import Faults
from weir.simulator.network import Allocation, LinkSpec, Network
from weir.train.config import PRESETS, make_config
from weir.train.models import parameter_count
from weir.train.task import make_task
from weir.train.words import links_line
from weir.wire.definition import RELIABLE_DSCP, SLOT_LANES

DELAY_NS: Final = 10_000  # of every link
_LAYER: Final = 2
_LIMIT_S: Final = 36_000.0


@dataclass(frozen=True)
class Way:
    """One way to sum. algorithm: of a ring's TCP; None: Weir. lossy: within the loss budget. bits: of one."""

    name: str
    algorithm: Algorithm | None = None
    lossy: bool = False
    bits: LaneBits = 32


WAYS: Final = (
    Way("ring over TCP, CUBIC", "cubic"),
    Way("ring over TCP, BBR", "bbr"),
    Way("Weir, lossless"),
    Way("Weir, loss budget", lossy=True),
    Way("Weir, 16 bits", bits=16),
    Way("Weir, 8 bits", bits=8),
)


@dataclass(frozen=True)
class Parameters:
    """The gradient and the links."""

    model: str = parameter("resnet18", "whose gradient is summed", choices=PRESETS)
    workers: int = parameter(4, "workers", least=2, most=32)
    topology: str = parameter("leaf-spine-2x2", "single, or leaf-spine-RxS: racks and spines")
    links: str = parameter("100mbit", "rate of all links")
    loss: float = parameter(0.01, "share of packets that every link loses", least=0, most=0.5)
    background: str = parameter("incast", "incast or none: bursts of others", choices=("incast", "none"))
    budget: float = parameter(0.1, "share of lanes that may go missing", least=0, most=1)


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Simulate one step, each way."""
    config = make_config(**{name: value for name, value in vars(parameters).items() if name != "budget"})
    spec, elements = config.network, parameter_count(make_task(config).model)
    found = {}
    for way in WAYS:
        run.say(f"{way.name} ...")
        found[way] = simulate(way, spec, config.workers, elements, parameters.budget)
    rings = {way: one.times[0] for way, one in found.items() if way.algorithm}

    def floor(way: Way) -> float | None:
        if spec.rate_bps is None:
            return None
        lanes = lane_format(way.bits, 0.0, config.workers).lanes(SCALE_BLOCK) / SCALE_BLOCK
        return least_seconds(elements * lanes, config.workers, spec.rate_bps, ring=way.algorithm is not None)

    yield Table(
        f"All-reduce of {config.model}'s gradient in virtual time, {config.workers} workers, "
        f"{links_line(config)}",
        (
            Column("time", duration),
            Column("missing", share, "lanes"),
            Column("sent again"),
            Column("released"),
        ),
        tuple(
            Row(
                way.name,
                {
                    "time": one.times[0],
                    "missing": None if way.algorithm else one.share("missing", "lanes"),
                    "sent again": one.counts.get("retransmissions", 0),
                    "released": one.counts.get("releases"),
                },
                floor=floor(way),
            )
            for way, one in found.items()
        ),
        peers=(min(rings, key=rings.__getitem__).name, "Weir, lossless"),
        floor="line",
        notes=(
            f"dense; loss budget: {parameters.budget:g} of the lanes. line: the least time that the "
            "line's payload "
            "rate allows, without the headers of full packets, over the time",
        ),
    )


def simulate(way: Way, spec: NetworkSpec, workers: int, elements: int, budget: float) -> Outcome:
    """Return one all-reduce of this many elements."""
    waits = Waits.of(spec.rate_bps, DELAY_NS / SECOND)
    with disturbed_network(spec, workers) as (network, plan):
        hosts = [host.name for host in plan.workers]
        transport: Transport
        if way.algorithm is not None:
            tcp = replace(waits.tcp(), algorithm=way.algorithm, dscp=RELIABLE_DSCP)
            transport = Rings(network, hosts, tcp, 4 * elements)
        else:
            job = network.admit(hosts, slots=MOST_SLOTS)
            transport = sums(job, elements, way.bits, budget if way.lossy else 0.0)
        network.run(transport.begin(), limit=_LIMIT_S)
        return Outcome([network.clock.now / 1e9], counts=dict(transport.end()))


def sums(job: Allocation, elements: int, bits: LaneBits = 32, budget: float = 0.0) -> Sums:
    """Return sums of a gradient, all blocks non-zero. budget: of the lanes, in one account."""
    workers = len(job.workers)
    scales = -(-elements // SCALE_BLOCK)
    blocks = -(-scales * lane_format(bits, 0.0, workers).lanes(SCALE_BLOCK) // SLOT_LANES)
    numbers = np.random.default_rng(0)
    exponents, lanes = [], []
    for _ in range(workers):
        exponents.append(numbers.integers(1, 255, scales, dtype=np.uint32))
        lanes.append(numbers.integers(1, 1 << 32, blocks * SLOT_LANES, dtype=np.uint32))
    service = ServiceClass(layer=_LAYER)
    if budget:
        service = ServiceClass(
            layer=_LAYER,
            magnitudes=np.zeros(blocks, np.uint8),
            accounts=np.zeros(blocks, np.uint16),
            budgets=np.array([int(budget * blocks * SLOT_LANES)], np.uint64),
        )
    front = ServiceClass(layer=_LAYER)
    return Sums(job, lanes, exponents, [service] * workers, front, exponent_block=SLOT_LANES)


@contextmanager
def disturbed_network(
    spec: NetworkSpec, workers: int, *, seed: int = 1, offset: float = 0.0, bursts: bool = True
) -> Iterator[tuple[Network, NetworkPlan]]:
    """Yield the network of ``spec`` with its background traffic.

    offset: before the first burst, in times from one burst to the next. bursts: there are some.
    """
    plan = make_plan(spec, workers, grpc=lambda name: f"unix:/{name}")
    link = LinkSpec(spec.rate_bps, Faults(delay=DELAY_NS))  # what is lost is lost in the switches
    with Network(plan.topology, seed=seed, link=link, queueing=Queueing(depth_packets=spec.depth)) as network:
        if bursts:
            _disturb(network, plan, offset)
        yield network, plan


def _disturb(network: Network, plan: NetworkPlan, offset: float) -> None:
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

    network.clock.after(round(offset * step), burst, 0)
