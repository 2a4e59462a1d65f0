# SPDX-License-Identifier: Apache-2.0
"""Workers whose packets have few lanes are served by the program for Tofino: packets lost, skipped, given
up."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from tests.harness.effort import effort
from tests.harness.lab import AGGREGATION_IP, AGGREGATION_MAC, Lab
from tests.harness.target import Sent
from tests.harness.tna import NarrowTarget, TnaTarget
from tests.host_agent.transport.answers import combine
from weir.host_agent.collectives.packing import WholeLanes
from weir.host_agent.compression.encodings.forecast import JobSize, PackedBlocks, lanes_bytes
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.host_agent.transport.slot_transport import Audiences, Lanes, SlotTransport, TransportConfig
from weir.wire.definition import AUDIENCE_EXCEPT, UDP_PORT, Event, Op

pytestmark = pytest.mark.p4c

MS = 1_000_000
WORKERS = 3
LANES = 1000  # not a whole number of blocks of any size


@pytest.fixture(scope="module")
def program() -> Iterator[TnaTarget]:
    found = TnaTarget()
    yield found
    found.close()


@pytest.fixture(params=[32, 64])
def rack(program: TnaTarget, request: pytest.FixtureRequest) -> Lab:
    program.lanes = request.param
    return Lab(program)


def vectors(seed: int) -> list[Lanes]:
    """Return sparse vectors: some groups of lanes are everybody's, some one worker's, some nobody's."""
    rng = np.random.default_rng(seed)
    found = [rng.integers(0, 2**32, LANES, dtype=np.uint32) for _ in range(WORKERS)]
    for lanes in found:
        for group in np.flatnonzero(rng.random(-(-LANES // 32)) < 0.6):
            lanes[32 * group : 32 * group + 32] = 0
    return found


class Run:
    """Reduces vectors, over links that lose packets, in virtual time.

    What is to pass the switch once more waits for others at random, and some of it is lost, if links lose.
    """

    def __init__(self, lab: Lab, seed: int, loss: float) -> None:
        self.lab, self.job = lab, lab.job(WORKERS, slot_base=8)
        self._random, self._loss = random.Random(seed), loss
        assert isinstance(lab.target, NarrowTarget)
        self.switch = lab.target
        self.switch.delays = loss > 0
        self.max_lanes = self.switch.lanes
        self.transports = [
            SlotTransport(
                TransportConfig(self.job.id, w, WORKERS, self.job.slot_count, max_lanes=self.max_lanes)
            )
            for w in range(WORKERS)
        ]
        self.passed_again = 0

    def reduce(
        self,
        op: Op,
        block: int,
        arrays: list[Lanes],
        service: ServiceClass = LOSSLESS,
        audiences: Audiences | None = None,
    ) -> list[ReduceReport]:
        """Replace the vectors by their reduction."""
        now = 0
        for transport, lanes in zip(self.transports, arrays, strict=True):
            transport.begin_reduction(op, block, lanes, service, audiences=audiences)
        while not all(transport.done for transport in self.transports):
            deadlines = [self._poll(worker, now) for worker in range(WORKERS)]
            for sent in self._pass_again():
                self._deliver(sent.port, Ether(sent.frame), now)
            now = max(now + MS // 10, min((due for due in deadlines if due is not None), default=now))
            assert now < 600_000 * MS, [transport.waiting() for transport in self.transports]
        return [transport.report() for transport in self.transports]

    def _poll(self, worker: int, now: int) -> int | None:
        station = self.job.stations[worker]
        datagrams, deadline = self.transports[worker].poll(now)
        for datagram in datagrams:
            frame = (
                Ether(src=station.mac, dst=AGGREGATION_MAC)
                / IP(src=station.ip, dst=AGGREGATION_IP, tos=datagram.traffic_class)
                / UDP(sport=station.udp_port, dport=UDP_PORT)
                / datagram.payload
            )
            if not self._lost():
                for sent in self.lab.send(station.port, frame):
                    self._deliver(sent.port, Ether(sent.frame), now)
        return deadline

    def _deliver(self, port: int, frame: Ether, now: int) -> None:
        worker = next(w for w, station in enumerate(self.job.stations) if station.port == port)
        if not self._lost():
            payload = bytes(frame[UDP].payload)
            assert not self.transports[worker].on_packet(payload, now, frame[IP].tos).refused

    def _pass_again(self) -> list[Sent]:
        """Let some of what waits pass once more, in any order."""
        waiting, sent = self.switch.waiting, []
        for _ in range(len(waiting)):
            if self._lost():
                waiting.pop()
            elif self._random.random() < 0.5:
                sent += self.switch.pass_again(self._random.randrange(len(waiting)))
                self.passed_again += 1
        return sent

    def _lost(self) -> bool:
        return self._random.random() < self._loss


@pytest.mark.parametrize(("loss", "block"), [(0.0, 256), (0.1, 32), *effort([], [(0.0, 32), (0.1, 256)])])
@pytest.mark.parametrize("op", list(Op))
def test_sums_are_exact_and_zero_groups_are_skipped(rack: Lab, op: Op, loss: float, block: int) -> None:
    run = Run(rack, 1, loss)
    before = vectors(2)
    after = [lanes.copy() for lanes in before]
    reports = run.reduce(op, block, after)
    for lanes in after:
        np.testing.assert_array_equal(lanes, combine(op, before))
    assert Event.DROP_MALFORMED not in rack.events()
    size = min(block, run.max_lanes if op == Op.ADD else 32)
    occupied = [sum(lanes[i : i + size].any() for i in range(0, LANES, size)) for lanes in before]
    assert [report.blocks_sent for report in reports] == occupied
    assert (run.passed_again > 0) == (run.max_lanes == 64 and op == Op.ADD and loss > 0)


@pytest.mark.parametrize("block", [32, 256])
def test_planners_know_what_narrow_packets_cost(rack: Lab, block: int) -> None:
    """One worker has everything, the others a quarter of it, in whole blocks."""
    run, groups = Run(rack, 9, 0.0), effort(32, 64)
    vector = np.ones(groups * 32, np.uint32)
    part = np.where(np.arange(vector.size) % 1024 < 256, vector, 0).astype(np.uint32)
    reports = run.reduce(Op.ADD, block, [vector, part, part.copy()])
    wanted = vector.size // block
    lanes = PackedBlocks(wanted, wanted, wanted * 1.5)
    job = JobSize(WORKERS, run.job.slot_count, vector.size, WholeLanes(WORKERS), run.max_lanes)
    assert sum(report.bytes_up + report.bytes_down for report in reports) == lanes_bytes(lanes, block, job)


@pytest.mark.parametrize("block", [32, 256])
def test_what_is_given_up_comes_back_where_it_was(rack: Lab, block: int) -> None:
    run = Run(rack, 3, 0.3)
    before = vectors(4)
    after = [lanes.copy() for lanes in before]
    service = ServiceClass(
        accounts=np.zeros(-(-LANES // block), np.uint16), budgets=np.array([LANES], np.uint64)
    )
    reports = run.reduce(Op.ADD, block, after, service)
    assert any(report.given_back.blocks.size for report in reports)
    kept = []
    for lanes, report in zip(before, reports, strict=True):
        rest = np.pad(lanes, (0, -LANES % block)).reshape(-1, block)
        rest[report.given_back.blocks] -= report.given_back.lanes
        kept.append(rest.reshape(-1)[:LANES])
    for lanes in after:
        np.testing.assert_array_equal(lanes, combine(Op.ADD, kept))


def test_blocks_for_one_or_all_but_one_reach_them(rack: Lab) -> None:
    run = Run(rack, 5, 0.1)
    before = vectors(6)
    after = [lanes.copy() for lanes in before]
    audiences = np.array([0, AUDIENCE_EXCEPT | 1, 2, AUDIENCE_EXCEPT], np.uint16)
    run.reduce(Op.ADD, 256, after, audiences=audiences)
    expected = combine(Op.ADD, before)
    for block, wanting in enumerate(([0], [0, 2], [2], [1, 2])):
        for worker in wanting:
            part = slice(256 * block, 256 * block + 256)
            np.testing.assert_array_equal(after[worker][part], expected[part])
