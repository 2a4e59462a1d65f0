# SPDX-License-Identifier: Apache-2.0
"""Whatever reaches the controller's port: junk is refused, logged once, and nobody else is hurt."""

import asyncio
import contextlib
import logging
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from softp4 import protobuf
from softp4.channels import open_channel
from tests.controller.helpers import until
from weir.agent_service.client import AgentClient, AgentError, JoinRefused, NoResources
from weir.agent_service.proto import METHODS, agent_pb2
from weir.controller import log_lines, service, throttle
from weir.controller import port as guarded
from weir.controller.jobs import JobError, Refusal
from weir.controller.reconciler import Reading, SwitchReconciler
from weir.controller.reporting import without_ids
from weir.controller.server import Controller, Settings, running
from weir.controller.topology import leaf_spine, single_switch
from weir.wire.definition import VERSION

TOPOLOGY = single_switch(8, "127.0.0.1:1")
SETTINGS = Settings(lease_s=60.0, join_timeout_s=20.0)


@pytest.fixture
def controller(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    """Yield a controller whose switch is not there."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(throttle, "MOST_WAIT_S", 1.5)
    with running(TOPOLOGY, SETTINGS) as made:
        yield made


@pytest.fixture
def channel(controller: Controller) -> Iterator[grpc.Channel]:
    with open_channel(controller.address) as made:
        yield made


def raw(channel: grpc.Channel, method: str) -> Callable[[bytes], bytes]:
    kind = channel.stream_stream if method == "Attend" else channel.unary_unary
    return kind(f"/weir.agents.v1.Agents/{method}", lambda data: data, lambda data: data)  # type: ignore[no-any-return]


def join(**fields: Any) -> Any:
    usual = {"job": "x", "token": "right", "size": 2, "rank": 0, "host": "h1", "udp_port": 9999}
    return agent_pb2.JoinRequest(**{**usual, "wire_version": VERSION, "keyed": True, **fields})


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "weir.controller.port"]


def requests(line: str) -> int:
    """Return how many requests a line is about."""
    more = re.search(r"; and (\d+) more like it$", line)
    return 1 + int(more[1]) if more else 1


def about(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [line for line in warnings(caplog) if words in line]


# ---- junk


@pytest.mark.parametrize("method", ["Join", "Leave", "Status"])
def test_junk_is_refused_with_one_line_for_all(
    method: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "REPEAT_S", 0.5)
    monkeypatch.setattr(log_lines, "REPEAT_S", 0.5)
    with running(TOPOLOGY, SETTINGS) as controller, open_channel(controller.address) as channel:
        call = raw(channel, method)
        for _ in range(200):
            with pytest.raises(grpc.RpcError) as caught:
                call(b"\xff" * 9)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        until(lambda: sum(map(requests, warnings(caplog))) == 200)
        with AgentClient(controller.address) as agent:
            assert agent.status().switches[0].name == "s1"
    lines = warnings(caplog)
    assert lines[0].startswith(f"{method} from 127.0.0.1: 9 bytes are no {method} request")
    assert len(lines) < 20
    assert not any(record.exc_info for record in caplog.records)


def test_junk_on_a_stream_ends_it(channel: grpc.Channel, caplog: pytest.LogCaptureFixture) -> None:
    stream: Any = raw(channel, "Attend")
    with pytest.raises(grpc.RpcError) as caught:
        list(stream(iter([b"\xff" * 9])))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not any(record.exc_info for record in caplog.records)


def test_a_member_whose_heartbeats_are_junk_is_lost(
    channel: grpc.Channel, own_world: Callable[[], Any]
) -> None:
    reply = own_world()
    first = agent_pb2.Heartbeat(job_id=reply.job_id, rank=0, token="right").SerializeToString()
    beats: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    for beat in (first, b"\xff" * 9):
        beats.put(beat)
    stream: Any = raw(channel, "Attend")
    events = list(stream(iter(beats.get, None), timeout=20))  # the controller ends it
    assert agent_pb2.JobEvent.FromString(events[0]).kind == agent_pb2.JobEvent.RUNNING


@pytest.fixture
def own_world(
    controller: Controller, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Any]:
    """Return what joins a job of one that runs, although there is no switch."""
    from weir.controller.fabric import Fabric

    async def settled(*_arguments: object) -> None:
        return None

    monkeypatch.setattr(Fabric, "settled", settled)
    return lambda: protobuf.stub(channel, METHODS).Join(join(size=1), timeout=20)


def test_a_request_that_is_too_long_is_not_read(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        raw(channel, "Join")(bytes(1 << 17))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_field_beyond_its_limit_is_refused(channel: grpc.Channel, caplog: pytest.LogCaptureFixture) -> None:
    stub = protobuf.stub(channel, METHODS)
    for job in ("y" * 10_000, "a\nb"):
        with pytest.raises(grpc.RpcError) as caught:
            stub.Join(join(job=job), timeout=20)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert all(len(record.getMessage()) < 300 for record in caplog.records)


# ---- calls that wait


def test_a_status_of_hundreds_of_jobs_arrives(
    controller: Controller, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weir.controller import pages

    monkeypatch.setattr(pages, "PAGE_BYTES", 5000)
    stub = protobuf.stub(channel, METHODS)
    held = [stub.Join.future(join(job="y" * 120 + str(i), udp_port=1000 + i), timeout=60) for i in range(200)]
    with AgentClient(controller.address) as agent:
        until(lambda: len(stub.Status(agent_pb2.StatusRequest()).jobs) > 0)
        until(lambda: len(agent.status().jobs) == 200)
        read = []
        reading = SwitchReconciler.read

        async def counted(reconciler: SwitchReconciler) -> Reading:
            read.append(reconciler)
            return await reading(reconciler)

        monkeypatch.setattr(SwitchReconciler, "read", counted)
        monkeypatch.setattr(service, "PAGES_S", 60.0)
        assert len(agent.status().jobs) == 200
        assert len(read) == 1  # for all pages
        page = stub.Status(agent_pb2.StatusRequest())
        assert page.ByteSize() < 6000
        assert page.next_page_token
    for call in held:
        call.cancel()


def test_one_address_holds_so_many_joins_and_no_more(
    controller: Controller,
    channel: grpc.Channel,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    own_world: Callable[[], Any],
) -> None:
    """And keeps nobody there from attending, leaving and looking."""
    member = own_world()
    monkeypatch.setattr(controller._port._joins, "_of_one", 20)
    stub = protobuf.stub(channel, METHODS)
    held = [stub.Join.future(join(job=f"job {i}", udp_port=1000 + i), timeout=60) for i in range(30)]
    until(lambda: sum(call.done() for call in held) == 10)
    refused = [call.exception() for call in held if call.done()]
    assert {error.code() for error in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert "20 joins from 127.0.0.1 wait already; try again later" in refused[0].details()
    assert len(about(caplog, "wait already")) == 1
    assert stub.Status(agent_pb2.StatusRequest(), timeout=20).switches
    beats: queue.SimpleQueue[Any] = queue.SimpleQueue()
    beats.put(agent_pb2.Heartbeat(job_id=member.job_id, rank=0, token="right"))
    events = stub.Attend(iter(beats.get, None), timeout=60)
    assert next(events).kind == agent_pb2.JobEvent.RUNNING
    stub.Leave(agent_pb2.LeaveRequest(job_id=member.job_id, rank=0, token="right"), timeout=20)
    beats.put(None)
    for call in held:
        call.cancel()

    def free() -> bool:
        with pytest.raises(grpc.RpcError) as caught:
            stub.Join(join(job="late", udp_port=2000, timeout_s=0.1), timeout=60)
        return caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    until(free)


def test_one_address_asks_for_so_many_statuses_at_a_time(
    controller: Controller, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which all wait for the same reading of the switches; other addresses have their own."""
    read: list[None] = []
    may_go = threading.Event()

    async def slow(_self: SwitchReconciler) -> Reading:
        read.append(None)
        await asyncio.to_thread(may_go.wait)
        return Reading()

    monkeypatch.setattr(SwitchReconciler, "read", slow)
    monkeypatch.setattr(controller._port._statuses, "_of_one", 8)
    stub = protobuf.stub(channel, METHODS)
    asked = [stub.Status.future(agent_pb2.StatusRequest(), timeout=60) for _ in range(20)]
    until(lambda: sum(call.done() for call in asked) == 12)
    refused = [call.exception() for call in asked if call.done()]
    assert {error.code() for error in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert "8 status requests from 127.0.0.1 wait already; try again later" in refused[0].details()
    monkeypatch.setattr(guarded, "address_of", lambda peer: "10.0.0.3")
    asked.append(stub.Status.future(agent_pb2.StatusRequest(), timeout=60))
    may_go.set()
    until(lambda: all(call.done() for call in asked))
    assert sum(call.exception() is None for call in asked) == 9
    assert len(read) <= 3


def test_streams_that_say_nothing_give_way_to_one_that_does(
    channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch, own_world: Callable[[], Any]
) -> None:
    monkeypatch.setattr(guarded, "MOST_SILENT", 3)
    member, stub = own_world(), protobuf.stub(channel, METHODS)
    silent = [stub.Attend(iter(queue.SimpleQueue().get, None), timeout=60) for _ in range(4)]
    until(lambda: any(call.done() for call in silent))
    (ended,) = [call for call in silent if call.done()]
    assert ended.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # which a member tries again
    beats: queue.SimpleQueue[Any] = queue.SimpleQueue()
    beats.put(agent_pb2.Heartbeat(job_id=member.job_id, rank=0, token="right"))
    assert next(stub.Attend(iter(beats.get, None), timeout=60)).kind == agent_pb2.JobEvent.RUNNING
    for call in silent:
        call.cancel()


def test_a_member_that_is_refused_for_lack_of_room_tries_again(
    controller: Controller, own_world: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, left = guarded.Port._turn, [None] * 3

    async def crowded(port: guarded.Port, call: Any) -> None:
        if call.method == "Attend" and left:
            left.pop()
            raise JobError(Refusal.EXHAUSTED, "too many wrong tokens")
        await turn(port, call)

    monkeypatch.setattr(guarded.Port, "_turn", crowded)
    reasons: queue.SimpleQueue[str] = queue.SimpleQueue()
    with AgentClient(controller.address) as agent:
        agent.join(job="x", size=1, rank=0, host="h1", token="right")
        agent.on_stop(reasons.put)
        until(lambda: [m.state for job in agent.status().jobs for m in job.members] == ["attending"])
        agent.leave()
    assert not left and reasons.empty()


def test_jobs_without_end_are_a_handful_of_lines(
    channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    stub = protobuf.stub(channel, METHODS)
    for first in range(0, 300, 150):
        asked = [
            stub.Join.future(join(job=f"job {i}", udp_port=1000 + i, timeout_s=0.1), timeout=60)
            for i in range(first, first + 150)
        ]
        until(lambda calls=asked: all(call.done() for call in calls))  # type: ignore[misc]
        assert {call.code() for call in asked} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    lines = [line for line in caplog.messages if "job" in line]
    assert 1 <= len(lines) < 10


def test_a_stream_that_says_nothing_ends(channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "FIRST_BEAT_S", 0.3)
    stream: Any = raw(channel, "Attend")
    with pytest.raises(grpc.RpcError) as caught:
        list(stream(iter(queue.SimpleQueue().get, None)))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "no heartbeat came" in caught.value.details()


def test_connections_that_say_nothing_end_and_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "HANDSHAKE_MS", 1000)
    with running(TOPOLOGY, SETTINGS) as controller, contextlib.ExitStack() as stack:
        host, _, number = controller.address.rpartition(":")
        silent = [stack.enter_context(socket.create_connection((host, int(number)))) for _ in range(100)]
        with AgentClient(controller.address) as agent:
            assert agent.status().switches[0].name == "s1"
        for connection in silent:
            connection.settimeout(30)
            while connection.recv(1 << 16):
                pass  # the server's own greeting


# ---- tokens


def test_wrong_tokens_are_slowed_and_logged_and_the_honest_come_in(
    controller: Controller,
    channel: grpc.Channel,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stub = protobuf.stub(channel, METHODS)
    first = stub.Join.future(join(size=3), timeout=60)
    with AgentClient(controller.address) as agent:
        until(lambda: len(agent.status().jobs) == 1)

    def guess(number: int) -> str:
        try:
            stub.Join(join(size=3, rank=1, host="h2", token=f"guess {number}"), timeout=60)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "joined"

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(guess, range(64)))
    looked_at = answers.count("PERMISSION_DENIED")
    assert throttle.FREE_GUESSES <= looked_at < 32
    assert answers.count("RESOURCE_EXHAUSTED") == 64 - looked_at
    assert len(about(caplog, "exists with another token")) == 1
    assert "from 127.0.0.1" in about(caplog, "exists with another token")[0]
    assert not about(caplog, "guess")
    # another job of the same address, and the same job from another one
    with pytest.raises(grpc.RpcError) as caught:
        stub.Join(join(job="another", size=2, host="h5", timeout_s=0.3), timeout=60)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    monkeypatch.setattr(guarded, "address_of", lambda peer: "10.0.0.3")
    honest = stub.Join.future(join(size=3, rank=2, host="h3"), timeout=60)
    with AgentClient(controller.address) as agent:
        until(lambda: len(agent.status().jobs[0].members) == 2)
    for call in (first, honest):
        call.cancel()


def test_wrong_tokens_of_members_are_slowed_too(
    controller: Controller,
    channel: grpc.Channel,
    own_world: Callable[[], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    reply, stub = own_world(), protobuf.stub(channel, METHODS)

    def guess(number: int) -> str:
        request = agent_pb2.LeaveRequest(job_id=reply.job_id, rank=0, token=f"guess {number}")
        with pytest.raises(grpc.RpcError) as caught:
            stub.Leave(request, timeout=60)
        return str(caught.value.code().name)

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(guess, range(48)))
    assert answers.count("NOT_FOUND") < 32
    assert len(about(caplog, "with this token; was it restarted?")) == 1
    # a job has one budget, by whatever call its token is guessed
    assert controller._port._guesses.turn("127.0.0.1", "x", "new", time.monotonic()) != 0.0


def test_tokens_for_an_id_that_no_job_has_are_slowed_as_if_one_had_it(
    controller: Controller, channel: grpc.Channel
) -> None:
    stub = protobuf.stub(channel, METHODS)

    def guess(number: int) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            stub.Leave(agent_pb2.LeaveRequest(job_id=7, rank=0, token=f"guess {number}"), timeout=60)
        return str(caught.value.code().name)

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(guess, range(1, 49)))
    assert answers.count("NOT_FOUND") < 32
    assert not controller._port._guesses._of  # ids without end do not let those for jobs be forgotten


def test_wrong_tokens_are_slowed_in_a_status_that_waits_for_switches(
    controller: Controller, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked at before anything else is waited for, so that none gets in before one is counted."""

    async def slow(_self: SwitchReconciler) -> Reading:
        await asyncio.sleep(0.5)
        return Reading()

    monkeypatch.setattr(SwitchReconciler, "read", slow)
    stub = protobuf.stub(channel, METHODS)
    first = stub.Join.future(join(size=3), timeout=60)
    until(lambda: len(stub.Status(agent_pb2.StatusRequest()).jobs) == 1)
    looks = [
        stub.Status.future(agent_pb2.StatusRequest(job="x", token=f"guess {number}"), timeout=60)
        for number in range(48)
    ]
    until(lambda: all(call.done() for call in looks))
    codes = [call.code() for call in looks]
    assert throttle.FREE_GUESSES <= codes.count(grpc.StatusCode.PERMISSION_DENIED) < 16
    assert controller._port._guesses.turn("127.0.0.1", "x", "new", time.monotonic()) != 0.0
    first.cancel()


# ---- words


def test_a_refusal_of_any_length_arrives() -> None:
    """With 1,016 hosts in the topology, or 32,768 ranks, a sentence is longer than gRPC's 8 kB."""
    topology = leaf_spine(8, 2, 127, grpc="unix:/nowhere/{}".format)
    with running(topology, SETTINGS) as controller, AgentClient(controller.address) as agent:
        with pytest.raises(
            JoinRefused, match=r"'h0' is not in the topology; hosts there: h1 .* left out\) .* h1016 "
        ):
            agent.join(job="x", size=2, rank=0, host="h0")
        with pytest.raises(AgentError, match=r"did not join in time; joined: rank 0 \(h1\)"):
            agent.join(job="x", size=32768, rank=0, host="h1", timeout_s=0.3)


def test_what_a_switch_refuses_tells_no_ids() -> None:
    words = "switch s1 refuses a write: insert WeirIngress.admission.workers [port=0x1, job=0x1f, worker=0x0]"
    assert without_ids(words).endswith("[port=0x1, job=..., worker=0x0]")


def test_no_slots_is_still_no_slots(controller: Controller) -> None:
    with AgentClient(controller.address) as agent, pytest.raises(NoResources, match="asks for 2000 slots"):
        agent.join(job="x", size=1, rank=0, host="h1", slots=2000)
