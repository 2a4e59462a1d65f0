# SPDX-License-Identifier: Apache-2.0
"""Captures of simulated networks with real switch programs and hosts, and breaches planted in them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet as Layers

from softp4.runtime.queueing import Queueing
from tests.simulator.reductions import submit, vectors
from tests.simulator.test_flows import LANES, Cluster, gradients
from weir.controller.qos import Qos
from weir.controller.topology import Topology, leaf_spine, leaf_spine_core
from weir.host_agent.transport.service_class import ServiceClass
from weir.pcap.audit import Finding, PacketAudit, Rule
from weir.pcap.capture import RawFrame, read_raw
from weir.pcap.frames import CapturedFrame, decoded
from weir.simulator.link import Faults
from weir.simulator.network import LinkSpec, Network
from weir.simulator.trace import Trace
from weir.wire.definition import AUDIENCE_EXCEPT, Op, PacketType
from weir.wire.scapy_layer import Weir

MS = 1_000_000
CALM = Faults(delay=5_000)
WILD = Faults(
    delay=5_000, jitter=20_000, loss=0.02, duplicate=0.02, late=0.02, lateness=100 * MS, trim=0.02, mark=0.02
)
BLOCKS = 40
TOPOLOGIES = {
    "one rack": leaf_spine(1, 1, 4, target="soft"),
    "two racks": leaf_spine(2, 2, 3, target="soft"),
    "three tiers": leaf_spine_core(2, 2, 2, 2, 2, target="soft"),
}


def sums(path: Path, topology: Topology, faults: Faults, first_round: int = 1, blocks: int = BLOCKS) -> Path:
    """Capture three reduces on every link: for all, for one, for all but one; the first may lose a tenth."""
    with Network(topology, seed=1, link=LinkSpec(100_000_000, faults)) as network, Trace(path) as trace:
        trace.attach_all(network.links())
        workers = [host.name for host in topology.hosts]
        job = network.admit(workers, slots=8, initial_rto=0.02, min_rto=0.01, first_round=first_round)
        tenth = np.array([blocks * 256 // 10], np.uint64)
        service = ServiceClass(layer=1, accounts=np.zeros(blocks, np.uint16), budgets=tenth)
        submit(job, vectors(1, len(workers), blocks), service)
        network.run(lambda: job.idle, limit=20)
        for audience in (job.paths[1], AUDIENCE_EXCEPT | job.paths[2]):
            submit(
                job,
                vectors(2, len(workers), blocks),
                audiences=np.full(blocks, audience, np.uint16),
            )
            network.run(lambda: job.idle, limit=20)
    return path


def operators(path: Path) -> Path:
    """Capture a reduce with each operator, of vectors with blocks of zeros, and blocks of three sizes."""
    topology = TOPOLOGIES["one rack"]
    with Network(topology, seed=1, link=LinkSpec(100_000_000, CALM)) as network, Trace(path) as trace:
        trace.attach_all(network.links())
        job = network.admit([host.name for host in topology.hosts], slots=8)
        for op, block in ((Op.ADD, 64), (Op.MAX, 256), (Op.OR, 32)):
            arrays = vectors(op, 4, BLOCKS)
            for number, array in enumerate(arrays):
                array.reshape(-1, block)[np.random.default_rng(number).random(array.size // block) < 0.7] = 0
            submit(job, arrays, op=op, block=block)
            network.run(lambda: job.idle, limit=20)
    return path


def wide(path: Path) -> Path:
    """Capture sums in packets of 1,024 lanes, over two tiers that lose packets."""
    narrow = leaf_spine(2, 1, 2, target="soft")
    switches = [{**switch.model_dump(), "program": "weir_v1model_wide"} for switch in narrow.switches]
    topology = Topology.model_validate({**narrow.model_dump(), "switches": switches, "mtu": 9000})
    faults = replace(WILD, trim=0.0)
    with Network(topology, seed=1, link=LinkSpec(100_000_000, faults)) as network, Trace(path) as trace:
        trace.attach_all(network.links())
        job = network.admit([host.name for host in topology.hosts], slots=8, initial_rto=0.02, min_rto=0.01)
        submit(job, vectors(1, 4, 4 * BLOCKS))
        network.run(lambda: job.idle, limit=20)
    return path


def shared(path: Path, lanes: int = LANES) -> Path:
    """Capture a collective and a parameter server on every link of two racks, both congested and trimmed."""
    topology = leaf_spine(2, 2, 3, target="soft", qos=Qos())
    pushed = [one[:lanes] for one in gradients(6, 5)]
    queueing = Queueing(depth_packets=400)
    link = LinkSpec(100_000_000, CALM)
    with Network(topology, seed=1, link=link, queueing=queueing) as network, Trace(path) as trace:
        trace.attach_all(network.links())
        job = network.admit(list(network.stations)[:5], slots=64)
        half = np.array([150 * 256 // 2], np.uint64)
        service = ServiceClass(layer=3, accounts=np.zeros(150, np.uint16), budgets=half)
        submit(job, vectors(7, 5, 150), service)
        Cluster(network, 0.1, lanes).exchange(pushed)
        network.run(lambda: job.idle, limit=60)
    return path


# -- what is planted ------------------------------------------------------------------------------------

Wanted = Callable[[CapturedFrame], bool]
Edit = Callable[[RawFrame, CapturedFrame], Iterable[RawFrame]]
Change = Callable[[RawFrame], RawFrame]


@lru_cache(8)
def frames_of(path: Path) -> list[tuple[RawFrame, CapturedFrame]]:
    """Return the frames of a capture, and what they say."""
    return [(raw, seen) for raw in read_raw(path) for seen in decoded(raw)]


def edited(path: Path, edit: Edit, loss_budget: float | None = None) -> PacketAudit:
    """Return the audit of a capture with the frames that ``edit`` makes of each."""
    audit = PacketAudit(loss_budget)
    for raw, seen in frames_of(path):
        for frame in edit(raw, seen):
            for one in [seen] if frame is raw else decoded(frame):
                audit.add(one)
    audit.finish()
    return audit


def planted(path: Path, wanted: Wanted, change: Change, number: int = 0) -> tuple[PacketAudit, CapturedFrame]:
    """Return the audit of a capture in which one frame, the ``number``-th that is wanted, was changed."""
    found: list[CapturedFrame] = []

    def edit(raw: RawFrame, seen: CapturedFrame) -> list[RawFrame]:
        if wanted(seen):
            found.append(seen)
            if len(found) == number + 1:
                return [change(raw)]
        return [raw]

    audit = edited(path, edit)
    return audit, found[number]


def found(audit: PacketAudit, rule: Rule, place: str = "") -> list[Finding]:
    """Return the findings of a rule that name a frame, and say what to do."""
    return [
        finding
        for finding in audit.report.findings
        if finding.rule is rule and (not place or place in finding.frames) and finding.remedy
    ]


def raw_bytes(edit: Callable[[bytearray], None]) -> Change:
    """Return a change of a frame's bytes, whose checksums stay what they were."""

    def change(raw: RawFrame) -> RawFrame:
        data = bytearray(raw.data)
        edit(data)
        return replace(raw, data=bytes(data), length=len(data))

    return change


def layers(edit: Callable[[Layers], None]) -> Change:
    """Return a change of a frame's layers, after which lengths and IPv4's checksum are right."""

    def change(raw: RawFrame) -> RawFrame:
        frame = Ether(raw.data)
        del frame[IP].chksum, frame[IP].len, frame[UDP].len
        edit(frame)
        checksum = frame[UDP].chksum
        data = bytes(frame)
        if checksum == 0:  # scapy would write 0xFFFF, or compute one
            data = data[:40] + b"\0\0" + data[42:]
        return replace(raw, data=data, length=len(data))

    return change


def fields(layer: type[Layers], **values: object) -> Change:
    """Return a change of a layer's fields: numbers, or functions of what they were."""

    def edit(frame: Layers) -> None:
        for name, value in values.items():
            now = value(frame[layer].getfieldval(name)) if callable(value) else value
            frame[layer].setfieldval(name, now)

    return layers(edit)


def weir(**values: object) -> Change:
    """Return a change of fields of the Weir header."""
    return fields(Weir, **values)


def reclassed(dscp: int, ecn: int) -> Change:
    return fields(IP, tos=dscp << 2 | ecn)


def is_(kind: PacketType, link: str = "", *, lanes: bool | None = True, **flags: bool) -> Wanted:
    """Return whether a frame is of a kind, on a link, with lanes or without, and with these flags."""

    def wanted(seen: CapturedFrame) -> bool:
        packet = seen.packet
        return (
            packet is not None
            and packet.type is kind
            and link in seen.port
            and lanes in (None, packet.groups != 0)
            and all(getattr(packet, flag) == value for flag, value in flags.items())
        )

    return wanted
