# SPDX-License-Identifier: Apache-2.0
"""A step with a parameter server in virtual time: how long it takes, and what the server's link carries.

The real switch program and host code, and the real order of what goes up and comes down
(``weir.host_agent.torch.parameter_server.rounds``). Peers are a dense parameter server over simulated TCP and
Gloo's ring of TCP streams, both in the class that switches serve first. Nobody computes anything meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from softp4.runtime.queueing import parse_rate
from weir.agent_service import MOST_SLOTS
from weir.bench.case import Run, parameter
from weir.bench.ranks import least_seconds
from weir.bench.results import Column, Row, Table
from weir.bench.simulated.step import DELAY_NS
from weir.bench.simulated.transports import Rings, TcpServers
from weir.bench.simulated.waits import Waits
from weir.bench.training.tcp_server import PIECE_BYTES
from weir.controller.topology import leaf_spine
from weir.host_agent.collectives.communicator import Audience, Communicator, audience_codes
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.parameter_server.commands import COMMAND_LANES
from weir.host_agent.parameter_server.terms import BUCKET_BYTES
from weir.host_agent.torch.parameter_server.rounds import Piggyback, PiggybackCommunicator, Words
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.simulator.clock import SECOND
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.simulator.network import Allocation, LinkSpec, Network
from weir.simulator.tcp import TcpConfig
from weir.train.wirebytes import TCP_PAYLOAD
from weir.wire.definition import GROUP_LANES, RELIABLE_DSCP, SLOT_LANES, Op

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

    @property
    def tcp(self) -> TcpConfig:
        """TCP as the peers have it: DCTCP, which is faster here than CUBIC and BBR.

        It waits for answers as the fabric suggests, which is shorter than Weir's waits.
        """
        return replace(Waits.of(self.rate_bps, DELAY_NS / SECOND).tcp(), dscp=RELIABLE_DSCP)


def _network(setting: Setting, hosts: int) -> Network:
    link = LinkSpec(setting.rate_bps, Faults(delay=DELAY_NS))
    return Network(leaf_spine(1, 1, hosts), seed=1, link=link)


def ring(setting: Setting) -> Stepped:
    """Return the step of Gloo's ring."""
    with _network(setting, setting.workers) as network:
        hosts = [host.name for host in network.topology.hosts]
        members = Rings(network, hosts, setting.tcp, 4 * setting.parameters)
        return _second(network, None, lambda: network.run(members.begin()))


def tcp_server(setting: Setting) -> Stepped:
    """Return the step of a dense parameter server over TCP, which answers every piece by itself."""
    with _network(setting, setting.workers + 1) as network:
        *workers, server = [host.name for host in network.topology.hosts]
        servers = TcpServers(network, workers, [server], setting.tcp, 4 * setting.parameters, PIECE_BYTES)
        return _second(network, server, lambda: network.run(servers.begin()))


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
    server = setting.workers
    group = PiggybackCommunicator(member, MOST_SLOTS, server)
    group.reduce_vector(np.full(COMMAND_LANES, rank == 0, np.uint32), Op.OR)
    piggybacks: list[Piggyback] = []
    for count, blocks in zip(buckets, chosen, strict=True):
        values = np.ones(SCALE_BLOCK // setting.values_a_lane, np.uint32)
        mine = blocks[rank] if rank < server else np.zeros(blocks.shape[1], np.bool_)
        group.reduce_vector(mine.astype(np.uint32), Op.MAX, GROUP_LANES)
        lanes = (mine[:, np.newaxis] * values).reshape(-1).astype(np.uint32)
        block = min(values.size, SLOT_LANES)
        group.piggybacks, piggybacks = piggybacks, []
        group.reduce_lanes(lanes, Op.ADD, block, audience=np.full(lanes.size // block, server, np.int16))
        changed = blocks.any(axis=0) & (rank == server)
        words = np.repeat(changed.astype(np.uint32), SLOT_LANES)
        assert words.size >= count
        piggybacks = [[Words(words, server)]]
    group.reduce_piggybacks(piggybacks)


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


@dataclass(frozen=True)
class Parameters:
    """Steps and links."""

    workers: tuple[int, ...] = parameter((2, 4, 8, 16), "numbers of workers", least=1, most=31)
    parameters: int = parameter(1_000_000, "of the model", least=256)
    links: str = parameter("200mbit", "rate of every link")
    density: float = parameter(0.05, "share of the blocks that a worker pushes", above=0, most=1)


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Simulate a step of every contender with each number of workers."""
    size, rate = parameters.parameters, parse_rate(parameters.links)
    contenders: dict[str, Callable[[int], Stepped]] = {
        "Gloo's ring": lambda count: ring(Setting(count, size, rate)),
        "PS over TCP": lambda count: tcp_server(Setting(count, size, rate)),
        "Weir's PS": lambda count: weir_server(Setting(count, size, rate)),
        "Weir's PS, 16 bits up": lambda count: weir_server(Setting(count, size, rate, 1.0, 2)),
        f"Weir's PS, {parameters.density:.0%} of the blocks": lambda count: weir_server(
            Setting(count, size, rate, parameters.density)
        ),
    }
    rows = []
    for count in parameters.workers:
        least = _least(size, count, rate)
        for name, step in contenders.items():
            run.say(f"{count} workers, {name} ...")
            found = step(count)
            link = {"models in": found.server_in, "models out": found.server_out}
            models = {way: carried / (4 * size) if carried else None for way, carried in link.items()}
            values = {"ms": 1000 * found.seconds, **models}
            rows.append(Row(name, values, {"workers": f"{count} workers"}, floor=least.get(name)))
    yield Table(
        f"A step of {size:,} parameters, links of {rate / 1e6:g} Mbit/s, one server, virtual time",
        (
            Column("ms", lambda n: f"{n:.1f}"),
            Column(
                "models in", lambda n: f"{n:.2f}", "bytes into the server, headers included, by the model's"
            ),
            Column("models out", lambda n: f"{n:.2f}", "out of it"),
        ),
        tuple(rows),
        peers=("Gloo's ring", "PS over TCP"),
        floor="line",
        notes=(
            "line: the least time that the links' payload rate allows, of a server over TCP its own link",
        ),
    )


def _least(parameters: int, workers: int, rate: int) -> dict[str, float]:
    """Return the milliseconds that lines need at least, where all values travel."""
    model = least_seconds(parameters, workers, rate, ring=False)
    return {
        "Gloo's ring": 1e3 * least_seconds(parameters, workers, rate, ring=True),
        "PS over TCP": 1e3 * 32 * parameters * workers / (rate * TCP_PAYLOAD),
        "Weir's PS": 1e3 * model,
        "Weir's PS, 16 bits up": 1e3 * model,  # the model comes back in 32
    }
