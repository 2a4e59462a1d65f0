# SPDX-License-Identifier: Apache-2.0
"""One outer step of many peers on slow, asymmetric links in virtual time: its time, and a peer's bytes.

The real host code of ``weir.host_agent.compression.outer`` makes an outer step over workers of one process.
What each of them reduces is then reduced by the real switch program over simulated links, one reduction after
the other. Peers over simulated TCP: a ring for everything; for each part, a store from which all fetch the
parts of all others.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from softp4.runtime.queueing import parse_rate
from weir.agent_service import MOST_SLOTS
from weir.bench.case import Run, parameter
from weir.bench.results import Column, Row, Table
from weir.bench.simulated.outer_links import Links, Outcome, counted
from weir.bench.simulated.outer_peers import fetched, ring
from weir.controller.topology import leaf_spine
from weir.host_agent.collectives.communicator import Audience, Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.compression.outer.stage import OuterSettings, OuterStage
from weir.host_agent.compression.outer.sums import ROWS, make_sum
from weir.host_agent.compression.sparsifiers.chunk_topk import CHUNK, RUN
from weir.host_agent.compression.updates.layout import ROW, UpdateLayout
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.report.words import byte_count
from weir.simulator.clock import SECOND
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.simulator.network import Allocation, LinkSpec, Network
from weir.wire.definition import SLOT_LANES, Op

_COLUMNS: Final = 512  # of the model's matrix

Way = tuple[str, float, Any]
"""Method, density, bits."""

WAYS: Final[dict[str, Way]] = {
    "dense": ("dense", 1.0, None),
    "dense, 16 bits": ("dense", 1.0, 16),
    "rows, 1 bit": ("rows", 1.0, None),
    "rows, 1 bit, a tenth in turn": ("rows", 0.1, None),
    "chunk-topk, 1.56 %, 16 bits": ("chunk-topk", 1 / 64, 16),
}
METHODS: Final = tuple(dict.fromkeys(method for method, _, _ in WAYS.values()))


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
    module.register_parameter("weight", torch.nn.Parameter(torch.zeros(values // _COLUMNS, _COLUMNS)))
    layout = UpdateLayout(["weight"], [(values // _COLUMNS, _COLUMNS)])
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


def replayed(parts: Sequence[Sequence[_Reduction]], links: Links) -> Outcome:
    """Return the time and bytes of a step over simulated links, whose sums are checked; of its second run,
    when windows are as wide as they get.
    """
    spec = LinkSpec(links.down_bps, Faults(delay=round(links.round_trip / 2 * SECOND)))
    with Network(leaf_spine(1, 1, len(parts)), seed=1, link=spec) as network:
        names = [host.name for host in network.topology.hosts]
        for name in names:
            network.link(name, network.stations[name].host.switch).rate_bps = links.up_bps
        job = network.admit(names, slots=MOST_SLOTS)
        for _ in range(2):
            with counted(network, names[0]) as outcome:
                _reduce(network, job, parts)
        return outcome()


def _reduce(network: Network, job: Allocation, parts: Sequence[Sequence[_Reduction]]) -> None:
    """Make the reductions, one after the other, and compare each with what was noted."""
    for reduction in zip(*parts, strict=True):
        lanes = [one.mine.copy() for one in reduction]
        for worker, one, own in zip(job.workers, reduction, lanes, strict=True):
            worker.submit(Work(one.op, one.block, own))
        network.run(lambda: job.idle)
        for one, own in zip(reduction, lanes, strict=True):
            np.testing.assert_array_equal(own, one.total)


def part_bytes(way: Way, values: int) -> int:
    """Return the bytes of a peer's part where no sum is made of it: values, scales, positions."""
    method, density, bits = way
    chosen = density * values
    if method == ROWS:
        return round(chosen * ((bits or 1) / 8 + 4 / ROW))
    positions = chosen / RUN * math.log2(CHUNK // RUN) / 8 if density < 1 else 0
    return round(chosen * (bits or 32) / 8 + positions)


@dataclass(frozen=True)
class Parameters:
    """Peers and their links."""

    peers: tuple[int, ...] = parameter((4, 20), "numbers of peers", least=2, most=31)
    parameters: int = parameter(1 << 20, "of the model", least=1 << 14)
    up: str = parameter("110mbit", "rate of a peer's link to the switch")
    down: str = parameter("500mbit", "rate back")
    round_trip_ms: float = parameter(50.0, "from a peer to the switch and back", above=0)
    methods: tuple[str, ...] = parameter(METHODS, "of the parts", choices=METHODS)


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Simulate an outer step of each way with each number of peers."""
    links = Links(parse_rate(parameters.up), parse_rate(parameters.down), parameters.round_trip_ms / 1000)
    values = parameters.parameters // _COLUMNS * _COLUMNS
    rows = []
    for peers in parameters.peers:
        for name, step in _steps(peers, values, links, parameters.methods):
            run.say(f"{peers} peers, {name} ...")
            found = step()
            figures = {"s": found.seconds, "up": found.up, "down": found.down}
            figures["down, of up"] = found.down / found.up
            rows.append(Row(name, figures, {"peers": f"{peers} peers"}))
    yield Table(
        f"An outer step of {values:,} parameters, links of {parameters.up} up and {parameters.down} down, "
        f"{parameters.round_trip_ms:g} ms, virtual time",
        (
            Column("s", "{:.2f}".format),
            Column("up", byte_count, "of the first peer, all headers included; so is down"),
            Column("down", byte_count),
            Column("down, of up", "{:.2f}".format),
        ),
        tuple(rows),
        notes=(
            "fetched: each peer uploads its part to a store over TCP, and fetches those of all others. There "
            "a sign has one bit; in a sum it has as many bits as a count of all peers' signs needs",
        ),
    )


def _steps(
    peers: int, values: int, links: Links, methods: Collection[str]
) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """Yield each way of these methods, and its peers over TCP."""
    for name, way in WAYS.items():
        if way[0] not in methods:
            continue
        yield name, lambda way=way: replayed(recorded(way, peers, values), links)  # type: ignore[misc]
        if way == WAYS["dense"]:
            yield f"{name}, Gloo's ring", lambda: ring(peers, 4 * values, links)
        elif way[0] != "dense":
            part = part_bytes(way, values)
            yield f"{name}, fetched", lambda part=part: fetched(peers, part, links)  # type: ignore[misc]
