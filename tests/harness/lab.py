# SPDX-License-Identifier: Apache-2.0
"""Jobs on a target: their entries, their frames, and what each result must look like.

Frames are made with scapy alone, so what a test expects owes nothing to the program under test.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from tests.harness.target import EGRESS_EVENTS, EVENTS, PORTS, Sent, Target
from weir.wire.addresses import mac_number
from weir.wire.definition import (
    ECT,
    MAX_BLOCK_LOG2,
    NO_BLOCK,
    RELIABLE_DSCP,
    SPINE_CLASSES,
    UDP_PORT,
    WHOLE_PATH,
    Event,
    Flag,
    Op,
    PacketType,
    columns,
    dscp,
    path,
)
from weir.wire.scapy_layer import Weir, WeirColumn

AGGREGATION_MAC: Final = "02:00:00:00:00:fe"
AGGREGATION_IP: Final = "10.0.0.254"

RELIABLE: Final = RELIABLE_DSCP << 2 | ECT  # traffic class of what carries no lanes, or is sent again
PROTECTED_FRONT: Final = dscp(0) << 2 | ECT  # traffic class of protected packets of layer class 0

_job_ids = itertools.count(0x5EED0001)
_groups = itertools.count(1)

Lanes = Mapping[int, Sequence[int]]  # lane group -> its 32 lanes


def ip_number(ip: str) -> int:
    """Return an IPv4 address as P4 sees it."""
    return int.from_bytes(bytes(int(part) for part in ip.split(".")), "big")


def group_of(value: int) -> list[int]:
    """Return 32 lanes that differ from one another: value, value + 1, …"""
    return [(value + lane) % 2**32 for lane in range(32)]


def flat(lanes: Lanes) -> list[int]:
    """Return lanes in the order of the wire."""
    return [lane for group in sorted(lanes) for lane in lanes[group]]


@dataclass(frozen=True)
class Station:
    """A worker's switch port and addresses."""

    port: int
    mac: str
    ip: str
    udp_port: int


@dataclass
class Job:
    """A job installed on a target, with worker w at `stations[w]`.

    The keyword arguments of `contribution` and `results` are: slot, round, op, block_log2, blocks (of each
    column), nexts (of each column), lanes, and `traffic_class` for the IPv4 header; any other field of the
    Weir header may be given by name. Unless they say otherwise, packets are protected and of layer class 0,
    for everybody, and count those who are included. `again`: the switch sends the result again.
    """

    lab: "Lab"
    id: int
    stations: tuple[Station, ...]
    slot_base: int
    slot_count: int
    group: int

    @property
    def everyone(self) -> int:
        """Return the mask of all workers."""
        return (1 << len(self.stations)) - 1

    def contribution(self, worker: int, *, lanes: Lanes | None = None, **fields: Any) -> Ether:
        """Return what a worker sends, as a scapy packet that a test may still spoil."""
        station = self.stations[worker]
        tos = fields.pop("traffic_class", PROTECTED_FRONT)
        return (
            Ether(src=station.mac, dst=AGGREGATION_MAC)
            / IP(src=station.ip, dst=AGGREGATION_IP, tos=tos)
            / UDP(sport=station.udp_port, dport=UDP_PORT)
            / _weir(self.id, worker, PacketType.CONTRIBUTION, lanes or {}, fields)
        )

    def send(self, worker: int, **fields: Any) -> list[Sent]:
        """Send a worker's contribution from its port; everything that comes out."""
        return self.lab.send(self.stations[worker].port, self.contribution(worker, **fields))

    def result(
        self, worker: int, *, lanes: Lanes | None = None, included: int, again: bool = False, **fields: Any
    ) -> Sent:
        """Return the result of a round as one worker must receive it."""
        tos = RELIABLE if again and self.lab.target.raises_repeats else PROTECTED_FRONT
        fields = {"traffic_class": tos, "included": included, **fields}
        return _sent(self, PacketType.RESULT, worker, self.stations[worker], lanes or {}, fields)

    def repeat(self, worker: int, *, lanes: Lanes | None = None, **fields: Any) -> Sent:
        """Return the question to one worker to send again what it holds."""
        fields = {"traffic_class": RELIABLE, "flags": Flag(0), **fields}
        return _sent(self, PacketType.REPEAT, worker, self.stations[worker], lanes or {}, fields)

    def results(self, **fields: Any) -> list[Sent]:
        """Return the result as all workers must receive it; included defaults to everyone."""
        fields = {"included": self.everyone, **fields}
        return sorted(self.result(worker, **fields) for worker in range(len(self.stations)))


@dataclass(frozen=True)
class Uplink:
    """The spine that a rack's sums go to and results come from; the rack is its worker `member`."""

    job: Job
    spine: Station
    member: int

    def partial(self, *, lanes: Lanes | None = None, **fields: Any) -> Sent:
        """Return the rack's sums as the spine must receive them."""
        fields = {"traffic_class": PROTECTED_FRONT, **fields}
        return _sent(self.job, PacketType.CONTRIBUTION, self.member, self.spine, lanes or {}, fields)

    def result(self, *, lanes: Lanes | None = None, included: int, **fields: Any) -> Sent:
        """Return a result that the rack holds, as a spine that lacks it must receive it."""
        fields = {"traffic_class": PROTECTED_FRONT, "included": included, **fields}
        return _sent(self.job, PacketType.RESULT, self.member, self.spine, lanes or {}, fields)

    def send(self, kind: PacketType, *, lanes: Lanes | None = None, **fields: Any) -> list[Sent]:
        """Let something of this job arrive from the spine; everything that comes out."""
        tos = fields.pop("traffic_class", PROTECTED_FRONT)
        frame = (
            Ether(src=self.spine.mac, dst=AGGREGATION_MAC)
            / IP(src=self.spine.ip, dst=AGGREGATION_IP, tos=tos)
            / UDP(sport=self.spine.udp_port, dport=UDP_PORT, chksum=0)
            / _weir(self.job.id, self.member, kind, lanes or {}, fields)
        )
        return self.job.lab.send(self.spine.port, frame)


@dataclass(frozen=True)
class Core:
    """The root of a job of several pods, each behind the ports of its spines: those of pod p are
    ``spines[p]``.
    """

    lab: "Lab"
    id: int
    spines: tuple[tuple[Station, ...], ...]

    def send(self, pod: int, spine: Station, **fields: Any) -> list[Sent]:
        """Send a pod's sums from one of its spines; everything that comes out."""
        return self._of(pod, spine).send(pod, **fields)

    def result(self, pod: int, spine: Station, **fields: Any) -> Sent:
        """Return the result of a round as a spine of the pod must receive it."""
        return self._of(pod, spine).result(pod, **fields)

    def _of(self, pod: int, spine: Station) -> Job:
        """Return the job as if the pod had this spine alone."""
        return Job(self.lab, self.id, (spine,) * (pod + 1), 0, 0, 0)


def _sent(job: Job, kind: PacketType, worker: int, to: Station, lanes: Lanes, fields: dict[str, Any]) -> Sent:
    """Return a packet that the switch makes for `to`."""
    tos = fields.pop("traffic_class")
    frame = (
        Ether(src=AGGREGATION_MAC, dst=to.mac)
        / IP(src=AGGREGATION_IP, dst=to.ip, tos=tos, id=0, flags="DF", ttl=64)
        / UDP(sport=UDP_PORT, dport=to.udp_port, chksum=0)
        / _weir(job.id, worker, kind, lanes, fields)
    )
    return Sent(to.port, bytes(frame))


def _weir(job: int, worker: int, kind: PacketType, lanes: Lanes, fields: dict[str, Any]) -> Weir:
    block_log2 = fields.pop("block_log2", MAX_BLOCK_LOG2)
    count = columns(block_log2)
    blocks = fields.pop("blocks", [0] * count)
    nexts = fields.pop("nexts", [NO_BLOCK] * count)
    weir = Weir(
        type=kind,
        op=fields.pop("op", Op.ADD),
        block_log2=block_log2,
        flags=fields.pop("flags", Flag.PROTECTED),
        groups=sum(1 << group for group in lanes),
        job=job,
        worker=worker,
        columns=[WeirColumn(block=b, next=n) for b, n in zip(blocks, nexts, strict=True)],
        lanes=flat(lanes),
    )
    if kind != PacketType.REPEAT:
        weir.count = int(fields["included"]).bit_count() if "included" in fields else int(bool(lanes))
    for name, value in fields.items():
        weir.setfieldval(name, value)
    return weir


@dataclass
class Lab:
    """A target with the aggregation address installed, and the events counted since it was last asked."""

    target: Target
    _counted: Counter[Event] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.target.reset()
        self.target.insert(
            "WeirIngress.aggregator.addresses",
            (ip_number(AGGREGATION_IP),),
            "WeirIngress.aggregator.aggregate",
            (self.target.headroom,),
        )
        if self.target.guards_sources:  # a test of that names the permitted senders
            self.target.set_default("WeirIngress.sources.stations", "WeirIngress.sources.trust")
        self._counted = self._count()

    def limit_growth(self, bytes: int) -> None:
        """Tell the program by how much the target can make a packet longer."""
        self.target.modify(
            "WeirIngress.aggregator.addresses",
            (ip_number(AGGREGATION_IP),),
            "WeirIngress.aggregator.aggregate",
            (bytes,),
        )

    def send(self, port: int, frame: Any) -> list[Sent]:
        """Put a frame (bytes or scapy) into a port; everything that comes out."""
        return self.target.send(port, bytes(frame))

    def job(
        self,
        workers: int,
        *,
        slots: int = 4,
        slot_base: int = 0,
        id: int | None = None,
        ports: Iterable[int] | None = None,
        udp_port: int = 9000,
        racks: bool = False,
    ) -> Job:
        """Install a job whose worker w is at the w-th of `ports`, by default spread over all ports.

        racks: its workers are the switches of racks.
        """
        numbers = list(ports) if ports is not None else [PORTS[w % len(PORTS)] for w in range(workers)]
        stations = tuple(
            Station(
                port, f"02:00:00:00:{worker:02x}:{port:02x}", f"10.0.{worker}.{port}", udp_port + 10 * worker
            )
            for worker, port in enumerate(numbers)
        )
        identity = next(_job_ids) if id is None else id
        job = Job(self, identity, stations, slot_base, slots, 1 + next(_groups) % 3000)
        replicas = [(station.port, worker + 1) for worker, station in enumerate(stations)]
        self.target.set_group(job.group, replicas)
        for worker, station in enumerate(stations):
            self.admit(job, worker, rack=racks)
            inside = (path(31) ^ WHOLE_PATH, path(0, worker)) if racks else (WHOLE_PATH, path(worker))
            self._receiver(job.id, worker, station, *inside)
        return job

    def uplink(self, job: Job, *, port: int, member: int = 1, whole: bool = False) -> Uplink:
        """Make a job's workers one rack of a larger job, whose spine is behind a port.

        whole: the rack's sums must not be trimmed on their way.
        """
        spine = Station(port, f"02:00:00:01:00:{port:02x}", f"10.1.0.{port}", UDP_PORT)
        addresses = (AGGREGATION_MAC, AGGREGATION_IP, spine.mac, spine.ip)
        args = [mac_number(a) if ":" in a else ip_number(a) for a in addresses]
        for spine_class in range(SPINE_CLASSES):
            self.target.insert(
                "WeirIngress.tree.uplinks",
                (job.id, spine_class),
                "WeirIngress.tree.climb",
                (port, member, int(whole), *args),
            )
        self.target.insert(
            "WeirIngress.admission.parents",
            (port, job.id),
            "WeirIngress.admission.accept",
            (
                *(ip_number(spine.ip), spine.udp_port),
                *(job.slot_base, job.slot_count, 1 << member, job.everyone, job.group, 0),
            ),
        )
        return Uplink(job, spine, member)

    def core(self, ports: Sequence[Sequence[int]], *, slots: int = 20) -> Core:
        """Install a job whose pod p has a spine at each of ``ports[p]``; they share the classes of slots."""
        spines = tuple(
            tuple(Station(port, f"02:00:00:01:00:{port:02x}", f"10.1.0.{port}", UDP_PORT) for port in behind)
            for behind in ports
        )
        core = Core(self, next(_job_ids), spines)
        group = 1 + next(_groups) % 3000 * SPINE_CLASSES
        for spine_class in range(SPINE_CLASSES):
            ways = [(behind[spine_class % len(behind)].port, pod + 1) for pod, behind in enumerate(spines)]
            self.target.set_group(group + spine_class, ways)
        everyone = (1 << len(spines)) - 1
        for pod, behind in enumerate(spines):
            for spine in behind:
                self.target.insert(
                    "WeirIngress.admission.workers",
                    (spine.port, core.id, pod),
                    "WeirIngress.admission.admit",
                    (
                        *(ip_number(spine.ip), spine.udp_port),
                        *(0, slots, 1 << pod, everyone, group, SPINE_CLASSES - 1, 1),
                    ),
                )
                self._receiver(core.id, pod, spine, path(31, 31) ^ WHOLE_PATH, path(0, 0, pod))
        return core

    def _receiver(self, job: int, number: int, station: Station, mask: int, path: int) -> None:
        """Install the addresses for what goes to a job's child, and which workers are behind it."""
        addresses = (AGGREGATION_MAC, AGGREGATION_IP, station.mac, station.ip)
        args = [mac_number(a) if ":" in a else ip_number(a) for a in addresses]
        self.target.insert(
            "WeirEgress.results.receivers",
            (job, number, station.port),
            "WeirEgress.results.deliver",
            (*args, station.udp_port, mask, path),
        )

    def admit(self, job: Job, worker: int, *, rack: bool = False) -> None:
        """Install one worker's admission; `rack`: it is a rack's switch."""
        self.target.insert(
            "WeirIngress.admission.workers",
            (job.stations[worker].port, job.id, worker),
            "WeirIngress.admission.admit",
            (
                *(ip_number(job.stations[worker].ip), job.stations[worker].udp_port),
                *(job.slot_base, job.slot_count, 1 << worker, job.everyone, job.group, 0, int(rack)),
            ),
        )

    def events(self) -> dict[Event, int]:
        """Return what the switch has decided since the last call: event -> packets, without zeros."""
        now = self._count()
        since = now - self._counted
        self._counted = now
        return dict(since)

    def _count(self) -> Counter[Event]:
        counted = Counter({event: self.target.counter(EVENTS, event).packets for event in Event})
        for event in (Event.DROP_NO_RECEIVER, Event.DROP_SIMULATED):
            counted[event] += self.target.counter(EGRESS_EVENTS, event).packets
        return counted
