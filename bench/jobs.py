# SPDX-License-Identifier: Apache-2.0
"""``weir bench jobs``: several training jobs on one fabric, each the others' load, and what of them is lost.

In virtual time. Every job has workers in every rack, which all-reduce the gradient of a real model step by
step. Where the jobs' sums meet on the way to the spines queues grow, and switches trim what may be lost. Rows
differ in what that is. Beside the completion time stands how much of the gradients' energy went missing with
the lanes: who drops small gradients loses less of it than their share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from statistics import mean
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch

from softp4.runtime.queueing import Queueing
from weir.bench.grid import simulate
from weir.bench.table import show
from weir.bench.tail import percentile
from weir.bench.tail_cases import FRONT, TREATMENTS
from weir.controller.topology import leaf_spine
from weir.host_agent.collectives import quantize
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.classes import LayerClasses, magnitude_classes
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.transport.service_class import ServiceClass
from weir.report.words import factor
from weir.simulator.clock import SECOND
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.simulator.network import Allocation, LinkSpec, Network
from weir.simulator.ring import Ring
from weir.simulator.tcp import TcpConfig
from weir.train.config import Model, make_config
from weir.train.data import share
from weir.train.task import make_task, mean_loss
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES, Op, Treatment

BLOCK: Final = 256


@dataclass(frozen=True)
class Fabric:
    """Racks, jobs and gradients: the same for every row.

    workers: of a job in each rack. steps: of each job, after a warm-up; pause: between them, at most. budget:
    share of a front layer's lanes that may go missing, less further back. Times in seconds.
    """

    racks: int = 4
    jobs: int = 4
    workers: int = 2
    spines: int = 2
    rate: int = 1_000_000_000
    delay_ns: int = 1_000
    depth: int = 32
    model: Model = "cnn"
    steps: int = 5
    warmup: int = 1
    pause: float = 0.002
    min_rto: float = 0.01
    budget: float = 0.1
    slots: int = 64


Droppable = Literal["nothing", "anything", "small"]


@dataclass(frozen=True)
class Row:
    """One way to sum the jobs' gradients. ``weir`` False: rings over DCTCP, in the class of Weir's packets.

    droppable: what may go missing within the budget: "anything" is trimmed alike, of "small" the smallest
    magnitudes of each tensor, which every worker's switch sees as such.
    """

    name: str
    twin: str = ""
    weir: bool = True
    droppable: Droppable = "nothing"


ROWS: Final = (
    Row("a rings over DCTCP", weir=False),
    Row("b Weir, lossless", "a"),
    Row("c b + trimming anything", "b", droppable="anything"),
    Row("d b + trimming the smallest", "c", droppable="small"),
)


@dataclass
class Outcome:
    """times: of each step of each job, in seconds. lanes, energy: sent by workers; missing, lost: of those
    given back to them. trimmed: packets that switches trimmed.
    """

    times: list[float] = field(default_factory=list)
    lanes: int = 0
    missing: int = 0
    energy: float = 0.0
    lost: float = 0.0
    trimmed: int = 0
    timeouts: int = 0

    def add(self, other: "Outcome") -> None:
        """Add another seed's."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class Gradient:
    """Gradients of one step: of each worker its fixed-point lanes, and the energy of each of its blocks."""

    layout: BucketLayout
    layers: LayerClasses
    scales: npt.NDArray[np.uint32]
    vectors: tuple[torch.Tensor, ...]
    lanes: tuple[npt.NDArray[np.uint32], ...]
    energy: tuple[npt.NDArray[np.float64], ...]

    def service(self, rank: int, row: Row, budget: float) -> ServiceClass:
        """Return what of a worker's lanes may go missing."""
        if row.droppable == "nothing":
            return ServiceClass()
        policy = LossPolicy.from_budget(budget)
        if row.droppable == "anything":
            whole = ((1.0,) * MAGNITUDE_CLASSES,) * LAYER_CLASSES
            policy = LossPolicy(budgets=whole, tensor=policy.tensor)
            classes = np.zeros(self.layout.length // BLOCK, np.uint8)
        else:
            classes = magnitude_classes(self.layout, self.vectors[rank], self.scales)
        occupied = np.asarray(self.lanes[rank].reshape(-1, BLOCK).any(axis=1))
        accounts = policy.accounts_for(self.layout, self.layers, classes, occupied)
        return ServiceClass(0, classes, accounts.of_block, accounts.budgets)


@cache
def gradient(model: Model, workers: int, seed: int) -> Gradient:
    """Return the first step's gradients of so many workers of a training run, each of its own samples."""
    config = make_config(model=model, method="dense", workers=workers, epochs=1, seed=seed)
    task = make_task(config)
    parameters = {name: one for name, one in task.model.named_parameters() if one.requires_grad}
    layout = BucketLayout.of(0, list(parameters), list(parameters.values()), BLOCK)
    vectors = []
    for rank in range(workers):
        batch = share(len(task.data.train), rank, workers, config.batch_size, seed, epoch=1)[0]
        task.model.zero_grad()
        mean_loss(task.model(task.data.train.inputs[batch]), task.data.train.targets[batch]).backward()  # type: ignore[no-untyped-call]
        flat = torch.cat([one.grad.flatten() for one in parameters.values() if one.grad is not None])
        vectors.append(layout.spread(flat, workers))
    scales = np.max([quantize.exponents(one.numpy(), BLOCK) for one in vectors], axis=0)
    lanes = [quantize.to_fixed(one.numpy(), scales, BLOCK, workers).view(np.uint32) for one in vectors]
    energy = [one.view(-1, BLOCK).double().square().sum(dim=1).numpy() for one in vectors]
    return Gradient(layout, LayerClasses.of(task.model), scales, tuple(vectors), tuple(lanes), tuple(energy))


def run(fabric: Fabric, row: Row, seed: int) -> Outcome:
    """Return one run in virtual time; Weir's sums are checked."""
    hosts = fabric.jobs * fabric.workers
    with Network(
        leaf_spine(fabric.racks, fabric.spines, hosts, target="soft"),
        seed=seed,
        link=LinkSpec(fabric.rate, Faults(delay=fabric.delay_ns)),
        queueing=Queueing(depth_packets=fabric.depth),
    ) as network:
        outcome, random = Outcome(), Random(f"{seed} pauses")
        jobs = [
            (_Sums if row.weir else _Rings)(network, fabric, row, _members(fabric, number), outcome)
            for number in range(fabric.jobs)
        ]
        left = dict.fromkeys(jobs, fabric.warmup + fabric.steps)
        begun = {job: job.begin(random.random() * fabric.pause) for job in jobs}
        while begun:
            network.run(lambda: any(job.done() for job in begun), limit=60)
            for job in [job for job in begun if job.done()]:
                left[job] -= 1
                job.end()
                started = begun.pop(job)
                if left[job] < fabric.steps:
                    outcome.times.append((network.clock.now - started) / SECOND)
                if left[job]:
                    begun[job] = job.begin(random.random() * fabric.pause)
        cells = [Treatment.TRIMMED << 3 | queue for queue in range(8)]
        counters = [node.switch.counter(TREATMENTS) for node in network.nodes.values()]
        outcome.trimmed = sum(counter.read(cell).packets for counter in counters for cell in cells)
        return outcome


def _members(fabric: Fabric, job: int) -> list[str]:
    per_rack = fabric.jobs * fabric.workers
    return [
        f"h{rack * per_rack + job * fabric.workers + one + 1}"
        for rack in range(fabric.racks)
        for one in range(fabric.workers)
    ]


class _Sums:
    """A job over Weir: scales (MAX), then lanes (ADD), as `collectives.float_sum` has it."""

    def __init__(
        self, network: Network, fabric: Fabric, row: Row, hosts: list[str], outcome: Outcome
    ) -> None:
        self._clock, self._row, self._outcome = network.clock, row, outcome
        self._gradient = gradient(fabric.model, len(hosts), 1)
        self._job: Allocation = network.admit(
            hosts, slots=fabric.slots, initial_rto=2 * fabric.min_rto, min_rto=fabric.min_rto
        )
        self._services = [self._gradient.service(rank, row, fabric.budget) for rank in range(len(hosts))]
        self._lanes: list[npt.NDArray[np.uint32]] = []

    def begin(self, pause: float) -> int:
        """Begin a step after a pause (seconds), and return when that is."""
        wait = round(pause * SECOND)
        self._lanes = [lanes.copy() for lanes in self._gradient.lanes]
        for worker, lanes, service in zip(self._job.workers, self._lanes, self._services, strict=True):
            worker.submit(Work(Op.MAX, 32, self._gradient.scales.copy(), wait, ServiceClass()))
            worker.submit(Work(Op.ADD, BLOCK, lanes, service=service))
        return self._clock.now + wait

    def done(self) -> bool:
        """Return whether every worker has the sum."""
        return self._job.idle

    def end(self) -> None:
        """Check the sum, and count what is missing in it."""
        expected = np.sum(self._gradient.lanes, axis=0, dtype=np.uint32)
        for rank, worker in enumerate(self._job.workers):
            for report in worker.reports:
                self._outcome.timeouts += report.timeouts
                if report.op is not Op.ADD:
                    continue
                assert (report.missing <= report.budgets).all()
                back = report.given_back
                expected.reshape(-1, BLOCK)[back.blocks] -= back.lanes
                self._outcome.lanes += report.entered.lanes
                self._outcome.missing += report.returned.lanes
                self._outcome.energy += float(self._gradient.energy[rank].sum())
                self._outcome.lost += float(self._gradient.energy[rank][back.blocks].sum())
            worker.reports.clear()
        if any(not np.array_equal(lanes, expected) for lanes in self._lanes):
            raise AssertionError("a sum is not that of what was not given back")


class _Rings:
    """A job over a ring of DCTCP streams."""

    def __init__(
        self, network: Network, fabric: Fabric, _row: Row, hosts: list[str], outcome: Outcome
    ) -> None:
        self._clock, self._outcome = network.clock, outcome
        self._ring = Ring(network, hosts, TcpConfig(min_rto=round(fabric.min_rto * SECOND), dscp=FRONT))
        self._bytes = 4 * gradient(fabric.model, len(hosts), 1).layout.length
        self._size, self._left, self._timeouts = len(hosts), 0, 0

    def begin(self, pause: float) -> int:
        """Begin a step after a pause (seconds), and return when that is."""
        wait, self._left = round(pause * SECOND), self._size
        self._clock.after(wait, self._begin)
        return self._clock.now + wait

    def _begin(self) -> None:
        for rank in range(self._size):
            self._ring.reduce(rank, self._bytes, self._one)

    def _one(self) -> None:
        self._left -= 1

    def done(self) -> bool:
        """Return whether every worker has the sum."""
        return not self._left

    def end(self) -> None:
        """Count time-outs."""
        timeouts = sum(stream.sender.timeouts for stream in self._ring.streams)
        self._outcome.timeouts += timeouts - self._timeouts
        self._timeouts = timeouts


def measure(
    fabrics: Sequence[Fabric],
    seeds: int,
    rows: Sequence[Row] = ROWS,
    processes: int | None = None,
    journal: Path | None = None,
) -> list[str]:
    """Run all and print a table for each fabric. Return which rows' mechanisms did nothing, in words."""
    cases = [(fabric, row, seed) for fabric in fabrics for row in rows for seed in range(1, seeds + 1)]
    totals: dict[tuple[Fabric, Row], Outcome] = {}
    for (fabric, row, _), one in zip(cases, simulate(run, Outcome, cases, processes, journal), strict=True):
        totals.setdefault((fabric, row), Outcome()).add(one)
    for fabric in fabrics:
        _print(fabric, seeds, {row: totals[fabric, row] for row in rows})
    return [
        f"{row.name!r} with queues of {fabric.depth}: nothing was trimmed"
        for (fabric, row), one in totals.items()
        if row.droppable != "nothing" and not one.trimmed
    ]


def _print(fabric: Fabric, seeds: int, outcomes: dict[Row, Outcome]) -> None:
    tails = {row.name[0]: percentile(one.times, 99) for row, one in outcomes.items()}
    show(
        f"{fabric.jobs} jobs of {fabric.racks * fabric.workers} workers, {fabric.model}, queues of "
        f"{fabric.depth} packets: completion time of a gradient",
        (
            "ms",
            "mean",
            "p99",
            "p99 / twin",
            "trimmed",
            "lanes missing",
            "energy lost",
            "of the share",
            "RTOs",
        ),
        [
            (
                row.name,
                f"{1000 * mean(one.times):.2f}",
                f"{1000 * tails[row.name[0]]:.2f}",
                f"{factor(tails[row.name[0]] / tails[row.twin])} of {row.twin}" if row.twin in tails else "-",
                f"{one.trimmed / len(one.times):.0f}",
                f"{one.missing / one.lanes:.2%}" if one.lanes else "-",
                f"{one.lost / one.energy:.2%}" if one.energy else "-",
                f"{one.lost / one.energy / (one.missing / one.lanes):.2f}" if one.missing else "-",
                f"{one.timeouts / len(one.times):.1f}",
            )
            for row, one in outcomes.items()
        ],
        [
            f"simulated: {fabric.racks} racks, each with {fabric.workers} workers of each of {fabric.jobs} "
            f"jobs; {fabric.spines} spines, all links {fabric.rate / 1e9:g} Gbit/s, one class for all. A "
            f"budget of {fabric.budget:.0%} of the front layers' lanes, less further back.",
            f"{seeds} x {fabric.steps} steps of every job, with random pauses up to "
            f"{1000 * fabric.pause:g} ms; p99 by nearest rank. trimmed, RTOs: packets and time-outs for each "
            "step. missing: of all lanes; energy lost: of all gradients' squares; energy / missing is 1 "
            "where what is lost is drawn by lot.",
        ],
    )
