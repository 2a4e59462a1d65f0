# SPDX-License-Identifier: Apache-2.0
"""A training step of a Llama, as a trace, replayed by packets: rings over TCP, and Weir's sums.

The trace says when each layer's gradient is there, by the operations that its backward pass takes. Layers are
exchanged one after the other, beside the rest of the backward pass. Real are the switch program, the
controller's entries and the hosts' code; hosts and switches need no processor time. Models and computing
times are divided by a scale, as all their packets would take days. Beside each time stands that of the ideal
model (`worth`), which computes what is larger: it is the least that lines allow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from weir.agent_service import MOST_SLOTS
from weir.bench.case import Run, parameter
from weir.bench.results import Column, Row, Table
from weir.bench.simulated import worth
from weir.bench.simulated.fabric import FRONT, Fabric, Outcome
from weir.bench.simulated.step import sums
from weir.bench.simulated.transports import Done
from weir.simulator.clock import SECOND
from weir.simulator.congestion import Algorithm
from weir.simulator.network import Network
from weir.simulator.ring import Ring

_VALUE: Final = 4  # bytes


@dataclass(frozen=True)
class Way:
    """One way to exchange gradients. algorithm: of a ring's TCP; None: Weir, with ``bits`` to a value."""

    name: str
    algorithm: Algorithm | None = None
    bits: Literal[32, 16, 8] = 32

    @property
    def ideal(self) -> worth.Way:
        """The same way in the ideal model."""
        return worth.Way(self.name, self.bits, ring=self.algorithm is not None, lanes=self.bits)


WAYS: Final = (
    Way("ring over DCTCP", "dctcp"),
    Way("ring over CUBIC", "cubic"),
    Way("ring over BBR", "bbr"),
    Way("Weir, 32 bits"),
    Way("Weir, 8 bits", bits=8),
)


@dataclass(frozen=True)
class Parameters:
    """The trace and the links."""

    model: str = parameter("llama-1b", "shape of the model", choices=worth.MODELS)
    scale: int = parameter(2000, "by which parameters and computing times are divided", least=1)
    tokens: int = parameter(32768, "of a worker in a step", least=1)
    teraflops: float = parameter(50.0, "that a worker computes", unit="TFLOP/s", above=0)
    workers: int = parameter(4, "of each rack", least=2, most=32)
    racks: int = parameter(1, "racks", least=1, most=8)
    spines: int = parameter(1, "spines", least=1, most=8)
    gigabits: tuple[float, ...] = parameter((1.0, 10.0), "rates of all links", unit="Gbit/s", above=0)
    depth: int = parameter(128, "of a switch queue", unit="packets", least=16)

    @property
    def trace(self) -> list[tuple[float, int]]:
        """The second at which each gradient is there, and its values."""
        scaled = self.scale
        return [
            (seconds / scaled, round(values / scaled))
            for seconds, values in worth.gradients(worth.MODELS[self.model], self.tokens, self.teraflops)
        ]

    @property
    def members(self) -> int:
        """Number of all workers."""
        return self.workers * self.racks

    def ideal(self, way: Way, rate: int) -> float:
        """Return the seconds of a step by the ideal model, in which processors need no time."""
        given = worth.Parameters(tokens=self.tokens, teraflops=self.teraflops, worker=0, switch=0)
        seconds, _ = worth.step(worth.MODELS[self.model], way.ideal, self.members, rate, given)
        return seconds / self.scale


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Replay the trace on links of each rate, each way."""
    trace = parameters.trace
    computing = trace[-1][0]
    rows = []
    for gigabits in parameters.gigabits:
        found = {}
        for way in WAYS:
            run.say(f"{gigabits:g} Gbit/s, {way.name} ...")
            found[way] = replay(way, trace, parameters, round(gigabits * 1e9))
        rings = {way.name: one.times[0] for way, one in found.items() if way.algorithm}
        best = min(rings, key=rings.__getitem__)
        rows += [
            _row(way, one, parameters, gigabits, "" if way.algorithm else best) for way, one in found.items()
        ]
    yield Table(
        f"A step of {parameters.model}, a {parameters.scale:,}th of it, {parameters.members} workers",
        (
            Column("ms", lambda n: f"{n:.3f}"),
            Column("waited, ms", lambda n: f"{n:.3f}", "after the backward pass"),
            Column("ideal, ms", lambda n: f"{n:.3f}", "by the model of simulated/worth"),
            Column("sent again", note="packets of all workers"),
        ),
        tuple(rows),
        peers=tuple(way.name for way in WAYS if way.algorithm),
        floor="ideal",
        notes=(
            f"{len(trace)} gradients, {sum(values for _, values in trace):,} values; forward and backward "
            f"pass take {1000 * computing:.3f} ms; racks: {parameters.racks}, spines: {parameters.spines}, "
            f"{parameters.depth} packets a queue; every sum was checked",
            "hosts and switches need no processor time; all wait equally long for answers",
        ),
    )


def _row(way: Way, one: Outcome, parameters: Parameters, gigabits: float, twin: str) -> Row:
    ideal = 1000 * parameters.ideal(way, round(gigabits * 1e9))
    ms = 1000 * one.times[0]
    return Row(
        way.name,
        {
            "ms": ms,
            "waited, ms": ms - 1000 * parameters.trace[-1][0],
            "ideal, ms": ideal,
            "sent again": one.counts["retransmissions"],
        },
        {"rate": f"{gigabits:g} Gbit/s"},
        twin,
        {} if way.algorithm else {"lanes in sums": one.counts["lanes"]},
        ideal,
    )


def replay(way: Way, trace: Sequence[tuple[float, int]], given: Parameters, rate: int) -> Outcome:
    """Return one step in virtual time; Weir's sums are checked."""
    fabric = Fabric(given.racks, given.spines, rate, depth=given.depth)
    with fabric.network(given.workers, 1) as network:
        hosts = [host.name for host in network.topology.hosts]
        if way.algorithm is None:
            return _sums(network, hosts, way, trace, fabric)
        tcp = replace(fabric.waits.tcp(), algorithm=way.algorithm, dscp=FRONT)
        return _rings(network, Ring(network, hosts, tcp), len(hosts), trace)


def _rings(network: Network, ring: Ring, members: int, trace: Sequence[tuple[float, int]]) -> Outcome:
    left = members * len(trace)

    def done() -> None:
        nonlocal left
        left -= 1

    def begin(values: int) -> None:
        for rank in range(members):
            ring.all_reduce(rank, _VALUE * values, done)

    for seconds, values in trace:
        network.clock.at(round(seconds * SECOND), begin, values)
    network.run(lambda: left == 0)
    again = sum(stream.sender.retransmissions for stream in ring.streams)
    return Outcome([network.clock.now / SECOND], counts={"retransmissions": again})


def _sums(
    network: Network, hosts: list[str], way: Way, trace: Sequence[tuple[float, int]], fabric: Fabric
) -> Outcome:
    job = network.admit(hosts, slots=MOST_SLOTS, **fabric.waits.sums())
    buckets = [sums(job, values, way.bits) for _, values in trace]
    begun: list[Done] = []
    for (seconds, _), bucket in zip(trace, buckets, strict=True):
        network.clock.at(round(seconds * SECOND), lambda own=bucket: begun.append(own.begin()))
    network.run(lambda: len(begun) == len(trace) and all(done() for done in begun))
    outcome = Outcome([network.clock.now / SECOND])
    for bucket in buckets:
        outcome.count(bucket.end())
    return outcome
