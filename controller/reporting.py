# SPDX-License-Identifier: Apache-2.0
"""The answer to ``Status``: the registry, the reconcilers and the switches' counters in one message."""

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from weir.agent_service.proto import agent_pb2
from weir.controller.claimed_ports import place_of
from weir.controller.entries import Match, TableEntry
from weir.controller.fabric import Fabric
from weir.controller.job_tree import members_of
from weir.controller.jobs import Job, Member
from weir.controller.pages import Page, filled
from weir.controller.qos import class_name
from weir.controller.reconciler import Reading, SwitchReconciler
from weir.controller.registry import JobRegistry
from weir.controller.switch_client import Count
from weir.controller.tables import events, queueing
from weir.controller.topology import Topology
from weir.controller.wiring import Switch
from weir.wire.definition import EVENT_HELP, Treatment

_ROLES = ("leaf", "spine", "core")


def status_reply(
    fabric: Fabric, registry: JobRegistry, readings: dict[str, Reading], now: float, page: Page
) -> Any:
    """Return a page of the ``StatusReply`` for this moment, with the counters that were read."""
    switches = [
        partial(_switch, fabric, reconciler, registry, readings[name])
        for name, reconciler in fabric.reconcilers.items()
    ]
    return filled(page, switches, registry.jobs(), partial(_job, readings, now))


def withhold(reply: Any, jobs: Iterable[Job], name: str, token: str) -> None:
    """Take ids and slots of jobs out of a ``StatusReply``; not those of job ``name`` if ``token`` is its."""
    for switch in reply.switches:
        switch.problem = without_ids(switch.problem)
    known = {job.id for job in jobs if job.name == name and job.knows(token)}
    for status in reply.jobs:
        if status.job_id not in known:
            status.ClearField("job_id")
            status.ClearField("slot_base")


def without_ids(words: str) -> str:
    """Return what a switch refused, without the ids of jobs in it."""
    return re.sub(r"\bjob=0x[0-9a-f]+", "job=...", words)


def _switch(fabric: Fabric, reconciler: SwitchReconciler, registry: JobRegistry, reading: Reading) -> Any:
    switch, topology = reconciler.switch, fabric.topology
    pool = registry.pools[switch.name]
    tier = topology.tiers()[switch.name]
    return agent_pb2.SwitchStatus(
        name=switch.name,
        address=switch.grpc,
        program=switch.program,
        state=reconciler.state.value,
        problem=reconciler.problem,
        role=_ROLES[tier],
        given_up=tier > 0 and switch.name not in fabric.alive,
        entries=len(reconciler.wanted.entries),
        slots=pool.total,
        slots_used=pool.used,
        ports=_ports(topology, switch, registry.programmed(), reading),
        events=[
            agent_pb2.EventCount(
                event=event,
                name=event.name.lower(),
                help=EVENT_HELP[event],
                drop=events.is_drop(event),
                count=_traffic([count]),
            )
            for event, count in reading.events.items()
        ],
        queues=[
            agent_pb2.QueueStatus(
                queue=queue,
                **{
                    t.name.lower(): _traffic([reading.per_hop_behaviours.get((t, queue), Count())])
                    for t in Treatment
                },
            )
            for queue in reversed(range(queueing.QUEUES))
        ],
        classes=_classes(topology, reading),
        paths=_paths(topology, switch, reading),
        spray=topology.qos.spray,
        losses=[
            agent_pb2.LossStatus(
                port=loss.port,
                direction=loss.direction,
                dscp=-1 if loss.dscp is None else loss.dscp,
                probability=loss.probability,
            )
            for loss in topology.qos.losses
            if loss.switch == switch.name
        ],
    )


def _ports(topology: Topology, switch: Switch, jobs: Iterable[Job], reading: Reading) -> list[Any]:
    """Return the ports by which workers, racks or pods contribute."""
    ids = {job.id for job in jobs}

    def at(counts: dict[TableEntry, Count], port: int) -> Any:
        return _traffic(n for entry, n in counts.items() if _where(entry) == port and _who(entry)[0] in ids)

    ports = [
        agent_pb2.PortStatus(
            port=h.port,
            host=h.name,
            mac=h.mac,
            ip=h.ip,
            shm_dir=h.shm or "",
            claimed=place_of(topology, h),
        )
        for h in topology.hosts_of(switch.name)
    ]
    tiers = topology.tiers()
    ports += [
        agent_pb2.PortStatus(port=port, host=other.name, mac=other.aggregation.mac, ip=other.aggregation.ip)
        for port, other in topology.neighbours(switch.name)
        if tiers[other.name] < tiers[switch.name]
    ]
    for status in ports:
        status.up.CopyFrom(at(reading.up, status.port))
        status.down.CopyFrom(at(reading.down, status.port))
    return ports


def _classes(topology: Topology, reading: Reading) -> list[Any]:
    counts = {dict(entry.match)["dscp"]: count for entry, count in reading.classes.items()}
    return [
        agent_pb2.ClassStatus(
            dscp=dscp,
            name=class_name(dscp),
            queue=behaviour.queue,
            trim_at=behaviour.trim_at,
            mark_at=behaviour.mark_at,
            drop_at=behaviour.drop_at,
            traffic=_traffic([counts.get(dscp, Count())]),
        )
        for dscp, behaviour in sorted(topology.qos.per_hop_behaviours().items(), reverse=True)
    ]


def _paths(topology: Topology, switch: Switch, reading: Reading) -> list[Any]:
    """Return the traffic that a switch's entries have carried upwards, or a core's to spines, by port."""
    tiers = topology.tiers()
    over = 1 if tiers[switch.name] != 1 else 2  # the tier that it sprays over
    ports = {port: other for port, other in topology.neighbours(switch.name) if tiers[other.name] == over}
    return [
        agent_pb2.PathStatus(
            port=port,
            spine=spine.name,
            traffic=_traffic(n for entry, n in reading.paths.items() if dict(entry.params)["port"] == port),
        )
        for port, spine in ports.items()
    ]


def _job(readings: dict[str, Reading], now: float, job: Job, members: Sequence[Member]) -> Any:
    numbers = {m.rank: number for leaf in job.leaves for number, m in enumerate(members_of(job, leaf))}

    def of(member: Member, direction: str) -> Any:
        counts: dict[TableEntry, Count] = getattr(readings[member.host.switch], direction)
        own = (job.id, numbers[member.rank])
        return _traffic(count for entry, count in counts.items() if _who(entry) == own)

    return agent_pb2.JobStatus(
        name=job.name,
        job_id=job.id,
        state=job.state.value,
        size=job.size,
        leaves=job.leaves,
        spines=sorted(job.uplinks or ()),
        slot_base=job.slots.base if job.slots else 0,
        slot_count=job.slots.count if job.slots else 0,
        members=[
            agent_pb2.MemberStatus(
                rank=member.rank,
                host=member.host.name,
                port=member.host.port,
                state=member.state.value,
                silent_s=now - member.last_heard if member.last_heard else 0.0,
                up=of(member, "up"),
                down=of(member, "down"),
            )
            for member in members
        ],
    )


def _who(entry: TableEntry) -> tuple[Match, Match]:
    """Return job id and worker of an entry of admission.workers or results.receivers."""
    match = dict(entry.match)
    return match["job"], match["worker"]


def _where(entry: TableEntry) -> Match:
    """Return the port of such an entry."""
    return dict(entry.match)["port"]


def _traffic(counts: Iterable[Count]) -> Any:
    total = sum(counts, Count())
    return agent_pb2.Traffic(packets=total.packets, bytes=total.bytes)
