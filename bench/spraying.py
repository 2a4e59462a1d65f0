# SPDX-License-Identifier: Apache-2.0
"""``weir bench spraying``: how long tensors take where a job's own traffic is what fills the paths.

A permutation: every host sends a tensor to a host of another rack, all at the same time, and nobody else
sends. In virtual time, with the real program, tables and flows. The rows differ in how leaves choose a spine
for each packet of Weir's; `hash` is their twin, and DCTCP, which is hashed, too, stands beside them.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from random import Random
from statistics import mean, median
from typing import Final

import numpy as np
from rich.console import Console

from softp4.runtime.queueing import Queueing
from softp4.state.entry import Exact
from weir.bench.table import show
from weir.bench.tail import percentile
from weir.controller.qos import Qos, SprayName
from weir.controller.tables.spraying import PATHS
from weir.controller.topology import leaf_spine
from weir.host_agent.flows.config import FlowConfig
from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.receiver import FlowReceiver
from weir.host_agent.flows.sender import FlowSender
from weir.process.pool import process_pool
from weir.report.words import factor
from weir.simulator.clock import SECOND
from weir.simulator.network import LinkSpec, Network
from weir.simulator.tcp import TcpConfig

MODES: Final[tuple[SprayName, ...]] = ("hash", "random", "round_robin", "least_loaded")
DCTCP: Final = "DCTCP, hashed"
_MIN_RTO: Final = 0.01

console = Console(stderr=True)


class NothingSprayedError(RuntimeError):
    """A mode that is to spread packets left a path without any: the mechanism did nothing."""


@dataclass(frozen=True)
class Permutation:
    """The network and its traffic. rate: of all links, bit/s. tensor: bytes. rounds: of a run, one by one."""

    racks: int = 4
    hosts: int = 4
    spines: int = 4
    rate: int = 1_000_000_000
    depth: int = 128
    tensor: int = 1 << 20
    rounds: int = 5


@dataclass
class Spread:
    """times: of every tensor, in seconds. resent: chunks. taken: of each leaf, packets on each path."""

    times: list[float] = field(default_factory=list)
    resent: int = 0
    taken: list[list[int]] = field(default_factory=list)


def run(mode: str, setting: Permutation, seed: int) -> Spread:
    """Return one run in virtual time. Raises NothingSprayedError, see there."""
    qos = Qos(spray="hash" if mode == DCTCP else mode)  # type: ignore[arg-type]
    topology = leaf_spine(setting.racks, setting.spines, setting.hosts, target="soft", qos=qos)
    found = Spread()
    with Network(
        topology,
        seed=seed,
        link=LinkSpec(setting.rate),
        queueing=Queueing(depth_packets=setting.depth),
    ) as network:
        random = Random(f"{seed} permutation")
        pairs = Pairs(network, mode == DCTCP)
        for _ in range(setting.rounds):
            found.times += pairs.exchange(permutation(network, random), setting.tensor)
            network.run_for(0.01)
        found.resent = pairs.resent
        found.taken = list(taken(network, setting))
    if mode not in (DCTCP, "hash") and any(not packets for leaf in found.taken for packets in leaf):
        raise NothingSprayedError(f"{mode}: a path without packets, of {found.taken}")
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

    def __init__(self, network: Network, dctcp: bool) -> None:
        self._network, self._dctcp = network, dctcp
        self._hosts = {name: network.flows(name) for name in network.stations}
        self._number = 0
        self.resent = 0

    def exchange(self, pairs: dict[str, str], size: int) -> list[float]:
        """Let every host send, and return how long each took, in seconds."""
        begun = self._network.clock.now
        done: list[int] = []
        send = self._stream if self._dctcp else self._flow
        for here, there in pairs.items():
            send(here, there, size, done)
        self._network.run(lambda: len(done) == len(pairs), limit=60)
        return [(end - begun) / SECOND for end in done]

    def _stream(self, here: str, there: str, size: int, done: list[int]) -> None:
        stream = self._network.stream(here, there, TcpConfig(min_rto=round(_MIN_RTO * SECOND)))

        def finished() -> None:
            done.append(self._network.clock.now)
            self.resent += stream.sender.retransmissions

        stream.on_done = finished
        stream.write(size)

    def _flow(self, here: str, there: str, size: int, done: list[int]) -> None:
        self._number += 1
        config = FlowConfig(self._number, initial_rto=2 * _MIN_RTO)
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


def measure(
    setting: Permutation, seeds: int, modes: Sequence[str] = (DCTCP, *MODES), processes: int | None = None
) -> dict[str, Spread]:
    """Run all modes with all seeds, print the table, and return what it is made of."""
    results = {mode: Spread() for mode in modes}
    with process_pool(processes or os.cpu_count() or 1) as pool:
        runs = {pool.submit(run, mode, setting, seed): mode for mode in modes for seed in range(1, seeds + 1)}
        for future in as_completed(runs):
            one, total = future.result(), results[runs[future]]
            total.times += one.times
            total.resent += one.resent
            total.taken += one.taken
            console.print(f"{runs[future]}: {1000 * max(one.times):.1f} ms")
    twin = results.get("hash")
    show(
        f"A permutation of {setting.racks * setting.hosts} hosts, {setting.tensor // 1024} KiB each, "
        f"{setting.spines} spines",
        ("", "mean", "median", "p99", "p99 / hash", "resent", "busiest path"),
        [
            (
                mode,
                *(f"{1000 * value:.2f} ms" for value in (mean(one.times), median(one.times))),
                f"{1000 * percentile(one.times, 99):.2f} ms",
                "–" if twin is None else factor(percentile(one.times, 99) / percentile(twin.times, 99)),
                f"{one.resent / len(one.times):.1f}",
                f"{mean(max(leaf) / mean(leaf) for leaf in one.taken):.2f}",
            )
            for mode, one in results.items()
        ],
        [
            f"in virtual time: {setting.racks} racks of {setting.hosts} hosts, links of "
            f"{setting.rate / 1e9:g} Gbit/s, {setting.depth} packets a queue; {seeds} x {setting.rounds} "
            "permutations, p99 by nearest rank",
            "resent: chunks or segments for each tensor. busiest path: packets of a leaf's busiest path over "
            "those of its mean one",
        ],
    )
    return results
