# SPDX-License-Identifier: Apache-2.0
"""A host's side of the agent service. Imports grpc, the stubs and the standard library, nothing more.

.. code-block:: python

    client = AgentClient("127.0.0.1:9600")
    membership = client.join(job="digits", size=4, rank=2, host="h3", token="secret")
    client.on_stop(lambda reason: transport.abort(reason))
    ...
    client.leave()
    client.close()
"""

import contextlib
import functools
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import grpc

from softp4 import protobuf
from softp4.channels import open_channel
from weir.agent_service.heartbeat import HeartbeatThread
from weir.agent_service.proto import METHODS, agent_pb2
from weir.agent_service.status_pages import whole_status
from weir.agent_service.tls import TlsError, TlsFiles
from weir.agent_service.waiting import FIRST_S, join_reason, logged_wait
from weir.wire.definition import GROUP_LANES, KEY_BYTES, VERSION

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0  # for a controller that is being started
CALL_TIMEOUT_S = 10.0
GIVE_UP_TIMEOUT_S = 2.0
RETRY_S = 0.1
JOIN_MARGIN_S = 20.0  # beyond the join's own deadline: the answer is the controller's to give


class AgentError(Exception):
    """A request to the controller failed. The message says what and, where it can, what to do."""


class ControllerUnreachable(AgentError):  # noqa: N818 - it names the situation
    """Nobody answers at the controller's address."""


class JoinRefused(AgentError):  # noqa: N818
    """The controller refuses: wrong token, rank taken, size, host."""


class JoinTimeout(AgentError):  # noqa: N818
    """Some ranks never came; the message names them."""


class NoResources(AgentError):  # noqa: N818
    """No free slots or port; the message says what is free and who has the rest."""


class ClientClosed(AgentError):  # noqa: N818
    """``close`` was called before a request was answered."""


class JobStopped(AgentError):  # noqa: N818
    """The job is over, or cannot be because its switch cannot be programmed; the message says why."""


@dataclass(frozen=True)
class Endpoint:
    """An address of packets: MAC ``02:00:00:00:00:01``, IPv4 ``10.0.0.1``, UDP port."""

    mac: str
    ip: str
    udp_port: int


@dataclass(frozen=True)
class ClaimedPort:
    """A switch's port that is claimed over an IP network: at this host and UDP port, with this key."""

    host: str
    udp_port: int
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class Membership:
    """All that a worker needs to know to take part.

    Attributes:
        job_id: the job on the wire.
        rank: this worker, of all of the job.
        size: number of workers.
        slot_count: the job's slots are 0 to slot_count - 1.
        aggregation: where contributions go and results come from.
        host: this worker's own addresses.
        shm_dir: directory of the switch's shared-memory ports; None: use the network.
        switch_port: the switch port this worker is on.
        lease_s: silence that costs the membership.
        fill: keep results at most half a slot's lanes longer than the packets of their round, because the
            switch cannot lengthen packets more.
        max_lanes: send packets of one column, with this many lanes of ADD, 32 or 64, and 32 of other
            operators, because the switch takes no others; 0: it takes all.
        wide: wide packets may be sent, as all switches and ways of the job take them.
        paths: of each rank, as audiences name it: the numbers on its way to the root of the job's tree, 5
            bits for each tier, its own at its leaf lowest.
        key: secret of this run of the job, with which its packets' check is made.
        claimed: this worker's port, where it is claimed over an IP network; None: it is at a cable's end.
        group: of a job that publishes: where its packets for all subscribers go. None: it does not.
        publisher: of a subscriber's: where these packets come from.
    """

    job_id: int
    job: str
    rank: int
    size: int
    slot_count: int
    aggregation: Endpoint
    host: Endpoint
    host_name: str
    switch_name: str
    switch_port: int
    shm_dir: Path | None
    lease_s: float
    fill: bool
    paths: tuple[int, ...]
    max_lanes: int = 0
    wide: bool = False
    key: bytes = field(default=bytes(KEY_BYTES), repr=False)
    claimed: ClaimedPort | None = None
    group: Endpoint | None = None
    publisher: Endpoint | None = None

    @property
    def number(self) -> int:
        """Return this worker's index on the wire: its number among the job's workers on its leaf."""
        return self.paths[self.rank] & 31


class AgentClient:
    """One worker's connection to the controller; at most one membership at a time.

    Args:
        address: ``host:port`` or ``unix:/path``.
        tls: certificate files; None: as WEIR_TLS_CERT, WEIR_TLS_KEY and WEIR_TLS_CA say, if they do.

    Raises:
        AgentError: a certificate cannot be read.
    """

    def __init__(self, address: str, tls: TlsFiles | None = None) -> None:
        self.address = address
        self.membership: Membership | None = None
        self._channel, self._tls = _channel(address, tls)
        self._stub = protobuf.stub(self._channel, METHODS)
        self._token = ""
        self._heartbeats: HeartbeatThread | None = None
        self._lock = threading.Lock()
        self._on_stop: list[Callable[[str], None]] = []
        self._on_leave: list[Callable[[int, str], None]] = []
        self._stopped: str | None = None
        self._left: list[tuple[int, str, int]] = []
        self._on_withdrawal: list[Callable[[int], None]] = []
        self._on_reclaim: list[Callable[[], None]] = []
        self._reclaimed = False
        self._joining: Any = None  # the call, while it is under way
        self._closed = False
        self._process = os.getpid()

    # ---- the life of a membership

    def join(
        self,
        *,
        job: str,
        size: int,
        rank: int,
        token: str = "",
        host: str = "",
        ip: str = "",
        udp_port: int = 0,
        slots: int = 0,
        timeout_s: float = 0.0,
        ranks: Sequence[int] = (),
        revocable: bool = False,
        publishes: bool = False,
    ) -> Membership:
        """Join a job; returns when all its ranks have and the switch is programmed. Heartbeats begin.

        Args:
            job: name, the same on all ranks.
            size: number of workers; at most 32 are on one switch.
            rank: this worker, 0 to size - 1.
            token: the job's secret, the same on all ranks.
            host: this host's name in the topology; or ``ip``, its address there.
            udp_port: where results are sent; 0: Weir's own port.
            slots: switch slots wanted, the same on all ranks; 0: the controller's default.
            timeout_s: how long to wait for the other ranks; 0: the controller's default.
            ranks: those of a process group that this worker is, for messages; by default ``rank``.
            revocable: the job gives its slots back when others need them, see ``on_reclaim``; the same on all
                ranks.
            publishes: a job of one worker that sends to subscribers, with 2 slots.

        Raises:
            AgentError: one of its subclasses, see there.
        """
        return self._enter(
            job=job,
            token=token,
            size=size,
            rank=rank,
            host=host,
            ip=ip,
            udp_port=udp_port,
            slots=slots,
            timeout_s=timeout_s,
            process=_process(),
            wire_version=VERSION,
            ranks=ranks,
            keyed=True,
            revocable=revocable,
            publishes=publishes,
        )

    def subscribe(
        self,
        *,
        job: str,
        token: str = "",
        host: str = "",
        udp_port: int = 0,
        timeout_s: float = 0.0,
    ) -> Membership:
        """Subscribe to a job that publishes; returns when there is one, and the switch is programmed.

        The membership ends with the publisher's: ``on_stop`` says so. Arguments and errors as of ``join``.
        """
        return self._enter(
            job=job,
            token=token,
            host=host,
            udp_port=udp_port,
            timeout_s=timeout_s,
            process=_process(),
            wire_version=VERSION,
            keyed=True,
            subscribes=True,
        )

    def _enter(self, **fields: Any) -> Membership:
        """Join a job as these fields of ``JoinRequest`` say."""
        job, token, timeout_s = fields["job"], fields["token"], fields["timeout_s"]
        if self.membership is not None:
            raise AgentError(f"this client is a member of job {self.membership.job!r}; leave it first")
        request = agent_pb2.JoinRequest(**fields)
        with logged_wait(log, lambda: self._join_waits_for(job)):
            reply = self._call(self._join, request, timeout_s + JOIN_MARGIN_S if timeout_s else None)
        if reply.wire_version != VERSION or len(reply.key) != KEY_BYTES:
            self._refuse_controller(request, reply)
        rank = reply.rank if request.subscribes else request.rank
        membership = _membership(job, rank, reply, self.address)
        beat = agent_pb2.Heartbeat(job_id=reply.job_id, rank=rank, token=token)
        with self._lock:
            if self._closed:
                raise ClientClosed(f"joining job {job!r} was given up")
            self._stopped, self._left, self._reclaimed = None, [], False
            self._token, self.membership = token, membership
            self._heartbeats = HeartbeatThread(self._stub.Attend, beat, reply.lease_s, self._heard)
        return membership

    def leaves_at_exit(self) -> None:
        """Promise that ``leave`` or ``close`` is called even when the program ends without it.

        Otherwise the heartbeats end with the main thread, and the membership is lost.
        """
        if self._heartbeats is not None:
            self._heartbeats.program_ends_cleanly = True

    def leave(self, reductions: int = 0) -> None:
        """End the membership cleanly; without one, nothing happens. The client can join again.

        Args:
            reductions: of a revocable job, how many this member has done.

        Raises:
            AgentError: the controller could not be told; the membership is over for this client all the same.
        """
        membership, heartbeats = self.membership, self._heartbeats
        if membership is None or heartbeats is None or os.getpid() != self._process:
            return
        self.membership = self._heartbeats = None
        heartbeats.leaving()
        try:
            request = agent_pb2.LeaveRequest(
                job_id=membership.job_id, rank=membership.rank, token=self._token, reductions=reductions
            )
            if self._stopped is None:  # else nobody needs to be told
                self._call(self._stub.Leave, request, CALL_TIMEOUT_S)
        except JobStopped:
            pass  # the news was on its way
        finally:
            heartbeats.close()

    def give_up(self, reason: str) -> None:
        """End the membership and the job with it, and close the connection: the others are told the reason.

        A controller that does not answer at once finds out by the closed connection that this member is lost.
        """
        if os.getpid() != self._process:
            return
        membership, heartbeats = self.membership, self._heartbeats
        if membership is not None and heartbeats is not None and self._stopped is None:
            heartbeats.leaving()
            request = agent_pb2.LeaveRequest(
                job_id=membership.job_id, rank=membership.rank, token=self._token, reason=reason
            )
            with contextlib.suppress(grpc.RpcError, ValueError):  # the latter: it is closed already
                self._stub.Leave(request, timeout=GIVE_UP_TIMEOUT_S)
        self.close()

    def close(self) -> None:
        """Close the connection. A membership not left counts as lost: the job stops.

        May be called from any thread: a ``join`` that is under way then raises ClientClosed.
        """
        if os.getpid() != self._process:
            return  # a fork: connection and membership are its parent's
        with self._lock:
            self._closed = True
            if self._joining is not None:
                self._joining.cancel()
        if self._heartbeats is not None:
            self._heartbeats.close()
            self.membership = self._heartbeats = None
        self._channel.close()

    def __enter__(self) -> "AgentClient":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # ---- what happens to the job

    @property
    def stopped(self) -> str | None:
        """Reason why the job is over, or None while it is not."""
        return self._stopped

    @property
    def departed(self) -> dict[int, str]:
        """Ranks that left cleanly, with a sentence that says so. No collective begun now can
        complete.
        """
        with self._lock:
            return {rank: reason for rank, reason, _ in self._left}

    def on_stop(self, callback: Callable[[str], None]) -> None:
        """Call ``callback(reason)`` when the job is over, at once if it is; from another thread."""
        with self._lock:
            self._on_stop.append(callback)
            reason = self._stopped
        if reason is not None:
            callback(reason)

    def on_leave(self, callback: Callable[[int, str], None]) -> None:
        """Call ``callback(rank, reason)`` when another member leaves cleanly; from another thread.

        A collective that is under way may still complete: the leaver took part in it. One begun later
        cannot. If members remain when a lease has passed since, the job stops.
        """
        with self._lock:
            self._on_leave.append(callback)
            left = list(self._left)
        for rank, reason, _ in left:
            callback(rank, reason)

    def on_withdrawal(self, callback: Callable[[int], None]) -> None:
        """Call ``callback(reductions)`` when another member leaves a revocable job cleanly; from another
        thread.

        reductions: how many the leaver had done. No later one can complete; all others take part in these,
        so these can.
        """
        with self._lock:
            self._on_withdrawal.append(callback)
            left = list(self._left)
        for _, _, reductions in left:
            callback(reductions)

    def on_reclaim(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` when others need this revocable job's slots; from another thread.

        It should ``leave``, or say ``busy``.
        """
        with self._lock:
            self._on_reclaim.append(callback)
            asked = self._reclaimed
        if asked:
            callback()

    def busy(self) -> None:
        """Say that the job needs its slots, in answer to a reclaim."""
        heartbeats = self._heartbeats
        if heartbeats is not None:
            heartbeats.say_busy()

    def status(self) -> Any:
        """Return the controller's ``StatusReply`` (see agent.proto), with id and slots of the own job."""
        job = self.membership.job if self.membership is not None else ""
        return whole_status(
            lambda request: self._call(self._stub.Status, request, CALL_TIMEOUT_S + JOIN_MARGIN_S),
            job,
            self._token,
        )

    # ---- inside

    def _heard(self, event: Any) -> None:
        """Take in an event, in the heartbeats' thread."""
        if event.kind == agent_pb2.JobEvent.STOPPED:
            with self._lock:
                self._stopped = event.reason
                callbacks = list(self._on_stop)
            for callback in callbacks:
                callback(event.reason)
        elif event.kind == agent_pb2.JobEvent.MEMBER_LEFT:
            with self._lock:
                self._left.append((event.rank, event.reason, event.reductions))
                watchers, withdrawals = list(self._on_leave), list(self._on_withdrawal)
            for watcher in watchers:
                watcher(event.rank, event.reason)
            for withdrawal in withdrawals:
                withdrawal(event.reductions)
        elif event.kind == agent_pb2.JobEvent.RECLAIM:
            with self._lock:
                self._reclaimed = True
                asked = list(self._on_reclaim)
            for ask in asked:
                ask()

    def _refuse_controller(self, request: Any, reply: Any) -> NoReturn:
        """Leave a job of a controller whose packets are not ours, and say so."""
        leave = agent_pb2.LeaveRequest(job_id=reply.job_id, rank=request.rank, token=request.token)
        self._call(self._stub.Leave, leave, CALL_TIMEOUT_S)
        if reply.wire_version == VERSION:
            raise JoinRefused(
                f"the controller at {self.address} gives jobs no key, with which this agent makes the check "
                "of its packets: install the newer Weir there, too"
            )
        spoken = f"wire version {reply.wire_version}" if reply.wire_version else "a wire version before 3"
        raise JoinRefused(
            f"the controller at {self.address} and its switches speak {spoken}, this agent speaks wire "
            f"version {VERSION}, and packets of two versions do not mix: install the newer Weir everywhere"
        )

    def _join_waits_for(self, job: str) -> str:
        """Return what a join that is under way waits for, as text."""
        try:
            return join_reason(whole_status(lambda request: self._stub.Status(request, timeout=FIRST_S)), job)
        except (grpc.RpcError, ValueError):  # the latter: the channel was closed
            return f"the controller at {self.address} to answer"

    def _join(self, request: Any, timeout: float | None) -> Any:
        """Call Join, so that ``close`` can cancel it."""
        with self._lock:
            if self._closed:
                raise ClientClosed(f"joining job {request.job!r} was given up")
            self._joining = call = self._stub.Join.future(request, timeout=timeout)
        try:
            return call.result()
        except grpc.FutureCancelledError:
            raise ClientClosed(f"joining job {request.job!r} was given up") from None
        finally:
            call.cancel()  # after an interrupt it would still wait
            with self._lock:
                self._joining = None

    def _call(self, method: Any, request: Any, timeout_s: float | None) -> Any:
        """Make one call. A controller that is not there (yet) is tried again for CONNECT_TIMEOUT_S."""
        if os.getpid() != self._process:
            raise AgentError(f"this connection is of process {self._process}; a fork of it needs its own")
        until = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            try:
                return method(request, timeout=timeout_s)
            except ValueError as error:
                if not self._closed:
                    raise
                raise ClientClosed(f"the connection to the controller at {self.address} is closed") from error
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE and time.monotonic() < until:
                    time.sleep(RETRY_S)
                    continue
                raise self._error(error) from None

    def _error(self, error: grpc.RpcError) -> AgentError:
        code, details = error.code(), error.details()
        if code is grpc.StatusCode.UNAVAILABLE and self._tls and (why := self._tls.problem(self.address)):
            details = f"no TLS with the controller at {self.address}: {why}"
        elif code is grpc.StatusCode.UNAVAILABLE:
            details = (
                f"no controller answers at {self.address}: {details}; is 'weir hub' or 'weir controller' "
                f"running there, and do both sides use TLS or neither?"
            )
        return _ERRORS.get(code, AgentError)(details or code.name)


@functools.cache
def _process_name(_pid: int) -> str:
    return secrets.token_hex(8)


def _process() -> str:
    """Return the name that all clients of this process, and no others, call themselves."""
    return _process_name(os.getpid())  # a forked child is another process


_ERRORS: dict[grpc.StatusCode, type[AgentError]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: JoinTimeout,
    grpc.StatusCode.RESOURCE_EXHAUSTED: NoResources,
    grpc.StatusCode.PERMISSION_DENIED: JoinRefused,
    grpc.StatusCode.INVALID_ARGUMENT: JoinRefused,
    grpc.StatusCode.ALREADY_EXISTS: JoinRefused,
    grpc.StatusCode.ABORTED: JobStopped,
    grpc.StatusCode.FAILED_PRECONDITION: JobStopped,
    grpc.StatusCode.NOT_FOUND: JobStopped,
    grpc.StatusCode.UNAVAILABLE: ControllerUnreachable,
}


# gRPC waits up to two minutes between attempts to connect.
_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000))


def _channel(address: str, tls: TlsFiles | None) -> tuple[Any, TlsFiles | None]:
    """Return a channel, and the files of its TLS if it has any."""
    try:
        tls = tls or TlsFiles.from_environment()
        return open_channel(address, tls.channel_credentials() if tls is not None else None, _OPTIONS), tls
    except TlsError as error:
        raise AgentError(str(error)) from None


def _membership(job: str, rank: int, reply: Any, controller: str) -> Membership:
    return Membership(
        job_id=reply.job_id,
        job=job,
        rank=rank,
        size=reply.size,
        slot_count=reply.slots,
        aggregation=_endpoint(reply.aggregation),
        host=_endpoint(reply.host),
        host_name=reply.host_name,
        switch_name=reply.switch_name,
        switch_port=reply.switch_port,
        shm_dir=Path(reply.shm_dir) if reply.shm_dir else None,
        lease_s=reply.lease_s,
        fill=reply.fill,
        paths=tuple(reply.paths),
        max_lanes=(reply.max_lanes or GROUP_LANES) if reply.one_column else 0,
        wide=reply.wide,
        key=reply.key,
        claimed=claimed_port(reply.claimed, controller) if reply.HasField("claimed") else None,
        group=_endpoint(reply.group) if reply.HasField("group") else None,
        publisher=_endpoint(reply.publisher) if reply.HasField("publisher") else None,
    )


def _endpoint(said: Any) -> Endpoint:
    return Endpoint(said.mac, said.ip, said.udp_port)


def claimed_port(said: Any, controller: str) -> ClaimedPort:
    """Return where a port is claimed: on the controller's host, unless another is named."""
    host = said.host or ("127.0.0.1" if controller.startswith("unix:") else controller.rpartition(":")[0])
    return ClaimedPort(host.strip("[]"), said.udp_port, said.key)
