# SPDX-License-Identifier: Apache-2.0
"""The state that each switch must hold, from the topology and the jobs: a pure function.

A job whose workers are on one switch is aggregated there. One that spans racks is a tree: every leaf sums its
own workers, is itself a worker of the spines, and passes their results on; slot s goes to the spine of its
class s mod 16. The job's number, slots and multicast group are the same on every switch.

A spine that a job has given up (``Job.parents``) sums nothing for it any more, nor do its leaves hear it.
"""

from collections.abc import Collection, Iterable, Iterator

from weir.controller.entries import Replica, SwitchState, TableEntry
from weir.controller.jobs import Job, Member
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
    spraying,
    tree,
)
from weir.controller.topology import Topology
from weir.controller.wiring import Switch
from weir.wire.definition import UDP_PORT


def desired_state(
    topology: Topology, switch: Switch, jobs: Iterable[Job], alive_spines: Collection[str] | None = None
) -> SwitchState:
    """Return what ``switch`` must hold for ``jobs``, those of other switches among them ignored.

    ``alive_spines``: names of the spines that leaves spray over, and that jobs use which do not say it
    themselves; None: all. Where none is alive, all are kept: there is nothing better to do with packets.
    """
    entries = list(_standing(topology, switch, _uplinks(topology, switch, alive_spines)))
    groups: dict[int, frozenset[Replica]] = {}
    hosts = topology.hosts_of(switch.name)
    if hosts:
        groups[replication.FLOOD_GROUP] = replication.flood(host.port for host in hosts)
        entries.append(forwarding.broadcast(replication.FLOOD_GROUP))
    for job in jobs:
        leaves = job.leaves
        if switch.name in leaves:
            entries += _leaf(switch, job)
            groups[_group(job)] = replication.results({m.rank: m.host.port for m in _members(switch, job)})
            if job.spans_racks:
                entries += _climbing(topology, switch, job, alive_spines)
        elif job.spans_racks and topology.is_spine(switch.name) and _uses(job.parents, switch):
            racks = _racks(topology, switch, job)
            entries += _spine(switch, job, racks)
            groups[_group(job)] = replication.results({n: port for n, (port, _leaf) in enumerate(racks)})
    return SwitchState(frozenset(entries), groups)


def _uplinks(
    topology: Topology, switch: Switch, alive_spines: Collection[str] | None
) -> list[tuple[int, Switch]]:
    """Return a leaf's ports and the spines there that packets may be sent to."""
    if topology.is_spine(switch.name):
        return []
    every = list(topology.neighbours(switch.name))
    return [(p, s) for p, s in every if alive_spines is None or s.name in alive_spines] or every


def _standing(topology: Topology, switch: Switch, uplinks: list[tuple[int, Switch]]) -> Iterator[TableEntry]:
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
    if uplinks:
        paths = [spraying.Path(port, spine.aggregation.mac) for port, spine in uplinks]
        places = len(topology.spines)
        yield from spraying.spread(spraying.UP_GROUP, topology.qos.spray_mode, own.mac, paths, places)
        for other in topology.leaves:
            if other.name != switch.name:
                yield forwarding.sprayed(other.prefix, spraying.UP_GROUP)
    elif topology.is_spine(switch.name):
        for port, leaf in topology.neighbours(switch.name):
            yield forwarding.to_subnet(leaf.prefix, leaf.aggregation.mac, port)
    for dscp, treatment in topology.qos.treatments().items():
        yield queueing.traffic_class(dscp, treatment)
    for loss in topology.qos.losses:
        if loss.switch == switch.name:
            yield losses.fault(loss)


def _leaf(switch: Switch, job: Job) -> Iterator[TableEntry]:
    """Yield the entries that a leaf has for its own workers, by their ranks in the job."""
    slots, members = _slots(job), _members(switch, job)
    for member in members:
        yield admission.worker(
            port=member.host.port,
            job_id=job.id,
            rank=member.rank,
            all_workers=admission.bits(m.rank for m in members),
            slot_base=slots.base,
            slot_count=slots.count,
            group=_group(job),
        )
        yield results.receiver(
            job_id=job.id,
            rank=member.rank,
            src_mac=switch.aggregation.mac,
            src_ip=switch.aggregation.ip,
            dst_mac=member.host.mac,
            dst_ip=member.host.ip,
            dst_port=member.udp_port,
            path=member.rank,
        )


def _climbing(
    topology: Topology, switch: Switch, job: Job, alive_spines: Collection[str] | None
) -> Iterator[TableEntry]:
    """Yield a leaf's way up to the job's spines, and down again from them."""
    slots = _slots(job)
    alive = {spine.name for _port, spine in _uplinks(topology, switch, alive_spines)}
    up = alive if job.uplinks is None else job.uplinks
    down = alive if job.parents is None else job.parents
    yield from tree.uplinks(
        job_id=job.id,
        member=job.leaves.index(switch.name),
        src_mac=switch.aggregation.mac,
        src_ip=switch.aggregation.ip,
        spines=len(topology.spines),
        ways={
            number: tree.Uplink(port, spine.aggregation.mac, spine.aggregation.ip)
            for number, (port, spine) in enumerate(topology.neighbours(switch.name))
            if spine.name in up
        },
    )
    for port, spine in topology.neighbours(switch.name):
        if spine.name in down:
            yield admission.parent(
                port=port,
                job_id=job.id,
                all_workers=admission.bits(m.rank for m in _members(switch, job)),
                slot_base=slots.base,
                slot_count=slots.count,
                group=_group(job),
            )


def _uses(spines: Collection[str] | None, spine: Switch) -> bool:
    return spines is None or spine.name in spines


def _spine(switch: Switch, job: Job, racks: list[tuple[int, Switch]]) -> Iterator[TableEntry]:
    """Yield the entries of a spine, whose workers are racks, numbered from 0."""
    slots = _slots(job)
    for number, (port, leaf) in enumerate(racks):
        yield admission.worker(
            port=port,
            job_id=job.id,
            rank=number,
            all_workers=admission.bits(range(len(racks))),
            slot_base=slots.base,
            slot_count=slots.count,
            group=_group(job),
            rack=True,
        )
        yield results.receiver(
            job_id=job.id,
            rank=number,
            src_mac=switch.aggregation.mac,
            src_ip=switch.aggregation.ip,
            dst_mac=leaf.aggregation.mac,
            dst_ip=leaf.aggregation.ip,
            dst_port=UDP_PORT,
            path=0,
            mask=0,
        )


def _racks(topology: Topology, spine: Switch, job: Job) -> list[tuple[int, Switch]]:
    """Return a spine's ports to the job's leaves, and these, in the order of their numbers."""
    by_name = {leaf.name: (port, leaf) for port, leaf in topology.neighbours(spine.name)}
    return [by_name[name] for name in job.leaves]


def _members(switch: Switch, job: Job) -> list[Member]:
    return [member for member in job.members.values() if member.host.switch == switch.name]


def _slots(job: Job) -> SlotRange:
    if job.slots is None:
        raise ValueError(f"job {job.name!r} has no slots yet")
    return job.slots


def _group(job: Job) -> int:
    return replication.job_group(_slots(job).base)
