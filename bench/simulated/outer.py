# SPDX-License-Identifier: Apache-2.0
"""One outer step of many peers on slow, asymmetric links in virtual time: its time, and a peer's bytes.

The real host code of ``weir.host_agent.compression.outer`` makes an outer step over workers of one process.
What each of them reduces is then reduced by the real switch program over simulated links, one reduction after
the other. The last column is computed: the payloads of all peers, fetched by each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from softp4.runtime.queueing import parse_rate
from weir.agent_service import MOST_SLOTS
from weir.bench.case import Run, parameter
from weir.bench.results import Column, Row, Table
from weir.controller.topology import leaf_spine
from weir.host_agent.collectives.communicator import Audience, Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.compression.outer.stage import OuterSettings, OuterStage
from weir.host_agent.compression.outer.sums import make_sum
from weir.host_agent.compression.updates.layout import UpdateLayout
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.report.words import byte_count
from weir.simulator.clock import SECOND
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.simulator.network import LinkSpec, Network
from weir.wire.definition import SLOT_LANES, Op

_ROW: Final = 512  # values in a row of the model's matrix

Way = tuple[str, float, Any]
"""Method, density, bits."""

WAYS: Final[dict[str, Way]] = {
    "dense": ("dense", 1.0, None),
    "dense, 16 bits": ("dense", 1.0, 16),
    "rows, 1 bit": ("rows", 1.0, None),
    "rows, 1 bit, a tenth in turn": ("rows", 0.1, None),
    "chunk-topk, 1.56 %, 16 bits": ("chunk-topk", 1 / 64, 16),
}


@dataclass(frozen=True)
class _Reduction:
    """A reduction, of one worker: its part, and the result."""

    op: Op
    block: int
    mine: Lanes
    total: Lanes


class _Recorder(Communicator):
    """Notes what a worker reduces."""

    def __init__(self, inner: Communicator) -> None:
        super().__init__(inner.rank, inner.size)
        self._inner = inner
        self.noted: list[_Reduction] = []

    def reduce_lanes(
        self,
        lanes: Lanes,
        op: Op,
        block: int = SLOT_LANES,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
    ) -> ReduceReport:
        """Reduce, and note it."""
        mine = lanes.reshape(-1).copy()
        report = self._inner.reduce_lanes(lanes, op, block, service, audience)
        self.noted.append(_Reduction(op, block, mine, lanes.reshape(-1).copy()))
        return report


def recorded(way: Way, peers: int, values: int) -> list[list[_Reduction]]:
    """Return the reductions of the second outer step, of each peer: plans are made then."""
    module = torch.nn.Module()
    module.register_parameter("weight", torch.nn.Parameter(torch.zeros(values // _ROW, _ROW)))
    layout = UpdateLayout(["weight"], [(values // _ROW, _ROW)])
    group = InMemoryGroup(peers)
    recorders = [_Recorder(inner) for inner in group.communicators]
    stages = [OuterStage(layout, OuterSettings(1), make_sum(layout, *way, 1)) for _ in range(peers)]
    for stage, recorder in zip(stages, recorders, strict=True):
        stage.join(module, recorder, MOST_SLOTS, 0)

    def step(rank: int, number: int) -> None:
        generator = torch.Generator().manual_seed(1000 * number + rank)
        stages[rank].step(torch.randn(layout.values, generator=generator))

    for number in range(2):
        for recorder in recorders:
            recorder.noted.clear()
        group.run([partial(step, rank, number) for rank in range(peers)])
    return [recorder.noted for recorder in recorders]


@dataclass(frozen=True)
class Links:
    """A peer's link to the switch. round_trip: seconds, between a peer and the switch and back."""

    up_bps: int
    down_bps: int
    round_trip: float


@dataclass(frozen=True)
class Outcome:
    """Virtual seconds of an outer step, and the bytes of its first peer with all headers."""

    seconds: float
    up: int
    down: int


def replayed(parts: Sequence[Sequence[_Reduction]], links: Links) -> Outcome:
    """Return the time and bytes of a step over simulated links, whose sums are checked; of its second run,
    when windows are as wide as they get.
    """
    spec = LinkSpec(links.down_bps, Faults(delay=round(links.round_trip / 2 * SECOND)))
    with Network(leaf_spine(1, 1, len(parts)), seed=1, link=spec) as network:
        names = [host.name for host in network.topology.hosts]
        switch = network.stations[names[0]].host.switch
        for name in names:
            network.link(name, switch).rate_bps = links.up_bps
        job = network.admit(names, slots=MOST_SLOTS)
        totals = [0, 0]

        def count(direction: int, _time: int, frame: bytes) -> None:
            totals[direction] += len(frame)

        network.link(names[0], switch).tap = partial(count, 0)
        network.link(switch, names[0]).tap = partial(count, 1)
        began = 0
        for _ in range(2):
            totals[:], began = [0, 0], network.clock.now
            for reduction in zip(*parts, strict=True):
                lanes = [one.mine.copy() for one in reduction]
                for worker, one, own in zip(job.workers, reduction, lanes, strict=True):
                    worker.submit(Work(one.op, one.block, own))
                network.run(lambda: job.idle)
                for one, own in zip(reduction, lanes, strict=True):
                    np.testing.assert_array_equal(own, one.total)
        return Outcome((network.clock.now - began) / SECOND, *totals)


@dataclass(frozen=True)
class Parameters:
    """Peers and their links."""

    peers: tuple[int, ...] = parameter((4, 20), "numbers of peers", least=2, most=31)
    parameters: int = parameter(1 << 20, "of the model", least=1 << 14)
    up: str = parameter("110mbit", "rate of a peer's link to the switch")
    down: str = parameter("500mbit", "rate back")
    round_trip_ms: float = parameter(50.0, "from a peer to the switch and back", above=0)


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Simulate an outer step of each way with each number of peers."""
    links = Links(parse_rate(parameters.up), parse_rate(parameters.down), parameters.round_trip_ms / 1000)
    values = parameters.parameters // _ROW * _ROW
    rows = []
    for peers in parameters.peers:
        for name, way in WAYS.items():
            run.say(f"{peers} peers, {name} ...")
            found = replayed(recorded(way, peers, values), links)
            gathered = found.up * (peers - 1)
            seconds = max(8 * found.up / links.up_bps, 8 * gathered / links.down_bps) + links.round_trip
            rows.append(
                Row(
                    name,
                    {
                        "s": found.seconds,
                        "up": found.up,
                        "down": found.down,
                        "down, of up": found.down / found.up,
                        "s, gathered": seconds,
                    },
                    {"peers": f"{peers} peers"},
                )
            )
    yield Table(
        f"An outer step of {values:,} parameters, links of {parameters.up} up and {parameters.down} down, "
        f"{parameters.round_trip_ms:g} ms, virtual time",
        (
            Column("s", "{:.2f}".format),
            Column("up", byte_count, "of the first peer, all headers included; so is down"),
            Column("down", byte_count),
            Column("down, of up", "{:.2f}".format),
            Column(
                "s, gathered",
                "{:.2f}".format,
                "computed: each peer fetches all others' bytes up, at the links' rates",
            ),
        ),
        tuple(rows),
    )
