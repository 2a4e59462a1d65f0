# SPDX-License-Identifier: Apache-2.0
"""Ways to move tensors over simulated networks: Weir's sums and flows, and their peers over simulated TCP.

Each is made once for its hosts and moves one tensor after the other. ``begin`` begins one and returns a test
that it is done; ``end``, when it is, checks what arrived and returns what was counted since.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from weir.bench.simulated.waits import Waits
from weir.host_agent.flows.config import FlowConfig
from weir.host_agent.flows.frames import Address
from weir.host_agent.parameter_server.clocks import Consistency
from weir.host_agent.parameter_server.flow_ends import ServerEnds, WorkerEnd
from weir.host_agent.parameter_server.residual import Residual
from weir.host_agent.parameter_server.routing import ParameterInfo, Table
from weir.host_agent.parameter_server.server_machine import ServerMachine
from weir.host_agent.parameter_server.server_rules import ServerRules
from weir.host_agent.parameter_server.terms import OptimizerSpec
from weir.host_agent.parameter_server.worker_machine import WorkerMachine, WorkerRules
from weir.host_agent.torch.parameter_server.shard_optimizer import UnitsOptimizer
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.simulator.flowhost import FlowHost
from weir.simulator.host import Host, Work
from weir.simulator.network import Allocation, Network
from weir.simulator.ring import Ring
from weir.simulator.stream import Stream
from weir.simulator.tcp import TcpConfig
from weir.wire.definition import Op

BLOCK: Final = 256
LANE: Final = 4
_LR: Final = 1e-3

Lanes = npt.NDArray[np.uint32]
Done = Callable[[], bool]


class Transport(Protocol):
    """Moves tensors, see above."""

    def begin(self, pause: int = 0) -> Done:
        """Begin a tensor after a pause (ns)."""

    def end(self) -> Mapping[str, float]:
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
    """A test that something has happened this many times."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def one(self) -> None:
        self.left -= 1

    def __call__(self) -> bool:
        return self.left <= 0


class Sums:
    """Weir's sums, as ``collectives.float_sum`` has them: shared exponents (MAX), then lanes (ADD).

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

    def end(self) -> Mapping[str, float]:
        """Check that every worker has the sum of what was not given back."""
        counts: dict[str, float] = defaultdict(float)
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
                self._ring.all_reduce(rank, self._size, left.one)

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
    """Weir's parameter servers, synchronous over flows: pushes that may lose a share, lossless pulls.

    size: bytes that a worker pushes to all servers. share: of a push that may be missing. early_stop: a
    server is content as soon as no more is. first_window: chunks.
    """

    def __init__(
        self,
        network: Network,
        workers: Sequence[str],
        servers: Sequence[str],
        size: int,
        share: float,
        *,
        early_stop: bool,
        first_window: int,
        waits: Waits,
    ) -> None:
        lanes = size // LANE
        config = partial(
            FlowConfig,
            early_stop=early_stop,
            first_window=first_window,
            max_loss=share,
            **waits.flows(),
        )
        addresses = {name: Address(network.stations[name].host.ip) for name in [*workers, *servers]}
        hosts = {name: network.flows(name) for name in [*workers, *servers]}
        table = Table.shares([ParameterInfo("tensor", (lanes,))], len(servers))
        together = Consistency(0)
        machines: list[ServerMachine] = []
        served: list[ServerEnds] = []
        for index, name in enumerate(servers):
            spec = OptimizerSpec("SGD", ({"lr": _LR},))
            optimizer = UnitsOptimizer(table.units, table.of(index), spec)
            machines.append(ServerMachine(index, table, optimizer, ServerRules(together)))
            served.append(ServerEnds(machines[-1], hosts[name].mux))
            hosts[name].react = served[-1].advance
        self._left = _Count(0)
        self._counts: Counter[str] = Counter()
        self._workers: list[tuple[FlowHost, WorkerMachine, list[WorkerEnd]]] = []
        clients = [
            WorkerMachine(rank, 1, np.empty(lanes, np.uint32), table, WorkerRules(together), Residual(lanes))
            for rank in range(len(workers))
        ]
        for rank, name in enumerate(workers):
            client, ends_of = clients[rank], []
            for number, (server, ends) in enumerate(zip(machines, served, strict=True)):
                for answer in server.handle(client.hello(number)):  # before the run: steps alone are measured
                    clients[answer.member].on_message(number, answer)
                first = 1 + 2 * (number * len(workers) + rank)
                up, down = config(first, rank), config(first + 1, rank)
                ends.connect(rank, 1, up, down, addresses[name])
                there = addresses[servers[number]]
                ends_of.append(WorkerEnd(hosts[name].mux, there, up, down, loss_budget=share))
            self._workers.append((hosts[name], client, ends_of))
            hosts[name].react = partial(self._collect, client, ends_of)
        self._values = np.random.default_rng(1).standard_normal(lanes).astype(np.float32)

    def _collect(self, client: WorkerMachine, ends: Sequence[WorkerEnd]) -> None:
        for number, end in enumerate(ends):
            for message in end.received():
                waited = not client.allows(number)
                client.on_message(number, message)
                if waited and client.allows(number):
                    self._left.one()
            for settled in end.settlements():
                self._counts.update(
                    {
                        "timeouts": settled.timeouts,
                        "retransmissions": settled.resent,
                        "lanes": settled.entered.lanes,
                        "missing": settled.returned.lanes,
                    }
                )

    def begin(self, pause: int = 0) -> Done:
        """Begin a tensor, see ``Transport``; there are no pauses."""
        assert not pause
        self._left.left = sum(len(ends) for _, _, ends in self._workers)
        for host, client, ends in self._workers:
            for end, push in zip(ends, client.push(self._values, _LR), strict=True):
                end.submit(push)
            host.pump()
        return self._left

    def end(self) -> Counter[str]:
        """Return what the flows counted."""
        counts, self._counts = self._counts, Counter()
        return counts
