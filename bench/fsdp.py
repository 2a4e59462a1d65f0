# SPDX-License-Identifier: Apache-2.0
"""``weir bench fsdp``: steps of a sharded model over Weir and over Gloo, the same links, taking turns."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console

from weir.bench.allreduce import CONTENDERS, shaped_links
from weir.bench.fsdp_worker import LAYERS, FsdpSpec
from weir.bench.ranks import run_ranks
from weir.bench.table import command_line, show, spread
from weir.netns.namespace import gain_root
from weir.report.words import factor
from weir.train.folder import write_json

_PEER: Final = "gloo"
console = Console(stderr=True)


def run(
    workers: int, width: int, rates: Sequence[str], repeats: int, lane_bits: Sequence[int], out: Path
) -> None:
    """Measure, print and write.

    Raises:
        RuntimeError: there are no namespaces to be had, or a rank failed.
    """
    if reason := gain_root():
        raise RuntimeError(f"shaped links: {reason}")
    spec = FsdpSpec(width, repeats, tuple(lane_bits))
    results: dict[str, dict[str, list[float]]] = {}
    for rate in rates:
        console.print(f"{rate} ...")
        with shaped_links(workers, rate) as setting:
            ranks = run_ranks("weir.bench.fsdp_worker", spec.json(), workers, setting.start)
        results[rate] = {
            name: [max(step) for step in zip(*(rank[name] for rank in ranks), strict=True)]
            for name in ranks[0]
        }
    megabytes = 4 * LAYERS * width * width / 1e6
    show(
        f"A step of fully_shard, {megabytes:.1f} MB of float32, {workers} workers",
        ("", "ms", "x Gloo"),
        [
            (
                f"{rate} {CONTENDERS[name]}",
                f"{1e3 * median(steps):,.0f} {spread(steps)}",
                factor(median(of_rate[_PEER]) / median(steps)),
            )
            for rate, of_rate in results.items()
            for name, steps in of_rate.items()
        ],
        [
            f"{LAYERS} linear layers, gathered forward and backward, their gradients reduced and scattered; "
            "a batch so small that computing takes next to nothing",
            "Gloo: on the kernel's bridge, with the same token buckets and its offloads on",
        ],
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, {"command": command_line(), "megabytes": megabytes, "seconds": results})
    Console().print(f"written: {out}", style="dim", highlight=False)
