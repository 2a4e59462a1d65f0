# SPDX-License-Identifier: Apache-2.0
"""A step with a parameter server in virtual time: how long it takes, and what the server's link carries.

The real switch program and host code in `simulator`, and the real order of what goes up and comes down
(``weir.host_agent.torch.parameter_server.rounds``). Peers are a dense parameter server over simulated TCP and
Gloo's ring of TCP streams, both in the class that switches serve first. Nobody computes anything meanwhile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
from rich.console import Console

from weir.agent_service import MOST_SLOTS
from weir.bench.table import show
from weir.bench.training_virtual import DELAY_NS, LINUX_MIN_RTO_NS
from weir.controller.topology import leaf_spine
from weir.host_agent.collectives.communicator import Audience, Communicator, audience_codes
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.parameter_server.commands import COMMAND_LANES
from weir.host_agent.parameter_server.terms import BUCKET_BYTES
from weir.host_agent.torch.parameter_server.rounds import Rider, RidingCommunicator
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.report.words import factor
from weir.simulator.clock import SECOND
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.simulator.network import Allocation, LinkSpec, Network
from weir.simulator.ring import Ring
from weir.simulator.tcp import TcpConfig
from weir.wire.definition import GROUP_LANES, RELIABLE_DSCP, SLOT_LANES, Op

console = Console(stderr=True)

_BUCKET: Final = BUCKET_BYTES // 4


@dataclass(frozen=True)
class Stepped:
    """A step: virtual seconds until the last worker has the model; bytes that a server's link carries."""

    seconds: float
    server_in: int = 0
    server_out: int = 0


@dataclass(frozen=True)
class Setting:
    """A job and its links. parameters: of the model. density: the share of blocks that each worker pushes."""

    workers: int
    parameters: int
    rate_bps: int
    density: float = 1.0
    values_a_lane: int = 1


def _network(setting: Setting, hosts: int) -> Network:
    link = LinkSpec(setting.rate_bps, Faults(delay=DELAY_NS))
    return Network(leaf_spine(1, 1, hosts), seed=1, link=link)


def ring(setting: Setting) -> Stepped:
    """Return the step of Gloo's ring."""
    with _network(setting, setting.workers) as network:
        hosts = [host.name for host in network.topology.hosts]
        members = Ring(network, hosts, TcpConfig(min_rto=LINUX_MIN_RTO_NS, dscp=RELIABLE_DSCP))
        done: list[int] = []

        def step() -> None:
            done.clear()
            for rank in range(setting.workers):
                members.reduce(rank, 4 * setting.parameters, partial(done.append, rank))
            network.run(lambda: len(done) == setting.workers)

        return _second(network, None, step)


def tcp_server(setting: Setting) -> Stepped:
    """Return the step of a dense parameter server over TCP, which answers a bucket when it has all of it."""
    size, bucket = 4 * setting.parameters, 4 * _BUCKET
    with _network(setting, setting.workers + 1) as network:
        *workers, server = [host.name for host in network.topology.hosts]
        config = TcpConfig(min_rto=LINUX_MIN_RTO_NS, dscp=RELIABLE_DSCP)
        up = [network.stream(worker, server, config) for worker in workers]
        down = [network.stream(server, worker, config) for worker in workers]
        arrived, answered, taken = [0] * len(workers), [0], [0] * len(workers)
        pushed = [0]

        def on_push(worker: int, total: int) -> None:
            arrived[worker] = total
            whole = min(arrived)
            ready = whole if whole == pushed[0] else whole // bucket * bucket
            if ready > answered[0]:
                for stream in down:
                    stream.write(ready - answered[0])
                answered[0] = ready

        def on_pull(worker: int, total: int) -> None:
            taken[worker] = total

        for index in range(len(workers)):
            up[index].on_bytes = partial(on_push, index)
            down[index].on_bytes = partial(on_pull, index)

        def step() -> None:
            pushed[0] += size
            for stream in up:
                stream.write(size)
            network.run(lambda: min(taken) == pushed[0])

        return _second(network, server, step)


def weir_server(setting: Setting, bucket: int = _BUCKET) -> Stepped:
    """Return the step of Weir's parameter server. bucket: parameters that are pushed together."""
    numbers = np.random.default_rng(1)
    with _network(setting, setting.workers + 1) as network:
        names = [host.name for host in network.topology.hosts]
        job = network.admit(names, slots=MOST_SLOTS)
        buckets = [min(bucket, setting.parameters - start) for start in range(0, setting.parameters, bucket)]
        chosen = [
            numbers.random((setting.workers, -(-count // SCALE_BLOCK))) < setting.density for count in buckets
        ]

        def step() -> None:
            for rank in range(setting.workers + 1):
                _submit(job, rank, setting, buckets, chosen)
            network.run(lambda: job.idle)

        return _second(network, names[-1], step)


def _submit(
    job: Allocation,
    rank: int,
    setting: Setting,
    buckets: Sequence[int],
    chosen: Sequence[npt.NDArray[np.bool_]],
) -> None:
    """Give a member its part of a step."""
    member = _Recorder(job, rank)
    group, server = RidingCommunicator(member), setting.workers
    group.reduce(np.full(COMMAND_LANES, rank == 0, np.uint32), Op.OR)
    riders: list[Rider] = []
    for count, blocks in zip(buckets, chosen, strict=True):
        values = np.ones(SCALE_BLOCK // setting.values_a_lane, np.uint32)
        mine = blocks[rank] if rank < server else np.zeros(blocks.shape[1], np.bool_)
        group.reduce(mine.astype(np.uint32), Op.MAX, GROUP_LANES)
        lanes = (mine[:, np.newaxis] * values).reshape(-1).astype(np.uint32)
        block = min(values.size, SLOT_LANES)
        group.riders, riders = riders, []
        group.reduce_lanes(lanes, Op.ADD, block, audience=np.full(lanes.size // block, server, np.int16))
        changed = blocks.any(axis=0) & (rank == server)
        words = np.repeat(changed.astype(np.uint32), SLOT_LANES)
        assert words.size >= count
        riders = [Rider(words, np.full(changed.size, server, np.int16))]
    group.ride(riders)


class _Recorder(Communicator):
    """Submits what a member is to reduce to its host in the simulator."""

    def __init__(self, job: Allocation, rank: int) -> None:
        super().__init__(rank, len(job.workers))
        self._job = job

    def reduce_lanes(
        self,
        lanes: Lanes,
        op: Op,
        block: int = SLOT_LANES,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
    ) -> ReduceReport:
        """Do it later; lanes stay what they are, and there is no report."""
        paths = np.array(self._job.paths, np.uint16)
        codes = None if audience is None else audience_codes(audience, paths)
        self._job.workers[self.rank].submit(Work(op, block, lanes.copy(), service=service, audiences=codes))
        return _NO_REPORT


_NO_REPORT: Final = ReduceReport.__new__(ReduceReport)


def _second(network: Network, server: str | None, step: Callable[[], None]) -> Stepped:
    """Return what the second step takes, when windows are as wide as they get; and what passes the server's
    link.
    """
    step()
    totals = [0, 0]

    def count(direction: int, _time: int, frame: bytes) -> None:
        totals[direction] += len(frame)

    if server is not None:
        switch = network.stations[server].host.switch
        network.link(switch, server).tap = partial(count, 0)
        network.link(server, switch).tap = partial(count, 1)
    began = network.clock.now
    step()
    return Stepped((network.clock.now - began) / SECOND, *totals)


def measure(workers: Sequence[int], parameters: int, rate_bps: int, density: float) -> None:
    """Run every contender with each number of workers, and print a table."""
    contenders: list[tuple[str, Callable[[int], Stepped]]] = [
        ("Gloo's ring", lambda count: ring(Setting(count, parameters, rate_bps))),
        ("PS over TCP", lambda count: tcp_server(Setting(count, parameters, rate_bps))),
        ("Weir's PS", lambda count: weir_server(Setting(count, parameters, rate_bps))),
        ("Weir's PS, 16 bits up", lambda count: weir_server(Setting(count, parameters, rate_bps, 1.0, 2))),
        (
            f"Weir's PS, {density:.0%} of the blocks",
            lambda count: weir_server(Setting(count, parameters, rate_bps, density)),
        ),
    ]
    rows = []
    for count in workers:
        first = None
        for name, step in contenders:
            console.print(f"{count} workers, {name} ...")
            found = step(count)
            first = first or found
            link = (found.server_in, found.server_out)
            rows.append(
                (
                    f"{count} workers: {name}",
                    f"{1000 * found.seconds:.1f}",
                    factor(first.seconds / found.seconds),
                    *(factor(size / (4 * parameters)) if size else "-" for size in link),
                )
            )
    show(
        f"A step of {parameters:,} parameters, links of {rate_bps / 1e6:g} Mbit/s, one server, virtual time",
        ("", "ms", "times as fast as the ring", "models into the server", "models out of it"),
        rows,
        notes=("Into and out of the server: bytes of its link, headers included, by those of the model.",),
    )
