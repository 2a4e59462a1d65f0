# SPDX-License-Identifier: Apache-2.0
"""Racks of hosts below spines in virtual time, and what all cases on them have in common.

Real is everything but the clock, links and TCP: the switch program, the controller's entries, hosts' code.
A case has fabrics, contenders and seeds. A contender has a twin, the same without the mechanism that it is
there for, over which its gain is stated. What mechanisms did is counted: where one did nothing the command
fails, whatever the times are.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from types import MappingProxyType
from typing import Final, TypeVar

from softp4.runtime.queueing import Queueing
from weir.bench import grid
from weir.bench.case import Run
from weir.bench.results import Column, Row, Scalar
from weir.bench.simulated.waits import Waits
from weir.controller.qos import Qos
from weir.controller.tables import queueing
from weir.controller.topology import leaf_spine
from weir.simulator.clock import SECOND
from weir.simulator.link import Faults
from weir.simulator.network import LinkSpec, Network
from weir.wire.definition import Treatment, dscp

FRONT: Final = dscp(0)
"""Class of what is needed first."""


def hosts_of_job(job: int, *, racks: int, jobs: int, workers: int = 1) -> list[str]:
    """Return the hosts of a job. workers: of each job in a rack."""
    return [
        f"h{rack * jobs * workers + job * workers + one + 1}"
        for rack in range(racks)
        for one in range(workers)
    ]


@dataclass(frozen=True)
class Fabric:
    """Racks, and links that are all alike. rate: bit/s. depth: packets that a switch queue holds.

    least_wait: of every contender, see `Waits`, in seconds; None: as long as the round trip suggests.
    """

    racks: int = 4
    spines: int = 2
    rate: int = 1_000_000_000
    delay_ns: int = 1_000
    depth: int = 128
    least_wait: float | None = None

    @property
    def waits(self) -> Waits:
        """Waits of hosts for answers."""
        if self.least_wait is not None:
            return Waits(self.least_wait)
        return Waits.of(self.rate, self.delay_ns / SECOND)

    def network(self, hosts: int, seed: int, qos: Qos | None = None, *, priorities: bool = True) -> Network:
        """Return the network with this many hosts in each rack."""
        return Network(
            leaf_spine(self.racks, self.spines, hosts, target="soft", qos=qos or Qos()),
            seed=seed,
            link=LinkSpec(self.rate, Faults(delay=self.delay_ns)),
            queueing=Queueing(depth_packets=self.depth),
            host_priorities=priorities,
        )

    @property
    def words(self) -> str:
        """Spines, links and queues."""
        return (
            f"simulated: {self.racks} racks, {self.spines} spines, all links {self.rate / 1e9:g} Gbit/s and "
            f"{self.delay_ns / 1000:g} µs, {self.depth} packets a queue; least time-out and probe of all "
            f"{1000 * self.waits.least:g} ms"
        )


@dataclass(frozen=True)
class Contender:
    """One way to move tensors.

    Attributes:
        name: begins with a letter of its own.
        twin: letter of the contender that it is compared with.
        shows: the mechanism in which they differ, a count of outcomes; None: they differ in the transport.
    """

    name: str
    twin: str = ""
    shows: str | None = None


@dataclass
class Outcome:
    """One run, or several. times: of each tensor, in seconds. beside: another figure of each, by the case.
    counts: what hosts and switches counted, summed.
    """

    times: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)

    def add(self, other: "Outcome") -> None:
        """Add another seed's."""
        self.times += other.times
        self.beside += other.beside
        self.count(other.counts)

    def count(self, counted: Mapping[str, float]) -> None:
        """Add counts."""
        for name, value in counted.items():
            self.counts[name] = self.counts.get(name, 0) + value

    def each(self, name: str) -> float:
        """Return a count for each tensor."""
        return self.counts.get(name, 0) / len(self.times)

    def share(self, name: str, of: str) -> float:
        """Return a count over another; 0 of nothing."""
        return self.counts.get(name, 0) / self.counts[of] if self.counts.get(of) else 0.0

    @property
    def tail(self) -> float:
        """Return the 99th percentile of the times."""
        return percentile(self.times, 99)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile by nearest rank: the smallest value that this many per cent do not exceed."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def ms(seconds: float) -> str:
    """Return a time in milliseconds; at 100 Gbit/s they are tenths."""
    return f"{1000 * seconds:.{2 if seconds > 0.001 else 3}f}"


def per_cent(share: float) -> str:
    """Return a share in per cent, with two decimals."""
    return f"{share:.2%}"


def treated(network: Network, treatment: Treatment, queues: Sequence[int] = range(queueing.QUEUES)) -> int:
    """Return the packets that switches treated so, in these queues."""
    cells = [treatment * queueing.QUEUES + queue for queue in queues]
    switches = [node.switch for node in network.nodes.values()]
    counters = [switch.counter(name) for switch in switches for name in queueing.PER_HOP_BEHAVIOURS]
    return sum(counter.read(cell).packets for counter in counters for cell in cells)


_F = TypeVar("_F")
_C = TypeVar("_C", bound=Contender)


def outcomes(
    simulate: Callable[[_F, _C, int], Outcome],
    fabrics: Sequence[_F],
    contenders: Callable[[_F], Sequence[_C]],
    run: Run,
) -> dict[_F, dict[_C, Outcome]]:
    """Return the outcomes of all contenders on all fabrics, the seeds of each put together."""
    cases = [(fabric, one, seed) for seed in run.seeds for fabric in fabrics for one in contenders(fabric)]
    found: dict[_F, dict[_C, Outcome]] = {}
    done = grid.simulate(simulate, Outcome, cases, run, _said)
    for (fabric, contender, _), one in zip(cases, done, strict=True):
        found.setdefault(fabric, {}).setdefault(contender, Outcome()).add(one)
    return found


def _said(case: tuple[object, Contender, int], one: Outcome) -> str:
    """Return a line about a run that has ended."""
    _, contender, seed = case
    return f"{contender.name}, seed {seed}: mean {ms(mean(one.times))} ms, p99 {ms(one.tail)} ms"


TIMES: Final = (
    Column("p99, ms", ms, "by nearest rank, of all tensors of all seeds"),
    Column("mean, ms", ms),
    Column("median, ms", ms),
)


def rows(
    found: Mapping[_C, Outcome],
    values: Callable[[_C, Outcome], Mapping[str, float | None]],
    setting: Mapping[str, Scalar] = MappingProxyType({}),
    floor: Callable[[_C], float | None] = lambda _: None,
    calm: Callable[[_C], bool] = lambda _: False,
) -> Iterator[Row]:
    """Yield a row for each contender.

    values: further ones than ``TIMES``. floor: a contender's least time. calm: tells of contenders whose
    mechanism had nothing to do, and may have done nothing.
    """
    names = {contender.name[0]: contender.name for contender in found}
    for contender, one in found.items():
        acted = {} if contender.shows is None else {contender.shows: one.counts.get(contender.shows, 0)}
        times = (one.tail, mean(one.times), percentile(one.times, 50))
        yield Row(
            contender.name,
            {**dict(zip((column.name for column in TIMES), times, strict=True)), **values(contender, one)},
            setting,
            names.get(contender.twin, ""),
            {} if calm(contender) and not all(acted.values()) else acted,
            floor(contender),
        )
