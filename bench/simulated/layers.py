# SPDX-License-Identifier: Apache-2.0
"""Steps of training jobs that share one spine, by the order in which the buckets of a step are summed.

A job computes, layer by layer: the backward pass issues buckets from the back to the front, and the next
forward pass needs them from the front to the back. It waits where a bucket is not summed yet. Contenders
differ in how many buckets of a job are on their way at once, in their order, and in their classes. All have
as many slots, send the same lanes and must arrive at the same sums. As buckets are issued, the front one is
the last, so that the forward pass waits for all sums, as under DDP.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from random import Random
from statistics import mean
from typing import Final

import numpy as np

from weir.bench.case import Run, parameter
from weir.bench.results import Column, Table
from weir.bench.simulated import fabric
from weir.bench.simulated.fabric import TIMES, Fabric, Outcome, hosts_of_job, outcomes
from weir.bench.simulated.transports import BLOCK, LANE, Lanes
from weir.host_agent.transport.service_class import ServiceClass
from weir.simulator.clock import SECOND
from weir.simulator.host import Host, Work
from weir.simulator.network import Network
from weir.wire.definition import LAYER_CLASSES, Op

_COUNTED: Final = ("bytes_up", "bytes_down", "retransmissions", "probes")
_FORWARD: Final = 1 / 3
"""Share of the forward pass in the time of both: a backward pass computes twice as much."""


@dataclass(frozen=True)
class Contender(fabric.Contender):
    """One way to sum a step's buckets.

    at_once: groups of slots, each for a run of layers, whose buckets are summed beside the others'. front:
    the bucket in front goes first in a group, piece by piece; otherwise they go in the order in which they
    are issued. classes: packets travel in the class of their layer; otherwise all in one.
    """

    at_once: int = 1
    front: bool = False
    classes: bool = False


CONTENDERS: Final = (
    Contender("a as they are issued"),
    Contender("b a + front pieces first", "a", front=True),
    Contender("c b + classes", "b", "overtook", front=True, classes=True),
    Contender("d b + four at once", "b", at_once=LAYER_CLASSES, front=True),
    Contender("e d + classes", "d", "overtook", at_once=LAYER_CLASSES, front=True, classes=True),
)


@dataclass(frozen=True)
class Parameters:
    """The jobs and their network."""

    jobs: int = parameter(2, "at a time", least=1, most=4)
    workers: int = parameter(2, "of each job in each rack", least=1, most=8)
    racks: int = parameter(2, "racks", least=2, most=8)
    spines: int = parameter(1, "spines", least=1, most=8)
    depth: int = parameter(128, "of a switch queue", unit="packets", least=16)
    slots: int = parameter(256, "of each job", least=LAYER_CLASSES)
    buckets: int = parameter(8, "of a step", least=1)
    kilobytes: int = parameter(256, "of all buckets", unit="KiB", least=1)
    compute: tuple[float, ...] = parameter(
        (0.5, 0.75, 1.0, 1.25),
        "time of both passes, over the least time of all jobs' packets on the spine's links",
        above=0,
    )
    piece: int = parameter(16, "that is summed at a time, where the front goes first", unit="KiB", least=1)
    steps: int = parameter(8, "of every job, after a first one", least=1)


@dataclass(frozen=True)
class Layers(Fabric):
    """Jobs on a fabric, the same for every contender. ratio: of compute; see ``Parameters``."""

    depth: int = 128
    jobs: int = 2
    workers: int = 2
    slots: int = 256
    buckets: int = 8
    kilobytes: int = 256
    ratio: float = 1.0
    piece: int = 16
    steps: int = 8

    def members(self, job: int) -> list[str]:
        """Return the hosts of a job."""
        return hosts_of_job(job, racks=self.racks, jobs=self.jobs, workers=self.workers)

    @property
    def lanes(self) -> int:
        """Lanes of a bucket: whole blocks."""
        return max(1, 1024 * self.kilobytes // LANE // BLOCK // self.buckets) * BLOCK

    @property
    def compute(self) -> float:
        """Seconds of both passes of a step."""
        bits = 8 * LANE * self.lanes * self.buckets * self.jobs / self.spines
        return self.ratio * bits / self.rate


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Simulate, with each way to sum a step's buckets."""
    given = {name: value for name, value in vars(parameters).items() if name != "compute"}
    fabrics = [Layers(**given, ratio=ratio) for ratio in parameters.compute]
    found = outcomes(simulate, fabrics, lambda _: CONTENDERS, run)
    first = fabrics[0]
    yield Table(
        f"A step of {first.jobs} jobs of {first.racks * first.workers} workers, spines: {first.spines}, "
        f"{first.kilobytes} KiB in {first.buckets} buckets",
        (
            TIMES[1],
            *(Column(f"job {job + 1}, ms", fabric.ms, "mean") for job in range(first.jobs)),
            TIMES[0],
            Column("waited, ms", fabric.ms, "mean time of a step in which a worker did not compute"),
            Column("MB", lambda n: f"{n:.2f}", "that a worker sent and received in a step"),
            Column("sent again", lambda n: f"{n:.1f}", "packets of a worker in a step"),
        ),
        tuple(
            row
            for layers, one in found.items()
            for row in fabric.rows(
                one,
                partial(_values, layers),
                {"compute": f"compute {layers.ratio:g}x"},
                floor=partial(_floor, layers),
            )
        ),
        peers=(CONTENDERS[0].name,),
        floor="computing",
        notes=(
            f"{first.words}; {first.slots} slots for each job; {len(run.seeds)} x {first.steps} steps "
            "of every job; all workers' sums were checked",
            "compute: time of both passes, over the least time of all jobs' lanes on the spine's links; "
            "computing: that time over the step's. overtook: packets that left a switch before one of a "
            "lower class that had come earlier, in all runs",
        ),
    )


def _floor(layers: Layers, _: Contender) -> float:
    return layers.compute


def _values(layers: Layers, _: Contender, one: Outcome) -> dict[str, float | None]:
    steps = len(one.times)
    return {
        **{
            f"job {job + 1}, ms": one.counts[f"job {job}"] * layers.jobs / steps for job in range(layers.jobs)
        },
        "waited, ms": mean(one.times) - layers.compute,
        "MB": (one.each("bytes_up") + one.each("bytes_down")) / 1e6,
        "sent again": one.each("retransmissions"),
    }


def simulate(layers: Layers, contender: Contender, seed: int) -> Outcome:
    """Return one run in virtual time; every sum is checked."""
    with layers.network(layers.jobs * layers.workers, seed) as network:
        jobs = [TrainingJob(network, layers, contender, number, seed) for number in range(layers.jobs)]
        network.run(lambda: all(job.left == 0 for job in jobs), limit=600)
        outcome = Outcome()
        for number, job in enumerate(jobs):
            job.check()
            outcome.times += job.times
            outcome.count({f"job {number}": sum(job.times)})
            counted = layers.steps / (layers.steps + 1)  # without the first step
            outcome.count({name: counted * job.count(name) for name in _COUNTED})
        outcome.count({"overtook": overtaking(network)})
        return outcome


def overtaking(network: Network) -> int:
    """Return the packets that left a switch before one of a lower class that had come earlier."""
    return sum(
        queue.overtaking_packets
        for name, node in network.nodes.items()
        for port in _ports(network, name)
        for queue in node.switch.queues(port).statistics()
    )


def _ports(network: Network, switch: str) -> list[int]:
    topology = network.topology
    hosts = [host.port for host in topology.hosts if host.switch == switch]
    return hosts + [end.port for link in topology.links for end in link.ends if end.switch == switch]


class _Bucket:
    """A bucket of a step on all workers of a job.

    Attributes:
        number: 0 is in front.
        lanes: of each worker, summed in place.
        issued: how many workers have.
        begun: lanes whose reduction is in the order already.
        done: of each worker, lanes that are summed.
    """

    def __init__(self, number: int, lanes: list[Lanes]) -> None:
        self.number, self.lanes = number, lanes
        self.issued = self.begun = 0
        self.done = [0] * len(lanes)

    @property
    def size(self) -> int:
        """Number of lanes."""
        return self.lanes[0].size


class _Group:
    """A group of a job's slots, and the order of its reductions, on which all workers agree."""

    def __init__(self, hosts: Sequence[Host], layers: Layers, contender: Contender) -> None:
        self._hosts, self._front, self._classes = hosts, contender.front, contender.classes
        self._buckets_in_class = -(-layers.buckets // LAYER_CLASSES)
        self._piece = 1024 * layers.piece // LANE // BLOCK * BLOCK if contender.front else layers.lanes
        self._issued: list[_Bucket] = []
        self._order: list[tuple[_Bucket, int]] = []  # bucket and first lane of every reduction so far
        self._finished = [0] * len(hosts)  # reductions of each worker
        self.on_done: Callable[[int], None] = lambda _: None
        for rank, host in enumerate(hosts):
            host.react = partial(self._done, rank)

    def issue(self, bucket: _Bucket) -> None:
        """Sum a bucket, when all workers have issued it."""
        bucket.issued += 1
        if bucket.issued == len(self._hosts):
            self._issued.append(bucket)
            for rank in range(len(self._hosts)):
                self._go_on(rank)

    def _choose(self) -> bool:
        """Decide on the next reduction of all workers; return whether there is one."""
        self._issued = [bucket for bucket in self._issued if bucket.begun < bucket.size]
        if self._issued:
            first = self._issued[0]
            chosen = min(self._issued, key=lambda bucket: bucket.number) if self._front else first
            self._order.append((chosen, chosen.begun))
            chosen.begun = min(chosen.begun + self._piece, chosen.size)
        return bool(self._issued)

    def _go_on(self, rank: int) -> None:
        host, finished = self._hosts[rank], self._finished[rank]
        if host.idle and (finished < len(self._order) or self._choose()):
            bucket, first = self._order[finished]
            layer = bucket.number // self._buckets_in_class if self._classes else 0
            part = bucket.lanes[rank][first : first + self._piece]
            host.submit(Work(Op.ADD, BLOCK, part, service=ServiceClass(layer=layer)))

    def _done(self, rank: int) -> None:
        bucket, first = self._order[self._finished[rank]]
        self._finished[rank] += 1
        bucket.done[rank] += min(self._piece, bucket.size - first)
        self._go_on(rank)
        self.on_done(rank)


class TrainingJob:
    """A job that computes and sums, step after step. The first begins at a random time, and does not count.

    Attributes:
        times: of the steps of all workers, in seconds.
        left: workers that have steps to take.
    """

    def __init__(
        self, network: Network, layers: Layers, contender: Contender, number: int, seed: int
    ) -> None:
        self._clock, self._layers = network.clock, layers
        names = layers.members(number)
        allocations = [
            network.admit(names, slots=layers.slots // contender.at_once) for _ in range(contender.at_once)
        ]
        self._hosts = [host for allocation in allocations for host in allocation.workers]
        self._groups = [_Group(allocation.workers, layers, contender) for allocation in allocations]
        for group in self._groups:
            group.on_done = self._go_on
        numbers = np.random.default_rng([seed, number])
        shape = (layers.buckets, layers.lanes)
        self._values = [numbers.integers(1, 1 << 32, shape, dtype=np.uint32) for _ in names]
        self._sums: Lanes = np.sum(self._values, axis=0, dtype=np.uint32)
        self._steps: list[list[_Bucket]] = []
        self._waiting: dict[int, int] = {}  # by worker: the bucket that its forward pass waits for
        self._taken = [-1] * len(names)  # steps of each worker that count
        self._begun = [0] * len(names)
        self.times: list[float] = []
        self.left = len(names)
        self._pass = round(layers.compute / layers.buckets * SECOND)  # of one bucket, both ways
        start = round(Random(f"{seed} job {number}").random() * layers.compute * SECOND)
        for rank in range(len(names)):
            self._clock.after(start, self._begin, rank)

    def count(self, name: str) -> float:
        """Return a count of all workers' reports."""
        return float(sum(getattr(report, name) for host in self._hosts for report in host.reports))

    def check(self) -> None:
        """Raise AssertionError unless all workers have the same sums, and the right ones."""
        for bucket in chain.from_iterable(self._steps):
            if any(not np.array_equal(own, self._sums[bucket.number]) for own in bucket.lanes):
                raise AssertionError(f"bucket {bucket.number}: a sum is wrong")

    def _step(self, rank: int) -> list[_Bucket]:
        """Return the buckets of a worker's step."""
        step = self._taken[rank] + 1
        if step == len(self._steps):
            self._steps.append(
                [
                    _Bucket(number, [own[number].copy() for own in self._values])
                    for number in range(self._layers.buckets)
                ]
            )
        return self._steps[step]

    def _begin(self, rank: int) -> None:
        """Begin a step: its backward pass."""
        buckets = self._step(rank)
        self._begun[rank] = self._clock.now
        backward = round(self._pass * (1 - _FORWARD))
        for place, bucket in enumerate(reversed(buckets)):
            group = self._groups[bucket.number * len(self._groups) // len(buckets)]
            self._clock.after((place + 1) * backward, group.issue, bucket)
        self._clock.after(len(buckets) * backward, self._forward, rank, 0)

    def _forward(self, rank: int, number: int) -> None:
        """Go on with the forward pass, from this bucket on."""
        if number == self._layers.buckets:
            self._end(rank)
        elif self._step(rank)[number].done[rank] == self._layers.lanes:
            self._waiting.pop(rank, None)
            self._clock.after(round(self._pass * _FORWARD), self._forward, rank, number + 1)
        else:
            self._waiting[rank] = number

    def _go_on(self, rank: int) -> None:
        if rank in self._waiting:
            self._forward(rank, self._waiting[rank])

    def _end(self, rank: int) -> None:
        """End a step."""
        if self._taken[rank] >= 0:
            self.times.append((self._clock.now - self._begun[rank]) / SECOND)
        self._taken[rank] += 1
        if self._taken[rank] < self._layers.steps:
            self._begin(rank)
        else:
            self.left -= 1
