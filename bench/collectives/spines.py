# SPDX-License-Identifier: Apache-2.0
"""Steps of two jobs whose sums cross racks, over real links, by how slots choose a spine.

Four hosts in network namespaces below two leaves and two spines; each job has a worker in each rack, and
both all-reduce at the same time. Slots are sprayed over both spines, or a job is hashed to one
(``spray: hash``). Hashed jobs are made several times, with other names: some share a spine, others have one
each. In virtual time: ``weir.bench.simulated.spines``.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
import torch.distributed as dist

import weir.torch
from softp4.runtime.queueing import parse_rate
from weir.agent_service.client import AgentClient
from weir.bench.case import Run, UnavailableError, parameter
from weir.bench.rank import Place
from weir.bench.ranks import Links, check_rates, run_ranks
from weir.bench.results import Column, Row, Table, share
from weir.controller.qos import SprayName
from weir.netns.cluster import NetworkCluster, network_cluster
from weir.netns.namespace import gain_root
from weir.network import NetworkSpec, parse_shape
from weir.train.watch import NetworkCounts, read_counts

_JOBS: Final = 2
_WORKERS: Final = 4  # rank r is of job r % _JOBS; the first half is in the first rack
_APART: Final = 0.75  # of the packets, on the busiest spine: fewer, and each job has a spine


@dataclass(frozen=True)
class Parameters:
    """The jobs and links."""

    rate: str = parameter("20mbit", "of all links")
    kilobytes: int = parameter(512, "size of a tensor", unit="KiB", least=4)
    draws: int = parameter(6, "pairs of jobs, each with names of its own", least=1)
    steps: int = parameter(8, "of each pair, after one that warms up", least=1)
    slots: int = parameter(64, "of a job", least=1)

    def __post_init__(self) -> None:
        check_rates([self.rate])


@dataclass(frozen=True)
class Draw:
    """A pair of jobs. seconds: of each step, on one rank. spines: bytes of each, in all steps."""

    seconds: list[float]
    spines: dict[str, int]

    @property
    def busiest(self) -> float:
        """Share of the busiest spine."""
        return max(self.spines.values()) / sum(self.spines.values())


def run(given: Parameters, run: Run) -> Iterator[Table]:
    """Measure sprayed and hashed jobs."""
    if (reason := gain_root()) is not None:
        raise UnavailableError(f"links between network namespaces: {reason}")
    found: dict[str, list[Draw]] = {}
    ways: tuple[tuple[str, SprayName], ...] = (("hashed by job", "hash"), ("sprayed by slot", "round_robin"))
    for name, spray in ways:
        run.say(f"{name} ...")
        spec = NetworkSpec(
            parse_shape("leaf-spine-2x2"), rate_bps=parse_rate(given.rate), qos={"spray": spray}
        )
        with network_cluster(_WORKERS, network=spec) as cluster:
            found[name] = drawn(run_ranks(measure, given, _links(cluster, given.rate)))
    hashed = found["hashed by job"]
    found["hashed, each on a spine of its own"] = [one for one in hashed if one.busiest < _APART]
    found["hashed, both on one spine"] = [one for one in hashed if one.busiest >= _APART]
    yield Table(
        f"{_JOBS} jobs, a worker in each of 2 racks, 2 spines, links of {given.rate}, {given.kilobytes} KiB",
        (
            Column("p99, ms", note="by nearest rank"),
            Column("p50, ms"),
            Column("busiest spine", share, "of the bytes that spines took part in, mean of the draws"),
            *(Column(f"spine{number}, MB") for number in (1, 2)),
            Column("steps"),
        ),
        tuple(_row(name, draws) for name, draws in found.items() if draws),
        peers=("hashed by job",),
        notes=(
            "a step is over when both jobs have their sums, which were checked; p99 and p50 of all steps of "
            "all draws",
            "hashed, ...: the draws in which both jobs had one spine, or one each, by the spines' counters",
        ),
    )


def _row(name: str, draws: Sequence[Draw]) -> Row:
    seconds = sorted(1000 * each for draw in draws for each in draw.seconds)
    megabytes = {
        spine: sum(draw.spines[spine] for draw in draws) / 1e6 for draw in draws[:1] for spine in draw.spines
    }
    return Row(
        name,
        {
            "p99, ms": seconds[-(len(seconds) // 100) - 1],
            "p50, ms": seconds[(len(seconds) - 1) // 2],
            "busiest spine": sum(draw.busiest for draw in draws) / len(draws),
            **{f"{spine}, MB": count for spine, count in megabytes.items()},
            "steps": len(seconds),
        },
        counts={"MB of the least spine": min(megabytes.values())} if name.startswith("sprayed") else {},
    )


def drawn(ranks: Sequence[list[Draw]]) -> list[Draw]:
    """Return the draws with the slowest rank's time of each step."""
    return [
        Draw([max(times) for times in zip(*(one.seconds for one in same), strict=True)], same[0].spines)
        for same in zip(*ranks, strict=True)
    ]


def _links(cluster: NetworkCluster, rate: str) -> Links:
    def start(rank: int) -> tuple[list[str], dict[str, str]]:
        return cluster.lab.at_worker(rank), cluster.environment(rank)

    return Links(rate, _WORKERS, parse_rate(rate), start, tuple(cluster.switch_pids()))


def measure(place: Place, given: Parameters) -> list[Draw]:
    """Time the steps of all pairs of jobs on one rank."""
    return [_draw(place, given) for _ in range(given.draws)]


def _draw(place: Place, given: Parameters) -> Draw:
    """Make a pair of jobs, and time their steps."""
    options = weir.torch.GroupOptions(slots=given.slots, local="off")
    groups = [
        dist.new_group(list(range(job, _WORKERS, _JOBS)), backend="weir", pg_options=options)
        for job in range(_JOBS)
    ]
    own = cast(Any, groups[place.rank % _JOBS])
    values = torch.full((256 * given.kilobytes,), 1.0 + place.rank)
    expected = float(sum(1.0 + rank for rank in range(place.rank % _JOBS, _WORKERS, _JOBS)))
    seconds, before = [], NetworkCounts()
    for step in range(given.steps + 1):
        if step == 1:  # the first one warms up
            before = _counts()
        summed = values.clone()
        place.begin()
        began = time.perf_counter()
        dist.all_reduce(summed, group=own)
        if step:
            seconds.append(time.perf_counter() - began)
        if not bool((summed == expected).all()):
            raise AssertionError("a sum is wrong")
    place.begin()
    after = _counts()
    dist.destroy_process_group(own)
    return Draw(seconds, {spine: after.spines[spine] - before.spines[spine] for spine in after.spines})


def _counts() -> NetworkCounts:
    with AgentClient(os.environ["WEIR_CONTROLLER"]) as client:
        return read_counts(client.status(), NetworkCounts(), {})
