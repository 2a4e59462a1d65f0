# SPDX-License-Identifier: Apache-2.0
"""The step within a host: ranks in threads that share memory, their leaders on a real switch."""

import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from tests.host_agent.transport.racks import shm_rack
from weir.host_agent.collectives.communicator import Audience
from weir.host_agent.collectives.host_sum import Hosts, HostSum, Network, group_hosts
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.transport.host_memory import HostMemory
from weir.host_agent.transport.ledger import Direction, posting
from weir.host_agent.transport.links import DisagreementError, TransportTimeout
from weir.host_agent.transport.reducer import Reducer
from weir.host_agent.transport.report import FRAME_OVERHEAD, ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.wire.definition import AUDIENCE_EXCEPT, COLUMN, WEIR, Op

Lanes = npt.NDArray[np.uint32]
OPERATORS = {Op.ADD: np.add, Op.MAX: np.maximum, Op.OR: np.bitwise_or}
PROBE = FRAME_OVERHEAD + WEIR.size + COLUMN.size  # bytes of a packet that asks, of one column
HOSTS = Hosts(((0, 3), (1, 2, 4), (5,)))  # unequal, and not in the order of ranks


def over(reducer: Reducer) -> Network:
    """Return the reduction over hosts that a leader makes with its reducer."""

    def network(
        lanes: Lanes, op: Op, block: int, service: ServiceClass, audience: Audience | None, operation: int
    ) -> ReduceReport:
        reducer.operation = operation
        codes = None
        if audience is not None:
            wide = audience.astype(np.int32)
            codes = np.where(wide < 0, ~wide | AUDIENCE_EXCEPT, wide).astype(np.uint16)
        return reducer.reduce_blocks(lanes, op, block, service, codes)

    return network


class Group:
    """Ranks in threads, each with its part of the reductions.

    networks: of the leaders, by host; None: there is but one host.
    """

    def __init__(self, hosts: Hosts, networks: Sequence[Network] | None) -> None:
        self.size = hosts.of_rank.size
        self.sums: list[HostSum] = []
        self.failure: Exception | None = None
        self._threads = ThreadPoolExecutor(self.size)
        parts = {}
        for host, ranks in enumerate(hosts.ranks):
            fd = HostMemory.create(len(ranks))
            for place, rank in enumerate(ranks):
                memory = HostMemory(os.dup(fd), place, len(ranks)) if len(ranks) > 1 else None
                network = networks[host] if networks is not None and place == 0 else None
                parts[rank] = HostSum(hosts, rank, memory, network, self._watch)
            os.close(fd)
        self.sums = [parts[rank] for rank in range(self.size)]

    def _watch(self, _missing: Sequence[int], _seconds: float) -> None:
        if self.failure is not None:
            raise self.failure

    def start(self, vectors: Sequence[Lanes], *args: Any, **options: Any) -> list[Future[ReduceReport]]:
        return [
            self._threads.submit(one.reduce_host_lanes, vector, *args, **options)
            for one, vector in zip(self.sums, vectors, strict=True)
        ]

    def reduce(self, vectors: Sequence[Lanes], *args: Any, **options: Any) -> list[ReduceReport]:
        return results(self.start(vectors, *args, **options), self)


def results(futures: Sequence[Future[ReduceReport]], group: Group) -> list[ReduceReport]:
    """Return what the ranks returned; when one raises, so do the others that wait for it."""
    done, _ = wait(futures, 60, return_when=FIRST_EXCEPTION)
    for future in done:
        if (error := future.exception()) is not None:
            group.failure = RuntimeError("another rank failed")
            raise error
    return [future.result(0) for future in futures]


@pytest.fixture
def reducers(tmp_path: Path) -> Iterator[list[Reducer]]:
    """Yield one for each host of HOSTS."""
    with shm_rack(tmp_path, len(HOSTS.ranks)) as reducers:
        yield reducers


@pytest.fixture
def group(reducers: list[Reducer]) -> Group:
    return Group(HOSTS, [over(reducer) for reducer in reducers])


def random_vectors(seed: int, size: int, count: int, block: int, density: float) -> list[Lanes]:
    """Return a vector for each rank, in which whole blocks are zero."""
    random = np.random.default_rng(seed)
    vectors = [random.integers(0, 1 << 32, count, np.uint32) for _ in range(size)]
    for vector in vectors:
        for start in range(0, count, block):
            if random.random() >= density:
                vector[start : start + block] = 0
    return vectors


def expected(vectors: Sequence[Lanes], op: Op) -> Lanes:
    return np.asarray(OPERATORS[op].reduce(np.array(vectors), dtype=np.uint32), np.uint32)


@given(
    seed=st.integers(0, 1 << 20),
    op=st.sampled_from(Op),
    block=st.sampled_from([32, 64, 128, 256]),
    counts=st.lists(st.integers(0, 3000) | st.integers(16_000, 60_000), min_size=1, max_size=4),
    density=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
)
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_rank_gets_what_a_flat_group_would(
    group: Group, reducers: list[Reducer], seed: int, op: Op, block: int, counts: list[int], density: float
) -> None:
    """Bit for bit, whether the vectors grow or shrink, are long or short, or empty."""
    for turn, count in enumerate(counts):
        vectors = random_vectors(seed + turn, group.size, count, block, density)
        wanted = expected(vectors, op)
        given = [vector.copy() for vector in vectors]
        reports = group.reduce(vectors, op, block, operation=turn + 1)
        for vector, before, report in zip(vectors, given, reports, strict=True):
            np.testing.assert_array_equal(vector, wanted)
            assert report.entered == report.included and not report.returned.lanes
            assert report.entered.total == int(before.view(np.int32).sum(dtype=np.int64))
            assert report.lanes == count and report.op is op and report.block == block


def test_a_host_costs_the_wire_of_one_rank(group: Group, tmp_path: Path) -> None:
    """The leaders' packets are those of a group of one rank a host; the others have none."""
    count, block = 40_000, 256
    vectors = random_vectors(3, group.size, count, block, 0.3)
    of_hosts = [expected([vectors[rank] for rank in ranks], Op.ADD) for ranks in HOSTS.ranks]
    (tmp_path / "flat").mkdir()
    with shm_rack(tmp_path / "flat", len(HOSTS.ranks)) as flat, ThreadPoolExecutor(len(flat)) as threads:
        alone = list(threads.map(lambda one, lanes: one.reduce_blocks(lanes, Op.ADD, block), flat, of_hosts))
    reports = group.reduce(vectors, Op.ADD, block)
    leaders = [ranks[0] for ranks in HOSTS.ranks]
    for host, leader in enumerate(leaders):
        assert reports[leader].blocks_sent == alone[host].blocks_sent < reports[leader].blocks
        ours, theirs = (
            (one.packets_up - one.probes - one.retransmissions, one.bytes_up - PROBE * one.probes)
            for one in (reports[leader], alone[host])
        )
        assert ours[0] == theirs[0]
        if not reports[leader].retransmissions + alone[host].retransmissions:  # a busy machine's
            assert ours[1] == theirs[1]
    for rank in set(range(group.size)) - set(leaders):
        assert reports[rank].packets_up == reports[rank].packets_down == reports[rank].bytes_up == 0
        assert reports[rank].entered.lanes > 0


@given(seed=st.integers(0, 1 << 20), block=st.sampled_from([32, 256]), long=st.booleans())
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_result_goes_to_its_audience(group: Group, seed: int, block: int, long: bool) -> None:
    """Anyone who wants a block has it: on one host with who contributed, alone, or elsewhere."""
    random = np.random.default_rng(seed)
    blocks = 20_000 // block if long else 40
    audience = random.integers(-group.size, group.size, blocks).astype(np.int16)
    vectors = random_vectors(seed, group.size, blocks * block, block, 0.7)
    for index in np.flatnonzero(audience < 0):
        for rank in set(range(group.size)) - {int(~audience[index])}:  # one alone contributes
            vectors[rank][index * block : (index + 1) * block] = 0
    wanted = expected(vectors, Op.OR).reshape(-1, block)
    for _ in range(2):  # the second begins while others may still read the first
        mine = [vector.copy() for vector in vectors]
        group.reduce(mine, Op.OR, block, audience=audience)
        for rank, vector in enumerate(mine):
            wants = (audience == rank) | ((audience < 0) & (~audience != rank))
            np.testing.assert_array_equal(vector.reshape(-1, block)[wants], wanted[wants])
            others = ~wants
            np.testing.assert_array_equal(
                vector.reshape(-1, block)[others], vectors[rank].reshape(-1, block)[others]
            )


def losing(lost: Sequence[int]) -> tuple[Network, list[ServiceClass]]:
    """Return a network of one host that includes no block of ``lost``, and the classes it was called with."""
    seen: list[ServiceClass] = []

    def network(
        lanes: Lanes, op: Op, block: int, service: ServiceClass, _audience: Audience | None, _operation: int
    ) -> ReduceReport:
        seen.append(service)
        report = one_rank(lanes, op, block, service, lost)
        lanes.reshape(-1, block)[lost] = 0
        return report

    return network, seen


def one_rank(lanes: Lanes, op: Op, block: int, service: ServiceClass, lost: Sequence[int]) -> ReduceReport:
    """Return the report of a reduce of one worker that gives some blocks back."""

    def loss(_rank: int, _service: ServiceClass, blocks: int) -> npt.NDArray[np.bool_]:
        return np.isin(np.arange(blocks), lost)

    flat = ServiceClass(service.layer, service.magnitudes, None, np.array([1 << 40], np.uint64))
    made = InMemoryGroup(1, loss)
    (report,) = made.run([lambda: made.communicators[0].reduce_lanes(lanes.copy(), op, block, flat)])
    return report


def test_what_a_host_did_not_deliver_goes_back_to_each_of_its_ranks() -> None:
    """Exactly: entered is included plus returned on every rank, and the sum is of what was included."""
    block, blocks, lost = 64, 40, [3, 7, 31]
    network, classes = losing(lost)
    group = Group(Hosts(((0, 1, 2),)), [network])
    vectors = random_vectors(5, 3, block * blocks, block, 0.6)
    before = [vector.copy() for vector in vectors]
    random = np.random.default_rng(1)
    services = [
        ServiceClass(
            layer=2,
            magnitudes=random.integers(0, 3, blocks, np.uint8),
            accounts=random.integers(0, 4, blocks).astype(np.uint16),
            budgets=np.array([10 * block] * 4, np.uint64),
        )
        for _ in range(3)
    ]
    futures = [
        group._threads.submit(one.reduce_host_lanes, vector, Op.ADD, block, service)
        for one, vector, service in zip(group.sums, vectors, services, strict=True)
    ]
    reports = results(futures, group)
    kept = []
    for rank, (report, service) in enumerate(zip(reports, services, strict=True)):
        posting(1, "bucket", Direction.UP, report).check()
        mine = before[rank].reshape(-1, block)
        owed = [index for index in lost if mine[index].any()]
        assert report.given_back.blocks.tolist() == owed and report.returned.lanes == block * len(owed)
        np.testing.assert_array_equal(report.given_back.lanes, mine[owed])
        assert service.accounts is not None
        missing = np.bincount(service.accounts[owed], minlength=4) * block
        assert report.missing.tolist() == missing.tolist()
        mine[owed] = 0
        kept.append(before[rank])
    for vector in vectors:
        np.testing.assert_array_equal(vector, expected(kept, Op.ADD))
    # The packets' class is the greatest of the ranks', and each lost block costs each rank that has it.
    (service,) = classes
    assert service.layer == 2 and service.accounts is not None and service.accounts.shape == (3, blocks)
    assert service.magnitudes is not None and service.budgets.tolist() == [10 * block] * 12
    given = [vector.reshape(-1, block) for vector in random_vectors(5, 3, block * blocks, block, 0.6)]
    for rank, index in itertools.product(range(3), range(blocks)):
        there = given[rank][index].any()
        account = 4 * rank + int(services[rank].accounts[index]) if there else 0xFFFF
        assert service.accounts[rank, index] == account
        assert not there or service.magnitudes[index] >= services[rank].magnitudes[index]


def test_nothing_may_go_missing_where_one_rank_has_no_budget() -> None:
    network, classes = losing([])
    group = Group(Hosts(((0, 1),)), [network])
    vectors = random_vectors(5, 2, 640, 64, 1.0)
    budget = ServiceClass(budgets=np.array([640], np.uint64))
    futures = [
        group._threads.submit(one.reduce_host_lanes, vector, Op.ADD, 64, service)
        for one, vector, service in zip(group.sums, vectors, [budget, LOSSLESS], strict=True)
    ]
    assert [report.missing.tolist() for report in results(futures, group)] == [[0], []]
    assert not classes[0].budgets.size


@pytest.mark.parametrize("odd", [0, 3, 5])
@pytest.mark.parametrize(
    ("how", "long"),
    [("operation", False), ("operation", True), ("size", True), ("operator", False), ("audience", False)],
)
def test_ranks_that_disagree_all_raise(group: Group, odd: int, how: str, long: bool) -> None:
    """Whichever rank it is, and wherever: on all hosts, within and without its own."""
    count = 40_000 if long else 512
    usual: dict[str, Any] = {"op": Op.ADD, "block": 256, "operation": 7}
    other = (
        usual
        | {
            "operation": {"operation": 8},
            "size": {},
            "operator": {"op": Op.OR},
            "audience": {"audience": np.zeros(-(-count // 256), np.int16)},
        }[how]
    )
    futures = []
    for rank, one in enumerate(group.sums):
        lanes = np.ones(count + (count if rank == odd and how == "size" else 0), np.uint32)
        futures.append(
            group._threads.submit(one.reduce_host_lanes, lanes, **(other if rank == odd else usual))
        )
    for future in futures:
        with pytest.raises(DisagreementError):
            future.result(60)


def test_one_host_needs_no_network() -> None:
    group = Group(Hosts((tuple(range(4)),)), None)
    vectors = random_vectors(9, 4, 70_000, 32, 0.5)
    wanted = expected(vectors, Op.ADD)
    group.reduce(vectors, Op.ADD, 32)
    for vector in vectors:
        np.testing.assert_array_equal(vector, wanted)
    group.reduce([np.empty(0, np.uint32)] * 4, Op.ADD)  # a barrier


def test_a_rank_that_does_not_come_is_named() -> None:
    group = Group(Hosts(((0, 1, 2),)), None)
    futures = [
        group._threads.submit(
            group.sums[rank].reduce_host_lanes, np.ones(5, np.uint32), Op.ADD, 256, timeout_s=0.2
        )
        for rank in (0, 2)
    ]
    with pytest.raises(TransportTimeout, match="on this host rank 1 did not begin"):
        futures[0].result(60)
    group.failure = RuntimeError("the leader gave up")
    with pytest.raises(RuntimeError, match="the leader gave up"):
        futures[1].result(60)


def test_a_leader_that_does_not_come_is_named() -> None:
    group = Group(Hosts(((0, 1),)), None)
    late = group._threads.submit(
        group.sums[1].reduce_host_lanes, np.ones(5, np.uint32), Op.ADD, 256, timeout_s=0.2
    )
    with pytest.raises(TransportTimeout, match="on this host rank 0 did not begin"):
        late.result(20)


def test_hosts_are_numbered_by_their_first_ranks() -> None:
    assert group_hosts(["b", "a", "", "a", "b", ""]).ranks == ((0, 4), (1, 3), (2,), (5,))
    assert group_hosts(["", ""]).flat and not group_hosts(["a", "a"]).flat
    audience = np.array([0, 3, ~4, ~5, 1], np.int16)
    assert HOSTS.audience(audience).tolist() == [0, 0, ~1, ~2, 1]
