# SPDX-License-Identifier: Apache-2.0
"""``weir bench latency``: small collectives through ``torch.distributed``, over Weir and over Gloo."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from weir.bench.allreduce import CONTENDERS, in_memory, shaped_links
from weir.bench.latency_worker import CONTENDERS as CONTENDED
from weir.bench.latency_worker import LatencySpec, Turn
from weir.bench.ranks import run_ranks
from weir.bench.table import command_line, show, spread
from weir.netns.namespace import gain_root
from weir.report.words import factor
from weir.train.folder import write_json

_PEER = "gloo"
console = Console(stderr=True)


@dataclass(frozen=True)
class Latency:
    """The figures of one contender.

    seconds: of a call, the slowest rank's mean over a turn, of each turn. worker, switch: medians of
    processor seconds of a call, of one rank and of all switches.
    """

    links: str
    workers: int
    collective: str
    size: int
    contender: str
    seconds: list[float]
    worker: float
    switch: float


def run(
    workers: Sequence[int], kilobytes: Sequence[float], rates: Sequence[str], spec: LatencySpec, out: Path
) -> None:
    """Measure, print and write; links only where namespaces are to be had, and said if not."""
    reason = gain_root()
    notes = [f"shaped links not measured: {reason}"] if reason else []
    spec = replace(spec, sizes=tuple(round(1024 * size) for size in kilobytes))
    found: list[Latency] = []
    for number in workers:
        for each in [in_memory(number), *(shaped_links(number, rate) for rate in rates if reason is None)]:
            with each as setting:
                console.print(f"{number} workers, {setting.name} ...")
                argument = replace(spec, switches=setting.switches).json()
                ranks = run_ranks("weir.bench.latency_worker", argument, number, setting.start)
            found += summarize(setting.name, ranks)
    report(found, spec, notes)
    out.parent.mkdir(parents=True, exist_ok=True)
    results = [{**vars(one), "x_gloo": ratio(one, found)} for one in found]
    write_json(out, {"command": command_line(), "results": results})
    Console().print(f"written: {out}", style="dim", highlight=False)


def summarize(links: str, ranks: Sequence[dict[str, dict[str, dict[str, list[Any]]]]]) -> list[Latency]:
    """Return the figures of what all ranks printed."""
    found = []
    for collective, sizes in ranks[0].items():
        for size, name in itertools.product(sizes, CONTENDED):
            turns = [[Turn(*fields) for fields in rank[collective][size][name]] for rank in ranks]
            found.append(
                Latency(
                    links,
                    len(ranks),
                    collective,
                    int(size),
                    name,
                    [max(one.seconds for one in together) for together in zip(*turns, strict=True)],
                    median(one.worker for of_rank in turns for one in of_rank),
                    median(one.switch for one in turns[0]),
                )
            )
    return found


def ratio(one: Latency, found: Sequence[Latency]) -> float:
    """Return Gloo's median time in the same setting over this one's."""
    same = (one.links, one.workers, one.collective, one.size, _PEER)
    peer = next(p for p in found if (p.links, p.workers, p.collective, p.size, p.contender) == same)
    return median(peer.seconds) / median(one.seconds)


def report(found: Sequence[Latency], spec: LatencySpec, notes: Sequence[str]) -> None:
    """Print one table."""
    show(
        "Collectives of small tensors of float32",
        ("", "us", "x Gloo", "worker us", "switch us"),
        [
            (
                f"{one.workers} workers, {one.links}, {one.collective}, {one.size / 1024:g} KB "
                f"{CONTENDERS[one.contender]}",
                f"{1e6 * median(one.seconds):,.0f} {spread(one.seconds)}",
                factor(ratio(one, found)),
                f"{1e6 * one.worker:,.0f}",
                f"{1e6 * one.switch:,.0f}",
            )
            for one in found
        ],
        [
            *notes,
            f"us: of a call, of {spec.calls} one after another; the median of {spec.repeats} turns, in each "
            "the slowest rank's",
            "worker, switch: processor time of a call, of one rank and of the switch",
            "Gloo over links: on the kernel's bridge, with the same token buckets and its offloads on",
        ],
    )
