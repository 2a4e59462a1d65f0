# SPDX-License-Identifier: Apache-2.0
"""What ``Status`` answers: the book, the keepers and the switches' counters in one message."""

import asyncio
from collections.abc import Iterable
from typing import Any

from controller.book import JobBook
from controller.entries import Match, TableEntry
from controller.fabric import Fabric
from controller.jobs import Job
from controller.keeper import Reading, SwitchKeeper
from controller.proto import agent_pb2
from controller.switch_client import Count, SwitchError
from controller.tables import events
from controller.topology import Topology
from wire.definition import EVENT_HELP


async def status_reply(topology: Topology, fabric: Fabric, book: JobBook, now: float) -> Any:
    """A ``StatusReply`` for this moment. A switch that cannot be asked is reported without counters."""
    readings = dict(
        zip(fabric.keepers, await asyncio.gather(*map(_reading, fabric.keepers.values())), strict=True)
    )
    return agent_pb2.StatusReply(
        switches=[_switch(topology, keeper, book, readings[name]) for name, keeper in fabric.keepers.items()],
        jobs=[_job(job, readings[job.switch], now) for job in book.jobs()],
    )


async def _reading(keeper: SwitchKeeper) -> Reading:
    try:
        return await keeper.read()
    except SwitchError:
        return Reading()


def _switch(topology: Topology, keeper: SwitchKeeper, book: JobBook, reading: Reading) -> Any:
    switch = keeper.switch
    pool = book.pools[switch.name]
    port_of: dict[tuple[Match, Match], int] = {
        (job.id, member.rank): member.host.port
        for job in book.programmed()
        if job.switch == switch.name
        for member in job.members.values()
    }
    return agent_pb2.SwitchStatus(
        name=switch.name,
        address=switch.grpc,
        program=switch.program,
        state=keeper.state.value,
        problem=keeper.problem,
        entries=len(keeper.wanted.entries),
        slots=pool.total,
        slots_used=pool.used,
        ports=[
            agent_pb2.PortStatus(
                port=host.port,
                host=host.name,
                mac=host.mac,
                ip=host.ip,
                shm_dir=host.shm or "",
                up=_traffic(n for entry, n in reading.up.items() if port_of.get(_who(entry)) == host.port),
                down=_traffic(
                    n for entry, n in reading.down.items() if port_of.get(_who(entry)) == host.port
                ),
            )
            for host in topology.hosts_of(switch.name)
        ],
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
    )


def _job(job: Job, reading: Reading, now: float) -> Any:
    return agent_pb2.JobStatus(
        name=job.name,
        job_id=job.id,
        state=job.state.value,
        size=job.size,
        switch_name=job.switch,
        slot_base=job.slots.base if job.slots else 0,
        slot_count=job.slots.count if job.slots else 0,
        members=[
            agent_pb2.MemberStatus(
                rank=member.rank,
                host=member.host.name,
                port=member.host.port,
                state=member.state.value,
                silent_s=now - member.last_heard if member.last_heard else 0.0,
                up=_traffic(n for entry, n in reading.up.items() if _who(entry) == (job.id, member.rank)),
                down=_traffic(n for entry, n in reading.down.items() if _who(entry) == (job.id, member.rank)),
            )
            for _rank, member in sorted(job.members.items())
        ],
    )


def _who(entry: TableEntry) -> tuple[Match, Match]:
    """(job id, rank) of an entry of admission.workers or results.receivers."""
    match = dict(entry.match)
    return match["job"], match["worker"]


def _traffic(counts: Iterable[Count]) -> Any:
    total = sum(counts, Count())
    return agent_pb2.Traffic(packets=total.packets, bytes=total.bytes)
