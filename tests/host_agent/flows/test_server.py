# SPDX-License-Identifier: Apache-2.0
"""Push and pull: what the server sums is what was delivered, in one order, and every worker gets that."""

from random import Random

import numpy as np
import pytest

from tests.host_agent.flows.world import Floats
from weir.host_agent.flows import (
    Aggregate,
    FlowConfig,
    FlowMux,
    ParameterServer,
    PullResult,
    ServerClient,
    ServerConfig,
    Settlement,
    WorkerFlows,
)
from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.server import PushMismatchError, bounded
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass

MS = 1_000_000
CHUNK = 8
SERVER = Address("10.0.0.1")


def at(rank: int) -> Address:
    """Return where a worker is."""
    return Address(f"10.0.1.{rank}")


class Cluster:
    """Workers and a server; a packet at a time, any of those under way arrives or is lost."""

    def __init__(
        self, workers: int, config: ServerConfig | None = None, seed: int = 0, loss: float = 0.0
    ) -> None:
        self.random, self.loss, self.now = Random(seed), loss, 0
        flows = [
            WorkerFlows(
                FlowConfig(100 + rank, rank, chunk_lanes=CHUNK),
                FlowConfig(200 + rank, rank, chunk_lanes=CHUNK),
            )
            for rank in range(workers)
        ]
        self.server = ParameterServer(flows, config)
        self.muxes: dict[Address, FlowMux] = {SERVER: FlowMux()}
        self.server.attach(self.muxes[SERVER], [at(rank) for rank in range(workers)])
        self.clients = [ServerClient(one) for one in flows]
        for rank, client in enumerate(self.clients):
            self.muxes[at(rank)] = FlowMux()
            client.attach(self.muxes[at(rank)], SERVER)
        self.aggregates: dict[int, Aggregate] = {}
        self.pulls: list[list[Settlement]] = [[] for _ in range(workers)]

    def run(self) -> list[list[PullResult]]:
        """Until everything pushed was pulled; each worker's results."""
        flying: list[tuple[Address, Address, bytes]] = []
        for _ in range(20_000):
            for here, mux in self.muxes.items():
                flying += [(here, peer, datagram.payload) for peer, datagram in mux.poll(self.now)[0]]
            if all(client.idle for client in self.clients) and self.server.idle and not flying:
                return [client.results() for client in self.clients]
            if flying:
                here, there, payload = flying.pop(self.random.randrange(len(flying)))
                if self.random.random() >= self.loss:
                    self.muxes[there].on_packet(payload, self.now, 0, here)
                self.now += 1000
            else:
                self.now += 5 * MS
            self._collect()
        raise AssertionError("it does not end")

    def _collect(self) -> None:
        self.aggregates.update((one.tensor, one) for one in self.server.advance())
        for mine, new in zip(self.pulls, self.server.settlements(), strict=True):
            mine.extend(new)


def gradients(workers: int, lanes: int, seed: int = 0) -> list[Floats]:
    """Return values whose float32 sum depends on the order of addition."""
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-30, 30, (workers, lanes))
    return list((rng.standard_normal((workers, lanes)) * 2.0**exponents).astype(np.float32))


def in_order(vectors: list[Floats]) -> Floats:
    total = np.zeros(vectors[0].size, np.float64)
    for vector in vectors:
        total += vector
    return total.astype(np.float32)


@pytest.mark.parametrize("seed", range(5))
def test_the_sum_does_not_depend_on_the_order_of_arrival(seed: int) -> None:
    cluster, vectors = Cluster(4, seed=seed), gradients(4, 300)
    for client, vector in zip(cluster.clients, vectors, strict=True):
        client.push(vector)
    for (result,) in cluster.run():
        np.testing.assert_array_equal(result.values, in_order(vectors))
        assert result.pushed.complete
        assert result.stale == 0


def test_float32_sums_would_depend_on_it() -> None:
    """What the test above guards against happens with these vectors."""
    vectors = gradients(4, 300)
    forward, backward = (sum(v, np.zeros(300, np.float32)) for v in (vectors, vectors[::-1]))
    assert (forward != backward).any()


@pytest.mark.parametrize("seed", range(20))
def test_every_value_is_summed_or_returned(seed: int) -> None:
    """Integers, so that sums of values are exact: what was pushed = what was summed + what came back."""
    config = ServerConfig(push_loss=0.3, pull_loss=0.1)
    cluster = Cluster(3, config, seed, loss=0.2)
    rng = np.random.default_rng(seed)
    lanes, steps = 203, 4
    pushed = rng.integers(1, 1000, (steps, 3, lanes)).astype(np.float32)
    previous = np.full(lanes, -1, np.float32)
    for step in range(steps):
        for client, vector in zip(cluster.clients, pushed[step], strict=True):
            client.push(vector, bounded(lanes, 0.3), previous)
    results = cluster.run()
    stale = 0
    for step in range(steps):
        aggregate = cluster.aggregates[step + 1]
        mine = [results[rank][step] for rank in range(3)]
        residuals = sum(result.pushed.residual() for result in mine)
        np.testing.assert_array_equal(aggregate.values + residuals, pushed[step].sum(axis=0))
        counts = sum(result.pushed.delivered.astype(int) for result in mine)
        np.testing.assert_array_equal(aggregate.contributors, counts)
        assert aggregate.missing == tuple(result.pushed.returned.lanes for result in mine)
        for result in mine:
            assert result.pushed.returned.lanes <= int(0.3 * lanes)
            assert result.stale <= int(0.1 * lanes)
            came = result.pulled.lanes_received()
            np.testing.assert_array_equal(result.values, np.where(came, aggregate.values, -1))
            stale += result.stale
    assert stale == sum(pull.returned.lanes for pulls in cluster.pulls for pull in pulls)


def test_loss_happens_in_that_test_in_both_directions() -> None:
    cluster = Cluster(3, ServerConfig(push_loss=0.3, pull_loss=0.1), seed=3, loss=0.3)
    for _ in range(4):
        for client in cluster.clients:
            client.push(np.ones(203, np.float32), bounded(203, 0.3), np.zeros(203, np.float32))
    results = [result for worker in cluster.run() for result in worker]
    assert any(result.stale for result in results)
    assert any(not result.pushed.complete for result in results)


def test_what_is_pulled_is_what_the_update_makes_of_the_sum() -> None:
    parameters = np.zeros(100, np.float32)

    def descend(aggregate: Aggregate) -> Floats:
        nonlocal parameters
        parameters = parameters - np.float32(0.5) * aggregate.mean()
        return parameters

    cluster = Cluster(4, ServerConfig(update=descend))
    for vector, client in enumerate(cluster.clients):
        client.push(np.full(100, vector, np.float32), previous=parameters)
    for (result,) in cluster.run():
        np.testing.assert_array_equal(result.values, np.full(100, -0.75, np.float32))


def test_a_mean_counts_only_what_came() -> None:
    aggregate = Aggregate(1, 0, np.array([6, 6, 6, 0], np.float32), 2, np.array([3, 0], np.uint8), (0, 2))
    np.testing.assert_array_equal(aggregate.mean(), np.array([2, 2, 6, 0], np.float32))


def test_a_worker_cannot_lose_more_than_the_server_grants() -> None:
    cluster = Cluster(1, ServerConfig(push_loss=0.1), loss=0.5)
    cluster.clients[0].push(np.ones(100, np.float32), bounded(100, 0.2))
    with pytest.raises(AssertionError, match="does not end"):
        cluster.run()
    assert any(verdict.name == "BEYOND_BOUND" for verdict in cluster.muxes[SERVER].refused())


def test_tensors_that_differ_are_refused_by_name() -> None:
    cluster = Cluster(2)
    cluster.clients[0].push(np.ones(100, np.float32))
    cluster.clients[1].push(np.ones(101, np.float32))
    with pytest.raises(PushMismatchError, match=r"tensor 1: worker \d .*10[01]"):
        cluster.run()


def test_a_pull_is_bound_more_strictly_than_a_push() -> None:
    with pytest.raises(ValueError, match="pull_loss <= push_loss"):
        ServerConfig(push_loss=0.1, pull_loss=0.2)


def test_stale_lanes_keep_what_was_given() -> None:
    """A pull that is trimmed at once."""
    cluster = Cluster(1, ServerConfig(pull_loss=0.5))
    (client,) = cluster.clients
    client.push(np.ones(4 * CHUNK, np.float32), LOSSLESS, previous=np.arange(4 * CHUNK, dtype=np.float32))
    for _ in range(200):
        for peer, datagram in cluster.muxes[at(0)].poll(cluster.now)[0]:
            cluster.muxes[peer].on_packet(datagram.payload, cluster.now, 0, at(0))
        cluster.server.advance()
        for _, datagram in cluster.muxes[SERVER].poll(cluster.now)[0]:
            if datagram.traffic_class & 3:  # what may be lost is lost
                cluster.muxes[at(0)].on_packet(datagram.payload, cluster.now, 0, SERVER)
        cluster.now += MS
    (result,) = client.results()
    assert result.stale == 2 * CHUNK
    np.testing.assert_array_equal(result.values[: 2 * CHUNK], np.arange(2 * CHUNK))
    np.testing.assert_array_equal(result.values[2 * CHUNK :], 1)


def test_the_service_class_of_a_whole_tensor() -> None:
    service = bounded(999, 0.1, layer=3)
    assert isinstance(service, ServiceClass)
    assert (service.layer, service.budgets.tolist()) == (3, [99])
    with pytest.raises(ValueError, match="share"):
        bounded(10, 1.5)
