# SPDX-License-Identifier: Apache-2.0
"""One way to train on a network of namespaces, and how far it came: Weir with some method, or a peer.

Runs are compared by the metric of their model: accuracy, or for some models loss, on held-out data.
"""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from softp4.native.scratch import scratch_folder
from weir.netns.cluster import BridgedNetwork, NetworkCluster
from weir.process.child import ChildError, end, how_it_ended, log_tail, spawn
from weir.process.memory import memory_of
from weir.process.processor import ProcessorTime
from weir.report.words import duration
from weir.train.config import PRESETS, TrainConfig
from weir.train.messages import Evaluated, Failed, WorkerSpec
from weir.train.record import RunRecord, StepSummary
from weir.train.watch import NetworkCounts, read_counts
from weir.train.workers import Exited, Workers, worker_environment

Kind = Literal["weir", "gloo", "gloo-fp16", "gloo-powersgd", "ps"]

PEERS: Final[dict[Kind, str]] = {
    "gloo": "Gloo",
    "gloo-fp16": "Gloo, fp16 hook",
    "gloo-powersgd": "Gloo, PowerSGD hook",
    "ps": "PS",
}
HOOKS: Final[tuple[Kind, ...]] = ("gloo-fp16", "gloo-powersgd")
"""Peers that are methods of ``weir.train``."""

SERVER: Final = "WEIR_BENCH_SERVER"  # environment of a worker: address:port of its parameter server
_PORT: Final = 29433  # in a namespace of its own, any port is free
_TICK_S: Final = 0.5
_LINE_EVERY_S: Final = 10.0
_STALL_S: Final = 180.0  # without any news of a step or an evaluation
_MIN_STEPS: Final = 3  # that many are taken at least, however slow they are


def settings_of(way: str) -> dict[str, Any]:
    """Return method and settings of METHOD:SETTING=VALUE:... Raises ValueError."""
    method, *pairs = way.split(":")
    found: dict[str, Any] = {"method": method}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name not in TrainConfig.model_fields:
            raise ValueError(f"{way}: METHOD:SETTING=VALUE, with a setting of weir train, not {pair!r}")
        found[name] = value
    return found


@dataclass(frozen=True)
class Way:
    """A way to train. limit_s: of training; after that it is cut short."""

    name: str
    kind: Kind
    config: TrainConfig
    limit_s: float = float("inf")

    @property
    def members(self) -> int:
        """Return how many processes train: workers and Weir's parameter servers."""
        return self.config.members if self.kind == "weir" else self.config.workers

    @property
    def dense(self) -> bool:
        """Return whether it takes the steps of dense synchronous training, but for rounding."""
        if self.kind == "weir":
            return self.config.method == "dense" and not self.config.lossy
        return self.kind in ("gloo", "ps")


@dataclass(frozen=True)
class WayResult:
    """The result of a way to train.

    switch_memory: the most bytes that a switch held; None of bridges. up_bps: rate at which a worker's link
    sends, in bit/s; None: without a limit.
    """

    way: Way
    record: RunRecord
    switch_memory: int | None = None
    up_bps: int | None = None

    @property
    def counts(self) -> NetworkCounts | None:
        """Return what the switches counted meanwhile; None of bridges."""
        return self.record.counts

    @property
    def name(self) -> str:
        """Name of the way."""
        return self.way.name

    @property
    def complete(self) -> bool:
        """Return whether it took all its steps in the time it had."""
        return self.record.status == "complete"

    @property
    def step_s(self) -> float:
        """Return median time of a step; the first of them warms up."""
        return median(step.seconds for step in self.record.steps[1:] or self.record.steps)

    @property
    def step_p99_s(self) -> float:
        """Return time that 99 % of all workers' steps take at most; the first of each warms up."""
        found = sorted(seconds for own in self.record.seconds.values() for seconds in own[1:] or own)
        return found[ceil(0.99 * len(found)) - 1]

    @property
    def of_line(self) -> float | None:
        """Share of its line's rate that a worker's packets took in the steps, headers included."""
        rate, seconds = self.up_bps, self.record.training_s
        bits = 8 * self.record.mean_traffic.bytes_up
        return bits / (rate * seconds) if rate and seconds else None

    @property
    def less(self) -> bool:
        """Return whether less of the model's metric is better: it is a loss."""
        return PRESETS[self.way.config.model].metric == "loss"

    def metric(self, evaluated: Evaluated) -> float:
        """Return the model's metric at an evaluation."""
        return evaluated.loss if self.less else evaluated.accuracy

    def reaches(self, value: float, target: float) -> bool:
        """Return whether a value of the metric is as good as another."""
        return value <= target if self.less else value >= target

    @property
    def best(self) -> float:
        """Best value of the metric."""
        return (min if self.less else max)(map(self.metric, self.record.evaluations))

    def curve(self) -> list[tuple[float, float]]:
        """Return (seconds of training, metric) at each evaluation; evaluating itself takes no time.

        All workers wait for each other there: between two evaluations the slowest worker's steps count.
        """
        found, passed, before = [], 0.0, 0
        for e in self.record.evaluations:
            passed += max(sum(own[before : e.step]) for own in self.record.seconds.values())
            before = e.step
            found.append((passed, self.metric(e)))
        return found

    def time_to(self, target: float) -> float | None:
        """Return seconds of training to the first evaluation that reaches it; None: there was none."""
        return next((seconds for seconds, value in self.curve() if self.reaches(value, target)), None)

    def steps_to(self, target: float) -> int | None:
        """Return steps to the first evaluation that reaches it; None: there was none."""
        return next((e.step for e in self.record.evaluations if self.reaches(self.metric(e), target)), None)


def train(way: Way, network: NetworkCluster | BridgedNetwork, say: Callable[[str], None]) -> WayResult:
    """Return one run to its end, or until its time is over.

    Raises ChildError with what a failed worker or server said, NamespaceError if a part of the network has
    died.
    """
    config, ranks = way.config, range(way.config.workers)
    members = range(way.members)
    backend: Literal["weir", "gloo"] = "weir" if way.kind == "weir" else "gloo"
    record, ticker = RunRecord(backend, ranks, config.epochs), _Ticker(way.name, say)
    with (
        scratch_folder("weir-bench") as folder,
        _server(way, network, folder) as server,
    ):
        added = {SERVER: server.address} if server else {}
        spec = WorkerSpec(config=config, backend=backend, init_method=f"file://{folder}/store")
        common = worker_environment()
        environment = {rank: {**common, **network.environment(rank), **added} for rank in members}
        with Workers(
            spec.model_dump_json(),
            members,
            config.workers,
            environment,
            folder,
            prefix=network.lab.at_worker,
            module="weir.bench.training.worker",
        ) as workers:
            for news in _steps(
                workers, record, members, [network.check, *([server.check] if server else [])]
            ):
                record.clock(ProcessorTime.now(network.switch_pids()))
                ticker.tell(record, news)
                if len(record.steps) >= _MIN_STEPS and record.training_s > way.limit_s:
                    record.status = "interrupted"
                    break
            else:
                record.status = "complete"
            switch_memory = max((memory_of(pid)["VmHWM"] for pid in network.switch_pids()), default=None)
    record.counts = _counts(network) if isinstance(network, NetworkCluster) else None
    return WayResult(way, record, switch_memory)


@dataclass(frozen=True)
class _Server:
    """A parameter server that runs."""

    address: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise ChildError if it has failed."""
        if status := self.process.poll():
            raise ChildError(f"the parameter server died ({how_it_ended(status)}):\n{log_tail(self.log)}")


@contextmanager
def _server(way: Way, network: NetworkCluster | BridgedNetwork, folder: Path) -> Iterator[_Server | None]:
    """Yield the parameter server, if the way has one: on rank 0's host, or where Weir's would be."""
    if way.kind != "ps":
        yield None
        return
    host = way.config.workers if way.config.mode == "ps" else 0
    address = network.lab.plan.workers[host].ip
    process = spawn(
        "weir.bench.training.tcp_server",
        [address, str(_PORT), str(way.config.workers)],
        log=folder / "server.log",
        prefix=network.lab.at_worker(host),
    )
    try:
        yield _Server(f"{address}:{_PORT}", process, folder / "server.log")
    finally:
        end([process])


def _steps(
    workers: Workers, record: RunRecord, members: Sequence[int], checks: Sequence[Callable[[], None]]
) -> Iterator[StepSummary]:
    """Yield every step as all workers have taken it, until all members have left.

    Raises ChildError where nothing happens any more.
    """
    left, heard = set(members), time.monotonic()
    while left:
        match workers.next_event(_TICK_S):
            case None:
                for check in checks:
                    check()
                if time.monotonic() - heard > _STALL_S:
                    who = ", ".join(map(str, sorted(left)))
                    raise ChildError(f"no message from members {who} for {_STALL_S:g} s")
            case Failed(rank=rank, error=sentence, traceback=text):
                raise ChildError(f"worker {rank} failed:\n{text or sentence}")
            case Exited(rank=rank, reason=reason):
                if reason:
                    raise ChildError(f"worker {rank} failed: {reason}")
                left.discard(rank)
            case message:
                heard = time.monotonic()
                if isinstance(news := record.add(message), StepSummary):
                    yield news


class _Ticker:
    """Says a line every few seconds."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name, self._say, self._last = name, say, 0.0

    def tell(self, record: RunRecord, news: StepSummary) -> None:
        """Say how far the run is, when it is time again."""
        if time.monotonic() - self._last > _LINE_EVERY_S:
            self._last = time.monotonic()
            accuracy = "" if record.accuracy is None else f", accuracy {record.accuracy:.2%}"
            at = f"step {news.step} of {record.total_steps}, {duration(news.seconds)}"
            self._say(f"{self._name}: {at}{accuracy}")


def _counts(cluster: NetworkCluster) -> NetworkCounts:
    from weir.agent_service.client import AgentClient

    with AgentClient(cluster.controller) as client:
        return read_counts(client.status(), NetworkCounts(), {})
