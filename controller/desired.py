# SPDX-License-Identifier: Apache-2.0
"""Topology and jobs in, what each switch must hold out. A pure function; everything else follows from it."""

from collections.abc import Iterable, Iterator

from controller.entries import Replica, SwitchState, TableEntry
from controller.jobs import Job
from controller.tables import admission, aggregator, arp, forwarding, replication, results
from controller.topology import Switch, Topology


def desired_state(topology: Topology, switch: Switch, jobs: Iterable[Job]) -> SwitchState:
    """What ``switch`` must hold for ``jobs``, those of other switches among them ignored."""
    mine = [job for job in jobs if job.switch == switch.name]
    entries = list(_standing(topology, switch))
    groups: dict[int, frozenset[Replica]] = {}
    hosts = topology.hosts_of(switch.name)
    if hosts:
        groups[replication.FLOOD_GROUP] = replication.flood(host.port for host in hosts)
        entries.append(forwarding.broadcast(replication.FLOOD_GROUP))
    for job in mine:
        entries += _job(switch, job)
        groups[_group(job)] = replication.results({m.rank: m.host.port for m in job.members.values()})
    return SwitchState(frozenset(entries), groups)


def _standing(topology: Topology, switch: Switch) -> Iterator[TableEntry]:
    """What is there whether or not anybody works: who is where, and who the switch is."""
    own = switch.aggregation
    yield arp.answer(own.ip, own.mac)
    yield aggregator.address(own.ip, switch.headroom)
    yield forwarding.own_mac(own.mac)
    for host in topology.hosts_of(switch.name):
        yield forwarding.to_mac(host.mac, host.port)
        yield forwarding.to_ip(host.ip, host.mac, host.port)


def _job(switch: Switch, job: Job) -> Iterator[TableEntry]:
    if job.slots is None:
        raise ValueError(f"job {job.name!r} has no slots yet")
    for member in job.members.values():
        yield admission.worker(
            port=member.host.port,
            job_id=job.id,
            rank=member.rank,
            size=job.size,
            slot_base=job.slots.base,
            slot_count=job.slots.count,
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
        )


def _group(job: Job) -> int:
    if job.slots is None:
        raise ValueError(f"job {job.name!r} has no slots yet")
    return replication.job_group(job.slots.base)
