# SPDX-License-Identifier: Apache-2.0
"""Training jobs on one fabric, each the others' load, and what of their gradients is lost.

Every job has workers in every rack, which all-reduce the gradient of a real model step by step. Where the
jobs' sums meet on the way to the spines queues grow, and switches trim what may be lost. Contenders differ in
what that is. Beside the completion time stands how much of the gradients' energy went missing with the lanes:
who drops small gradients loses less of it than their share.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from random import Random
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch

from weir.bench.case import Run, parameter
from weir.bench.gradients.replay import train
from weir.bench.results import Column, Table
from weir.bench.simulated import fabric
from weir.bench.simulated.fabric import (
    FRONT,
    TIMES,
    Fabric,
    Outcome,
    hosts_of_job,
    outcomes,
    per_cent,
    treated,
)
from weir.bench.simulated.transports import BLOCK, Done, Rings, Sums, Transport
from weir.host_agent.collectives import quantize
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.classes import LayerClasses, shared_magnitude_classes
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.transport.service_class import ServiceClass
from weir.simulator.clock import SECOND
from weir.simulator.network import Network
from weir.train.config import PRESETS, Model
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES, Treatment


@dataclass(frozen=True)
class Jobs(Fabric):
    """Jobs and gradients: the same for every contender.

    workers: of a job in each rack. steps: of each job, after a warm-up; pause: between them, at most. budget:
    share of a front layer's lanes that may go missing, less further back. Times in seconds.
    """

    depth: int = 32
    jobs: int = 4
    workers: int = 2
    model: Model = "cnn"
    steps: int = 5
    warmup: int = 1
    pause: float = 0.002
    budget: float = 0.1
    slots: int = 64

    def members(self, job: int) -> list[str]:
        """Return the hosts of a job."""
        return hosts_of_job(job, racks=self.racks, jobs=self.jobs, workers=self.workers)


@dataclass(frozen=True)
class Contender(fabric.Contender):
    """One way to sum the jobs' gradients. ``weir`` False: rings over DCTCP, in the class of Weir's packets.

    droppable: what may go missing within the budget: "anything" is trimmed alike, of "small" the smallest
    magnitudes of each tensor, which every worker's switch sees as such.
    """

    weir: bool = True
    droppable: Literal["nothing", "anything", "small"] = "nothing"


CONTENDERS: Final = (
    Contender("a rings over DCTCP", weir=False),
    Contender("b Weir, lossless", "a"),
    Contender("c b + trimming anything", "b", "trimmed", droppable="anything"),
    Contender("d b + trimming the smallest", "c", "trimmed", droppable="small"),
)


@dataclass(frozen=True)
class Parameters:
    """The fabrics, all combinations of what is listed, and the jobs."""

    depth: tuple[int, ...] = parameter((16, 32), "of a switch queue", unit="packets", least=1)
    jobs: tuple[int, ...] = parameter((4,), "jobs at a time", least=1, most=8)
    workers: int = parameter(2, "of each job in each rack", least=1, most=8)
    racks: int = parameter(4, "racks", least=1, most=8)
    spines: int = parameter(2, "spines", least=1, most=8)
    model: str = parameter("cnn", "whose gradient is summed", choices=PRESETS)
    steps: int = parameter(8, "of every job", least=1)
    budget: float = parameter(0.1, "share of the front layers' lanes that may go missing", least=0.01, most=1)


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Simulate all fabrics."""
    fabrics = [
        Jobs(**vars(parameters) | {"depth": depth, "jobs": count})
        for depth, count in product(parameters.depth, parameters.jobs)
    ]
    found = outcomes(simulate, fabrics, lambda _: CONTENDERS, run)
    first = fabrics[0]
    yield Table(
        f"Completion time of {first.model}'s gradient in jobs of {first.racks * first.workers} workers",
        (
            *TIMES,
            Column("lanes missing", per_cent),
            Column("energy lost", per_cent, "of all gradients' squares"),
            Column("of the share", lambda n: f"{n:.2f}", "energy over lanes: 1 where it is drawn by lot"),
            Column("time-outs", lambda n: f"{n:.1f}", "for each step"),
        ),
        tuple(
            row
            for jobs, one in found.items()
            for row in fabric.rows(
                one, _values, {"depth": f"{jobs.depth} packets", "jobs": f"{jobs.jobs} jobs"}
            )
        ),
        notes=(
            f"{first.words} (of the first row); one class for all. A budget of {first.budget:.0%} of the "
            "front "
            f"layers' lanes, less further back. {len(run.seeds)} x {first.steps} steps of every job, "
            "with random "
            f"pauses up to {1000 * first.pause:g} ms. trimmed: packets, of all steps",
        ),
    )


def _values(contender: Contender, one: Outcome) -> dict[str, float | None]:
    missing, lost = one.share("missing", "lanes"), one.share("lost", "energy")
    return {
        "lanes missing": missing if contender.weir else None,
        "energy lost": lost if contender.weir else None,
        "of the share": lost / missing if missing else None,
        "time-outs": one.each("timeouts"),
    }


def simulate(jobs: Jobs, contender: Contender, seed: int) -> Outcome:
    """Return one run in virtual time; Weir's sums are checked."""
    with jobs.network(jobs.jobs * jobs.workers, seed) as network:
        outcome, random = Outcome(), Random(f"{seed} pauses")
        transports = [_transport(network, jobs, contender, jobs.members(job)) for job in range(jobs.jobs)]
        left = dict.fromkeys(transports, jobs.warmup + jobs.steps)

        def begin(transport: Transport) -> None:
            pause = round(random.random() * jobs.pause * SECOND)
            under_way[transport] = network.clock.now + pause, transport.begin(pause)

        under_way: dict[Transport, tuple[int, Done]] = {}
        for transport in transports:
            begin(transport)
        while under_way:
            network.run(lambda: any(done() for _, done in under_way.values()), limit=60)
            for transport in [each for each, (_, done) in under_way.items() if done()]:
                left[transport] -= 1
                outcome.count(transport.end())
                begun, _ = under_way.pop(transport)
                if left[transport] < jobs.steps:
                    outcome.times.append((network.clock.now - begun) / SECOND)
                if left[transport]:
                    begin(transport)
        outcome.count({"trimmed": treated(network, Treatment.TRIMMED)})
        return outcome


def _transport(network: Network, jobs: Jobs, contender: Contender, hosts: list[str]) -> Transport:
    own = gradient(jobs.model, len(hosts), 1)
    if not contender.weir:
        tcp = replace(jobs.waits.tcp(), dscp=FRONT)
        return Rings(network, hosts, tcp, 4 * own.layout.length)
    job = network.admit(hosts, slots=jobs.slots, **jobs.waits.sums())
    services = [own.service(rank, contender, jobs.budget) for rank in range(len(hosts))]
    return Sums(job, own.lanes, [own.scales] * len(hosts), services, energy=own.energy)


@dataclass(frozen=True)
class Gradient:
    """Gradients of one step: of each worker its fixed-point lanes, and the energy of each of its blocks."""

    layout: BucketLayout
    layers: LayerClasses
    scales: npt.NDArray[np.uint32]
    vectors: tuple[torch.Tensor, ...]
    lanes: tuple[npt.NDArray[np.uint32], ...]
    energy: tuple[npt.NDArray[np.float64], ...]

    def service(self, rank: int, contender: Contender, budget: float) -> ServiceClass:
        """Return what of a worker's lanes may go missing."""
        if contender.droppable == "nothing":
            return ServiceClass()
        policy = LossPolicy.from_budget(budget)
        if contender.droppable == "anything":
            whole = ((1.0,) * MAGNITUDE_CLASSES,) * LAYER_CLASSES
            policy = LossPolicy(budgets=whole, tensor=policy.tensor)
            classes = np.zeros(self.layout.length // BLOCK, np.uint8)
        else:
            classes = shared_magnitude_classes(self.layout, self.scales, 0)
        occupied = np.asarray(self.lanes[rank].reshape(-1, BLOCK).any(axis=1))
        accounts = policy.accounts_for(self.layout, self.layers, classes, occupied)
        return ServiceClass(0, classes, accounts.of_block, accounts.budgets)


@cache
def gradient(model: Model, workers: int, seed: int) -> Gradient:
    """Return the first step's gradients of this many workers of a training run, each of its own samples."""
    training = train(model, workers, seed)
    named = training.named
    layout = BucketLayout.of(0, [name for name, _ in named], [one for _, one in named], BLOCK)
    flat, _ = next(training.steps)
    vectors = [layout.spread(torch.from_numpy(own), workers) for own in flat]
    scales = np.max([quantize.exponents(one.numpy(), BLOCK) for one in vectors], axis=0)
    lanes = [quantize.to_fixed(one.numpy(), scales, BLOCK, workers).view(np.uint32) for one in vectors]
    energy = [one.view(-1, BLOCK).double().square().sum(dim=1).numpy() for one in vectors]
    layers = LayerClasses.of(training.task.model)
    return Gradient(layout, layers, scales, tuple(vectors), tuple(lanes), tuple(energy))
