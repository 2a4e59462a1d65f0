# SPDX-License-Identifier: Apache-2.0
"""``weir bench allreduce``: Weir against Gloo, the same tensors in the same processes, taking turns.

Two kinds of settings: shared-memory ports with no link limit (Gloo then talks TCP over loopback), and network
namespaces whose links are shaped in both directions. There each rank has two links with the same token
buckets: one to the soft switch for Weir, and one to a kernel bridge, with the offloads on, for Gloo: the
network that TCP is fastest on.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from rich.console import Console

from softp4.runtime.queueing import parse_rate
from weir.bench import allreduce_worker
from weir.bench.allreduce_worker import BLOCK, AllreduceSpec, Sample
from weir.bench.line import least_seconds
from weir.bench.ranks import Start, run_ranks
from weir.bench.table import command_line, show, spread
from weir.cluster import local_cluster
from weir.host_agent.collectives.packing import lane_format
from weir.netns.cluster import NetworkCluster, network_cluster
from weir.netns.namespace import gain_root
from weir.report.words import factor
from weir.train.folder import write_json
from weir.train.wirebytes import TCP_PAYLOAD, WEIR_PAYLOAD

Samples: TypeAlias = dict[str, dict[str, list[Sample]]]  # density -> contender -> one a repetition

CONTENDERS: Final = {"gloo": "Gloo", "weir": "Weir", "weir-16": "Weir 16", "weir-8": "Weir 8"}
"""Contenders in words; every one is compared with the first."""

console = Console(stderr=True)


@dataclass(frozen=True)
class Setting:
    """A network to measure on. rate: of its links in bit/s; None: as fast as the machine."""

    name: str
    rate: int | None
    start: Start
    switches: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """The figures of one contender in one setting.

    of_line: the least time that the line's payload rate allows, over the median of ``seconds``; None where
    there is no line, or not all values travel. worker, switch, machine: medians of processor seconds for each
    gigabyte of the tensor: of one rank, of all switches, of the whole machine.
    """

    links: str
    density: float
    contender: str
    seconds: list[float]
    of_line: float | None
    worker: float
    switch: float
    machine: float

    @property
    def median_s(self) -> float:
        """Return the median time."""
        return median(self.seconds)


def run(
    workers: int,
    megabytes: float,
    densities: tuple[float, ...],
    rates: Sequence[str],
    repeats: int,
    overlap: bool,
    lane_bits: Sequence[int],
    out: Path,
) -> None:
    """Measure, print and write; links only where namespaces are to be had, and said if not."""
    reason = gain_root()
    spec = AllreduceSpec(round(megabytes * 1e6 / 4), densities, repeats, overlap, lane_bits=tuple(lane_bits))
    notes = [
        "time of a repetition: the slowest rank's; blocks of 256, "
        + ("the same on all ranks" if overlap else "chosen at random by each rank"),
    ]
    settings = [in_memory(workers)]
    if reason is None:
        settings += (shaped_links(workers, rate) for rate in rates)
    else:
        notes.append(f"shaped links not measured: {reason}")
    results: list[Result] = []
    for each in settings:
        with each as setting:
            console.print(f"{setting.name} ...")
            samples = measure(workers, replace(spec, switches=setting.switches), setting.start)
        results += summarize(samples, setting, workers, spec.elements)
    report(f"All-reduce of {megabytes:g} MB of float32, {workers} workers", results, notes)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, {"command": command_line(), "results": [as_json(result, results) for result in results]})
    Console().print(f"written: {out}", style="dim", highlight=False)


def summarize(samples: Samples, setting: Setting, workers: int, elements: int) -> list[Result]:
    """Return the results of one setting."""
    gigabytes = 4 * elements / 1e9
    results = []
    for density, contenders in samples.items():
        for name, taken in contenders.items():
            seconds = [sample.seconds for sample in taken]
            # Gloo does not look at the values, so all of them travel.
            line = least_of(name, elements, workers, setting.rate) if setting.rate else None
            if name != "gloo" and float(density) < 1:
                line = None
            results.append(
                Result(
                    setting.name,
                    float(density),
                    name,
                    seconds,
                    None if line is None else line / median(seconds),
                    *(
                        median(getattr(sample, whose) for sample in taken) / gigabytes
                        for whose in ("worker", "switch", "machine")
                    ),
                )
            )
    return results


def least_of(contender: str, elements: int, workers: int, rate: int) -> float:
    """Return the least time at the line's payload rate; packed lanes carry several values each."""
    if contender == "gloo":
        return least_seconds(elements, workers, rate, ring=True)
    bits = next(bits for bits, name in allreduce_worker.CONTENDERS.items() if name == contender)
    lanes = lane_format(bits, 0.0, workers).lanes(BLOCK) / BLOCK
    return least_seconds(elements * lanes, workers, rate, ring=False)


def report(title: str, results: Sequence[Result], notes: Sequence[str]) -> None:
    """Print times, and processor time beside them."""
    show(
        title,
        ("", "ms", "line", "x Gloo", "worker", "switch", "machine"),
        [
            (
                f"{result.links} {result.density:.0%} {CONTENDERS[result.contender]}",
                f"{_milliseconds(result.median_s)} {spread(result.seconds)}",
                "–" if result.of_line is None else f"{result.of_line:.0%}",
                factor(ratio(result, results)),
                *(f"{each:.1f}" for each in (result.worker, result.switch, result.machine)),
            )
            for result in results
        ],
        [
            *notes,
            "Weir 16, Weir 8: two, and four (or three of 10 bits), values to a lane: see docs/precision.md",
            "Gloo over links: on the kernel's bridge, with the same token buckets and its offloads on",
            "line: the least time that the line's payload rate allows, over the time; payload rate: the rate "
            "without the headers of full packets, from Ethernet up "
            f"({TCP_PAYLOAD:.1%} of it for TCP, {WEIR_PAYLOAD:.1%} for Weir)",
            "worker, switch, machine: processor seconds for each GB of the tensor, of one rank, of the "
            "switch, and of all that ran on the machine meanwhile: other load too, and a bridge's softirqs "
            "that no process was charged for",
        ],
    )


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"


def ratio(result: Result, results: Sequence[Result]) -> float:
    """Return Gloo's time in the same setting over this one."""
    same = (result.links, result.density, next(iter(CONTENDERS)))
    gloo = next(each for each in results if (each.links, each.density, each.contender) == same)
    return gloo.median_s / result.median_s


def as_json(result: Result, results: Sequence[Result]) -> dict[str, Any]:
    """Return one object of the JSON file."""
    return {**asdict(result), "median_s": result.median_s, "x_gloo": ratio(result, results)}


@contextlib.contextmanager
def in_memory(workers: int) -> Iterator[Setting]:
    """Yield the setting of shared-memory ports, where Gloo talks TCP over loopback."""
    with local_cluster(workers) as cluster:

        def start(rank: int) -> tuple[list[str], dict[str, str]]:
            return [], {**cluster.environment(rank), "MASTER_ADDR": "127.0.0.1"}

        yield Setting("memory", None, start, tuple(cluster.switch_pids()))


@contextlib.contextmanager
def shaped_links(workers: int, rate: str) -> Iterator[Setting]:
    """Yield a setting of links of one rate."""
    with network_cluster(workers, rate=rate, bridged=True) as cluster:
        yield over_links(cluster, rate)


def over_links(cluster: NetworkCluster, rate: str) -> Setting:
    """Return the setting in which Weir uses the links to a switch, and Gloo those to a bridge beside it."""
    lab = cluster.lab

    def start(rank: int) -> tuple[list[str], dict[str, str]]:
        return lab.at_host(rank), {**cluster.environment(rank), **lab.bridged_environment()}

    return Setting(rate, parse_rate(rate), start, tuple(cluster.switch_pids()))


def measure(workers: int, spec: AllreduceSpec, start: Start) -> Samples:
    """Run the spec on ``workers`` processes; of each repetition, the slowest rank's time, the mean processor
    time of the ranks, and what the first one saw of the rest.

    Raises ChildError with what a failed rank said.
    """
    ranks = run_ranks("weir.bench.allreduce_worker", spec.json(), workers, start)
    return {
        density: {
            name: [
                _together([Sample(*of_rank) for of_rank in each])
                for each in zip(*(rank[density][name] for rank in ranks), strict=True)
            ]
            for name in contenders
        }
        for density, contenders in ranks[0].items()
    }


def _together(ranks: Sequence[Sample]) -> Sample:
    return ranks[0]._replace(
        seconds=max(sample.seconds for sample in ranks),
        worker=sum(sample.worker for sample in ranks) / len(ranks),
    )
