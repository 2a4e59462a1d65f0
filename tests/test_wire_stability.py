# SPDX-License-Identifier: Apache-2.0
"""The bytes on the wire, and the results, of fixed scenarios: a change of either must be meant.

Every scenario runs real code in virtual time under fixed seeds. It is summarised by the SHA-256 digest of all
frames on all links, with their times, and of all results. A digest that changes says that peers of another
version see other packets, or that replicas compute other sums. If that is what a change is for, record the
new digests (the failing test prints them) and say why in the CHANGELOG.
"""

import hashlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from softp4.runtime.queueing import Queueing
from softp4.switch import Switch
from tests.simulator.rack import Rack
from tests.simulator.test_flows import Cluster
from weir.controller.qos import WEIR_CLASSES, ClassSpec, Qos
from weir.controller.topology import leaf_spine
from weir.host_agent.collectives import limbs, quantize
from weir.host_agent.flows import codec as flow_codec
from weir.host_agent.transport.codec import Column, Packet
from weir.host_agent.transport.frames import Framer
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.p4src import PROGRAM
from weir.simulator.background import Background, IncastBursts
from weir.simulator.entries import aggregation, host_addresses
from weir.simulator.host import Host, Work
from weir.simulator.link import Faults, Link
from weir.simulator.network import LinkSpec, Network
from weir.wire import definition as d

Lanes = npt.NDArray[np.uint32]

WORKERS = 4
ALL_FAULTS = Faults(
    delay=5_000,
    jitter=60_000,
    loss=0.03,
    duplicate=0.03,
    late=0.02,
    lateness=300_000_000,
    trim=0.02,
    mark=0.05,
)
COUNTS = (
    *("lanes", "block", "blocks", "blocks_sent", "rounds", "packets_up", "packets_down", "bytes_up"),
    *("bytes_down", "timeouts", "retransmissions", "releases", "probes", "repeats_asked", "results_trimmed"),
    *("marked", "trimmed", "duplicates", "window"),
)


class Digest:
    """A hash of bytes, numbers and arrays in the order in which they are put in."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def put(self, *items: Any) -> None:
        for item in items:
            data = item if isinstance(item, bytes) else _bytes(item)
            self._hash.update(len(data).to_bytes(8, "big") + data)

    def watch(self, name: str, link: Link) -> None:
        """Take in every frame that is sent on this link from now on, and when."""
        link.tap = lambda time, frame: self.put(name, time, frame)

    def put_report(self, report: ReduceReport) -> None:
        self.put(*(getattr(report, name) for name in COUNTS))
        for account in (report.entered, report.included, report.returned, report.applied):
            self.put(account.lanes, account.total)
        self.put(*sorted((int(verdict), n) for verdict, n in report.refused.items()))
        self.put(report.given_back.blocks, report.given_back.lanes, report.missing, report.budgets)

    def hex(self) -> str:
        return self._hash.hexdigest()


def _bytes(item: Any) -> bytes:
    if isinstance(item, np.ndarray):
        return repr((str(item.dtype), item.shape)).encode() + np.ascontiguousarray(item).tobytes()
    return repr(item if isinstance(item, str | tuple) else int(item)).encode()


def words(seed: object, count: int) -> Lanes:
    """Return random lanes: of a generator that never changes."""
    return np.frombuffer(Random(str(seed)).randbytes(4 * count), "<u4").astype(np.uint32)


def sparse(seed: int, worker: int, count: int) -> Lanes:
    """Return lanes in runs of 32, of which about half are zero."""
    lanes, random = words((seed, worker), count), Random(f"{seed} {worker} zeros")
    for start in range(0, count, 32):
        if random.random() < 0.5:
            lanes[start : start + 32] = 0
    return lanes


def run_rack(digest: Digest, works: Sequence[Sequence[Work]], **config: Any) -> None:
    """Do one reduce after the other over a rack with every fault; ``works[k][worker]``."""
    with Switch(PROGRAM) as switch:
        table, entry = aggregation()
        switch.table(table).insert(entry)
        faults = config.pop("faults", ALL_FAULTS)
        with Rack(switch, workers=WORKERS, slots=8, seed=7, up=faults, down=faults, **config) as rack:
            for worker in range(WORKERS):
                digest.watch(f"up {worker}", rack.up[worker])
                digest.watch(f"down {worker}", rack.down[worker])
            for work in works:
                rack.submit(work)
                rack.run()
                digest.put(*(one.lanes for one in work))
            for host in rack.hosts:
                put_host(digest, host)


def put_host(digest: Digest, host: Host) -> None:
    for report in host.reports:
        digest.put_report(report)
    digest.put(round(host.transport.rto * 1e9), host.transport.rounds)


def every_op_and_block(digest: Digest) -> None:
    works = []
    for number, op in enumerate((d.Op.ADD, d.Op.MAX, d.Op.OR)):
        for block in (32, 64, 128, 256):
            count = 20 * 256 + 3
            lanes = [sparse(number * 1000 + block, worker, count) for worker in range(WORKERS)]
            works.append([Work(op, block, one) for one in lanes])
    works.append([Work(d.Op.ADD, 256, np.empty(0, np.uint32), pause=worker) for worker in range(WORKERS)])
    run_rack(digest, works)


def filled(digest: Digest) -> None:
    """As BMv2 needs it: blocks of 256 are sent, also zeros, smaller ones fill half a packet; rounds wrap."""
    works = [
        [Work(d.Op.ADD, block, sparse(block, worker, 4000)) for worker in range(WORKERS)]
        for block in (32, 256)
    ]
    run_rack(digest, works, fill=True, first_round=2**32 - 3)


def budgeted(digest: Digest) -> None:
    """Every block has a magnitude class and one of three accounts, of which one may lose nothing."""
    works = []
    for number, block in enumerate((64, 256)):
        count = 60 * block
        magnitudes = (words(f"magnitudes {block}", 60) % d.MAGNITUDE_CLASSES).astype(np.uint8)
        accounts = (words(f"accounts {block}", 60) % 3).astype(np.uint16)
        service = ServiceClass(
            layer=2 + number,
            magnitudes=magnitudes,
            accounts=accounts,
            budgets=np.array([0, 4 * block, 9 * block], np.uint64),
        )
        works.append(
            [
                Work(d.Op.ADD, block, sparse(number, worker, count), service=service)
                for worker in range(WORKERS)
            ]
        )
    run_rack(digest, works)


def two_tiers(digest: Digest) -> None:
    """Three racks and two spines with other people's traffic, congestion, and losses on the way."""
    classes = {code: ClassSpec(trim_at=12) for code in WEIR_CLASSES}
    topology = leaf_spine(3, 2, 3, target="soft", qos=Qos(classes=classes, spray="random"))
    link = LinkSpec(200_000_000, Faults(delay=5_000, jitter=20_000, loss=0.01, duplicate=0.01))
    with Network(topology, seed=5, link=link, queueing=Queueing(depth_packets=48)) as network:
        for (here, there), one in network.links().items():
            digest.watch(f"{here} > {there}", one)
        job = network.admit(["h1", "h2", "h4", "h5", "h7", "h8"], slots=16, initial_rto=0.02, min_rto=0.01)
        names = ["h3", "h6", "h9"]
        incast = IncastBursts(100_000_000, fan_in=2, length=20_000)
        background = Background(network, incast, senders=names, receivers=names, seed=5)
        service = ServiceClass(layer=2, budgets=np.array([20 * 256], np.uint64))
        for step in range(3):
            before = [sparse(step, worker, 80 * 256) for worker in range(len(job.workers))]
            for worker, lanes in zip(job.workers, before, strict=True):
                worker.submit(Work(d.Op.ADD, 256, lanes, service=service if step else LOSSLESS))
            network.run(lambda: job.idle, limit=60)
            digest.put(*before)
        background.stop()
        for worker in job.workers:
            put_host(digest, worker)


def parameter_server(digest: Digest) -> None:
    """Workers push with a budget to a server in another rack and take its updates, over faulty links."""
    classes = {code: ClassSpec(trim_at=8) for code in WEIR_CLASSES}
    topology = leaf_spine(2, 2, 2, target="soft", qos=Qos(classes=classes))
    link = LinkSpec(100_000_000, Faults(delay=5_000, jitter=30_000, loss=0.02, duplicate=0.02))
    with Network(topology, seed=3, link=link) as network:
        for (here, there), one in network.links().items():
            digest.watch(f"{here} > {there}", one)
        cluster = Cluster(network, 0.1, 30_000)
        for step in range(2):
            values = [
                (words((step, rank), 30_000) % 2000).astype(np.float32) - np.float32(1000)
                for rank in range(len(cluster.workers))
            ]
            for settled in cluster.exchange(values):
                digest.put(settled.tensor, settled.residual(), settled.delivered, settled.missing)
                digest.put(settled.resent, settled.probes, settled.timeouts, settled.trimmed)
        for worker in cluster.workers:
            digest.put(worker.words, worker.held.arrays()["sum"])


def fixed_point(digest: Digest) -> None:
    """Floats to lanes and back: any bit patterns, subnormals, infinities and NaNs among them."""
    extremes = [0.0, -0.0, 1e-45, -1e-40, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 1.0, 1.0 + 2**-23]
    for block in (32, 64, 128, 256):
        for workers in (1, 2, 3, 7, 32):
            vectors = [words((block, workers, w), 2999).view(np.float32).copy() for w in range(workers)]
            for worker, vector in enumerate(vectors):
                vector[block * 3 : block * 3 + len(extremes)] = np.roll(extremes, worker)
                vector[block * 4 : block * 5] = 0
                normal = words((block, worker), 400).astype(np.int32).astype(np.float32)
                vector[block * 5 :][:400] = normal[: vector.size - block * 5]
            exponents = np.maximum.reduce([quantize.exponents(vector, block) for vector in vectors])
            lanes = [quantize.to_fixed(vector, exponents, block, workers) for vector in vectors]
            total = np.add.reduce(lanes, axis=0, dtype=np.int32)
            decoded = quantize.from_fixed(total, exponents, block, workers)
            digest.put(exponents, *lanes, decoded.view(np.uint32))
            rows = np.arange(0, quantize.block_count(2999, block), 2, dtype=np.uint32)
            packed = np.empty(rows.size * block, np.int32)
            quantize.to_fixed_rows(vectors[0], rows, exponents[rows], block, workers, packed)
            restored = np.zeros(2999, np.float32)
            quantize.from_fixed_rows(packed, rows, exponents[rows], block, workers, restored)
            digest.put(packed, restored.view(np.uint32))
    for block in (32, 256):
        numbers = np.frombuffer(Random(f"limbs {block}").randbytes(8 * 1000), "<i8").astype(np.int64)
        wide = numbers.view(np.float64).copy()
        wide[:3] = [0.0, 5e-324, -1e308]
        exponents = limbs.exponents64(wide, block)
        split = limbs.split_float64(wide, exponents, block, 32)
        digest.put(limbs.split_int64(numbers, 32), limbs.join_int64(limbs.split_int64(numbers, 32), 32))
        digest.put(exponents, split, limbs.join_float64(split, exponents, block, 32).view(np.uint64))


def packets(digest: Digest) -> None:
    """Slot packets and flow packets from random fields, and the frames around them."""
    random = Random("packets")
    framers = [Framer(host_addresses(number)) for number in (1, 250)]
    for _ in range(300):
        block_log2 = random.randint(d.MIN_BLOCK_LOG2, d.MAX_BLOCK_LOG2)
        columns = [(random.getrandbits(32), random.getrandbits(32)) for _ in range(d.columns(block_log2))]
        present = [group for group in range(d.GROUPS) if random.random() < 0.4]
        packet = Packet(
            type=random.choice(list(d.PacketType)),
            op=random.choice(list(d.Op)),
            block_log2=block_log2,
            job=random.getrandbits(32),
            worker=random.randrange(d.MAX_CHILDREN),
            slot=random.getrandbits(16),
            round=random.getrandbits(32),
            columns=tuple(Column(*pair) for pair in columns),
            groups={group: tuple(random.getrandbits(32) for _ in range(32)) for group in present},
            included=random.getrandbits(32),
            flags=d.Flag(random.randrange(sum(d.Flag) + 1)),
            layer=random.randrange(d.LAYER_CLASSES),
            magnitude=random.randrange(d.MAGNITUDE_CLASSES),
            audience=random.getrandbits(16),
            count=random.getrandbits(16),
            check=random.getrandbits(32),
        )
        payload = packet.encode()
        assert Packet.decode(payload) == packet
        digest.put(payload, *(framer.wrap(payload, random.getrandbits(8)) for framer in framers))
    head = flow_codec.Head(flow=0xC0FFEE42, worker=3, tensor=9, count=40, layer=3, magnitude=2)
    bits = np.array([random.random() < 0.5 for _ in range(33)])
    terms = flow_codec.Terms((100, 2000), (0, 300))
    for made in (
        flow_codec.Chunk(head, 4, 1, random.randbytes(1408), protected=False),
        flow_codec.Chunk(head, 39, 0, random.randbytes(8)),
        flow_codec.Probe(head, 7, 2, 40, True, terms),
        flow_codec.Bitmap(head, 7, 5, bits, congested=True),
        flow_codec.Stop(head, 8, 0, None),
        flow_codec.Stop(head, 8, 7, bits),
    ):
        digest.put(made.encode())


SCENARIOS: dict[Callable[[Digest], None], str] = {
    every_op_and_block: "ddb677d74ba95cea0b5da2787751e8b122d6ea62f60ebc753dc86fec844b897a",
    filled: "b82822daf592fdf3fefd1db9cfaeac4123357d962bbc406d55f9d0cc95fdb8f5",
    budgeted: "009adcb7e69f2fc2c1d91d06c6a7cefcb71ffb65cfe61b3fd9140451ce409356",
    two_tiers: "ec4fb128ffb44f38dbdaa0610e55e1d0d02a8dc335ec1f155ccfc6d2f40cacf5",
    parameter_server: "ef5282c68ae1d767a51c3b5a26dfd1b1e509431aa83fb8c4b963c5d23d918e93",
    fixed_point: "1ce4de608a1cddf819b159536ebb7811953c273f57818acc40a51107917adef6",
    packets: "3540d3cc2af232d825802f87e5b0000765c9a48a42c25ba33f92e1ae3b5ab08f",
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_wire_and_the_results_are_as_recorded(scenario: Callable[[Digest], None]) -> None:
    digest = Digest()
    scenario(digest)
    assert digest.hex() == SCENARIOS[scenario]
