# SPDX-License-Identifier: Apache-2.0
"""Dense steps of a synchronous parameter server and dense all-reduces of the same size, taking turns.

In a step, the switch sums the workers' gradients for the server, and multicasts what the server changed.
Nothing else happens: the gradients stay the same, and the optimizer is SGD.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, cast

import torch
import torch.distributed as dist

import weir.torch
from softp4.bench.contenders import take_turns
from weir.bench.case import Run, parameter
from weir.bench.rank import Place
from weir.bench.ranks import RATES, Links, check_rates, every_network, run_ranks
from weir.bench.results import Column, Row, Table
from weir.host_agent.torch.connection import Connection
from weir.host_agent.torch.parameter_server.job_group import open_store
from weir.host_agent.torch.parameter_server.serve import make_server
from weir.process.processor import process_seconds

ALL_REDUCE: Final = "all-reduce"
SERVER: Final = "parameter server"


@dataclass(frozen=True)
class Parameters:
    """The tensor, and where it is summed."""

    workers: int = parameter(4, "Number of workers, beside one server.", least=1, most=31)
    megabytes: float = parameter(46.0, "Size of the float32 tensor.", unit="MB", least=0.001, most=1024)
    layers: int = parameter(10, "Parameters of equal size that it is, for the server.", least=1)
    rates: tuple[str, ...] = parameter(("1gbit",), RATES)
    ip: bool = parameter(False, "Over shaped links, also with ports that are claimed over IP.")
    limit: float = parameter(300.0, "After which a measurement fails.", unit="s", least=1)

    def __post_init__(self) -> None:
        check_rates(self.rates)


class Sample(NamedTuple):
    """One repetition as a worker saw it.

    seconds: of this worker. worker, server, switch: processor seconds of each. packets: that it sent.
    batches: times that the kernel took several of them in one piece.
    """

    seconds: float
    worker: float
    server: float
    switch: float
    packets: int
    batches: int


@dataclass(frozen=True)
class Spec:
    """Work that each rank is to time. elements: of the tensor. switches: process ids."""

    elements: int
    layers: int
    repeats: int
    switches: tuple[int, ...]


def run(given: Parameters, run: Run) -> Iterator[Table]:
    """Measure on every network."""
    rows: list[Row] = []
    for links in every_network(given.workers + 1, given.rates, run.say, ip=given.ip):
        run.say(f"{links.name} ...")
        spec = Spec(round(given.megabytes * 1e6 / 4), given.layers, run.repeats, links.switches)
        workers = run_ranks(measure, spec, links, limit_s=given.limit)[:-1]
        rows += (_row(name, [each[name] for each in workers], spec, links) for name in (ALL_REDUCE, SERVER))
    processor = "processor seconds for each GB of the tensor, of"
    yield Table(
        f"{given.megabytes:g} MB of float32, {given.workers} workers: an all-reduce, a step with a server",
        (
            Column("ms", note="of the slowest worker, from a common start"),
            Column("worker", "{:.1f}".format, f"{processor} one worker"),
            Column("server", "{:.1f}".format, f"{processor} the server"),
            Column("switch", "{:.1f}".format, f"{processor} the switch"),
            Column("all", "{:.1f}".format, f"{processor} all workers, the server and the switch"),
            Column("packets", "{:.0f}".format, "that a worker sent for each MB"),
            Column("batches", "{:.1f}".format, "that a worker sent for each MB"),
        ),
        tuple(rows),
        peers=(ALL_REDUCE,),
    )


def _row(name: str, workers: list[list[Sample]], spec: Spec, links: Links) -> Row:
    together = list(zip(*workers, strict=True))
    gigabytes = 4 * spec.elements / 1e9

    def column(of: Callable[[tuple[Sample, ...]], float], unit: float = gigabytes) -> list[float]:
        return [of(each) / unit for each in together]

    def busy(each: tuple[Sample, ...]) -> float:
        return sum(one.worker for one in each) + each[0].server + each[0].switch

    return Row(
        name,
        {
            "ms": column(lambda each: max(one.seconds for one in each), 1e-3),
            "worker": column(lambda each: sum(one.worker for one in each) / len(each)),
            "server": column(lambda each: each[0].server),
            "switch": column(lambda each: each[0].switch),
            "all": column(busy),
            "packets": column(lambda each: each[0].packets, 1e3 * gigabytes),
            "batches": column(lambda each: each[0].batches, 1e3 * gigabytes),
        },
        {"links": links.name},
    )


def measure(place: Place, spec: Spec) -> dict[str, list[Sample]]:
    """Time both on a worker, or serve; the last rank is the server."""
    workers = list(range(place.size - 1))
    group = cast(weir.torch.WeirProcessGroup, dist.new_group(workers, backend="weir"))
    barrier = partial(dist.barrier, dist.new_group(workers, backend="gloo"))
    told = [(os.getpid(), tempfile.mkdtemp(prefix="weir-bench-server-"))]
    dist.broadcast_object_list(told, src=workers[-1] + 1)
    pid, folder = told[0]
    rendezvous = f"file://{folder}/rendezvous"
    if place.rank not in workers:
        make_server(open_store(rendezvous, leads=False), 0).run()
        shutil.rmtree(folder)
        return {}
    data = torch.randn(spec.elements, generator=torch.Generator().manual_seed(place.rank))
    model = torch.nn.ParameterList(torch.zeros_like(layer) for layer in data.chunk(spec.layers))
    server = weir.torch.ParameterServer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        rendezvous=rendezvous,
        rank=place.rank,
        workers=len(workers),
    )
    for layer, gradient in zip(model, data.chunk(spec.layers), strict=True):
        layer.grad = gradient.clone()
    work = {
        ALL_REDUCE: (group.connection, lambda: dist.all_reduce(data, dist.ReduceOp.AVG, group)),
        SERVER: (server.connection, server.step),
    }
    clock = _Clock(pid, spec.switches, barrier)
    taken = take_turns({name: partial(clock.timed, *each) for name, each in work.items()}, spec.repeats)
    server.close()
    return taken


@dataclass(frozen=True)
class _Clock:
    """Clocks of a repetition. server, switches: process ids. barrier: of the workers."""

    server: int
    switches: tuple[int, ...]
    barrier: Callable[[], object]

    def timed(self, connection: Connection, work: Callable[[], object]) -> Sample:
        """Measure work that sends through a connection."""
        self.barrier()
        sent, others = connection.stats, self._others()
        began, own = time.perf_counter(), time.process_time()
        work()
        seconds, own = time.perf_counter() - began, time.process_time() - own
        self.barrier()
        server, switch = (now - before for now, before in zip(self._others(), others, strict=True))
        now = connection.stats
        return Sample(
            seconds, own, server, switch, now.packets_up - sent.packets_up, now.batches_up - sent.batches_up
        )

    def _others(self) -> tuple[float, float]:
        return process_seconds(self.server), sum(map(process_seconds, self.switches))
