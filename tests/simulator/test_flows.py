# SPDX-License-Identifier: Apache-2.0
"""Flows through the real switch program: workers push to a server and pull from it, congested and sprayed."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from softp4.runtime.queueing import Queueing
from weir.controller.qos import WEIR_CLASSES, ClassSpec, Qos
from weir.controller.topology import Topology, leaf_spine
from weir.host_agent.flows import (
    FlowConfig,
    FlowReceiver,
    FlowSender,
    ParameterServer,
    PullResult,
    ServerClient,
    ServerConfig,
    WorkerFlows,
)
from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.server import bounded
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.simulator.flowhost import FlowHost
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
    """The last host is the server, all others are its workers."""

    network: Network
    config: ServerConfig
    hosts: list[FlowHost] = field(default_factory=list)
    clients: list[ServerClient] = field(default_factory=list)

    def __post_init__(self) -> None:
        *names, server_name = self.network.stations
        flows = [
            WorkerFlows(FlowConfig(100 + rank, rank), FlowConfig(200 + rank, rank))
            for rank in range(len(names))
        ]
        self.hosts = [self.network.flows(name) for name in names]
        self.clients = [ServerClient(one) for one in flows]
        self.server = ParameterServer(flows, self.config)
        self.server_host = self.network.flows(server_name)
        self.server_host.react = self.server.advance
        peers = [self._address(name) for name in names]
        self.server.attach(self.server_host.mux, peers)
        for client, host in zip(self.clients, self.hosts, strict=True):
            client.attach(host.mux, self._address(server_name))

    def _address(self, name: str) -> Address:
        return Address(self.network.stations[name].host.ip)

    def exchange(self, vectors: list[Floats], service: ServiceClass, previous: Floats) -> list[PullResult]:
        """Return one round of push and pull."""
        for client, host, vector in zip(self.clients, self.hosts, vectors, strict=True):
            client.push(vector, service, previous)
            host.pump()
        self.network.run(lambda: all(client.idle for client in self.clients) and self.server.idle, limit=60)
        return [result for client in self.clients for result in client.results()]

    def timeouts(self) -> int:
        return sum(sender.counts.timeouts for sender in self.senders())

    def senders(self) -> list[FlowSender]:
        return [*self.server.senders, *(client.sender for client in self.clients)]


def treatments(network: Network, treatment: Treatment) -> int:
    """Return packets that any queue of any switch treated so."""
    name = (
        "WeirEgress.marking.treatments"
        if treatment is Treatment.MARKED
        else "WeirIngress.queueing.treatments"
    )
    return sum(
        node.switch.counter(name).read(treatment << 3 | queue).packets
        for node in network.nodes.values()
        for queue in range(8)
    )


def gradients(seed: int, workers: int) -> list[Floats]:
    """Return small integers: sums of them are exact in any order."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-1000, 1000, LANES).astype(np.float32) for _ in range(workers)]


def check(vectors: list[Floats], results: list[PullResult], previous: Floats) -> None:
    """Sum, residuals and stale values account for every value."""
    delivered = sum(v - result.pushed.residual() for v, result in zip(vectors, results, strict=True))
    for result in results:
        came = result.pulled.lanes_received()
        np.testing.assert_array_equal(result.values, np.where(came, delivered, previous))
        assert result.stale == int((~came).sum())
        assert result.pushed.entered == result.pushed.kept + result.pushed.returned
        assert (result.pushed.missing <= result.pushed.budgets).all()


def rack(trim_at: int = 16) -> Topology:
    """Five hosts behind one switch (and a spine with nothing to do)."""
    classes = {code: ClassSpec(trim_at=trim_at) for code in WEIR_CLASSES}
    return leaf_spine(1, 1, 5, target="soft", qos=Qos(classes=classes))


@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_four_workers_push_and_pull_without_budgets(loss: float) -> None:
    vectors, previous = gradients(1, 4), np.zeros(LANES, np.float32)
    link = LinkSpec(None, Faults(delay=1_000, jitter=5_000, loss=loss, duplicate=loss))
    with Network(rack(), seed=1, link=link) as network:
        cluster = Cluster(network, ServerConfig())
        for _ in range(2):
            for result in cluster.exchange(vectors, LOSSLESS, previous):
                np.testing.assert_array_equal(result.values, sum(vectors))
                assert result.pushed.complete
                assert not result.stale


@pytest.mark.parametrize(("racks", "spines"), [(1, 1), (2, 2)])
def test_switches_trim_what_may_be_lost_and_no_timer_fires(racks: int, spines: int) -> None:
    """Four workers send to one server at once: its port is congested, and all others are not."""
    topology = leaf_spine(racks, spines, 5 if racks == 1 else 3, target="soft", qos=Qos())
    workers = len(topology.hosts) - 1
    vectors, previous = gradients(2, workers), np.full(LANES, 7, np.float32)
    with Network(topology, seed=1, link=LINK, queueing=Queueing(depth_packets=400)) as network:
        cluster = Cluster(network, ServerConfig(pull_loss=0.05))
        results = cluster.exchange(vectors, bounded(LANES, 0.1, layer=3), previous)
        check(vectors, results, previous)
        assert treatments(network, Treatment.TRIMMED) > 0
        assert treatments(network, Treatment.MARKED) > 0
        assert sum(result.pushed.trimmed for result in results) > 0
        assert cluster.timeouts() == 0
        for result in results:
            assert result.pushed.returned.lanes <= LANES // 10
            assert result.stale <= LANES // 20


def test_without_budgets_nothing_is_trimmed_and_marks_slow_the_senders() -> None:
    vectors, previous = gradients(3, 4), np.zeros(LANES, np.float32)
    with Network(rack(), seed=1, link=LINK, queueing=Queueing(depth_packets=400)) as network:
        cluster = Cluster(network, ServerConfig())
        for result in cluster.exchange(vectors, LOSSLESS, previous):
            np.testing.assert_array_equal(result.values, sum(vectors))
        assert treatments(network, Treatment.TRIMMED) == 0
        assert treatments(network, Treatment.MARKED) > 0
        assert cluster.timeouts() == 0
        assert all(client.sender.window.shrunk for client in cluster.clients)


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
    vectors, previous = gradients(5, 4), np.zeros(LANES, np.float32)
    with Network(rack(1000), seed=1, link=LINK, queueing=Queueing(depth_packets=400)) as network:
        cluster = Cluster(network, ServerConfig())
        before: list[int] = []

        def tighten() -> None:
            before.append(treatments(network, Treatment.TRIMMED))
            network.program(rack(0))

        network.clock.after(20 * MS, tighten)
        results = cluster.exchange(vectors, bounded(LANES, 1.0, layer=3), previous)
        check(vectors, results, previous)
        assert before == [0]
        trimmed = treatments(network, Treatment.TRIMMED)
        assert trimmed == sum(result.pushed.trimmed for result in results) > 100
        assert cluster.timeouts() == 0


@pytest.mark.parametrize("loss", [0.0, 0.01])
def test_flows_and_collectives_share_a_network(loss: float) -> None:
    """The same hosts push to a server and all-reduce over the spines at once, both within their budgets."""
    topology = leaf_spine(2, 2, 3, target="soft", qos=Qos())
    workers, blocks = 5, 300
    vectors, previous = gradients(6, workers), np.zeros(LANES, np.float32)
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
        cluster = Cluster(network, ServerConfig(pull_loss=0.05))
        results = cluster.exchange(vectors, bounded(LANES, 0.1, layer=3), previous)
        network.run(lambda: job.idle, limit=60)
        check(vectors, results, previous)
        expected = sum(before, np.zeros(blocks * 256, np.uint32))
        for worker in job.workers:
            report = worker.reports[0]
            assert report.missing[0] <= service.budgets[0]
            for block, lanes in zip(report.given_back.blocks, report.given_back.lanes, strict=True):
                expected[block * 256 : (block + 1) * 256] -= lanes
        for lanes in after:
            np.testing.assert_array_equal(lanes, expected)
