# SPDX-License-Identifier: Apache-2.0
"""Flows through the real switch program: workers push to a server and pull from it, congested and sprayed."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from softp4.runtime.queueing import Queueing
from tests.host_agent.parameter_server.world import Exact, Sum, alone
from weir.bench.simulated.fabric import treated
from weir.controller.qos import WEIR_CLASSES, ClassSpec, Qos
from weir.controller.topology import Topology, leaf_spine
from weir.host_agent.flows import FlowConfig, FlowReceiver, FlowSender, Settlement
from weir.host_agent.flows.frames import Address
from weir.host_agent.parameter_server.clocks import Consistency
from weir.host_agent.parameter_server.flow_ends import ServerEnds, WorkerEnd
from weir.host_agent.parameter_server.residual import Residual
from weir.host_agent.parameter_server.server_rules import ServerRules
from weir.host_agent.parameter_server.worker_machine import WorkerMachine, WorkerRules
from weir.host_agent.transport.service_class import ServiceClass
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.simulator.network import LinkSpec, Network
from weir.wire.definition import Op, Treatment

MS = 1_000_000
LANES = 60_000
UNLIMITED = LinkSpec(None, Faults(delay=1_000))
LINK = LinkSpec(100_000_000, Faults(delay=5_000))

Floats = npt.NDArray[np.float32]


@dataclass
class Cluster:
    """The last host is the server, all others are its workers, who make their steps together.

    budget: share of a push's values that may be lost.
    """

    network: Network
    budget: float = 0.0
    lanes: int = LANES
    workers: list[WorkerMachine] = field(default_factory=list)
    ends: list[WorkerEnd] = field(default_factory=list)
    settled: list[Settlement] = field(default_factory=list)

    def __post_init__(self) -> None:
        *names, server_name = self.network.stations
        self.hosts = [self.network.flows(name) for name in names]
        self.server = Exact(
            0, alone(self.lanes), Sum(np.zeros(self.lanes, np.float32)), ServerRules(Consistency(0))
        )
        server_host = self.network.flows(server_name)
        self.served = ServerEnds(self.server, server_host.mux)
        server_host.react = self.served.advance
        for rank, (name, host) in enumerate(zip(names, self.hosts, strict=True)):
            words = np.empty(self.lanes, np.uint32)
            table = alone(self.lanes)
            worker = WorkerMachine(rank, 1, words, table, WorkerRules(Consistency(0)), Residual(self.lanes))
            for answer in self.server.handle(worker.hello(0)):
                [*self.workers, worker][answer.member].on_message(0, answer)
            up = FlowConfig(100 + rank, rank, max_loss=self.budget)
            down = FlowConfig(200 + rank, rank)
            self.served.connect(rank, 1, up, down, self._address(name))
            end = WorkerEnd(host.mux, self._address(server_name), up, down, self.budget, layer=3)
            self.workers.append(worker)
            self.ends.append(end)
            host.react = partial(self._take, worker, end)

    def _address(self, name: str) -> Address:
        return Address(self.network.stations[name].host.ip)

    def _take(self, worker: WorkerMachine, end: WorkerEnd) -> None:
        for message in end.received():
            worker.on_message(0, message)
        self.settled += end.settlements()

    def exchange(self, vectors: list[Floats]) -> list[Settlement]:
        """Make one step, and return what became of the pushes; every value is accounted for."""
        for worker, end, host, vector in zip(self.workers, self.ends, self.hosts, vectors, strict=True):
            end.submit(*worker.push(vector, 1.0))
            host.pump()
        self.network.run(self._stepped, limit=60)
        found, self.settled = self.settled, []
        for settled in found:
            assert settled.entered == settled.kept + settled.returned
            assert (settled.missing <= settled.budgets).all()
        return found

    def _stepped(self) -> bool:
        return all(
            worker.settled and worker.may_step and end.idle
            for worker, end in zip(self.workers, self.ends, strict=True)
        ) and all(sender.idle for sender in self.served.senders)

    def check(self, entered: list[Floats]) -> None:
        """Workers have the server's model, which lacks of what entered only what they hold."""
        model = self.server.optimizer.parameters
        for worker in self.workers:
            np.testing.assert_array_equal(worker.words, model.view(np.uint32))
        held = sum(worker.held.arrays()["sum"] for worker in self.workers)
        np.testing.assert_array_equal(held - model, sum(entered))

    def timeouts(self) -> int:
        own = sum(end.stats.timeouts for end in self.ends)
        return own + sum(sender.counts.timeouts for sender in self.served.senders)


def gradients(seed: int, workers: int) -> list[Floats]:
    """Return small integers: sums of them are exact in any order."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-1000, 1000, LANES).astype(np.float32) for _ in range(workers)]


def rack(trim_at: int = 16) -> Topology:
    """Five hosts behind one switch (and a spine with nothing to do)."""
    classes = {code: ClassSpec(trim_at=trim_at) for code in WEIR_CLASSES}
    return leaf_spine(1, 1, 5, target="soft", qos=Qos(classes=classes))


@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_four_workers_push_and_pull_without_budgets(loss: float) -> None:
    vectors = gradients(1, 4)
    link = LinkSpec(None, Faults(delay=1_000, jitter=5_000, loss=loss, duplicate=loss))
    with Network(rack(), seed=1, link=link) as network:
        cluster = Cluster(network)
        for _ in range(2):
            assert all(settled.complete for settled in cluster.exchange(vectors))
        cluster.check(2 * vectors)


@pytest.mark.parametrize(("racks", "spines"), [(1, 1), (2, 2)])
def test_switches_trim_what_may_be_lost_and_no_timer_fires(racks: int, spines: int) -> None:
    """Four workers send to one server at once: its port is congested, and all others are not."""
    topology = leaf_spine(racks, spines, 5 if racks == 1 else 3, target="soft", qos=Qos())
    workers = len(topology.hosts) - 1
    vectors = gradients(2, workers)
    with Network(topology, seed=1, link=LINK, queueing=Queueing(depth_packets=400)) as network:
        cluster = Cluster(network, 0.1)
        found = cluster.exchange(vectors)
        cluster.check(vectors)
        assert treated(network, Treatment.TRIMMED) > 0
        assert treated(network, Treatment.MARKED) > 0
        assert sum(settled.trimmed for settled in found) > 0
        assert cluster.timeouts() == 0
        assert all(settled.returned.lanes <= LANES // 10 for settled in found)


def test_without_budgets_nothing_is_trimmed_and_marks_slow_the_senders() -> None:
    vectors = gradients(3, 4)
    with Network(rack(), seed=1, link=LINK, queueing=Queueing(depth_packets=400)) as network:
        cluster = Cluster(network)
        cluster.exchange(vectors)
        cluster.check(vectors)
        assert treated(network, Treatment.TRIMMED) == 0
        assert treated(network, Treatment.MARKED) > 0
        assert cluster.timeouts() == 0


def test_front_layers_arrive_first_through_a_congested_port() -> None:
    """Flows of three workers to the fourth host, one of a front layer: the switch lets it pass."""
    with Network(rack(), seed=1, link=LINK, queueing=Queueing(depth_packets=400)) as network:
        ended = {}
        names = list(network.stations)
        target = network.flows(names[3])
        for rank, layer in enumerate([3, 2, 0]):
            config = FlowConfig(rank + 1, rank)
            host, sender = network.flows(names[rank]), FlowSender(config)
            host.add(sender, Address(network.stations[names[3]].host.ip))
            target.add(FlowReceiver(config), Address(network.stations[names[rank]].host.ip))
            sender.submit(np.ones(LANES, np.float32), ServiceClass(layer=layer))
            ended[layer] = host, sender
        for host, _ in ended.values():
            host.pump()
        network.run(lambda: all(sender.idle for _, sender in ended.values()), limit=10)
        times = {layer: sender.settlements()[0].ended for layer, (_, sender) in ended.items()}
        assert times[0] < times[2] < times[3]
        alone = LANES * 4 * 8 * (1474 / 1408) / 100e6 * 1e9  # nanoseconds of the front layer by itself
        assert times[0] < 1.5 * alone


def test_spraying_over_unequal_paths_changes_no_value() -> None:
    topology = leaf_spine(2, 2, 2, target="soft", qos=Qos())
    values = gradients(4, 1)[0]
    with Network(topology, seed=1, link=UNLIMITED, trunk=LinkSpec(None, Faults(delay=10_000))) as network:
        network.link("leaf1", "spine2").faults = Faults(delay=500_000)
        config = FlowConfig(1)
        here, there = network.flows("h1"), network.flows("h4")
        sender, receiver = FlowSender(config), FlowReceiver(config)
        here.add(sender, Address(network.stations["h4"].host.ip))
        there.add(receiver, Address(network.stations["h1"].host.ip))
        sender.submit(values)
        here.pump()
        network.run(lambda: sender.idle, limit=10)
        (delivery,) = receiver.deliveries()
        np.testing.assert_array_equal(delivery.values, values)
        assert sender.counts.timeouts == 0


def test_thresholds_changed_while_flows_run_hold_from_the_next_packet() -> None:
    """First nothing is trimmed; from the middle of the push on, whatever may be is."""
    vectors = gradients(5, 4)
    with Network(rack(1000), seed=1, link=LINK, queueing=Queueing(depth_packets=400)) as network:
        cluster = Cluster(network, 1.0)
        before: list[int] = []

        def tighten() -> None:
            before.append(treated(network, Treatment.TRIMMED))
            network.program(rack(0))

        network.clock.after(20 * MS, tighten)
        found = cluster.exchange(vectors)
        cluster.check(vectors)
        assert before == [0]
        trimmed = treated(network, Treatment.TRIMMED)
        assert trimmed == sum(settled.trimmed for settled in found) > 100
        assert cluster.timeouts() == 0


@pytest.mark.parametrize("loss", [0.0, 0.01])
def test_flows_and_collectives_share_a_network(loss: float) -> None:
    """The same hosts push to a server and all-reduce over the spines at once, both within their budgets."""
    topology = leaf_spine(2, 2, 3, target="soft", qos=Qos())
    workers, blocks = 5, 300
    vectors = gradients(6, workers)
    link = LinkSpec(LINK.rate_bps, Faults(delay=5_000, loss=loss))
    service = ServiceClass(
        layer=1,
        accounts=np.zeros(blocks, np.uint16),
        budgets=np.array([blocks * 256 // 10], np.uint64),
    )
    rng = np.random.default_rng(7)
    with Network(topology, seed=1, link=link, queueing=Queueing(depth_packets=400)) as network:
        job = network.admit(list(network.stations)[:workers], slots=64)
        before = [rng.integers(0, 1 << 20, blocks * 256, dtype=np.uint32) for _ in range(workers)]
        after = [lanes.copy() for lanes in before]
        for worker, lanes in zip(job.workers, after, strict=True):
            worker.submit(Work(Op.ADD, 256, lanes, service=service))
        cluster = Cluster(network, 0.1)
        cluster.exchange(vectors)
        network.run(lambda: job.idle, limit=60)
        cluster.check(vectors)
        expected = sum(before, np.zeros(blocks * 256, np.uint32))
        for worker in job.workers:
            report = worker.reports[0]
            assert report.missing[0] <= service.budgets[0]
            for block, lanes in zip(report.given_back.blocks, report.given_back.lanes, strict=True):
                expected[block * 256 : (block + 1) * 256] -= lanes
        for lanes in after:
            np.testing.assert_array_equal(lanes, expected)
