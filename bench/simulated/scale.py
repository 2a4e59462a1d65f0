# SPDX-License-Identifier: Apache-2.0
"""One sum over ever more workers: one rack of up to 32, then racks below spines, then pods below cores.

The real switch program and host code. All links have the same rate and lose the same share of packets, and
all jobs sum the same vector, once or several times; every worker's sum is checked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from weir.bench.case import Run, parameter
from weir.bench.ranks import least_seconds
from weir.bench.results import Column, Row, Table
from weir.bench.simulated.fabric import Outcome
from weir.bench.simulated.transports import BLOCK, Sums
from weir.controller.topology import Topology, leaf_spine, leaf_spine_core
from weir.report.words import digits
from weir.simulator.clock import SECOND
from weir.simulator.link import Faults
from weir.simulator.network import LinkSpec, Network
from weir.wire.definition import MAX_CHILDREN, MAX_WORKERS

_POD: Final = 8  # racks in a pod
_WIDTH: Final = 2  # spines of a pod, and cores


@dataclass(frozen=True)
class Parameters:
    """The job and its links."""

    workers: tuple[int, ...] = parameter((32, 256, 1024), "sizes of the job", least=1, most=MAX_WORKERS)
    kilobytes: int = parameter(256, "size of the vector", unit="KiB", least=1)
    slots: int = parameter(64, "switch slots of the job", least=1, most=1024)
    gigabits: float = parameter(1.0, "rate of every link", unit="Gbit/s", least=0.001)
    delay: float = parameter(1.0, "of every link", unit="µs", least=0)
    loss: float = parameter(0.0, "share of packets that every link loses", least=0, most=0.5)
    sums: int = parameter(1, "how many sums, one after the other", least=1)


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Run a job of each size."""
    found = {}
    for count in parameters.workers:
        run.say(f"{count} workers ...")
        found[count] = simulate(count, parameters)
    first = found[parameters.workers[0]]
    yield Table(
        f"A sum of {parameters.kilobytes} KiB, in virtual time",
        (
            Column(
                "ms", lambda seconds: f"{1000 * seconds:.3f}", "until the last worker has it; of the sums"
            ),
            Column("over the first", lambda n: digits(n, 3), "of all sums together"),
            Column("tiers"),
            Column("KB up", lambda n: f"{n / 1000:.1f}", "of each worker's link, headers included"),
            Column("KB down", lambda n: f"{n / 1000:.1f}"),
        ),
        tuple(
            Row(
                f"{workers:,} workers",
                {
                    "ms": one.times,
                    "over the first": sum(one.times) / sum(first.times),
                    "tiers": network_for(workers)[1],
                    "KB up": one.counts["bytes_up"] / workers,
                    "KB down": one.counts["bytes_down"] / workers,
                },
                floor=least(workers, parameters),
            )
            for workers, one in found.items()
        ),
        floor="line",
        notes=(
            f"{parameters.slots} slots, all links {parameters.gigabits:g} Gbit/s and "
            f"{parameters.delay:g} µs, "
            f"losing {parameters.loss:.1%}",
        ),
    )


def network_for(workers: int) -> tuple[Topology, int]:
    """Return a network with a host for each of this many workers, in full racks, and its tiers."""
    racks = -(-workers // MAX_CHILDREN)
    if racks == 1:
        return leaf_spine(1, 1, workers), 1
    if racks <= _POD:
        return leaf_spine(racks, _WIDTH, MAX_CHILDREN), 2
    return leaf_spine_core(-(-racks // _POD), _POD, _WIDTH, _WIDTH, MAX_CHILDREN), 3


def least(workers: int, parameters: Parameters) -> float:
    """Return the seconds that the line and the way to the last switch and back allow."""
    _, tiers = network_for(workers)
    lanes = BLOCK * parameters.kilobytes
    line = least_seconds(lanes, workers, round(parameters.gigabits * 1e9), ring=False)
    return line + 2 * tiers * parameters.delay / 1e6


def simulate(workers: int, parameters: Parameters, seed: int = 1) -> Outcome:
    """Let this many workers sum a vector each. Raises AssertionError when one has not the sum of all."""
    topology, _ = network_for(workers)
    faults = Faults(delay=round(parameters.delay * 1000), loss=parameters.loss)
    link = LinkSpec(round(parameters.gigabits * 1e9), faults)
    with Network(topology, seed=seed, link=link) as network:
        job = network.admit([host.name for host in topology.hosts[:workers]], slots=parameters.slots)
        lanes = BLOCK * parameters.kilobytes
        sums = Sums(job, [np.arange(rank, rank + lanes, dtype=np.uint32) for rank in range(workers)])
        found = Outcome()
        for _ in range(parameters.sums):
            began = network.clock.now
            network.run(sums.begin())
            found.times.append((network.clock.now - began) / SECOND)
            found.count(sums.end())
        return found
