# SPDX-License-Identifier: Apache-2.0
"""Ranks that measure items one after another; they are started again after one that fails."""

import contextlib
import json
import subprocess
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from softp4.native.scratch import scratch_folder
from weir.bench.gpu_place import Item
from weir.bench.gpu_worker import encode
from weir.bench.ports import free_port
from weir.cluster import ClusterError, LocalCluster, local_cluster
from weir.process.child import ChildError, end, how_it_ended, log_tail, spawn

_START_S: Final = 60.0  # that ranks may take until they measure
_POLL_S: Final = 0.02
_MARGIN_S: Final = 2.0  # so that a rank can say where it stood
_LOG: Final = 1500


@dataclass(frozen=True)
class Outcome:
    """Results of an item, one a rank; or none, and the error."""

    item: Item
    ranks: list[Any]
    error: str = ""


def outcomes(items: Sequence[Item], workers: int, threads: int, limit_s: float) -> Iterator[Outcome]:
    """Measure items on ranks that share this machine, over a switch with this number of ``threads``.

    An item that fails, or takes longer than ``limit_s``, ends its ranks and the switch; the others are
    measured on new ones. When ranks could not be started twice in turn, all other items fail.
    """
    left, unready = list(items), 0
    while left:
        unready += 1
        try:
            with contextlib.closing(_results(left.copy(), workers, threads, limit_s)) as results:
                next(results)
                unready = 0
                for ranks in results:
                    yield Outcome(left.pop(0), ranks)
        except (ChildError, ClusterError) as error:
            yield Outcome(left.pop(0), [], str(error))
            if unready == 2:
                yield from (Outcome(item, [], "not tried: no ranks could be started") for item in left)
                return


def _results(
    items: Sequence[Item], workers: int, threads: int, limit_s: float
) -> Generator[list[Any], None, None]:
    """Yield what the ranks print: that they are ready, then their results of each item.

    Raises ChildError or ClusterError, then all ranks end.
    """
    with local_cluster(workers, threads=threads) as cluster, scratch_folder("bench") as folder:
        ranks: list[_Rank] = []
        port = free_port()
        try:
            ranks += (_Rank(rank, cluster, folder, port, encode(items), limit_s) for rank in range(workers))
            for number in range(len(items) + 1):
                _wait_for(number, ranks, cluster, limit_s if number else _START_S)
                yield [rank.lines[number] for rank in ranks]
            _wait([rank.process for rank in ranks])
        finally:
            end([rank.process for rank in ranks])


class _Rank:
    """A process and the lines of JSON that it has printed: that it is ready, then a result for each item."""

    def __init__(
        self, rank: int, cluster: LocalCluster, folder: Path, port: int, items: str, limit_s: float
    ) -> None:
        self.rank, self.log = rank, folder / f"{rank}.log"
        self._out = folder / f"{rank}.json"
        self.lines: list[Any] = []
        rendezvous = {
            "RANK": str(rank),
            "WORLD_SIZE": str(cluster.workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        with self._out.open("wb") as out:
            self.process = spawn(
                "weir.bench.gpu_worker",
                [items, str(limit_s)],
                log=self.log,
                environment={**cluster.environment(rank), **rendezvous},
                stdout=out,
            )

    def has(self, number: int) -> bool:
        """Tell whether a line is there."""
        if len(self.lines) <= number:
            self.lines = [json.loads(line) for line in self._out.read_text().split("\n")[:-1]]
        return len(self.lines) > number

    def check(self) -> None:
        """Raise ChildError when the process has ended before its time."""
        status = self.process.poll()
        if status:
            raise ChildError(f"rank {self.rank} failed ({how_it_ended(status)}):\n{log_tail(self.log)}")


def _wait_for(number: int, ranks: Sequence[_Rank], cluster: LocalCluster, limit_s: float) -> None:
    """Wait for a line of all ranks. Raises ChildError or ClusterError when there is none in time."""
    deadline = time.monotonic() + limit_s + _MARGIN_S
    while not all(rank.has(number) for rank in ranks):
        cluster.check()
        for rank in ranks:
            rank.check()
        if time.monotonic() > deadline:
            raise ChildError("\n".join([f"took more than {limit_s:g} s", *map(_said, ranks)]))
        time.sleep(_POLL_S)


def _said(rank: _Rank) -> str:
    return f"rank {rank.rank}: {log_tail(rank.log, _LOG)}"


def _wait(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Let processes end by themselves, for a while."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        for process in processes:
            process.wait(_MARGIN_S)
