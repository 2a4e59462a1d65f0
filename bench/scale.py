# SPDX-License-Identifier: Apache-2.0
"""``weir bench scale``: one sum over ever more workers, in virtual time.

The real switch program and host code in `simulator`: one rack of up to 32 workers, then racks of 32 below
spines, then pods of eight such racks below cores. All links have the same rate and lose the same share of
packets, and all jobs sum the same vector, once or several times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from rich.console import Console

from weir.bench.table import show
from weir.controller.topology import Topology, leaf_spine, leaf_spine_core
from weir.report.words import digits
from weir.simulator.clock import SECOND
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.simulator.network import LinkSpec, Network
from weir.wire.definition import MAX_CHILDREN, Op

console = Console(stderr=True)

POD = 8  # racks in a pod
WIDTH = 2  # spines of a pod, and cores
BLOCK = 256


@dataclass(frozen=True)
class ScaleResult:
    """One job: seconds of virtual time until the last worker had each sum; bytes of the workers' links."""

    workers: int
    tiers: int
    each: tuple[float, ...]
    bytes_up: int
    bytes_down: int

    @property
    def seconds(self) -> float:
        """Return how long all sums took together."""
        return sum(self.each)


def measure(
    workers: Sequence[int],
    lanes: int,
    slots: int,
    rate_bps: int,
    delay_ns: int,
    loss: float = 0.0,
    sums: int = 1,
) -> None:
    """Run a job of each size and print a table."""
    results = []
    for count in workers:
        with console.status(f"{count} workers"):
            results.append(simulate(count, lanes, slots, rate_bps, delay_ns, loss, sums))
    first = results[0]
    what = "One sum" if sums == 1 else f"{sums} sums, one after the other, each"
    lossy = f" and losing {loss:.1%}" if loss else ""
    show(
        f"{what} of {lanes:,} lanes, {slots} slots, "
        f"all links {rate_bps / 1e9:g} Gbit/s{lossy}, in virtual time",
        ("workers", "tiers", "ms", f"x {first.workers} workers", "KB up, each", "KB down, each"),
        [
            (
                f"{one.workers:,}",
                str(one.tiers),
                " ".join(f"{1000 * seconds:.3f}" for seconds in one.each),
                digits(one.seconds / first.seconds, 3),
                f"{one.bytes_up / one.workers / 1000:.1f}",
                f"{one.bytes_down / one.workers / 1000:.1f}",
            )
            for one in results
        ],
    )


def network_for(workers: int) -> tuple[Topology, int]:
    """Return a network with a host for each of so many workers, in full racks, and its tiers."""
    racks = -(-workers // MAX_CHILDREN)
    if racks == 1:
        return leaf_spine(1, 1, workers), 1
    if racks <= POD:
        return leaf_spine(racks, WIDTH, MAX_CHILDREN), 2
    return leaf_spine_core(-(-racks // POD), POD, WIDTH, WIDTH, MAX_CHILDREN), 3


def simulate(
    workers: int,
    lanes: int,
    slots: int,
    rate_bps: int,
    delay_ns: int,
    loss: float = 0.0,
    sums: int = 1,
    seed: int = 1,
) -> ScaleResult:
    """Let so many workers sum a vector each, ``sums`` times, over links that lose a share ``loss``.

    Raises:
        AssertionError: a worker's sum is not the others'.
    """
    topology, tiers = network_for(workers)
    with Network(topology, seed=seed, link=LinkSpec(rate_bps, Faults(delay=delay_ns, loss=loss))) as network:
        job = network.admit([host.name for host in topology.hosts[:workers]], slots=slots)
        expected = workers * np.arange(lanes, dtype=np.uint64) + workers * (workers - 1) // 2
        ends = [0]
        for _ in range(sums):
            vectors = [np.arange(rank, rank + lanes, dtype=np.uint32) for rank in range(workers)]
            for worker, vector in zip(job.workers, vectors, strict=True):
                worker.submit(Work(Op.ADD, BLOCK, vector))
            network.run(lambda: job.idle)
            ends.append(network.clock.now)
            for vector in vectors:
                np.testing.assert_array_equal(vector, expected.astype(np.uint32))
        reports = [report for worker in job.workers for report in worker.reports]
        return ScaleResult(
            workers,
            tiers,
            tuple((end - begin) / SECOND for begin, end in pairwise(ends)),
            sum(report.bytes_up for report in reports),
            sum(report.bytes_down for report in reports),
        )
