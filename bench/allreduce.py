# SPDX-License-Identifier: Apache-2.0
"""``weir bench allreduce``: Weir against Gloo, the same tensors in the same processes, taking turns.

Two settings: shared-memory ports with no link limit (Gloo then talks TCP over loopback), and network
namespaces whose links are shaped in both directions (Gloo and Weir over the same links).
"""

import contextlib
import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TypeAlias

from rich.console import Console

from weir.bench.allreduce_worker import AllreduceSpec
from weir.bench.table import show, spread
from weir.child import end, log_tail, spawn
from weir.cluster import local_cluster
from weir.native.scratch import scratch_folder
from weir.netns.cluster import network_cluster
from weir.netns.namespace import gain_root

Seconds: TypeAlias = dict[str, dict[str, list[float]]]  # density -> backend -> one number a repetition
Start: TypeAlias = Callable[[int], tuple[list[str], dict[str, str]]]  # rank -> command prefix, environment

TIMEOUT_S = 1200
console = Console(stderr=True)


def run(
    workers: int, megabytes: float, densities: tuple[float, ...], rate: str, repeats: int, overlap: bool
) -> None:
    """Measure and print; links only where namespaces are to be had, and said if not."""
    reason = gain_root()
    spec = AllreduceSpec(round(megabytes * 1e6 / 4), densities, repeats, overlap)
    notes = [
        "time of a repetition: the slowest rank's; blocks of 256, "
        + ("the same on all ranks" if overlap else "chosen at random by each rank")
    ]
    settings = {"shared memory": _local(workers)}
    if reason is None:
        settings[f"links of {rate}"] = _links(workers, rate)
    else:
        notes.append(f"shaped links not measured: {reason}")
    rows = []
    for where, setting in settings.items():
        console.print(f"{where} ...")
        with setting as start:
            seconds = measure(workers, spec, start)
        rows += [_row(where, density, times) for density, times in seconds.items()]
    show(
        f"All-reduce of {megabytes:g} MB of float32, {workers} workers",
        ("links, density of blocks", "Gloo ms", "spread", "Weir ms", "spread", "Gloo / Weir"),
        rows,
        notes,
    )


def _row(where: str, density: str, times: dict[str, list[float]]) -> tuple[str, ...]:
    gloo, weir = median(times["gloo"]), median(times["weir"])
    return (
        f"{where}, {float(density):.0%}",
        f"{gloo * 1e3:,.0f}",
        spread(times["gloo"]),
        f"{weir * 1e3:,.0f}",
        spread(times["weir"]),
        f"{gloo / weir:.2f}",
    )


@contextlib.contextmanager
def _local(workers: int) -> Iterator[Start]:
    with local_cluster(workers) as cluster:
        yield lambda rank: ([], {**cluster.environment(rank), "MASTER_ADDR": "127.0.0.1"})


@contextlib.contextmanager
def _links(workers: int, rate: str) -> Iterator[Start]:
    with network_cluster(workers, rate=rate) as cluster:
        yield lambda rank: (cluster.lab.at_host(rank), cluster.environment(rank))


def measure(workers: int, spec: AllreduceSpec, start: Start) -> Seconds:
    """Run the spec on ``workers`` processes; of each repetition, the slowest rank's time.

    Raises RuntimeError with what a failed rank said.
    """
    port = _free_port()
    with scratch_folder("bench") as folder:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            processes += (_rank(rank, workers, spec, start, folder, port) for rank in range(workers))
            for rank, process in enumerate(processes):
                if process.wait(TIMEOUT_S):
                    raise RuntimeError(f"rank {rank} failed:\n{log_tail(folder / f'{rank}.log')}")
        finally:
            end(processes)
        ranks: list[Seconds] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(workers)]
    return {
        density: {
            name: [max(t) for t in zip(*(r[density][name] for r in ranks), strict=True)] for name in times
        }
        for density, times in ranks[0].items()
    }


def _free_port() -> int:
    """Return a TCP port that nobody listens on now (in a namespace of its own, any port is free)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _rank(
    rank: int, workers: int, spec: AllreduceSpec, start: Start, folder: Path, port: int
) -> subprocess.Popen[bytes]:
    prefix, environment = start(rank)
    rendezvous = {"RANK": str(rank), "WORLD_SIZE": str(workers), "MASTER_PORT": str(port)}
    with (folder / f"{rank}.json").open("wb") as out:
        return spawn(
            "weir.bench.allreduce_worker",
            [spec.json()],
            log=folder / f"{rank}.log",
            environment={**environment, **rendezvous},
            stdout=out,
            prefix=prefix,
        )
