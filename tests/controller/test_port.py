# SPDX-License-Identifier: Apache-2.0
"""Whatever reaches the controller's port: junk is refused, logged once, and nobody else is hurt."""

import contextlib
import logging
import queue
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from tests.controller.helpers import until
from weir import protobuf
from weir.agent_service.client import AgentClient, AgentError, JoinRefused, NoResources
from weir.agent_service.proto import METHODS, agent_pb2
from weir.controller import port as guarded
from weir.controller import throttle
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
    with grpc.insecure_channel(controller.address, (("grpc.use_local_subchannel_pool", 1),)) as made:
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
    monkeypatch.setattr(guarded, "REPEAT_S", 0.5)
    with running(TOPOLOGY, SETTINGS) as controller, grpc.insecure_channel(controller.address) as channel:
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
        until(lambda: len(agent.status().jobs) == 200)
        page = stub.Status(agent_pb2.StatusRequest())
        assert page.ByteSize() < 6000
        assert page.next_page_token
    for call in held:
        call.cancel()


def test_one_address_holds_so_many_joins_and_no_more(
    channel: grpc.Channel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "MOST_WAITING_OF_ONE", 20)
    stub = protobuf.stub(channel, METHODS)
    held = [stub.Join.future(join(job=f"job {i}", udp_port=1000 + i), timeout=60) for i in range(30)]
    until(lambda: sum(call.done() for call in held) == 10)
    refused = [call.exception() for call in held if call.done()]
    assert {error.code() for error in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert "20 calls from 127.0.0.1 wait already; try again later" in refused[0].details()
    assert len(about(caplog, "wait already")) == 1
    for call in held:
        call.cancel()

    def free() -> bool:
        with contextlib.suppress(grpc.RpcError):
            stub.Status(agent_pb2.StatusRequest(), timeout=20)
            return True
        return False

    until(free)


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
    assert len(about(caplog, "has another token")) == 1
    assert "from 127.0.0.1" in about(caplog, "has another token")[0]
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
    channel: grpc.Channel, own_world: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    reply, stub = own_world(), protobuf.stub(channel, METHODS)

    def guess(number: int) -> str:
        request = agent_pb2.LeaveRequest(job_id=reply.job_id, rank=0, token=f"guess {number}")
        with pytest.raises(grpc.RpcError) as caught:
            stub.Leave(request, timeout=60)
        return str(caught.value.code().name)

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(guess, range(48)))
    assert answers.count("PERMISSION_DENIED") < 32
    assert len(about(caplog, ": wrong token")) == 1


# ---- words


def test_a_refusal_of_any_length_arrives() -> None:
    """With 1,016 hosts in the topology, or 32,768 ranks, a sentence is longer than gRPC's 8 kB."""
    topology = leaf_spine(8, 2, 127, grpc="unix:/nowhere/{}".format)
    with running(topology, SETTINGS) as controller, AgentClient(controller.address) as agent:
        with pytest.raises(
            JoinRefused, match=r"'h0' is not in the topology; hosts there: h1 .* left out\) .* h1016 "
        ):
            agent.join(job="x", size=2, rank=0, host="h0")
        with pytest.raises(AgentError, match=r"did not join in time; there: rank 0 \(h1\)"):
            agent.join(job="x", size=32768, rank=0, host="h1", timeout_s=0.3)


def test_no_slots_is_still_no_slots(controller: Controller) -> None:
    with AgentClient(controller.address) as agent, pytest.raises(NoResources, match="asks for 2000 slots"):
        agent.join(job="x", size=1, rank=0, host="h1", slots=2000)
