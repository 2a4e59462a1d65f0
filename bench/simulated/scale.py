# SPDX-License-Identifier: Apache-2.0
"""One sum over ever more workers, in virtual time.

The real switch program and host code in `simulator`: one rack of up to 32 workers, then racks of 32 below
spines, then pods of eight such racks below cores. All links have the same rate and lose the same share of
packets, and all jobs sum the same vector, once or several times.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Final

import numpy as np

from weir.bench.case import Run, parameter
from weir.bench.results import Column, Row, Table, Value, share
from weir.controller.topology import Topology, leaf_spine, leaf_spine_core
from weir.simulator.clock import SECOND
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.simulator.network import LinkSpec, Network
from weir.wire.definition import MAX_CHILDREN, MAX_WORKERS, Op

POD: Final = 8  # racks in a pod
WIDTH: Final = 2  # spines of a pod, and cores
BLOCK: Final = 256


@dataclass(frozen=True)
class Parameters:
    """The jobs and the links. The time is virtual, until the last worker has the sum."""

    workers: tuple[int, ...] = parameter(
        (32, 256, 1024), "Sizes of the job; all are compared with the first.", least=1, most=MAX_WORKERS
    )
    kilobytes: int = parameter(256, "Size of the vector.", unit="KiB", least=1)
    slots: int = parameter(64, "Switch slots of the job.", least=1, most=1024)
    gigabits: float = parameter(1.0, "Rate of every link.", unit="Gbit/s", least=0.001)
    delay: float = parameter(1.0, "Delay of every link.", unit="us", least=0)
    loss: float = parameter(0.0, "Share of packets that every link loses.", least=0, most=0.5)
    sums: int = parameter(1, "How many sums, one after the other.", least=1)


@dataclass(frozen=True)
class ScaleResult:
    """One job: seconds of virtual time until the last worker had each sum; bytes of the workers' links."""

    tiers: int
    each: tuple[float, ...]
    bytes_up: int
    bytes_down: int


def run(given: Parameters, run: Run) -> Iterator[Table]:
    """Run a job of each size, with every seed."""
    rows: list[Row] = []
    first = 0.0
    for workers in given.workers:
        run.say(f"{workers} workers ...")
        results = [simulate(workers, given, seed) for seed in run.seeds]
        milliseconds = [1e3 * seconds for one in results for seconds in one.each]
        first = first or mean(milliseconds)
        values: dict[str, Value] = {
            "ms": milliseconds,
            "x as long": mean(milliseconds) / first,
            "tiers": results[0].tiers,
            "KB up": [one.bytes_up / workers / 1000 for one in results],
            "KB down": [one.bytes_down / workers / 1000 for one in results],
        }
        rows.append(Row(f"{workers:,} workers", values))
    yield Table(
        f"A sum of {256 * given.kilobytes:,} lanes, {given.slots} slots, all links {given.gigabits:g} Gbit/s"
        f"{f' and losing {share(given.loss)}' if given.loss else ''}, in virtual time",
        (
            Column("ms", "{:.3f}".format, "until the last worker has the sum"),
            Column("x as long", "{:.3f}".format, f"as with {given.workers[0]} workers"),
            Column("tiers"),
            Column("KB up", "{:,.1f}".format, "of each worker"),
            Column("KB down", "{:,.1f}".format, "of each worker"),
        ),
        tuple(rows),
    )


def network_for(workers: int) -> tuple[Topology, int]:
    """Return a network with a host for each of so many workers, in full racks, and its tiers."""
    racks = -(-workers // MAX_CHILDREN)
    if racks == 1:
        return leaf_spine(1, 1, workers), 1
    if racks <= POD:
        return leaf_spine(racks, WIDTH, MAX_CHILDREN), 2
    return leaf_spine_core(-(-racks // POD), POD, WIDTH, WIDTH, MAX_CHILDREN), 3


def simulate(workers: int, given: Parameters, seed: int) -> ScaleResult:
    """Let so many workers sum a vector each, several times.

    Raises:
        AssertionError: a worker's sum is not the others'.
    """
    lanes = 256 * given.kilobytes
    faults = Faults(delay=round(1000 * given.delay), loss=given.loss)
    topology, tiers = network_for(workers)
    with Network(topology, seed=seed, link=LinkSpec(round(1e9 * given.gigabits), faults)) as network:
        job = network.admit([host.name for host in topology.hosts[:workers]], slots=given.slots)
        expected = workers * np.arange(lanes, dtype=np.uint64) + workers * (workers - 1) // 2
        ends = [0]
        for _ in range(given.sums):
            vectors = [np.arange(rank, rank + lanes, dtype=np.uint32) for rank in range(workers)]
            for worker, vector in zip(job.workers, vectors, strict=True):
                worker.submit(Work(Op.ADD, BLOCK, vector))
            network.run(lambda: job.idle)
            ends.append(network.clock.now)
            for vector in vectors:
                np.testing.assert_array_equal(vector, expected.astype(np.uint32))
        reports = [report for worker in job.workers for report in worker.reports]
        return ScaleResult(
            tiers,
            tuple((end - begin) / SECOND for begin, end in pairwise(ends)),
            sum(report.bytes_up for report in reports),
            sum(report.bytes_down for report in reports),
        )
