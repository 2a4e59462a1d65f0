# SPDX-License-Identifier: Apache-2.0
"""Processes of a benchmark, one a rank, that print what they measured."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from softp4.native.scratch import scratch_folder
from weir.bench.ports import free_port
from weir.process.child import end, spawn, wait_for_all

Start: TypeAlias = Callable[[int], tuple[list[str], dict[str, str]]]  # rank -> command prefix, environment


def run_ranks(module: str, argument: str, workers: int, start: Start) -> list[Any]:
    """Run a module on each rank to its end, and return the JSON that each has printed.

    Raises:
        ChildError: a rank failed; with what it said.
    """
    port = free_port()
    with scratch_folder("bench") as folder:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            processes += (
                _rank(module, argument, rank, workers, start, folder, port) for rank in range(workers)
            )
            wait_for_all(processes, [folder / f"{rank}.log" for rank in range(workers)])
        finally:
            end(processes)
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(workers)]


def _rank(
    module: str, argument: str, rank: int, workers: int, start: Start, folder: Path, port: int
) -> subprocess.Popen[bytes]:
    prefix, environment = start(rank)
    rendezvous = {"RANK": str(rank), "WORLD_SIZE": str(workers), "MASTER_PORT": str(port)}
    with (folder / f"{rank}.json").open("wb") as out:
        return spawn(
            module,
            [argument],
            log=folder / f"{rank}.log",
            environment={**environment, **rendezvous},
            stdout=out,
            prefix=prefix,
        )
