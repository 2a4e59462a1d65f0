# SPDX-License-Identifier: Apache-2.0
"""Agents and the controller over gRPC, with real switches: who joins gets in, who is lost is noticed."""

import contextlib
import os
import queue
import re
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from softp4 import protobuf
from softp4.channels import open_channel
from tests.controller.helpers import job, until
from tests.harness.switch_process import SwitchProcess
from weir.agent_service.client import (
    AgentClient,
    AgentError,
    ControllerUnreachable,
    Endpoint,
    JobStopped,
    JoinRefused,
    JoinTimeout,
    Membership,
    NoResources,
)
from weir.agent_service.proto import METHODS, agent_pb2
from weir.controller.desired import desired_state
from weir.controller.program import load_program
from weir.controller.server import Controller, ListenError, Settings, running
from weir.controller.switch_client import SwitchClient
from weir.controller.topology import single_switch
from weir.controller.wiring import Switch
from weir.wire.definition import VERSION

LEASE_S = 2.0
FAST = Settings(lease_s=LEASE_S, join_timeout_s=20.0)
NO_SWITCH = "127.0.0.1:1"


class World:
    """A controller with a switch, and as many agents as a test wants."""

    def __init__(self, controller: Controller, switch: str, stack: ExitStack) -> None:
        self.address = controller.address
        self.switch = switch
        self._stack = stack
        self._pool = stack.enter_context(ThreadPoolExecutor(32))

    def agent(self) -> AgentClient:
        return self._stack.enter_context(AgentClient(self.address))

    def join(
        self, agents: Sequence[AgentClient], name: str = "digits", first_host: int = 1, **more: object
    ) -> list[Membership]:
        """Return all agents at once, rank by rank, one on each host."""

        def one(rank: int) -> Membership:
            asked = {"job": name, "size": len(agents), "rank": rank, "host": f"h{first_host + rank}", **more}
            return agents[rank].join(**asked)  # type: ignore[arg-type]

        return list(self._pool.map(one, range(len(agents))))

    def later(self, call: Callable[[], Membership]) -> "Future[Membership]":
        return self._pool.submit(call)

    def programmed_jobs(self) -> set[int]:
        """Job ids that the switch itself says it admits."""
        observer = SwitchClient(Switch(name="observer", grpc=self.switch), 1)
        try:
            observer.ensure_program(load_program("weir_v1model"))
            return {
                int(str(dict(entry.match)["job"]))
                for entry in observer.read().entries
                if entry.table == "WeirIngress.admission.workers"
            }
        finally:
            observer.close()


@pytest.fixture
def world(any_switch: SwitchProcess) -> Iterator[World]:
    with (
        running(single_switch(8, any_switch.address), FAST) as controller,
        ExitStack() as stack,
    ):
        yield World(controller, any_switch.address, stack)


@pytest.fixture
def lonely() -> Iterator[World]:
    """Yield a controller whose switch is not there: enough for everything that is refused."""
    with running(single_switch(8, NO_SWITCH), FAST) as controller, ExitStack() as stack:
        yield World(controller, NO_SWITCH, stack)


def watch(agent: AgentClient) -> "queue.SimpleQueue[str]":
    """Return why an agent's job stopped, when it does."""
    reasons: queue.SimpleQueue[str] = queue.SimpleQueue()
    agent.on_stop(reasons.put)
    return reasons


# ---- joining


def test_everybody_gets_what_a_worker_needs_and_the_switch_is_programmed(world: World) -> None:
    agents = [world.agent() for _ in range(4)]
    members = world.join(agents, slots=32)
    assert members[2] == Membership(
        job_id=members[0].job_id,
        job="digits",
        rank=2,
        size=4,
        slot_count=32,
        aggregation=Endpoint("02:00:00:00:00:fe", "10.0.0.254", 9347),
        host=Endpoint("02:00:00:00:00:03", "10.0.0.3", 9347),
        host_name="h3",
        switch_name="s1",
        switch_port=3,
        shm_dir=None,
        lease_s=LEASE_S,
        fill=True,  # the topology does not say that it is a soft switch
        paths=(0, 1, 2, 3),
        key=members[0].key,
    )
    assert {(len(member.key), member.key) for member in members} == {(16, members[0].key)}
    assert {member.job_id for member in members} == {members[0].job_id}
    topology = single_switch(8, world.switch)
    expected = desired_state(
        topology,
        topology.switches[0],
        [job("digits", topology, size=4, job_id=members[0].job_id, slot_base=0, slot_count=32)],
    )
    observer = SwitchClient(topology.switches[0], 1)
    observer.ensure_program(load_program("weir_v1model"))
    assert observer.read() == expected
    observer.close()


def test_two_jobs_side_by_side_and_one_ends(world: World) -> None:
    first, second = [world.agent() for _ in range(2)], [world.agent() for _ in range(2)]
    ids = [world.join(first, "first")[0].job_id, world.join(second, "second", first_host=3)[0].job_id]
    assert world.programmed_jobs() == set(ids)
    told = watch(second[0])
    for agent in first:
        agent.leave()
    until(lambda: world.programmed_jobs() == {ids[1]})
    assert told.empty()
    assert second[0].departed == {}


def test_a_host_is_also_known_by_its_address(world: World) -> None:
    assert world.agent().join(job="one", size=1, rank=0, ip="10.0.0.7").host_name == "h7"


def test_two_workers_of_one_host_by_udp_port(world: World) -> None:
    agents = [world.agent(), world.agent()]
    waiting = world.later(lambda: agents[0].join(job="pair", size=2, rank=0, host="h1", udp_port=10000))
    member = agents[1].join(job="pair", size=2, rank=1, host="h1", udp_port=10001)
    assert (member.switch_port, member.host.udp_port) == (1, 10001)
    assert waiting.result().host.udp_port == 10000


def test_a_client_may_join_again_after_leaving(world: World) -> None:
    agent = world.agent()
    ids, keys = [], []
    for _ in range(3):
        member = agent.join(job="again", size=1, rank=0, host="h1")
        ids.append(member.job_id)
        keys.append(member.key)
        with pytest.raises(AgentError, match="is a member of job 'again'; leave it first"):
            agent.join(job="again", size=1, rank=0, host="h1")
        agent.leave()
    agent.leave()
    assert len(set(ids)) == len(set(keys)) == 3


def test_ids_and_slots_are_told_to_who_has_the_jobs_token(world: World) -> None:
    member, stranger = world.agent(), world.agent()
    stranger.join(job="theirs", size=1, rank=0, host="h2", slots=32)
    mine = member.join(job="mine", size=1, rank=0, host="h1", token="secret", slots=32)

    def told(status: Any) -> dict[str, tuple[int, int]]:
        assert [job.slot_count for job in status.jobs] == [32, 32]
        return {job.name: (job.job_id, job.slot_base) for job in status.jobs}

    assert told(member.status()) == {"theirs": (0, 0), "mine": (mine.job_id, 32)}
    assert told(stranger.status())["mine"] == (0, 0)
    with open_channel(world.address) as channel:
        stub = protobuf.stub(channel, METHODS)
        for job, token in (("", ""), ("mine", ""), ("", "secret"), ("another", "secret")):
            reply = stub.Status(agent_pb2.StatusRequest(job=job, token=token))
            assert set(told(reply).values()) == {(0, 0)}
        for job, token in (("mine", "guess"), ("theirs", "secret")):  # as at a join, where guesses are slowed
            with pytest.raises(grpc.RpcError, match="exists with another token"):
                stub.Status(agent_pb2.StatusRequest(job=job, token=token))
        reply = stub.Status(agent_pb2.StatusRequest(job="mine", token="secret"))
        assert told(reply) == {"theirs": (0, 0), "mine": (mine.job_id, 32)}


def test_ids_and_slots_are_told_at_the_controllers_own_socket(
    any_switch: SwitchProcess, tmp_path: Path
) -> None:
    """No other user can open it."""
    settings = Settings(listen=f"unix:{tmp_path}/controller.sock")
    with (
        running(single_switch(1, any_switch.address), settings),
        AgentClient(settings.listen) as agent,
        AgentClient(settings.listen) as operator,
    ):
        mine = agent.join(job="mine", size=1, rank=0, host="h1", token="secret")
        assert [(job.job_id, job.slot_count) for job in operator.status().jobs] == [
            (mine.job_id, mine.slot_count)
        ]
        assert (tmp_path / "controller.sock").stat().st_mode & 0o022 == 0


def test_a_worker_that_knows_no_keys_is_refused(world: World) -> None:
    """Its packets would disagree with all others', and the message would blame the collectives."""
    with open_channel(world.address) as channel:
        stub = protobuf.stub(channel, METHODS)
        request = agent_pb2.JoinRequest(job="old", size=1, rank=0, host="h1", wire_version=VERSION)
        with pytest.raises(grpc.RpcError, match="rank 0 of job 'old' does not make the check") as caught:
            stub.Join(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# ---- being refused


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"size": 32769}, JoinRefused, "a job has 1 to 32768"),
        ({"rank": 4}, JoinRefused, "rank 4 is not one of the 4 ranks"),
        ({"host": "h9"}, JoinRefused, "'h9' is not in the topology; hosts there: h1 10.0.0.1, h2 10.0.0.2"),
        ({"host": "", "ip": "10.9.9.9"}, JoinRefused, "a host with address 10.9.9.9 is not in the topology"),
        ({"host": "h1", "ip": "10.0.0.2"}, JoinRefused, "'h1' with address 10.0.0.2 is not in the topology"),
        ({"host": ""}, JoinRefused, "say which host you are on"),
        ({"slots": 2000}, NoResources, "asks for 2000 slots; switch s1 has 1024"),
        ({"token": "guess", "rank": 2}, JoinRefused, "exists with another token"),
        ({"size": 3, "rank": 2}, JoinRefused, "rank 2 says job 'digits' has 3 workers, but rank 1 (h2)"),
        ({"rank": 1, "host": "h5"}, JoinRefused, "rank 1 of job 'digits' has already joined, from h2"),
        ({"rank": 2, "host": "h2"}, NoResources, "UDP port 9347 of host h2 is in use by rank 1"),
    ],
)
def test_a_bad_join_is_refused_at_once_and_nobody_else_notices(
    lonely: World,
    asked: dict[str, object],
    error: type[AgentError],
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = lonely.agent()
    waiting = lonely.later(
        lambda: first.join(job="digits", size=4, rank=1, host="h2", token="secret", timeout_s=20)
    )
    until(lambda: len(lonely.agent().status().jobs) == 1)
    request = {"job": "digits", "size": 4, "rank": 0, "host": "h1", "token": "secret", **asked}
    with pytest.raises(error) as caught:
        lonely.agent().join(**request)  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert [one for one in caplog.messages if one.startswith("Join from ") and says in one]
    assert not waiting.done()
    first.close()
    with pytest.raises(AgentError):
        waiting.result()


def test_a_rank_that_never_comes_fails_the_join_of_all_others_by_name(lonely: World) -> None:
    agents = [lonely.agent() for _ in range(2)]
    waiting = [
        lonely.later(
            lambda rank=rank: agents[rank].join(
                job="late", size=3, rank=rank, host=f"h{rank + 1}", timeout_s=0.5
            )
        )
        for rank in range(2)
    ]
    for call in waiting:
        with pytest.raises(
            JoinTimeout, match=r"job 'late' is not complete: rank 2 of 3 did not join in time"
        ):
            call.result()


def test_a_switch_that_is_not_there_is_named(lonely: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.controller.service.MIN_PROGRAM_TIME_S", 2.0)
    with pytest.raises(JobStopped) as caught:
        lonely.agent().join(job="one", size=1, rank=0, host="h1", timeout_s=0.1)
    message = str(caught.value)
    assert "job 'one' cannot start, a switch could not be programmed" in message
    assert "switch s1 at 127.0.0.1:1 cannot be reached" in message
    assert list(lonely.agent().status().jobs) == []


def test_the_join_timeout_applies_to_switches_too_however_long_the_agent_would_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what is waited for; then a sentence that names the switch ends it."""
    monkeypatch.setattr("weir.agent_service.waiting.FIRST_S", 0.5)
    with (
        running(single_switch(1, NO_SWITCH), replace(FAST, join_timeout_s=5.0)) as controller,
        AgentClient(controller.address) as agent,
        pytest.raises(JobStopped, match=r"switch s1 at 127\.0\.0\.1:1 cannot be reached"),
    ):
        agent.join(job="one", size=1, rank=0, host="h1", timeout_s=1800)
    assert re.search(r"still waiting for a switch that cannot be programmed: switch s1 at", caplog.text)


def test_the_log_names_the_ranks_that_a_join_waits_for(
    lonely: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("weir.agent_service.waiting.FIRST_S", 0.3)
    with pytest.raises(JoinTimeout):
        lonely.agent().join(job="late", size=3, rank=1, host="h2", timeout_s=3)
    assert "still waiting for ranks 0, 2 of 3 to join job 'late'" in caplog.text


def test_slots_run_out(world: World) -> None:
    world.agent().join(job="big", size=1, rank=0, host="h1", slots=1000)
    with pytest.raises(NoResources, match=r"25 consecutive slots are wanted of 1024; 24 are free"):
        world.agent().join(job="next", size=1, rank=0, host="h2", slots=25)
    assert world.agent().join(job="fits", size=1, rank=0, host="h2", slots=24).slot_count == 24


# ---- being lost


def test_a_worker_that_dies_stops_its_job_and_no_other(world: World) -> None:
    agents, others = [world.agent() for _ in range(3)], [world.agent()]
    doomed = world.join(agents)[0].job_id
    healthy = world.join(others, "other", first_host=5)[0].job_id
    assert world.programmed_jobs() == {doomed, healthy}
    reasons = [watch(agent) for agent in agents[:2]]
    other = watch(others[0])
    agents[2].close()
    for reason in reasons:
        assert (
            reason.get()
            == "job 'digits' was stopped: rank 2 (h3) went away without leaving: its connection broke"
        )
    until(lambda: world.programmed_jobs() == {healthy})
    assert other.empty()
    assert agents[0].stopped is not None
    agents[0].leave()
    agents[1].leave()
    world.join([*agents[:2], world.agent()])


def silence(how: str, reason: str) -> float:
    """Return for how many seconds rank 0 was silent, as the reason of a job's end says."""
    found = re.search(rf"rank 0 \(h1\) is lost: {how} for (\d+\.\d+) s", reason)
    assert found, reason
    return float(found[1])


def test_a_worker_that_is_frozen_is_lost_after_its_lease(world: World) -> None:
    frozen = _worker(world.address, rank=0, then="time.sleep(3600)")
    agent = world.agent()
    agent.join(job="digits", size=2, rank=1, host="h2")
    assert frozen.stdout is not None
    assert frozen.stdout.readline() == b"joined\n"
    reason = watch(agent)
    until(lambda: {m.state for m in agent.status().jobs[0].members} == {"attending"})
    frozen.send_signal(signal.SIGSTOP)
    try:
        assert silence("it was not heard of", reason.get()) >= LEASE_S
    finally:
        frozen.kill()
        frozen.communicate()


def test_a_worker_that_is_frozen_while_it_joins_is_lost_after_a_lease(world: World) -> None:
    """It has no heartbeat yet: its lease begins when the job runs."""
    frozen = _worker(world.address, rank=0, then="time.sleep(3600)")
    try:
        agent = world.agent()
        until(lambda: bool(agent.status().jobs))
        frozen.send_signal(signal.SIGSTOP)
        agent.join(job="digits", size=2, rank=1, host="h2")
        assert silence("it never attended", watch(agent).get()) >= LEASE_S
    finally:
        frozen.kill()
        frozen.communicate()


def test_a_member_that_gives_up_stops_the_job_and_says_why(world: World) -> None:
    agents = [world.agent() for _ in range(2)]
    world.join(agents)
    reason = watch(agents[0])
    agents[1].give_up("no memory")
    assert reason.get() == "job 'digits' was stopped: rank 1 (h2) gave up: no memory"
    agents[1].give_up("twice")


def test_a_worker_whose_program_ends_in_an_exception_does_not_live_on(world: World) -> None:
    doomed = _worker(world.address, rank=0, then="raise RuntimeError('out of memory')")
    agent = world.agent()
    agent.join(job="digits", size=2, rank=1, host="h2")
    assert (
        watch(agent).get()
        == "job 'digits' was stopped: rank 0 (h1) went away without leaving: its connection broke"
    )
    _, errors = doomed.communicate()
    assert doomed.returncode == 1
    assert b"out of memory" in errors


def test_a_member_that_leaves_early_is_announced_and_then_ends_the_job(world: World) -> None:
    agents = [world.agent() for _ in range(3)]
    world.join(agents)
    left: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    agents[0].on_leave(lambda rank, reason: left.put((rank, reason)))
    reason = watch(agents[0])
    agents[2].leave()
    assert left.get() == (2, "rank 2 (h3) left job 'digits'")
    assert agents[0].departed == {2: "rank 2 (h3) left job 'digits'"}
    assert reason.get() == "job 'digits' was stopped: rank 2 (h3) left the job"
    late = watch(agents[0])
    assert late.get() == "job 'digits' was stopped: rank 2 (h3) left the job"


def test_who_begins_to_listen_later_hears_of_those_who_had_left(world: World) -> None:
    """A member's heartbeats begin after it has joined: another may be gone by then."""
    leaver = world.agent()
    early = world.later(lambda: leaver.join(job="digits", size=2, rank=1, host="h2"))
    with open_channel(world.address) as channel:
        stub = protobuf.stub(channel, METHODS)
        request = agent_pb2.JoinRequest(
            job="digits", size=2, rank=0, host="h1", wire_version=VERSION, keyed=True
        )
        joined = stub.Join(request)
        early.result()
        leaver.leave()
        events = stub.Attend(iter([agent_pb2.Heartbeat(job_id=joined.job_id, rank=0)]))
        assert next(events).kind == agent_pb2.JobEvent.RUNNING
        left = next(events)
    assert (left.kind, left.rank) == (agent_pb2.JobEvent.MEMBER_LEFT, 1)
    assert left.reason == "rank 1 (h2) left job 'digits'"


@pytest.mark.parametrize(
    ("version", "spoken", "remedy"),
    [
        (0, "speaks a wire version before 3", "on that host"),
        (2, "speaks wire version 2", "on that host"),
        (VERSION + 1, f"speaks wire version {VERSION + 1}", "for the controller"),
    ],
)
def test_an_agent_of_another_wire_version_is_refused_by_name(
    world: World, version: int, spoken: str, remedy: str
) -> None:
    """Also one that is too old to say its version; and the job can then be had by others."""
    with open_channel(world.address) as channel:
        request = agent_pb2.JoinRequest(job="digits", size=1, rank=0, host="h1", wire_version=version)
        with pytest.raises(grpc.RpcError) as caught:
            protobuf.stub(channel, METHODS).Join(request, timeout=10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    said = caught.value.details()
    assert said.startswith(f"rank 0 of job 'digits' {spoken}, the controller and the switches wire version")
    assert f"wire version {VERSION}, and packets of two versions do not mix" in said
    assert said.endswith(f"install the newer Weir {remedy}, too")
    assert world.join([world.agent()])[0].size == 1


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (0, "speak a wire version before 3, this agent speaks wire version 3"),
        (VERSION, "gives jobs no key, with which this agent makes the check of its packets"),
    ],
)
def test_an_older_controller_is_refused_by_name(version: int, says: str) -> None:
    """By the agent: an old controller lets anybody in."""
    (join, leave) = (next(one for one in METHODS if one.name == name) for name in ("Join", "Leave"))
    left = []
    reply = agent_pb2.JoinReply(job_id=7, size=1, paths=[0], wire_version=version)

    def handler(method: protobuf.Method, reply: Callable[[object, object], object]) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(
            reply,
            request_deserializer=method.request.FromString,
            response_serializer=method.reply.SerializeToString,
        )

    handlers = {
        "Join": handler(join, lambda _request, _context: reply),
        "Leave": handler(leave, lambda request, _: left.append(request.job_id) or agent_pb2.LeaveReply()),
    }
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        port = server.add_insecure_port("127.0.0.1:0")
        service = join.path.rsplit("/", 1)[0].lstrip("/")
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
        server.start()
        with AgentClient(f"127.0.0.1:{port}") as client, pytest.raises(JoinRefused) as caught:
            client.join(job="digits", size=1, rank=0, host="h1")
        server.stop(None).wait()
    assert says in str(caught.value)
    assert left == [7]


def test_a_worker_that_stands_for_several_ranks_is_called_by_all(world: World) -> None:
    agents = [world.agent() for _ in range(2)]
    pending = [
        world.later(
            lambda i=i, ranks=ranks: agents[i].join(
                job="digits", size=2, rank=i, host=f"h{i + 1}", ranks=ranks
            )
        )
        for i, ranks in enumerate([(0, 3), (1, 2)])
    ]
    for one in pending:
        one.result()
    left: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    agents[0].on_leave(lambda rank, reason: left.put((rank, reason)))
    agents[1].leave()
    assert left.get() == (1, "ranks 1, 2 (h2) left job 'digits'")


def test_a_controller_that_stops_tells_everybody_and_cleans_up(any_switch: SwitchProcess) -> None:
    with ExitStack() as stack:
        with running(single_switch(8, any_switch.address), FAST) as controller:
            world = World(controller, any_switch.address, stack)
            agent, waiting = world.agent(), world.agent()
            agent.join(job="digits", size=1, rank=0, host="h1")
            stuck = world.later(lambda: waiting.join(job="late", size=2, rank=0, host="h2"))
            until(lambda: len(agent.status().jobs) == 2)
            reason = watch(agent)
        assert reason.get() == "job 'digits' was stopped: the controller is shutting down"
        with pytest.raises(JobStopped, match="the controller is shutting down"):
            stuck.result()
        assert world.programmed_jobs() == set()
        agent.leave()


# ---- the switch and the controller come and go


def test_a_switch_that_restarts_gets_everything_again(own_switch: SwitchProcess) -> None:
    topology = single_switch(8, own_switch.address)
    with running(topology, FAST) as controller, ExitStack() as stack:
        world = World(controller, own_switch.address, stack)
        waiting = world.later(lambda: world.agent().join(job="digits", size=1, rank=0, host="h1"))
        own_switch.start()
        job_id = waiting.result().job_id
        own_switch.stop()
        until(lambda: world.agent().status().switches[0].state == "connecting")
        assert "s1" in world.agent().status().switches[0].problem
        own_switch.start()
        until(lambda: world.agent().status().switches[0].state == "ready")
        assert world.programmed_jobs() == {job_id}


def test_a_second_controller_takes_over_and_the_first_stands_by(any_switch: SwitchProcess) -> None:
    topology = single_switch(8, any_switch.address)
    with running(topology, FAST) as first, ExitStack() as stack:
        observer = stack.enter_context(AgentClient(first.address))
        until(lambda: observer.status().switches[0].state == "ready")
        with running(topology, FAST):
            until(lambda: observer.status().switches[0].state == "standby")
            assert "another controller has taken over switch s1" in observer.status().switches[0].problem
        until(lambda: observer.status().switches[0].state == "ready")


# ---- addresses


def test_a_unix_socket(tmp_path: Path) -> None:
    settings = replace(FAST, listen=f"unix:{tmp_path}/controller.sock")
    before = os.umask(0)
    try:
        made = running(single_switch(1, NO_SWITCH), settings)
        controller = made.__enter__()
    finally:
        os.umask(before)
    with contextlib.ExitStack() as stack:
        stack.push(made)
        assert controller.address == settings.listen
        assert stat.S_IMODE((tmp_path / "controller.sock").stat().st_mode) == 0o600
        with AgentClient(controller.address) as agent:
            assert agent.status().switches[0].name == "s1"


def test_an_address_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(ListenError, match=f"cannot listen at {address}"),
            running(single_switch(1, NO_SWITCH), replace(FAST, listen=address)),
        ):
            pass


def test_no_controller_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.agent_service.client.CONNECT_TIMEOUT_S", 0.2)
    with (
        AgentClient("127.0.0.1:1") as agent,
        pytest.raises(ControllerUnreachable, match=r"no controller answers at 127.0.0.1:1"),
    ):
        agent.join(job="digits", size=1, rank=0, host="h1")


def _worker(address: str, rank: int, then: str) -> "subprocess.Popen[bytes]":
    """Return a worker in a process of its own that joins job 'digits' of two and then does as it is told."""
    script = f"""
        import time
        from weir.agent_service.client import AgentClient
        agent = AgentClient({address!r})
        agent.join(job="digits", size=2, rank={rank}, host="h{rank + 1}")
        print("joined", flush=True)
        {then}
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
