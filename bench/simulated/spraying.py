# SPDX-License-Identifier: Apache-2.0
"""Completion times of tensors where a job's own traffic fills the paths.

A permutation: every host sends a tensor to a host of another rack, all at the same time, and nobody else
sends. Contenders differ in how leaves choose a spine for each packet of Weir's; hashing is their twin, and
DCTCP, which is hashed, too, stands beside them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import mean
from typing import Final

import numpy as np

from softp4.state.entry import Exact
from weir.bench.case import Run, parameter
from weir.bench.results import Column, Table
from weir.bench.simulated import fabric
from weir.bench.simulated.fabric import TIMES, Fabric, Outcome, outcomes
from weir.bench.simulated.waits import Waits
from weir.controller.qos import Qos, SprayName
from weir.controller.tables.spraying import PATHS
from weir.host_agent.flows.config import FlowConfig
from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.receiver import FlowReceiver
from weir.host_agent.flows.sender import FlowSender
from weir.simulator.clock import SECOND
from weir.simulator.network import Network


@dataclass(frozen=True)
class Contender(fabric.Contender):
    """One way to choose a path."""

    weir: bool = True
    spray: SprayName = "hash"


CONTENDERS: Final = (
    Contender("a DCTCP, hashed", weir=False),
    Contender("b hash"),
    Contender("c random", "b", "sprayed", spray="random"),
    Contender("d round robin", "b", "sprayed", spray="round_robin"),
    Contender("e least loaded", "b", "sprayed", spray="least_loaded"),
)


@dataclass(frozen=True)
class Permutation:
    """The network and its traffic."""

    racks: int = parameter(4, "racks", least=2, most=8)
    hosts: int = parameter(4, "in a rack", least=1, most=16)
    spines: int = parameter(4, "paths between two racks", least=2, most=8)
    depth: int = parameter(128, "of a switch queue", unit="packets", least=1)
    kilobytes: int = parameter(1024, "size of a tensor", unit="KiB", least=4)
    rounds: int = parameter(3, "permutations in a run", least=1)

    @property
    def fabric(self) -> Fabric:
        """Racks, links and queues."""
        return Fabric(racks=self.racks, spines=self.spines, depth=self.depth)

    @property
    def tensor(self) -> int:
        """Bytes of a tensor."""
        return 1024 * self.kilobytes


Parameters = Permutation


def run(parameters: Permutation, run: Run) -> Iterator[Table]:
    """Simulate, with each way to choose among paths."""
    (found,) = outcomes(simulate, [parameters], lambda _: CONTENDERS, run).values()

    def values(_: Contender, one: Outcome) -> dict[str, float | None]:
        return {"sent again": one.each("retransmissions"), "busiest path": mean(one.beside)}

    yield Table(
        f"A permutation of {parameters.racks * parameters.hosts} hosts, {parameters.kilobytes} KiB each",
        (
            *TIMES,
            Column("sent again", lambda n: f"{n:.1f}", "chunks or segments for each tensor"),
            Column(
                "busiest path", lambda n: f"{n:.2f}", "packets of a leaf's busiest path over its mean one's"
            ),
        ),
        tuple(fabric.rows(found, values, floor=lambda _: 8 * parameters.tensor / parameters.fabric.rate)),
        floor="line",
        notes=(
            f"{parameters.fabric.words}; {len(run.seeds)} x {parameters.rounds} permutations",
            "sprayed: least packets of any path of any leaf, of all runs",
        ),
    )


def simulate(setting: Permutation, contender: Contender, seed: int) -> Outcome:
    """Return one run in virtual time."""
    found = Outcome()
    with setting.fabric.network(setting.hosts, seed, Qos(spray=contender.spray)) as network:
        random = Random(f"{seed} permutation")
        pairs = Pairs(network, contender.weir, setting.fabric.waits)
        for _ in range(setting.rounds):
            found.times += pairs.send_pairs(permutation(network, random), setting.tensor)
            network.run_for(0.01)
        every = list(taken(network, setting))
        found.beside = [max(leaf) / mean(leaf) for leaf in every]
        found.count({"retransmissions": pairs.resent, "sprayed": min(map(min, every))})
    return found


def permutation(network: Network, random: Random) -> dict[str, str]:
    """Return to whom each host sends: every host is one receiver, in another rack."""
    names = list(network.stations)
    rack = {name: station.host.switch for name, station in network.stations.items()}
    while True:
        receivers = random.sample(names, len(names))
        if all(rack[one] != rack[other] for one, other in zip(names, receivers, strict=True)):
            return dict(zip(names, receivers, strict=True))


def taken(network: Network, setting: Permutation) -> Iterator[list[int]]:
    """Return the packets that each leaf has sent to each of its spines."""
    for rack in range(1, setting.racks + 1):
        table = network.nodes[f"leaf{rack}"].switch.table(PATHS)
        counts = {entry.key: table.count(entry.key).packets for entry in table.entries()}
        yield [counts[Exact(index),] for index in range(setting.spines)]


class Pairs:
    """Sends tensors between hosts, by new flows or streams for each."""

    def __init__(self, network: Network, weir: bool, waits: Waits) -> None:
        self._network, self._weir, self._waits = network, weir, waits
        self._hosts = {name: network.flows(name) for name in network.stations}
        self._number = 0
        self.resent = 0

    def send_pairs(self, pairs: dict[str, str], size: int) -> list[float]:
        """Let every host send, and return how long each took, in seconds."""
        begun = self._network.clock.now
        done: list[int] = []
        send = self._flow if self._weir else self._stream
        for here, there in pairs.items():
            send(here, there, size, done)
        self._network.run(lambda: len(done) == len(pairs), limit=60)
        return [(end - begun) / SECOND for end in done]

    def _stream(self, here: str, there: str, size: int, done: list[int]) -> None:
        stream = self._network.stream(here, there, self._waits.tcp())

        def finished() -> None:
            done.append(self._network.clock.now)
            self.resent += stream.sender.retransmissions

        stream.on_done = finished
        stream.write(size)

    def _flow(self, here: str, there: str, size: int, done: list[int]) -> None:
        self._number += 1
        config = FlowConfig(self._number, **self._waits.flows())
        sender, receiver = FlowSender(config), FlowReceiver(config)
        stations = self._network.stations
        self._hosts[here].add(sender, Address(stations[there].host.ip))
        self._hosts[there].add(receiver, Address(stations[here].host.ip))

        def react() -> None:
            for settlement in sender.settlements():
                done.append(settlement.ended)
                self.resent += settlement.resent

        self._hosts[here].react = react
        sender.submit(np.ones(size // 4, np.float32))
        self._hosts[here].pump()
