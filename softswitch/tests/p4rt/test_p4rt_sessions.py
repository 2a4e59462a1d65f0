# SPDX-License-Identifier: Apache-2.0
"""Controllers' sessions over gRPC: roles, elections, what each hears, and those that misbehave."""

import queue
import socket
import threading
from collections.abc import Iterator

import grpc
import pytest

from softp4.device import Device
from softp4.p4rt import server, sessions
from softp4.p4rt.sessions import MAX_OPEN, Sessions
from softp4.p4runtime.codes import Code
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from softp4.program.types import Program
from softp4.switch import Switch
from tests.p4rt.p4rt_client import TIMEOUT, Controller, all_entries
from tests.p4rt.p4rt_stream import Connection, OpenStream, arbitration

_PIPELINE = p4rt.SetForwardingPipelineConfigRequest
_MAC = 0x020000000001


@pytest.fixture
def connection(device: Device) -> Iterator[Connection]:
    """Yield a connection to a soft switch without a program."""
    assert device.address is not None
    with Connection(device.address) as made:
        yield made


def test_another_device_is_not_found(switch: Controller) -> None:
    stub = switch.session.stub
    requests = (
        lambda: list(stub.Read(p4rt.ReadRequest(device_id=2))),
        lambda: stub.Write(p4rt.WriteRequest(device_id=2)),
        lambda: stub.SetForwardingPipelineConfig(_PIPELINE(device_id=2)),
        lambda: stub.GetForwardingPipelineConfig(p4rt.GetForwardingPipelineConfigRequest(device_id=2)),
        lambda: list(stub.StreamChannel(iter([arbitration(None, device=2)]))),
    )
    for request in requests:
        with pytest.raises(grpc.RpcError, match="there is no device 2") as refused:
            request()
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_newer_controller_takes_over(any_switch: Controller) -> None:
    address = any_switch.session.address
    newer = Controller(address.removeprefix("dns:///").removeprefix("ipv4:"), election=9)
    newer.learn()
    try:
        told = any_switch.stream("arbitration").arbitration
        assert (told.status.code, told.election_id.low) == (Code.ALREADY_EXISTS, 9)
        with pytest.raises(grpc.RpcError) as refused:
            any_switch.write("INSERT", table_entry=any_switch.station(_MAC))
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
        newer.write("INSERT", table_entry=newer.station(_MAC))
        assert all_entries(any_switch, "stations") == [newer.station(_MAC)]
    finally:
        newer.close()


def test_when_the_primary_goes_the_others_hear_it_and_one_asks_to_follow(
    connection: Connection, device: Device
) -> None:
    """BMv2 promotes a backup by itself; the specification does not, and the switch goes by it."""
    assert device.address is not None
    with Connection(device.address) as other:
        primary = other.stream(arbitration(9))
        assert primary.status() == ("OK", 9)
        backup = connection.stream(arbitration(5))
        assert backup.status() == ("ALREADY_EXISTS", 9)
    assert backup.status() == ("NOT_FOUND", 9)
    request = p4rt.WriteRequest(device_id=1, election_id=p4rt.Uint128(low=5))
    with pytest.raises(grpc.RpcError, match="at least 9") as refused:
        connection.stub.Write(request)
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    backup.send(arbitration(10))
    assert backup.status() == ("OK", 10)
    request.election_id.low = 10
    with pytest.raises(grpc.RpcError) as refused:
        connection.stub.Write(request)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION  # allowed, but there is no pipeline


def test_a_stream_that_is_ended_in_order_is_gone_too(connection: Connection) -> None:
    primary, backup = connection.stream(arbitration(2)), connection.stream()
    assert primary.status() == ("OK", 2)
    backup.send(arbitration(1))
    assert backup.status() == ("ALREADY_EXISTS", 2)
    primary.close()
    assert backup.status() == ("NOT_FOUND", 2)


def test_election_ids_have_128_bits(connection: Connection) -> None:
    small, large = connection.stream(arbitration((1 << 64) - 1)), connection.stream()
    assert small.status()[0] == "OK"
    large.send(arbitration(1 << 64))
    assert large.status()[0] == "OK"
    assert small.status()[0] == "ALREADY_EXISTS"


def _ends(stream: OpenStream, code: str, message: str) -> None:
    found = stream.ended()
    assert found[0] == code and message in found[1], found


def test_bad_arbitration_ends_the_stream(connection: Connection) -> None:
    first = connection.stream(arbitration(1))
    assert first.status() == ("OK", 1)
    _ends(connection.stream(arbitration(1)), "INVALID_ARGUMENT", "election id 1 is used")
    with_config = arbitration(7)
    with_config.arbitration.role.config.type_url = "example.org/RoleConfig"
    _ends(connection.stream(with_config), "INVALID_ARGUMENT", "example.org/RoleConfig")
    numbered = arbitration(7)
    numbered.arbitration.role.id = 3
    _ends(connection.stream(numbered), "INVALID_ARGUMENT", "role id 3")
    for change in (arbitration(1, device=2), arbitration(1, role="routing")):
        other = connection.stream(arbitration(8), change)
        assert other.status()[0] == "OK"
        assert other.ended()[0] == "FAILED_PRECONDITION"
        first.receive()
        first.receive()


def test_roles_write_independently(switch: Controller, device: Device) -> None:
    assert device.address is not None
    other = Controller(device.address, role="routing", election=5)
    other.learn()
    other.write("INSERT", table_entry=other.station(_MAC))
    switch.write("DELETE", table_entry=switch.station(_MAC))
    request = p4rt.WriteRequest(device_id=1, election_id=p4rt.Uint128(low=5), role="routing")
    for change, code in (
        ({"role": ""}, "PERMISSION_DENIED"),
        ({"role": "qos"}, "NOT_FOUND"),
        ({"role_id": 1}, "INVALID_ARGUMENT"),
    ):
        spoilt = p4rt.WriteRequest()
        spoilt.CopyFrom(request)
        for name, value in change.items():
            setattr(spoilt, name, value)
        with pytest.raises(grpc.RpcError) as refused:
            other.session.stub.Write(spoilt)
        assert refused.value.code().name == code
    other.close()


def test_a_write_without_election_id_is_nobodys(switch: Controller, device: Device) -> None:
    assert device.address is not None
    switch.session.send(arbitration(None))  # steps down
    switch.stream("arbitration")
    with Connection(device.address) as other:
        zero = other.stream(arbitration(0))
        assert zero.status()[0] == "NOT_FOUND"  # there was a higher one
        with pytest.raises(grpc.RpcError) as refused:
            other.stub.Write(p4rt.WriteRequest(device_id=1))
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_backups_and_strangers_read(switch: Controller, device: Device) -> None:
    assert device.address is not None
    switch.write("INSERT", table_entry=switch.station(_MAC))
    request = p4rt.ReadRequest(device_id=1)
    request.entities.add().table_entry.table_id = switch.names.id("tables", "stations")
    with Connection(device.address) as other:
        for role in ("", "routing"):  # every role may do everything, so a role selects everything
            request.role = role
            [answer] = list(other.stub.Read(request))
            assert [entity.table_entry for entity in answer.entities] == [switch.station(_MAC)]
        backup = other.stream(arbitration(0))
        assert backup.status() == ("ALREADY_EXISTS", 1)


def test_capabilities_name_the_version(empty: Controller) -> None:
    assert empty.session.api_version() == "1.5.0"


def test_only_the_primary_gets_packets(switch: Controller, device: Device) -> None:
    assert device.address is not None
    device.loop.add_queue(5, "five")
    backup = Controller(device.address, election=0)
    switch.write("INSERT", table_entry=switch.station(_MAC, "to_controller", {"reason": 1}))
    device.loop.inject(5, _MAC.to_bytes(6, "big") + bytes(60))
    switch.stream("packet")
    switch.session.send(arbitration(None))  # steps down: both hear of it, in order
    backup.stream("arbitration")
    assert backup.nothing_on_stream("packet")
    backup.close()


def test_a_controller_that_vanishes_leaves_the_switch_serving(device: Device) -> None:
    assert device.address is not None
    for _ in range(3):
        controller = Controller(device.address)
        controller.session.stream.cancel()
        controller.close()
    again = Controller(device.address)
    again.push()
    assert all_entries(again, "stations") == []
    again.close()


def test_bad_stream_messages_are_answered_and_the_stream_goes_on(connection: Connection) -> None:
    stream = connection.stream(arbitration(1))
    assert stream.status() == ("OK", 1)
    other = p4rt.StreamMessageRequest()
    other.other.type_url = "example.org/Nonsense"
    large = p4rt.StreamMessageRequest(packet=p4rt.PacketOut(payload=bytes(5000)))
    cases = {
        "INVALID_ARGUMENT": (p4rt.StreamMessageRequest(), "other"),
        "UNIMPLEMENTED": (other, "other"),
        "FAILED_PRECONDITION": (large, "packet_out"),  # no pipeline
    }
    for code, (message, detail) in cases.items():
        stream.send(message)
        error = stream.receive().error
        assert (Code(error.canonical_code).name, error.WhichOneof("details")) == (code, detail)
    assert not error.packet_out.HasField("packet_out"), "a large packet comes back"
    stream.send(arbitration(1))
    assert stream.status() == ("OK", 1)


def test_streams_are_limited_and_calls_go_on(device: Device) -> None:
    assert device.address is not None
    with Connection(device.address) as idle, Connection(device.address) as other:
        streams = [idle.stream() for _ in range(MAX_OPEN)]
        streams[-1].send(arbitration(1))
        assert streams[-1].status() == ("OK", 1)  # so it is open, and all before it are
        _ends(other.stream(arbitration(2)), "RESOURCE_EXHAUSTED", f"{MAX_OPEN} streams are open")
        assert Controller.capabilities(other.channel) == "1.5.0"
        streams[0].close()
        assert streams[0].ended()[0] == "OK"
        assert other.stream(arbitration(2)).status() == ("OK", 2)


def test_streams_that_do_not_arbitrate_make_room_for_one_that_does(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SILENT_S", 0.0)
    assert device.address is not None
    with Connection(device.address) as idle, Connection(device.address) as other:
        primary = idle.stream(arbitration(1))
        assert primary.status() == ("OK", 1)
        silent = [idle.stream() for _ in range(MAX_OPEN - 1)]
        silent[-1].send(
            p4rt.StreamMessageRequest()
        )  # answered with an error: so it is open, and not arbitrated
        assert silent[-1].receive().HasField("error")
        assert other.stream(arbitration(2)).status() == ("OK", 2)
        assert silent[0].ended()[0] == "CANCELLED"
        assert primary.status() == ("ALREADY_EXISTS", 2)


def test_one_call_too_many_is_refused_and_the_others_are_answered(device: Device) -> None:
    assert device.address is not None
    request = p4rt.GetForwardingPipelineConfigRequest(device_id=1)
    with Connection(device.address) as one:
        with device._pipelines.lock:  # something takes its time
            calls = [
                one.stub.GetForwardingPipelineConfig.future(request, timeout=TIMEOUT)
                for _ in range(server.MAX_CALLS + 3)
            ]
            refused = queue.SimpleQueue[grpc.Future]()
            for call in calls:
                call.add_done_callback(refused.put)
            codes = [refused.get(timeout=TIMEOUT).code() for _ in range(3)]
        assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 3
        answered = [call.code() for call in calls].count(grpc.StatusCode.OK)
        assert answered == server.MAX_CALLS


def test_what_a_slow_controller_can_do_without_is_dropped(
    switch: Controller, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_BACKLOG", 16)
    assert device.address is not None
    with Connection(device.address) as slow:
        stream = slow.stream(arbitration(9))
        response = p4rt.StreamMessageResponse(packet=p4rt.PacketIn(payload=bytes(60_000)))
        assert stream.status()[0] == "OK"
        taken = 0
        while device._service.sessions.notify(response):
            taken += 1
            assert taken < 10_000, "everything is kept for a controller that reads nothing"
        with Connection(device.address) as other:  # the switch goes on
            assert Controller.capabilities(other.channel) == "1.5.0"
        packets = [stream.receive().packet for _ in range(taken)]
        assert {len(packet.payload) for packet in packets} == {60_000}
        stream.send(arbitration(10))
        assert stream.status() == ("OK", 10)


def test_a_controller_that_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_MAX_BACKLOG", 3)
    cuts: list[None] = []
    made = Sessions(1, lambda: None)
    stream = made.join(lambda: cuts.append(None))
    for number in range(3):
        made.arbitrate(stream, arbitration(number).arbitration)
    assert not cuts
    made.arbitrate(stream, arbitration(3).arbitration)
    assert len(cuts) == 1


def test_controllers_may_ping_as_often_as_they_like(device: Device) -> None:
    assert device.address is not None
    options = [
        ("grpc.keepalive_time_ms", 20),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    with Connection(device.address, options) as nervous:
        stream = nervous.stream(arbitration(1))
        assert stream.status() == ("OK", 1)
        threading.Event().wait(0.3)
        stream.send(arbitration(2))
        assert stream.status() == ("OK", 2)


class _Wire:
    """A TCP connection to a server through which nothing passes any more once it is cut: a dead machine."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._target = (host, int(port))
        self._cut = threading.Event()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(self._target)
        self._ends = [near, far]
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                if not self._cut.is_set():
                    other.sendall(data)
        except OSError:
            pass  # closed below

    def cut(self) -> None:
        self._cut.set()

    def close(self) -> None:
        for end in (*self._ends, self._listener):
            end.close()


def test_a_primary_whose_machine_died_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_KEEPALIVE_MS", "_KEEPALIVE_TIMEOUT_MS"):
        monkeypatch.setattr(server, name, 200)
    with Device() as device:
        device.start()
        wire = _Wire(device.serve("127.0.0.1:0"))
        assert device.address is not None
        with Connection(wire.address) as dead, Connection(device.address) as alive:
            assert dead.stream(arbitration(9)).status() == ("OK", 9)
            backup = alive.stream(arbitration(5))
            assert backup.status() == ("ALREADY_EXISTS", 9)
            wire.cut()
            assert backup.status() == ("NOT_FOUND", 9)
        wire.close()


def test_a_new_primary_is_told_only_when_the_old_ones_write_is_done(
    switch: Controller, device: Device
) -> None:
    """It never finds the switch changing under its hands."""
    assert device.address is not None
    with Connection(device.address) as other:
        newer = other.stream(arbitration(0))
        assert newer.status() == ("ALREADY_EXISTS", 1)
        with device._pipelines.lock:  # a write that goes on
            newer.send(arbitration(9))
            told = switch.stream("arbitration").arbitration
            assert told.status.code == Code.ALREADY_EXISTS
            answer: list[object] = []
            waiting = threading.Thread(target=lambda: answer.append(newer.status()))
            waiting.start()
            waiting.join(0.2)
            assert not answer
        waiting.join(TIMEOUT)
        assert answer == [("OK", 9)]


def test_while_a_program_is_compiled_the_switch_serves_and_may_change_hands(
    switch: Controller, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program of a controller that was replaced meanwhile is not taken."""
    assert device.address is not None
    compiling, go_on = threading.Event(), threading.Event()
    make = device._pipelines._make_switch

    def slowly(program: Program) -> Switch:
        compiling.set()
        assert go_on.wait(TIMEOUT)
        return make(program)

    monkeypatch.setattr(device._pipelines, "_make_switch", slowly)
    request = _PIPELINE(device_id=1, election_id=p4rt.Uint128(low=1), action=_PIPELINE.VERIFY_AND_COMMIT)
    request.config.CopyFrom(
        switch.session.stub.GetForwardingPipelineConfig(
            p4rt.GetForwardingPipelineConfigRequest(device_id=1)
        ).config
    )
    push = switch.session.stub.SetForwardingPipelineConfig.future(request)
    assert compiling.wait(TIMEOUT)
    switch.write("INSERT", table_entry=switch.station(_MAC))
    with Connection(device.address) as other:
        assert other.stream(arbitration(9)).status() == ("OK", 9)
        go_on.set()
        assert push.code() == grpc.StatusCode.PERMISSION_DENIED
        assert all_entries(switch, "stations") == [switch.station(_MAC)]
