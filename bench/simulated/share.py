# SPDX-License-Identifier: Apache-2.0
"""A job beside others in its own class: bursts that nothing slows down, and a TCP stream.

The real switch program and transport, two racks and two spines. Bursts go to one worker of each rack,
alternately. The stream goes from another rack to the first worker.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import mean

import numpy as np

from weir.agent_service import MOST_SLOTS
from weir.bench.case import Run, parameter
from weir.bench.results import Column, Row, Table, share
from weir.bench.simulated.fabric import FRONT, Outcome
from weir.bench.simulated.paths import Sharing
from weir.bench.simulated.step import disturbed_network
from weir.bench.simulated.transports import BLOCK, Rings, Sums, Transport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.network import NetworkSpec, parse_shape
from weir.report.words import duration
from weir.simulator.congestion import MSS, Algorithm
from weir.simulator.stream import OVERHEAD
from weir.simulator.tcp import TcpConfig
from weir.wire.definition import MAGNITUDE_CLASSES

_MS = 1_000_000
_WORKERS = 4
_FRAME_BYTES = 1_102
_ENDLESS = 1 << 40


@dataclass(frozen=True)
class Parameters:
    """The links, the bursts, and what is summed."""

    megabits: float = parameter(50.0, "rate of all links", unit="Mbit/s", above=0)
    load: float = parameter(0.6, "share of a worker's link that the bursts take", above=0, most=0.95)
    blocks: int = parameter(1856, "blocks of 256 lanes in a sum", least=8)
    steps: int = parameter(3, "sums, one after the other", least=1)
    pause: float = parameter(0.0, "before each sum", unit="ms", least=0)
    budget: float = parameter(0.1, "share of lanes that may go missing", above=0, most=1)
    seconds: float = parameter(2.0, "beside a stream, after half as long", unit="s", least=0.1)


WAYS = ("lossless", "loss budget", "ring over TCP, DCTCP", "ring over TCP, CUBIC")


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Sum beside bursts, then beside streams."""
    rate = round(parameters.megabits * 1e6)
    fair = parameters.blocks * 8 * _FRAME_BYTES / ((1 - parameters.load) * rate)
    rows = []
    for way in WAYS:
        run.say(f"{way} ...")
        found = Outcome()
        for seed in run.seeds:
            found.add(simulate(way, parameters, seed))
        rows.append(
            Row(
                way,
                {
                    "step": mean(found.times),
                    "longest": max(found.times),
                    "x rest of the line": mean(found.times) / fair,
                    "missing": None if way.startswith("ring") else found.share("missing", "lanes"),
                    "timeouts": found.counts.get("timeouts", 0),
                },
            )
        )
    yield Table(
        f"Sums of {parameters.blocks} blocks beside bursts in their class, {parameters.load:.0%} of a link "
        f"of {parameters.megabits:g} Mbit/s, in virtual time",
        (
            Column("step", duration),
            Column("longest", duration),
            Column("x rest of the line", lambda factor: f"{factor:.2f}"),
            Column("missing", share, "lanes"),
            Column("timeouts"),
        ),
        tuple(rows),
        notes=(
            f"{len(run.seeds)} seeds; rest of the line: the bytes of a sum at the rate that bursts leave",
        ),
    )
    algorithms: tuple[Algorithm, ...] = ("dctcp", "cubic")
    beside = {
        f"{streams} {algorithm}": beside_streams(algorithm, streams, rate, parameters.seconds)
        for algorithm in algorithms
        for streams in (1, 3)
    }
    yield Table(
        "A sum beside streams in the same class",
        (Column("job, Mbit/s", lambda value: f"{value:.1f}"), Column("x fair", lambda value: f"{value:.2f}")),
        tuple(
            Row(name, {"job, Mbit/s": found.job / 1e6, "x fair": found.fair})
            for name, found in beside.items()
        ),
    )


def spec(rate: int, load: float) -> NetworkSpec:
    """Return the network, whose bursts are in the class of front layers."""
    return NetworkSpec(parse_shape("leaf-spine-2x2"), rate, background="incast", load=load, dscp=FRONT)


def simulate(way: str, parameters: Parameters, seed: int) -> Outcome:
    """Return the sums of one way."""
    network_spec = spec(round(parameters.megabits * 1e6), parameters.load)
    offset = 2 * Random(seed).random()
    with disturbed_network(network_spec, _WORKERS, seed=seed, offset=offset) as (network, plan):
        hosts = [host.name for host in plan.workers]
        transport: Transport
        if way.startswith("ring"):
            tcp = _tcp("cubic" if "CUBIC" in way else "dctcp")
            transport = Rings(network, hosts, tcp, 4 * BLOCK * parameters.blocks)
        else:
            numbers = np.random.default_rng(seed)
            size = parameters.blocks * BLOCK
            lanes = [numbers.integers(1, 1 << 32, size, dtype=np.uint32) for _ in hosts]
            service = LOSSLESS if way == "lossless" else _service(parameters)
            job = network.admit(hosts, slots=MOST_SLOTS)
            transport = Sums(job, lanes, (), [service] * len(hosts))
        outcome = Outcome()
        for _ in range(parameters.steps):
            pause = round(parameters.pause * _MS)
            began = network.clock.now + pause
            network.run(transport.begin(pause))
            outcome.times.append((network.clock.now - began) / 1e9)
            outcome.count(transport.end())
        return outcome


def _service(parameters: Parameters) -> ServiceClass:
    """Return that of a sum whose smallest third is the same on all workers."""
    classes = np.full(parameters.blocks, MAGNITUDE_CLASSES - 1, np.uint8)
    classes[np.random.default_rng(5).permutation(parameters.blocks)[: parameters.blocks // 3]] = 0
    limit = int(parameters.budget * parameters.blocks) * BLOCK
    return ServiceClass(0, classes, np.zeros(parameters.blocks, np.uint16), np.array([limit], np.uint64))


def _tcp(algorithm: Algorithm) -> TcpConfig:
    """Return TCP in the job's class, with Weir's least waits."""
    return TcpConfig(50 * _MS, 200 * _MS, 2 * _MS, algorithm=algorithm, dscp=FRONT)


def beside_streams(algorithm: Algorithm, streams: int, rate: int, seconds: float) -> Sharing:
    """Return the rates of an endless sum and of streams to its first worker."""
    with disturbed_network(spec(rate, 0.5), _WORKERS, bursts=False) as (network, plan):
        first = plan.workers[0]
        others = [host.name for host in plan.background if host.switch != first.switch]
        job = network.admit([host.name for host in plan.workers], slots=MOST_SLOTS)
        size = round(2 * seconds * rate / 8 / _FRAME_BYTES) * BLOCK
        Sums(job, [np.ones(size, np.uint32) for _ in plan.workers]).begin()
        made = [
            network.stream(others[number % len(others)], first.name, _tcp(algorithm))
            for number in range(streams)
        ]
        for stream in made:
            stream.write(_ENDLESS)

        def carried() -> list[float]:
            own = job.workers[0].transport.report().bytes_down
            return [own, *(one.sender.acknowledged * (1 + OVERHEAD / MSS) for one in made)]

        network.run_for(seconds / 2)
        before = carried()
        network.run_for(seconds)
        own, *rest = (8 * (b - a) / seconds for a, b in zip(before, carried(), strict=True))
        return Sharing(own, tuple(rest))
