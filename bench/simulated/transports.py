# SPDX-License-Identifier: Apache-2.0
"""What moves tensors over simulated networks: Weir's sums and flows, and their peers over simulated TCP.

Each is made once for its hosts and moves one tensor after the other. ``begin`` begins one and returns a test
that it is done; ``end``, when it is, checks what arrived and returns what was counted since.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from weir.host_agent.flows.config import FlowConfig
from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.server import ParameterServer, ServerConfig, WorkerFlows, bounded
from weir.host_agent.flows.worker import ServerClient
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.simulator.host import Host, Work
from weir.simulator.network import Allocation, Network
from weir.simulator.ring import Ring
from weir.simulator.stream import Stream
from weir.simulator.tcp import TcpConfig
from weir.wire.definition import Op

BLOCK: Final = 256
LANE: Final = 4

Lanes = npt.NDArray[np.uint32]
Done = Callable[[], bool]


class Transport(Protocol):
    """Moves tensors, see above."""

    def begin(self, pause: int = 0) -> Done:
        """Begin a tensor after a pause (ns)."""

    def end(self) -> Counter[str]:
        """Return counts. Raises AssertionError when a result is not what it must be."""


class _All:
    """A test that all of some hosts are idle. Asked after every event, it only looks at one that was not."""

    __slots__ = ("_hosts",)

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = list(hosts)

    def __call__(self) -> bool:
        while self._hosts and self._hosts[-1].idle:
            self._hosts.pop()
        return not self._hosts


class _Count:
    """A test that something has happened so many times."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def one(self) -> None:
        self.left -= 1

    def __call__(self) -> bool:
        return self.left <= 0


class Sums:
    """Weir's sums, as ``collectives.float_sum`` has them: shared exponents (MAX), then fixed-point lanes (ADD).

    exponents: of each worker, or none. services: of each worker's lanes; front: of exponents. energy: of each
    worker's blocks; what is lost is counted in it, too. exponent_block: lanes of packets of exponents.
    """

    def __init__(
        self,
        job: Allocation,
        lanes: Sequence[Lanes],
        exponents: Sequence[Lanes] = (),
        services: Sequence[ServiceClass] = (),
        front: ServiceClass = LOSSLESS,
        energy: Sequence[npt.NDArray[np.float64]] = (),
        exponent_block: int = 32,
    ) -> None:
        self._exponent_block = exponent_block
        self._job, self._lanes, self._exponents = job, lanes, exponents
        self._services = services or [LOSSLESS] * len(lanes)
        self._front, self._energy = front, energy
        self._sum = np.sum(lanes, axis=0, dtype=np.uint32)
        self._under_way: list[Lanes] = []

    def begin(self, pause: int = 0) -> Done:
        """Begin a tensor, see ``Transport``."""
        self._under_way = [lanes.copy() for lanes in self._lanes]
        for rank, (worker, lanes) in enumerate(zip(self._job.workers, self._under_way, strict=True)):
            if self._exponents:
                own = self._exponents[rank].copy()
                worker.submit(Work(Op.MAX, self._exponent_block, own, pause, self._front))
            wait = 0 if self._exponents else pause
            worker.submit(Work(Op.ADD, BLOCK, lanes, wait, self._services[rank]))
        return _All(self._job.workers)

    def end(self) -> Counter[str]:
        """Check that every worker has the sum of what was not given back."""
        counts: Counter[str] = Counter()
        expected = self._sum.copy()
        for rank, worker in enumerate(self._job.workers):
            for report in worker.reports:
                for name in ("timeouts", "releases", "retransmissions", "bytes_up", "bytes_down"):
                    counts[name] += getattr(report, name)
                if report.op is not Op.ADD:
                    continue
                assert (report.missing <= report.budgets).all()
                back = report.given_back
                expected.reshape(-1, BLOCK)[back.blocks] -= back.lanes
                counts["lanes"] += report.entered.lanes
                counts["missing"] += report.returned.lanes
                if self._energy:
                    counts["energy"] += float(self._energy[rank].sum())
                    counts["lost"] += float(self._energy[rank][back.blocks].sum())
            worker.reports.clear()
        if any(not np.array_equal(lanes, expected) for lanes in self._under_way):
            raise AssertionError("a sum is not that of what was not given back")
        return counts


class Rings:
    """Rings of TCP streams, as Gloo has them. size: bytes of a tensor."""

    def __init__(self, network: Network, hosts: Sequence[str], tcp: TcpConfig, size: int) -> None:
        self._clock, self._members, self._size = network.clock, len(hosts), size
        self._ring = Ring(network, hosts, tcp)
        self._counted: Counter[str] = Counter()

    def begin(self, pause: int = 0) -> Done:
        """Begin a tensor, see ``Transport``."""
        left = _Count(self._members)

        def start() -> None:
            for rank in range(self._members):
                self._ring.reduce(rank, self._size, left.one)

        if pause:
            self._clock.after(pause, start)
        else:
            start()
        return left

    def end(self) -> Counter[str]:
        """Return what the streams counted."""
        return _since(self._counted, self._ring.streams)


def _since(counted: Counter[str], streams: Sequence[Stream]) -> Counter[str]:
    """Return counts of streams since they were ``counted`` last, which they are now."""
    before = counted.copy()
    counted["timeouts"] = sum(stream.sender.timeouts for stream in streams)
    counted["retransmissions"] = sum(stream.sender.retransmissions for stream in streams)
    return counted - before


class TcpServers:
    """Parameter servers over TCP: workers push a shard of ``shard`` bytes to each, and pull the sums.

    A server answers a bucket of ``bucket`` bytes, and the end of a shard, when it has all workers'.
    """

    def __init__(
        self,
        network: Network,
        workers: Sequence[str],
        servers: Sequence[str],
        tcp: TcpConfig,
        shard: int,
        bucket: int,
    ) -> None:
        self._shard, self._bucket = shard, bucket
        self._pushed = 0  # of every worker to every server, in all tensors
        self._left = _Count(0)
        self._pushes: list[Stream] = []
        self._streams: list[Stream] = []
        self._counted: Counter[str] = Counter()
        for server in servers:
            pushes = [network.stream(worker, server, tcp) for worker in workers]
            answers = [network.stream(server, worker, tcp) for worker in workers]
            self._pushes += pushes
            self._streams += [*pushes, *answers]
            self._serve(pushes, answers)

    def _serve(self, pushes: Sequence[Stream], answers: Sequence[Stream]) -> None:
        arrived, answered = [0] * len(pushes), 0

        def pushed(worker: int, total: int) -> None:
            nonlocal answered
            arrived[worker] = total
            whole = min(arrived)
            ready = whole if whole == self._pushed else whole // self._bucket * self._bucket
            if ready > answered:
                for answer in answers:
                    answer.write(ready - answered)
                answered = ready

        def pulled(total: int) -> None:
            if total == self._pushed:
                self._left.one()

        for worker, (push, answer) in enumerate(zip(pushes, answers, strict=True)):
            push.on_bytes = partial(pushed, worker)
            answer.on_bytes = pulled

    def begin(self, pause: int = 0) -> Done:
        """Begin a tensor, see ``Transport``; there are no pauses."""
        assert not pause
        self._pushed += self._shard
        self._left = _Count(len(self._pushes))
        for push in self._pushes:
            push.write(self._shard)
        return self._left

    def end(self) -> Counter[str]:
        """Return what the streams counted."""
        return _since(self._counted, self._streams)


class Flows:
    """Weir's flows to parameter servers: pushes that may lose a share, lossless pulls.

    size: bytes that a worker pushes to all servers. share: of a push that servers let be missing; lossless:
    workers let nothing be. early_stop: a server is content as soon as no more is. first_window: chunks.
    """

    def __init__(
        self,
        network: Network,
        workers: Sequence[str],
        servers: Sequence[str],
        size: int,
        share: float,
        *,
        lossless: bool,
        early_stop: bool,
        first_window: int,
        min_rto: float,
    ) -> None:
        self._size = size // LANE // len(servers)
        self._service = ServiceClass() if lossless or not share else bounded(self._size, share)

        def pair(server: int, worker: int) -> WorkerFlows:
            number = 2 * (server * len(workers) + worker)
            push, pull = (
                FlowConfig(
                    1 + number + way,
                    worker,
                    early_stop=early_stop,
                    first_window=first_window,
                    initial_rto=2 * min_rto,
                )
                for way in (0, 1)
            )
            return WorkerFlows(push, pull)

        addresses = {name: Address(network.stations[name].host.ip) for name in [*workers, *servers]}
        peers = [addresses[name] for name in workers]
        hosts = {name: network.flows(name) for name in [*workers, *servers]}
        for number, name in enumerate(servers):
            agreed = [pair(number, worker) for worker in range(len(workers))]
            server = ParameterServer(agreed, ServerConfig(push_loss=share))
            server.attach(hosts[name].mux, peers)
            hosts[name].react = partial(_serve, server)
        self._left = _Count(0)
        self._counts: Counter[str] = Counter()
        self._workers = []
        for worker, name in enumerate(workers):
            own = [ServerClient(pair(number, worker)) for number in range(len(servers))]
            for client, server_name in zip(own, servers, strict=True):
                client.attach(hosts[name].mux, addresses[server_name])
            hosts[name].react = partial(self._collect, own)
            self._workers.append((hosts[name], own))
        self._values = np.random.default_rng(1).standard_normal(self._size).astype(np.float32)

    def _collect(self, own: Sequence[ServerClient]) -> None:
        for client in own:
            for result in client.results():
                self._left.one()
                pushed = result.pushed
                self._counts.update(
                    {
                        "timeouts": pushed.timeouts,
                        "retransmissions": pushed.resent,
                        "marked as trimmed": pushed.trimmed,
                        "lanes": pushed.entered.lanes,
                        "missing": pushed.returned.lanes,
                    }
                )

    def begin(self, pause: int = 0) -> Done:
        """Begin a tensor, see ``Transport``; there are no pauses."""
        assert not pause
        self._left.left = sum(len(own) for _, own in self._workers)
        for host, own in self._workers:
            for client in own:
                client.push(self._values, self._service, previous=self._values)
            host.pump()
        return self._left

    def end(self) -> Counter[str]:
        """Return what the flows counted."""
        counts, self._counts = self._counts, Counter()
        return counts


def _serve(server: ParameterServer) -> None:
    server.advance()
    server.settlements()  # nobody asks how pulls ended
