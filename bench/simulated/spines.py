# SPDX-License-Identifier: Apache-2.0
"""Steps of jobs whose sums cross racks, by how slots choose a spine.

All jobs sum a tensor at the same time, a worker in each rack. Slots are sprayed over all spines, or a job is
on one spine: one of its own, or one that is hashed from its name, as ordinary switches hash a flow. Beside
the times stands the share of the busiest spine. What real links do: ``weir.bench.collectives.spines``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import mean
from typing import Final, Literal

import numpy as np

from weir.bench.case import Run, parameter
from weir.bench.results import Column, Table, share
from weir.bench.simulated import fabric
from weir.bench.simulated.fabric import TIMES, Fabric, Outcome, hosts_of_job, outcomes
from weir.bench.simulated.transports import BLOCK, LANE, Sums
from weir.controller.qos import Qos, SprayName
from weir.simulator.clock import SECOND
from weir.simulator.network import Network

_WORKERS: Final = "WeirIngress.admission.workers"


@dataclass(frozen=True)
class Contender(fabric.Contender):
    """One way to choose spines."""

    spines: Literal["sprayed", "hashed", "own"] = "sprayed"


CONTENDERS: Final = (
    Contender("a hashed by job", spines="hashed"),
    Contender("b a spine for each job", "a", spines="own"),
    Contender("c sprayed by slot", "a", "least spine", spines="sprayed"),
)


@dataclass(frozen=True)
class Paths:
    """The network and its jobs."""

    racks: int = parameter(2, "racks", least=2, most=8)
    spines: int = parameter(2, "paths between two racks", least=2, most=8)
    jobs: int = parameter(2, "that sum at the same time", least=1, most=8)
    depth: int = parameter(128, "of a switch queue", unit="packets", least=16)
    slots: int = parameter(64, "of each job", least=1, most=128)
    kilobytes: int = parameter(512, "size of a tensor", unit="KiB", least=4)
    steps: int = parameter(3, "of every job, for each draw of names", least=1)

    @property
    def fabric(self) -> Fabric:
        """Racks, links and queues."""
        return Fabric(racks=self.racks, spines=self.spines, depth=self.depth)


Parameters = Paths


def run(parameters: Paths, run: Run) -> Iterator[Table]:
    """Simulate, with each way to choose spines."""
    (found,) = outcomes(simulate, [parameters], lambda _: CONTENDERS, run).values()
    yield Table(
        f"{parameters.jobs} jobs of {parameters.racks} workers over {parameters.spines} spines, "
        f"{parameters.kilobytes} KiB each",
        (*TIMES, Column("busiest spine", share, "of the packets that spines took part in")),
        tuple(fabric.rows(found, lambda _, one: {"busiest spine": mean(one.beside)})),
        notes=(
            f"{parameters.fabric.words}; {len(run.seeds)} draws of the jobs' names, {parameters.steps} steps "
            "each; a step ends when the slowest job has its sums, which were checked",
            "least spine: packets of the spine that took part in fewest, of all runs",
        ),
    )


def simulate(setting: Paths, contender: Contender, seed: int) -> Outcome:
    """Return one run in virtual time; every sum is checked."""
    found = Outcome()
    spray: SprayName = "hash" if contender.spines == "hashed" else "round_robin"
    with setting.fabric.network(setting.jobs, seed, Qos(spray=spray)) as network:
        jobs = [_job(network, setting, contender, number, seed) for number in range(setting.jobs)]
        for _ in range(setting.steps):
            begun = network.clock.now
            tests = [job.begin() for job in jobs]
            network.run(lambda: all(done() for done in tests), limit=60)  # noqa: B023 - runs before the next
            found.times.append((network.clock.now - begun) / SECOND)
            for job in jobs:
                job.end()
        taken = [summed(network, f"spine{number + 1}") for number in range(setting.spines)]
        found.beside.append(max(taken) / sum(taken))
        found.count({"least spine": min(taken)})
    return found


def _job(network: Network, setting: Paths, contender: Contender, number: int, seed: int) -> Sums:
    hosts = hosts_of_job(number, racks=setting.racks, jobs=setting.jobs)
    own = {f"spine{number % setting.spines + 1}"} if contender.spines == "own" else None
    name = f"{Random(f'{seed} name {number}').getrandbits(64):x}"
    job = network.admit(hosts, slots=setting.slots, name=name, spines=own)
    lanes = max(1, 1024 * setting.kilobytes // LANE // BLOCK) * BLOCK
    numbers = np.random.default_rng([seed, number])
    return Sums(job, [numbers.integers(1, 1 << 32, lanes, dtype=np.uint32) for _ in hosts])


def summed(network: Network, spine: str) -> int:
    """Return the contributions that a spine has taken in."""
    table = network.nodes[spine].switch.table(_WORKERS)
    return sum(table.count(entry.key).packets for entry in table.entries())
