# SPDX-License-Identifier: Apache-2.0
"""Several switches and their hosts in virtual time: the real P4 program in each switch, the controller's
entries in its tables, the real host code at the edge. Everything that happens follows from the seed.

Example::

    with Network(leaf_spine(2, 2, 4, target="soft"), seed=1) as network:
        job = network.admit(["h1", "h2", "h5", "h6"], slots=32)
        for worker, lanes in zip(job.workers, vectors):
            worker.submit(Work(Op.ADD, 256, lanes))
        network.run(lambda: job.idle)              # each vector is the sum of all now
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count
from random import Random
from types import TracebackType
from typing import Final, Self

from softp4.runtime.queueing import Queueing
from softp4.runtime.read_programs import read_program
from softp4.switch import Switch
from weir.controller.desired import desired_state
from weir.controller.entries import SwitchState
from weir.controller.failover import Failover
from weir.controller.job_tree import paths
from weir.controller.jobs import Job, Member
from weir.controller.program import SLOT_REGISTER
from weir.controller.slots import SlotRange
from weir.controller.sync import plan
from weir.controller.topology import Topology
from weir.controller.wiring import End
from weir.host_agent.flows.frames import Address
from weir.host_agent.transport.frames import Addresses, Endpoint
from weir.host_agent.transport.slot_transport import TransportConfig
from weir.p4src import BUILD
from weir.simulator.clock import SECOND, Clock, StuckError
from weir.simulator.entries import apply
from weir.simulator.fabric import Fabric, Target
from weir.simulator.flowhost import FlowHost
from weir.simulator.host import Host
from weir.simulator.link import Faults, Link
from weir.simulator.nic import Nic
from weir.simulator.station import UDP, Station
from weir.simulator.stream import Stream
from weir.simulator.tcp import TcpConfig
from weir.wire.addresses import mac_bytes
from weir.wire.definition import FLOW_PORT, MAX_CHILDREN, UDP_PORT

_FIRST_PORT: Final = 10_000  # of jobs after the first: below what streams use
_DESCRIBED: Final = 8  # workers that are named when nothing moves any more


_loaded = cache(read_program)  # a program is large, and does not change


def _slots(program: str) -> int:
    """Return the slots of a switch with this program; each has two cells."""
    return _loaded(BUILD / f"{program}.json").registers[SLOT_REGISTER].size // 2


@dataclass(frozen=True)
class LinkSpec:
    """A cable: the same both ways. rate_bps None: frames take no time, and no queue forms before it."""

    rate_bps: int | None = 1_000_000_000
    faults: Faults = field(default_factory=partial(Faults, delay=1_000))


@dataclass(frozen=True)
class Node:
    """A switch, and its number in the fabric."""

    switch: Switch
    number: int


@dataclass
class Allocation:
    """A job of a network: by rank, its workers, which are the simulator's hosts, and their paths."""

    job: Job
    paths: list[int]
    workers: list[Host] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        """Return whether every worker has done all its work."""
        return all(worker.idle for worker in self.workers)


class Network:
    """A topology come to life.

    Args:
        topology: its switches must all run a Weir program for v1model; targets count for headroom only.
        seed: of all that is random: faults of links, random choices of switches.
        link: of hosts. trunk: between switches; like ``link`` unless given. A link's ``faults`` may be
            changed at any time (`link`).
        queueing: of every switch port; its rate is the link's.
        host_priorities: hosts send by DSCP class, as switches do; otherwise first come, first served.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        seed: int,
        link: LinkSpec | None = None,
        trunk: LinkSpec | None = None,
        queueing: Queueing | None = None,
        host_priorities: bool = True,
    ) -> None:
        self.clock = Clock()
        self.topology = topology
        self._seed = seed
        self._links: dict[tuple[str, str], Link] = {}
        self._queueing = queueing or Queueing()
        self._jobs: list[Job] = []
        self._allocations: list[Allocation] = []
        self._ids = count(1)
        self._slots_taken = 0
        self._failover = Failover()
        self._down: set[str] = set()
        self.nodes = {
            switch.name: Node(self._switch(switch.name, switch.program), number)
            for number, switch in enumerate(topology.switches)
        }
        self._fabric = Fabric([node.switch for node in self.nodes.values()])
        self.clock.engine = self._fabric
        self._held = {name: SwitchState() for name in self.nodes}
        self.stations: dict[str, Station] = {}
        link = link or LinkSpec()
        for host in topology.hosts:
            up = self._link(host.name, host.switch, link, self._into(host.switch, host.port))
            station = Station(host, Nic(self.clock, up, host_priorities))
            self.stations[host.name] = station
            self._attach(host.switch, host.port, host.name, link, station)
        for cable in topology.links:
            for here, there in (cable.ends, cable.ends[::-1]):
                self._attach(here.switch, here.port, there.switch, trunk or link, there)
        self.program()

    # -- the fabric --------------------------------------------------------------------------------

    def _random(self, what: str) -> Random:
        return Random(f"{self._seed} {what}")

    def _switch(self, name: str, program: str) -> Switch:
        return Switch(_loaded(BUILD / f"{program}.json"), seed=self._random(name).getrandbits(32))

    def _into(self, switch: str, port: int) -> Callable[[int, bytes], None]:
        """Return a function that lets frames arrive at a switch."""
        fabric, number = self._fabric, self.nodes[switch].number
        return lambda time, frame: fabric.arrive(time, number, port, frame)

    def _link(self, here: str, there: str, spec: LinkSpec, carry: Callable[[int, bytes], None]) -> Link:
        random = self._random(f"{here} > {there}")
        link = Link(self.clock, random, spec.faults, rate_bps=spec.rate_bps, carry=carry)
        self._links[here, there] = link
        return link

    def _attach(self, switch: str, port: int, name: str, spec: LinkSpec, there: Station | End) -> None:
        """Attach a link to a switch's port. The fabric carries frames on it by itself while it is clean."""
        node, fabric = self.nodes[switch], self._fabric
        if isinstance(there, Station):
            target, number, there_port = Target.TO_HOST, fabric.receiver(there.receive), 0
            link = self._link(switch, name, spec, lambda time, frame: fabric.reach(time, number, frame))
        else:
            target, number, there_port = Target.TO_SWITCH, self.nodes[there.switch].number, there.port
            link = self._link(switch, name, spec, self._into(there.switch, there.port))
        minded = fabric.receiver(link.send)

        def attach() -> None:
            if link.clean:
                fabric.attach(
                    node.number,
                    port,
                    target,
                    number,
                    there_port,
                    rate_bps=spec.rate_bps,
                    delay=link.faults.delay,
                )
            else:
                fabric.attach(node.number, port, Target.TO_CALLER, minded)

        link.on_change = attach
        attach()
        if spec.rate_bps is not None:
            node.switch.queues(port).set(replace(self._queueing, rate_bps=spec.rate_bps))

    def link(self, here: str, there: str) -> Link:
        """Return the link from one switch or host to its neighbour."""
        return self._links[here, there]

    def links(self) -> dict[tuple[str, str], Link]:
        """Return all links, by (from, to)."""
        return dict(self._links)

    def program(self, topology: Topology | None = None) -> None:
        """Let the controller look: it programs every switch that is up for ``topology`` (from now on) and the
        jobs there are, and lets jobs leave spines that are gone.
        """
        if topology is not None:
            self.topology = topology
        alive = {switch.name for switch in self.topology.switches} - self._down
        self._failover.update(self._jobs, alive, self.topology)
        if self._failover.fence(alive):
            self._write(alive)
            self._failover.fenced(lambda _leaf: 0)
            self._failover.move(lambda _leaf, _version: True)  # what is written here holds at once
        self._write(alive)

    def _write(self, alive: Collection[str]) -> None:
        for switch in self.topology.switches:
            if switch.name in self._down:
                continue
            desired = desired_state(self.topology, switch, self._jobs, alive)
            apply(self.nodes[switch.name].switch, plan(self._held[switch.name], desired))
            self._held[switch.name] = desired

    def kill(self, switch: str) -> None:
        """Take a switch away, with what it holds; the controller has not noticed yet (`program`)."""
        self._down.add(switch)
        self._set_down(switch, True)

    def restart(self, switch: str) -> None:
        """Bring a killed switch back, which holds nothing; the controller has not noticed yet (`program`)."""
        self._down.discard(switch)
        there = self.nodes[switch].switch
        apply(there, plan(self._held[switch], SwitchState()))
        self._held[switch] = SwitchState()
        for cell in range(2 * self._slots_taken):
            there.register(SLOT_REGISTER).write(cell, 0)
        self._set_down(switch, False)

    def _set_down(self, switch: str, down: bool) -> None:
        self._fabric.set_down(self.nodes[switch].number, down)
        for ends, link in self._links.items():
            if switch in ends:
                link.down = down

    # -- what runs on it ---------------------------------------------------------------------------

    def admit(
        self,
        hosts: Sequence[str],
        *,
        slots: int,
        name: str = "",
        spines: Collection[str] | None = None,
        **config: object,
    ) -> Allocation:
        """Start a job with one worker on each of ``hosts`` (by rank).

        spines: those that its packets are summed at; None: all. config: of each TransportConfig.
        """
        total = min(map(_slots, {switch.program for switch in self.topology.switches}))
        if self._slots_taken + slots > total:
            raise ValueError(f"{slots} slots are wanted, and {total - self._slots_taken} of {total} are left")
        number = next(self._ids)
        stations = [self.stations[host] for host in hosts]
        port = UDP_PORT if number == 1 else _FIRST_PORT + number
        job = Job(
            number,
            name or f"job{number}",
            token="",
            size=len(hosts),
            members={rank: Member(rank, station.host, port) for rank, station in enumerate(stations)},
            slots=SlotRange(self._slots_taken, slots),
            parents=None if spines is None else frozenset(spines),
            uplinks=None if spines is None else frozenset(spines),
        )
        allocation = Allocation(job, paths(self.topology, job))
        wide = self.topology.wide(station.host for station in stations)
        for rank, station in enumerate(stations):
            leaf = self.topology.switch(station.host.switch).aggregation
            addresses = Addresses(
                Endpoint(station.host.mac, station.host.ip, port), Endpoint(leaf.mac, leaf.ip)
            )
            path = allocation.paths[rank]
            place = TransportConfig(number, path % MAX_CHILDREN, len(hosts), slots, path=path, wide=wide)
            transport = replace(place, **config)  # type: ignore[arg-type]
            worker = Host(self.clock, transport, addresses, station.send)
            station.open(UDP, port, worker.receive)
            allocation.workers.append(worker)
        self._slots_taken += slots
        self._jobs.append(job)
        self._allocations.append(allocation)
        self.program()
        return allocation

    def stream(self, here: str, there: str, config: TcpConfig | None = None) -> Stream:
        """Return a TCP stream from one host to another; `Stream.close` it when it is done for."""
        macs = self._towards(here, there), self._towards(there, here)
        return Stream(self.clock, self.stations[here], self.stations[there], macs, config)

    def flows(self, name: str) -> FlowHost:
        """Serve flows on a host; once for each."""
        station = self.stations[name]
        by_ip = {other.host.ip: other_name for other_name, other in self.stations.items()}

        def next_hop(ip: str) -> str:
            return self._towards(name, by_ip[ip]).hex(":")

        address = Address(station.host.ip)
        host = FlowHost(self.clock, address, station.host.mac, next_hop, station.send, station.serve)
        station.open(UDP, FLOW_PORT, host.receive)
        return host

    def _towards(self, here: str, there: str) -> bytes:
        """Return the MAC address to which ``here`` sends what is for ``there``: in other racks, the own
        leaf's.
        """
        near, far = self.stations[here].host, self.stations[there].host
        mac = far.mac if near.switch == far.switch else self.topology.switch(near.switch).aggregation.mac
        return mac_bytes(mac)

    # -- time --------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], limit: float = 600.0) -> None:
        """Run until that holds.

        Raises:
            StuckError: it does not after ``limit`` virtual seconds, or `Clock.most_events` events.
        """
        try:
            done = self.clock.run(self.clock.now + round(limit * SECOND), until)
        except StuckError as error:
            raise StuckError(f"{error}: {self._describe()}") from None
        if not done:
            raise StuckError(self._describe())

    def run_for(self, seconds: float) -> None:
        """Run for that much virtual time."""
        end = self.clock.now + round(seconds * SECOND)
        self.clock.run(end, lambda: False)
        self.clock.now = end

    def _describe(self) -> str:
        waiting = [
            (allocation.job.name, rank, worker.transport.waiting())
            for allocation in self._allocations
            for rank, worker in enumerate(allocation.workers)
            if not worker.idle
        ]
        first = "; ".join(f"{job}, rank {rank}: {rounds}" for job, rank, rounds in waiting[:_DESCRIBED])
        when = f"seed {self._seed}, at {self.clock.now / SECOND:.3f} virtual seconds"
        return f"{when}, {len(waiting)} workers wait for (slot, round); {first}"

    def close(self) -> None:
        """Free switches and transports."""
        for allocation in self._allocations:
            for worker in allocation.workers:
                worker.transport.close()
        self._fabric.close()
        for node in self.nodes.values():
            node.switch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
