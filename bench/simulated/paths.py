# SPDX-License-Identifier: Apache-2.0
"""Sums over long, thin, lossy paths to a hub; and such a path that a TCP stream uses at the same time.

The real switch program and host code. Each worker has a path of its own to the hub, with one queue in each
direction that drops what finds no room and marks nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from weir.bench.case import Run, parameter
from weir.bench.results import Column, Row, Table, share
from weir.bench.simulated.transports import BLOCK, LANE, Rings, Sums
from weir.controller.topology import Topology, single_switch
from weir.controller.wiring import HUB_PROGRAM
from weir.host_agent.transport.growth import PACKET, slots_for
from weir.host_agent.transport.slot_transport import Congestion
from weir.simulator.clock import SECOND
from weir.simulator.link import Bottleneck, Faults
from weir.simulator.network import Allocation, LinkSpec, Network
from weir.simulator.stream import OVERHEAD, Stream
from weir.simulator.tcp import MSS, TcpConfig

CUBIC: Final = TcpConfig(min_rto=SECOND // 5, initial_rto=SECOND, algorithm="cubic")
"""With Linux's times."""

GROUPS: Final = 20
_CABLE: Final = 10  # times as fast as the path
_LIMIT_S: Final = 3600.0
_ENDLESS: Final = 1 << 40
_MOST_SLOTS: Final = 16384  # a quarter of the hub's, which a job gets


@dataclass(frozen=True)
class Path:
    """A path to the hub, the same both ways. round_trip_s: without queues. loss: of each direction."""

    bits_per_second: float
    round_trip_s: float
    loss: float = 0.0
    buffer: float = 1.0

    @property
    def faults(self) -> Faults:
        """Return it for a link. ``buffer`` counts in what the path holds in a round trip."""
        held = self.bits_per_second * self.round_trip_s / 8
        router = Bottleneck(round(self.bits_per_second), round(self.buffer * held))
        # Of a packet's time: without it, a full queue would drop the packets of one stream alone.
        jitter = round(8 * PACKET / self.bits_per_second * SECOND)
        delay = round(self.round_trip_s * SECOND / 2)
        return Faults(delay=delay, jitter=jitter, loss=self.loss, bottleneck=router)

    @property
    def link(self) -> LinkSpec:
        """Worker's cable with it."""
        return LinkSpec(round(_CABLE * self.bits_per_second), self.faults)

    @property
    def slots(self) -> int:
        """Slots that a job gets for it."""
        return min(slots_for(self.round_trip_s), _MOST_SLOTS)


@dataclass(frozen=True)
class Parameters:
    """Paths, and what is summed."""

    workers: int = parameter(4, "workers", least=2, most=31)
    megabytes: float = parameter(46.0, "size of the vector", unit="MB", least=0.01)
    milliseconds: tuple[float, ...] = parameter((50.0, 150.0), "round trips to the hub", unit="ms", least=0.1)
    megabits: tuple[float, ...] = parameter((100.0,), "rates", unit="Mbit/s", least=0.1)
    loss: tuple[float, ...] = parameter(
        (0.0, 0.001, 0.01), "shares lost in each direction", least=0, most=0.5
    )
    contenders: str = parameter("abcd", "letters: a cables, b paths, c Gloo's ring, d 20 rings")
    sums: int = parameter(2, "how many, one after the other; the last one counts", least=1)


WAYS: Final = {
    "a": "Weir as on cables",
    "b": "Weir on a path",
    "c": "Gloo's ring over CUBIC",
    "d": f"{GROUPS} Gloo groups over CUBIC",
}


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Sum over each path in each way."""
    rows = []
    for rate in parameters.megabits:
        for milliseconds in parameters.milliseconds:
            for loss in parameters.loss:
                path = Path(rate * 1e6, milliseconds / 1e3, loss)
                for letter in parameters.contenders:
                    name = f"{letter} {WAYS[letter]}, {rate:g} Mbit/s, {milliseconds:g} ms, {loss:.1%}"
                    run.say(f"{name} ...")
                    rows.append(_row(name, letter, path, parameters))
    yield Table(
        f"All-reduce of {parameters.megabytes:g} MB by {parameters.workers} workers over paths to a hub, in "
        "virtual time",
        (
            Column("s", lambda seconds: f"{seconds:.2f}"),
            Column(
                "of the line",
                share,
                "the time that the vector takes once through a path in each direction, over the time",
            ),
            Column("sent again"),
            Column("timeouts"),
        ),
        tuple(rows),
        notes=(
            "a, b: worker and hub are a round trip apart. c, d: so are any two workers, and the loss is that "
            "between them",
        ),
    )


def _row(name: str, letter: str, path: Path, parameters: Parameters) -> Row:
    lanes = round(parameters.megabytes * 1e6 / (LANE * BLOCK)) * BLOCK
    seconds, counts = simulate(letter, path, parameters.workers, lanes, parameters.sums)
    line = lanes / BLOCK * PACKET * 8 / path.bits_per_second
    return Row(
        name,
        {
            "s": seconds,
            "of the line": line / seconds,
            "sent again": counts.get("retransmissions", 0),
            "timeouts": counts.get("timeouts", 0),
        },
    )


def simulate(
    letter: str, path: Path, workers: int, lanes: int, sums: int, seed: int = 1
) -> tuple[float, dict[str, float]]:
    """Return the seconds of the last sum, and what was counted in it."""
    rings = letter in "cd"
    if rings:
        path = Path(path.bits_per_second, path.round_trip_s / 2, path.loss / 2, path.buffer * 2)
    with Network(hub(workers), seed=seed, link=path.link) as network:
        hosts = [host.name for host in network.topology.hosts]
        transports: list[Rings | Sums] = []
        if rings:
            groups = GROUPS if letter == "d" else 1
            size = lanes * LANE // groups
            transports += [Rings(network, hosts, CUBIC, size) for _ in range(groups)]
        else:
            how = Congestion.PATH if letter == "b" else Congestion.MARKS
            transports.append(_sums(network.admit(hosts, slots=path.slots, congestion=how), lanes))
        for _ in range(sums):
            began = network.clock.now
            done = [transport.begin() for transport in transports]
            network.run(lambda done=done: all(one() for one in done), limit=_LIMIT_S)  # type: ignore[misc]
            counts: dict[str, float] = {}
            for transport in transports:
                for what, count in transport.end().items():
                    counts[what] = counts.get(what, 0) + count
        return (network.clock.now - began) / SECOND, counts


def hub(workers: int) -> Topology:
    """Return a hub's topology."""
    topology = single_switch(workers, "unix:hub", target="soft")
    (switch,) = topology.switches
    return topology.model_copy(update={"switches": (switch.model_copy(update={"program": HUB_PROGRAM}),)})


def _sums(job: Allocation, lanes: int) -> Sums:
    return Sums(job, [np.arange(rank + 1, rank + 1 + lanes, dtype=np.uint32) for rank in range(job.job.size)])


@dataclass(frozen=True)
class Sharing:
    """Bits per second of the job, and of each stream, that went through the first worker's path."""

    job: float
    streams: tuple[float, ...]

    @property
    def fair(self) -> float:
        """Job's part, over an equal one."""
        return self.job * (1 + len(self.streams)) / (self.job + sum(self.streams))


def simulate_sharing(
    path: Path,
    workers: int = 2,
    *,
    up: bool = True,
    streams: int = 1,
    lead_s: float = 4.0,
    seconds: float = 20.0,
    congestion: Congestion = Congestion.PATH,
    seed: int = 1,
) -> Sharing:
    """Let CUBIC streams use the first worker's path beside a sum without end, in one direction.

    Args:
        lead_s: time in which both begin; then it is measured for ``seconds``.
    """
    with Network(hub(workers + 1), seed=seed, link=path.link) as network:
        *hosts, other = (host.name for host in network.topology.hosts)
        switch = network.stations[other].host.switch
        for ends in ((other, switch), (switch, other)):
            network.link(*ends).faults = Faults(delay=1000)
        lanes = round((lead_s + seconds) * path.bits_per_second / 8 / (LANE * BLOCK) + 1) * BLOCK
        job = network.admit(hosts, slots=path.slots, congestion=congestion)
        done = _sums(job, lanes).begin()
        ends = (hosts[0], other) if up else (other, hosts[0])
        made = [network.stream(*ends, CUBIC) for _ in range(streams)]
        for stream in made:
            stream.write(_ENDLESS)
        network.run_for(lead_s)
        before = _carried(job, up), *map(_sent, made)
        network.run_for(seconds)
        assert not done()
        after = _carried(job, up), *map(_sent, made)
        own, *rest = (8 * (b - a) / seconds for a, b in zip(before, after, strict=True))
        return Sharing(own, tuple(rest))


def _carried(job: Allocation, up: bool) -> int:
    """Return the bytes that the first worker has sent, or received."""
    report = job.workers[0].transport.report()
    return report.bytes_up if up else report.bytes_down


def _sent(stream: Stream) -> float:
    """Return the bytes that have arrived, with headers."""
    return stream.sender.acknowledged * (1 + OVERHEAD / MSS)
