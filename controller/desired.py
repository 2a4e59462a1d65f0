# SPDX-License-Identifier: Apache-2.0
"""The state that each switch must hold, from the topology and the jobs: a pure function.

A job is summed along a tree (:mod:`weir.controller.job_tree`): every switch of it sums its children, is
itself a child of those above it, and passes their results on; slot s goes to the spine, and the core, of its
class s mod 16. The job's number, slots and multicast group are the same on every switch; a core's has a group
for each class, for classes go to different spines of a pod.

A spine or core that a job has given up (``Job.parents``) sums nothing for it any more, nor is it heard below.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Final, TypeAlias

from weir.controller.entries import Replica, SwitchState, TableEntry
from weir.controller.job_tree import JobTree, members_of
from weir.controller.jobs import Job
from weir.controller.slots import SlotRange
from weir.controller.tables import (
    admission,
    aggregator,
    arp,
    forwarding,
    losses,
    queueing,
    replication,
    results,
    sources,
    spraying,
    tree,
)
from weir.controller.topology import Topology
from weir.controller.wiring import Switch
from weir.wire.definition import MAX_CHILDREN, SPINE_CLASSES, UDP_PORT, WHOLE_PATH, path

OfJob: TypeAlias = Callable[[Topology, Switch, Job, Collection[str] | None], SwitchState]
_NOTHING: Final = SwitchState()


@dataclass(frozen=True)
class _Child:
    """One of the ways to a child of a point: its number, the port, the addresses there.

    rack: it is a switch. path, mask: what the paths of all workers behind it have in common.
    """

    number: int
    port: int
    mac: str
    ip: str
    udp_port: int
    rack: bool
    path: int
    mask: int


def job_state(
    topology: Topology, switch: Switch, job: Job, alive: Collection[str] | None = None
) -> SwitchState:
    """Return the state that ``switch`` must hold for one job; ``alive`` as in ``desired_state``.

    Of what can change while a job runs, it depends on ``alive``, the job's parents, uplinks and subscribers.
    """
    point = _point(topology, switch, job, JobTree.of(topology, job), alive)
    if point is None:
        return _NOTHING
    entries, groups = frozenset(point.entries()), point.groups()
    if job.subscribers and job.slots is not None:
        group = replication.subscribers_group(job.slots.base)
        mac, publisher = replication.group_mac(job.slots.base), job.first.host.port
        entries |= {forwarding.to_subscribers(mac, group, publisher)}
        groups[group] = replication.flood({member.host.port for member in job.subscribers.values()})
    return SwitchState(entries, groups)


def desired_state(
    topology: Topology,
    switch: Switch,
    jobs: Iterable[Job],
    alive: Collection[str] | None = None,
    of_job: OfJob = job_state,
) -> SwitchState:
    """Return what ``switch`` must hold for ``jobs``, those of other switches among them ignored.

    ``alive``: names of the spines and cores that packets are sprayed over, and that jobs use which do not say
    it themselves; None: all. Where none of several is alive, all are kept: there is nothing better to do with
    packets. ``of_job``: returns what ``job_state`` does.
    """
    entries = set(_standing(topology, switch, alive))
    groups: dict[int, frozenset[Replica]] = {}
    hosts = topology.hosts_of(switch.name)
    if hosts:
        groups[replication.FLOOD_GROUP] = replication.flood(host.port for host in hosts)
        entries.add(forwarding.broadcast(replication.FLOOD_GROUP))
    for job in jobs:
        part = of_job(topology, switch, job, alive)
        entries |= part.entries
        groups.update(part.groups)
    return SwitchState(frozenset(entries), groups)


def _live(names: Iterable[str], alive: Collection[str] | None) -> list[str]:
    """Return those of several interchangeable switches that are alive; all if none is."""
    every = list(names)
    return [name for name in every if alive is None or name in alive] or every


def _standing(topology: Topology, switch: Switch, alive: Collection[str] | None) -> Iterator[TableEntry]:
    """Yield the entries that do not depend on jobs: hosts, the switch's own addresses, routes, classes of
    packets.
    """
    own = switch.aggregation
    yield arp.answer(own.ip, own.mac)
    yield aggregator.address(own.ip, switch.headroom)
    yield forwarding.own_mac(own.mac)
    for host in topology.hosts_of(switch.name):
        yield forwarding.to_mac(host.mac, host.port)
        yield forwarding.to_ip(host.ip, host.mac, host.port)
    yield from _sources(topology, switch)
    yield from _routes(topology, switch, alive)
    for dscp, behaviour in topology.qos.per_hop_behaviours().items():
        yield queueing.traffic_class(dscp, behaviour)
    for loss in topology.qos.losses:
        if loss.switch == switch.name:
            yield losses.fault(loss)


def _sources(topology: Topology, switch: Switch) -> Iterator[TableEntry]:
    """Yield the addresses that each port's host, or switch, sends from, and those that no other host may.

    Of the own rack these are those that the topology names; of racks that are linked with it, whole subnets.
    """
    for port, other in topology.neighbours(switch.name):
        yield sources.switch(port, other.aggregation.mac)
    hosts = topology.hosts_of(switch.name)
    if not hosts:
        return
    yield from (sources.host(host.port, host.mac, host.ip) for host in hosts)
    linked = {end.switch for link in topology.links for end in link.ends}
    near = {switch.name, *(linked if switch.name in linked else ())}
    leaves = [leaf for leaf in topology.leaves if leaf.name in near]
    racks = {leaf.prefix for leaf in leaves if not leaf.prefix.overlaps(switch.prefix)}
    named = [host.ip for host in topology.hosts if host.switch in near]
    named += [other.aggregation.ip for other in topology.switches if other.name in near]
    single = {address for address in map(IPv4Network, named) if not any(map(address.subnet_of, racks))}
    yield from map(sources.taken, racks | single)


def _routes(topology: Topology, switch: Switch, alive: Collection[str] | None) -> Iterator[TableEntry]:
    """Yield the ways to other racks: down to a leaf, else sprayed over all spines or cores that lead
    there.
    """
    tiers, pods = topology.tiers(), topology.pods()
    tier, ports = (
        tiers[switch.name],
        {other.name: (port, other) for port, other in topology.neighbours(switch.name)},
    )
    first = 0  # of the paths of the next group

    def spread(group: int, over: Iterable[str]) -> Iterator[TableEntry]:
        nonlocal first
        names = list(over)
        ways = [ports[name] for name in _live(names, alive)]
        paths = [spraying.Path(port, other.aggregation.mac) for port, other in ways]
        yield from spraying.spread(
            group, topology.qos.spray_mode, switch.aggregation.mac, paths, len(names), first
        )
        first += len(names)

    above = [name for name in ports if tiers[name] > tier]
    if above:
        yield from spread(spraying.UP_GROUP, above)
    for number, pod in enumerate(pods):
        if tier == 2:
            yield from spread(spraying.UP_GROUP + number, pod.spines)
        for leaf in map(topology.switch, pod.leaves):
            if leaf.name == switch.name:
                continue
            if leaf.name in ports:
                yield forwarding.to_subnet(leaf.prefix, leaf.aggregation.mac, ports[leaf.name][0])
            elif tier == 2:
                yield forwarding.sprayed(leaf.prefix, spraying.UP_GROUP + number)
            elif above:
                yield forwarding.sprayed(leaf.prefix, spraying.UP_GROUP)


@dataclass(frozen=True)
class _Point:
    """A switch's part in a job.

    up: the classes' ways to the parents; none at the root. parents: ports and addresses that these are heard
    from. number: this switch's at its parents. whole: its sums must not be trimmed on their way up.
    """

    switch: Switch
    job_id: int
    slots: SlotRange
    children: tuple[_Child, ...]
    replicas: tuple[dict[int, int], ...]  # by class, or one for all: child's number -> port
    number: int = 0
    whole: bool = False
    up: tuple[tree.Uplink, ...] = ()  # by class
    parents: tuple[tuple[int, str], ...] = ()

    def entries(self) -> Iterator[TableEntry]:
        """Yield the entries of admission, tree and results."""
        share = {
            "job_id": self.job_id,
            "all_children": admission.bits(child.number for child in self.children),
            "slot_base": self.slots.base,
            "slot_count": self.slots.count,
            "group": self._group,
            "spread": len(self.replicas) - 1,
        }
        own = self.switch.aggregation
        for child in self.children:
            yield admission.worker(
                port=child.port,
                number=child.number,
                ip=child.ip,
                udp_port=child.udp_port,
                rack=child.rack,
                **share,
            )
            yield results.receiver(
                job_id=self.job_id,
                number=child.number,
                port=child.port,
                src_mac=own.mac,
                src_ip=own.ip,
                dst_mac=child.mac,
                dst_ip=child.ip,
                dst_port=child.udp_port,
                path=child.path,
                mask=child.mask,
            )
        yield from tree.uplinks(
            job_id=self.job_id,
            number=self.number,
            whole=self.whole,
            src_mac=own.mac,
            src_ip=own.ip,
            ways=self.up,
        )
        for port, ip in self.parents:
            yield admission.parent(port=port, number=self.number, ip=ip, **share)

    def groups(self) -> dict[int, frozenset[Replica]]:
        """Return the multicast groups that reach the children."""
        count = min(len(self.replicas), self.slots.count)
        return {self._group + c: replication.results(self.replicas[c]) for c in range(count)}

    @property
    def _group(self) -> int:
        return replication.job_group(self.slots.base)


def _point(
    topology: Topology, switch: Switch, job: Job, job_tree: JobTree, alive: Collection[str] | None
) -> _Point | None:
    """Return the switch's part in a job; None if it has none."""
    if job.slots is None:
        raise ValueError(f"job {job.name!r} has no slots yet")
    tier = _tier(switch, job, job_tree)
    if tier is None:
        return None
    used = alive if job.uplinks is None else job.uplinks
    heard = alive if job.parents is None else job.parents
    ports = {other.name: (port, other.aggregation) for port, other in topology.neighbours(switch.name)}

    def switches(number: int, names: Iterable[str], *place: int) -> Iterator[_Child]:
        common = WHOLE_PATH ^ path(*[MAX_CHILDREN - 1] * tier)
        for name in names:
            port, there = ports[name]
            yield _Child(number, port, there.mac, there.ip, UDP_PORT, True, path(*place), common)

    number = 0
    above: tuple[str, ...] = ()
    replicas: tuple[dict[int, int], ...]
    if tier == 0:
        pod, number = job_tree.place(switch.name)
        above = job_tree.pods[pod].spines
        children = tuple(
            _Child(n, m.host.port, m.host.mac, m.host.ip, m.udp_port, False, path(n, number, pod), WHOLE_PATH)
            for n, m in enumerate(members_of(job, switch.name))
        )
        replicas = ({child.number: child.port for child in children},)
    elif tier == 1:
        pod = number = job_tree.pod_of_spine(switch.name) or 0
        above = job_tree.cores
        leaves = enumerate(job_tree.pods[pod].leaves)
        children = tuple(child for n, leaf in leaves for child in switches(n, [leaf], 0, n, pod))
        replicas = ({child.number: child.port for child in children},)
    else:
        pods = [(n, pod.spines) for n, pod in enumerate(job_tree.pods)]
        children = tuple(child for n, spines in pods for child in switches(n, _live(spines, used), 0, 0, n))
        ways = {n: tree.spread_over(spines, _live(spines, used)) for n, spines in pods}
        replicas = tuple({n: ports[way[c]][0] for n, way in ways.items()} for c in range(SPINE_CLASSES))
    up = {name: tree.Uplink(ports[name][0], ports[name][1].mac, ports[name][1].ip) for name in above}
    return _Point(
        switch,
        job.id,
        job.slots,
        children,
        replicas,
        number=number,
        whole=tier == 0 and job_tree.tiers == 3,
        up=tuple(up[name] for name in tree.spread_over(above, _live(above, used))),
        parents=tuple((up[name].port, up[name].ip) for name in _live(above, heard)),
    )


def _tier(switch: Switch, job: Job, job_tree: JobTree) -> int | None:
    """Return the tier at which a switch sums for a job; None if it does not."""
    if switch.name in job_tree.leaves:
        return 0
    if switch.name not in job_tree.joining or not (job.parents is None or switch.name in job.parents):
        return None
    return 2 if switch.name in job_tree.cores else 1
