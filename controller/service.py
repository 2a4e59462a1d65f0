# SPDX-License-Identifier: Apache-2.0
"""The service that host agents use: gRPC around the job registry, switches around its effects."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Container
from typing import Any, Final, NoReturn

import grpc

from weir.agent_service.proto import agent_pb2
from weir.controller.claimed_ports import claimed_ports
from weir.controller.fabric import Fabric
from weir.controller.job_tree import paths
from weir.controller.jobs import Job, JobError, JoinSpec, Member, Refusal
from weir.controller.log_lines import LogLines
from weir.controller.memory import Memory, StateFileError
from weir.controller.pages import Page
from weir.controller.readings import Readings
from weir.controller.registry import (
    Ended,
    Formed,
    GatherFailed,
    JobRegistry,
    Left,
    Reclaim,
    Stopped,
    Subscribed,
)
from weir.controller.reporting import status_reply, withhold, without_ids
from weir.controller.switch_client import SwitchError
from weir.controller.tables.replication import group_ip, group_mac
from weir.controller.topology import Topology
from weir.controller.wiring import Host
from weir.wire.definition import UDP_PORT, VERSION, WEIGHTS_PORT

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.1  # between two looks for a publisher
PAGES_S: Final = 1.0  # for which the pages of a status are of one reading of the switches
MOST_LINES: Final = 5  # of one kind that jobs of one address make at once
MIN_PROGRAM_TIME_S = 5.0  # what a switch gets to be programmed however little of the join time is left
_STATUS = {
    Refusal.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Refusal.DENIED: grpc.StatusCode.PERMISSION_DENIED,
    Refusal.TAKEN: grpc.StatusCode.ALREADY_EXISTS,
    Refusal.EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Refusal.UNKNOWN: grpc.StatusCode.NOT_FOUND,
    Refusal.LATE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Refusal.STOPPED: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.ABORTED: grpc.StatusCode.ABORTED,
}
_Event = agent_pb2.JobEvent


class AgentService:
    """Join, Attend, Leave, Status. Everything happens on one event loop, so the registry needs no lock."""

    def __init__(
        self, topology: Topology, fabric: Fabric, registry: JobRegistry, memory: Memory, join_timeout_s: float
    ) -> None:
        self._memory = memory
        self._forgetful = ""  # why the state file is not written, as it was last told
        self._topology = topology
        self._claimed = claimed_ports(topology)
        self._fabric = fabric
        self._registry = registry
        self._join_timeout_s = join_timeout_s
        self._formed: dict[int, asyncio.Future[None]] = {}  # by job id: done when members may start
        self._inboxes: dict[tuple[int, int], asyncio.Queue[Any]] = {}  # by job id and rank, while attending
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._readings = Readings(fabric.reconcilers, time.monotonic)
        self._lines = LogLines(log, MOST_LINES)
        fabric.on_failover = self._remember

    # ---- the four calls

    async def Join(self, request: Any, context: Any) -> Any:  # noqa: N802 - the RPC's name
        """See agent.proto."""
        try:
            spec = self._spec(request)
            if spec.subscribes:
                return await self._subscribe(spec, request.timeout_s or self._join_timeout_s, context)
            job = self._registry.join(spec, time.monotonic(), request.timeout_s or self._join_timeout_s)
            formed = self._formed.setdefault(job.id, asyncio.get_running_loop().create_future())
            job.asked_by = context.who
            log.debug("job %r: rank %d of %d joined from %s", job.name, spec.rank, job.size, spec.host.name)
            self._react()
            try:
                await asyncio.shield(formed)
            except asyncio.CancelledError:
                self._registry.withdraw(job, spec.rank)
                self._react()
                raise
        except JobError as error:
            await _abort(context, error)
        return self._reply(job, spec)

    async def _subscribe(self, spec: JoinSpec, timeout_s: float, context: Any) -> Any:
        """Wait for the publisher, add the subscriber, and return its reply. Raises JobError."""
        deadline = time.monotonic() + timeout_s
        while (job := self._registry.publisher(spec)) is None:
            if time.monotonic() >= deadline:
                raise JobError(Refusal.LATE, f"nobody publishes {spec.job!r}")
            await asyncio.sleep(_LOOK_S)
        rank = self._registry.subscribe(job, spec, time.monotonic())
        job.asked_by = context.who
        self._react()
        try:
            await self._fabric.settled(job.switches, MIN_PROGRAM_TIME_S)
        except BaseException as error:
            self._registry.lose(job, rank)
            self._react()
            if isinstance(error, SwitchError):
                message = f"no subscription to {job.name!r}: {without_ids(str(error))}"
                raise JobError(Refusal.ABORTED, message) from None
            raise
        return self._reply(job, spec, rank)

    async def attend(self, first: Any, requests: AsyncIterator[Any], context: Any) -> None:
        """Serve Attend, see agent.proto: ``first`` is the heartbeat that says whose ``requests`` are."""
        try:
            job = self._registry.attend(first.job_id, first.rank, first.token, time.monotonic())
        except JobError as error:
            await _abort(context, error)
        inbox = self._inboxes[job.id, first.rank] = asyncio.Queue()
        inbox.put_nowait(_Event(kind=_Event.RUNNING))
        for member in job.departed():  # before this one began to listen
            inbox.put_nowait(_left(job, member))
        reader = asyncio.create_task(self._hear(job, first.rank, requests, inbox))
        try:
            while (event := await inbox.get()) is not None:
                await context.write(event)
                if event.kind == _Event.STOPPED:
                    return
        finally:
            reader.cancel()
            del self._inboxes[job.id, first.rank]
            if not self._closing:
                self._registry.lose(job, first.rank)
                self._react()

    async def Leave(self, request: Any, context: Any) -> Any:  # noqa: N802 - the RPC's name
        """See agent.proto."""
        try:
            self._registry.leave(
                request.job_id,
                request.rank,
                request.token,
                time.monotonic(),
                request.reason,
                request.reductions,
            )
        except JobError as error:
            await _abort(context, error)
        self._react()
        return agent_pb2.LeaveReply()

    async def Status(self, request: Any, context: Any) -> Any:  # noqa: N802 - the RPC's name
        """See agent.proto."""
        try:
            page = Page.of(request.page_token)
        except JobError as error:
            await _abort(context, error)
        readings = await self._readings.not_older(PAGES_S if request.page_token else 0.0)
        reply = status_reply(self._fabric, self._registry, readings, time.monotonic(), page)
        if not context.on_socket:  # which only this user can open
            withhold(reply, self._registry.jobs(), request.job, request.token)
        return reply

    def name_of(self, job_id: int) -> str:
        """Return the name of a job that runs; "" if none has this id."""
        return self._registry.name_of(job_id)

    def refuse_wrong_token(self, name: str, token: str) -> None:
        """Raise JobError for a token that is not that of the job of this name, where there is one."""
        self._registry.refuse_wrong_token(name, token)

    # ---- time and the end

    async def watch(self) -> None:
        """Let deadlines and leases run out, until cancelled."""
        interval = min(0.25, self._registry.lease_s / 10)
        before = time.monotonic()
        while True:
            await asyncio.sleep(interval)
            now = time.monotonic()
            if (paused := now - before - interval) > interval:
                self._registry.excuse(paused)
            self._registry.tick(now)
            self._react()
            before = now

    async def shut_down(self) -> None:
        """Let go of the jobs: to a successor that remembers them, or for good.

        For good means that they are stopped and their entries taken off the switches that can be reached.
        """
        for task in self._tasks:
            task.cancel()
        if not self._memory.kept:
            self._registry.stop_all("the controller is shutting down")
            self._react()
            await self._fabric.settled_if_ready(MIN_PROGRAM_TIME_S)
        self._closing = True
        self._lines.close()

    # ---- inside

    async def _hear(
        self, job: Job, rank: int, requests: AsyncIterator[Any], inbox: asyncio.Queue[Any]
    ) -> None:
        """Take in heartbeats until the member ends its side."""
        with contextlib.suppress(grpc.RpcError):
            async for beat in requests:
                self._registry.heartbeat(job, rank, time.monotonic())
                if beat.busy:
                    self._registry.keep(job)
                    self._react()
        inbox.put_nowait(None)

    def _spec(self, request: Any) -> JoinSpec:
        return JoinSpec(
            job=request.job,
            token=request.token,
            host=_find_host(self._topology, request.host, request.ip),
            udp_port=request.udp_port or UDP_PORT,
            slots=request.slots,
            process=request.process,
            wire_version=request.wire_version,
            ranks=tuple(request.ranks),
            keyed=request.keyed,
            revocable=request.revocable,
            publishes=request.publishes,
            subscribes=request.subscribes,
            size=1 if request.subscribes else request.size,
            rank=0 if request.subscribes else request.rank,
        )

    def _react(self) -> None:
        """Carry out what the registry says has to happen."""
        for effect in self._registry.effects():
            match effect:
                case Formed(job):
                    self._spawn(self._program(job))
                case GatherFailed(job, error, ranges):
                    self._say(job, "failed", f"{error}{f' ({ranges})' if ranges else ''}")
                    self._resolve(job, error)
                    self._fabric.update(self._registry.programmed())
                case Left(job, member):
                    event = _left(job, member)
                    self._say(job, "left", event.reason, logging.INFO)
                    self._tell(job, event)
                case Stopped(job, reason):
                    self._say(job, "stopped", reason)
                    self._resolve(job, JobError(Refusal.ABORTED, reason))
                    self._tell(job, _Event(kind=_Event.STOPPED, reason=reason))
                    self._fabric.update(self._registry.programmed())
                case Subscribed(_):
                    self._fabric.update(self._registry.programmed())
                case Reclaim(job):
                    self._tell(job, _Event(kind=_Event.RECLAIM))
                case Ended(job):
                    over = _Event(kind=_Event.STOPPED, reason=f"job {job.name!r} has ended")
                    self._tell(job, over, job.subscribers)
                    self._say(
                        job, "ended", f"job {job.name!r} ended: all its members have left", logging.INFO
                    )
                    self._fabric.update(self._registry.programmed())
        self._remember()

    def _say(self, job: Job, what: str, line: str, level: int = logging.WARNING) -> None:
        """Log what became of a job, unless jobs of its address have had many such lines: anybody has jobs."""
        self._lines.write(f"{what} {job.asked_by}", line, level)

    def _remember(self) -> None:
        try:
            self._memory.save(self._registry.programmed())
        except StateFileError as error:
            if self._forgetful != str(error):
                log.error("%s; jobs will not outlive this controller", error)
            self._forgetful = str(error)
            return
        if self._forgetful:
            log.info("the state file is written again")
        self._forgetful = ""

    async def _program(self, job: Job) -> None:
        self._fabric.update(self._registry.programmed())
        left = min(job.deadline - time.monotonic(), self._join_timeout_s)
        timeout = max(left, MIN_PROGRAM_TIME_S)
        try:
            await self._fabric.settled(job.switches, timeout)
        except SwitchError as error:
            message = (
                f"job {job.name!r} cannot start, a switch could not be programmed: {without_ids(str(error))}"
            )
            self._registry.fail(job, JobError(Refusal.ABORTED, message))
            self._react()
            return
        self._registry.started(job, time.monotonic())
        self._remember()
        runs = f"job {job.name!r} runs: id {job.id:#010x}, {job.size} workers, slots {job.slots}"
        self._say(job, "runs", runs, logging.INFO)
        self._resolve(job, None)

    def _resolve(self, job: Job, error: JobError | None) -> None:
        formed = self._formed.pop(job.id, None)
        if formed is None or formed.done():
            return
        if error is None:
            formed.set_result(None)
        else:
            formed.set_exception(error)
            formed.exception()  # all who waited may have gone: not a forgotten error

    def _tell(self, job: Job, event: Any, ranks: Container[int] | None = None) -> None:
        """Send an event to those who attend; ``ranks``: to these alone."""
        for (job_id, rank), inbox in self._inboxes.items():
            if job_id == job.id and (ranks is None or rank in ranks):
                inbox.put_nowait(event)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _reply(self, job: Job, spec: JoinSpec, subscriber: int = 0) -> Any:
        switch = self._topology.switch(spec.host.switch)
        max_lanes = self._topology.max_lanes(job.switches)
        publisher = job.first
        return agent_pb2.JoinReply(
            job_id=job.id,
            size=job.size,
            slots=job.slots.count if job.slots else 0,
            lease_s=self._registry.lease_s,
            aggregation=agent_pb2.Endpoint(
                mac=switch.aggregation.mac, ip=switch.aggregation.ip, udp_port=UDP_PORT
            ),
            host=agent_pb2.Endpoint(mac=spec.host.mac, ip=spec.host.ip, udp_port=spec.udp_port),
            host_name=spec.host.name,
            shm_dir=spec.host.shm or "",
            paths=paths(self._topology, job),
            fill=any(self._topology.switch(name).fills for name in job.switches),
            one_column=bool(max_lanes),
            max_lanes=max_lanes,
            wide=self._topology.wide(member.host for member in job.members.values()),
            switch_port=spec.host.port,
            switch_name=switch.name,
            wire_version=VERSION,
            key=job.key,
            claimed=self._claimed.get(spec.host.name),
            group=agent_pb2.Endpoint(
                mac=group_mac(job.slots.base), ip=group_ip(job.slots.base), udp_port=WEIGHTS_PORT
            )
            if job.publishes and job.slots
            else None,
            publisher=agent_pb2.Endpoint(
                mac=publisher.host.mac, ip=publisher.host.ip, udp_port=publisher.udp_port
            )
            if subscriber
            else None,
            rank=subscriber,
        )


def _left(job: Job, member: Member) -> Any:
    return _Event(
        kind=_Event.MEMBER_LEFT,
        reason=f"{member} left job {job.name!r}",
        rank=member.rank,
        reductions=member.reductions,
    )


def _find_host(topology: Topology, name: str, ip: str) -> Host:
    if not (name or ip):
        raise JobError(Refusal.INVALID, "say which host you are on: its name or IP address in the topology")
    for host in topology.hosts:
        if (not name or host.name == name) and (not ip or host.ip == ip):
            return host
    who = " with address ".join(filter(None, (repr(name) if name else "a host", ip)))
    known = ", ".join(f"{host.name} {host.ip}" for host in topology.hosts) or "none"
    raise JobError(Refusal.INVALID, f"{who} is not in the topology; hosts there: {known}")


def status_of(refusal: Refusal) -> grpc.StatusCode:
    """Return gRPC's status for a refusal."""
    return _STATUS[refusal]


async def _abort(context: Any, error: JobError) -> NoReturn:
    await context.abort(status_of(error.refusal), str(error))
    raise AssertionError("abort returned")
