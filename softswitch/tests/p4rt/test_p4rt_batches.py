# SPDX-License-Identifier: Apache-2.0
"""Batches of updates: tried one by one, all or none, or all at once for the data path."""

import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softp4.device import Device
from softp4.errors import ControlError
from softp4.p4rt import batch, entities
from softp4.p4rt.p4info import P4InfoIndex
from softp4.p4rt.pipeline import Pipeline
from softp4.p4runtime.schema import p4info_pb2
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from softp4.runtime.queueing import Queueing
from softp4.state.entry import Entry, Exact
from softp4.switch import Switch
from tests.harness.effort import examples
from tests.p4rt.p4rt_client import CONTROL, CONTROL_INFO, Controller
from tests.p4rt.p4rt_stream import write_errors
from tests.programs import FOLDER

_ALL_OR_NONE = ("ROLLBACK_ON_ERROR", "DATAPLANE_ATOMIC")


def request(controller: Controller, atomicity: str, *updates: tuple[str, str, Any]) -> Any:
    """Return a WriteRequest of (INSERT, MODIFY or DELETE; kind of entity; entity)."""
    made = p4rt.WriteRequest(device_id=1, election_id=p4rt.Uint128(low=1))
    made.atomicity = p4rt.WriteRequest.Atomicity.Value(atomicity)
    for verb, kind, entity in updates:
        update = made.updates.add(type=p4rt.Update.Type.Value(verb))
        getattr(update.entity, kind).CopyFrom(entity)
    return made


def everything(controller: Controller) -> list[Any]:
    """Return all that can be read of the program `control`."""
    found = []
    with_counts = p4rt.TableEntry()
    with_counts.counter_data.SetInParent()
    for question in (
        p4rt.Entity(table_entry=with_counts),
        p4rt.Entity(table_entry=p4rt.TableEntry(is_default_action=True)),
        p4rt.Entity(counter_entry=p4rt.CounterEntry()),
        p4rt.Entity(register_entry=p4rt.RegisterEntry()),
        p4rt.Entity(packet_replication_engine_entry=p4rt.PacketReplicationEngineEntry()),
    ):
        found += controller.session.read(question)
    return sorted(found, key=lambda entity: entity.SerializeToString(deterministic=True))


def counted(controller: Controller, dst: int, packets: int) -> Any:
    entry = controller.station(dst)
    entry.counter_data.packet_count = packets
    return entry


def clone_session(number: int, ports: tuple[int, ...], length: int = 0) -> Any:
    message = p4rt.PacketReplicationEngineEntry()
    message.clone_session_entry.session_id = number
    message.clone_session_entry.packet_length_bytes = length
    for port in ports:
        message.clone_session_entry.replicas.add(port=bytes([port]), instance=port)
    return message


def a_bit_of_everything(controller: Controller) -> list[tuple[str, str, Any]]:
    """Update of every kind and verb, over a state that holds something of each."""
    pre = "packet_replication_engine_entry"
    anything = controller.entry("prefixes", {}, "drop")
    for verb, kind, entity in (
        ("INSERT", "table_entry", counted(controller, 1, 7)),
        ("INSERT", "table_entry", counted(controller, 2, 8)),
        ("INSERT", "table_entry", controller.entry("filters", {}, "drop", priority=5, metadata=b"mine")),
        ("INSERT", "table_entry", controller.entry("filters", {}, "NoAction", priority=6)),
        ("INSERT", "table_entry", anything),
        ("INSERT", "table_entry", controller.entry("prefixes", {"src": ("lpm", 1 << 47, 1)}, "drop")),
        ("INSERT", pre, controller.group(3, [(1, 1), (2, 1)], metadata=b"ours")),
        ("INSERT", pre, clone_session(4, (1, 2), 60)),
    ):
        controller.write(verb, **{kind: entity})
    counter = p4rt.CounterEntry(counter_id=controller.names.id("counters", "frames"))
    counter.data.packet_count = 9
    direct = p4rt.DirectCounterEntry(table_entry=controller.station(1))
    direct.data.byte_count = 5
    register = p4rt.RegisterEntry(
        register_id=next(
            r.preamble.id for r in controller.session.p4info().registers if r.preamble.alias == "cells"
        )
    )
    register.data.bitstring = b"\5"
    return [
        ("MODIFY", "counter_entry", counter),
        ("MODIFY", "register_entry", register),
        ("MODIFY", "direct_counter_entry", direct),
        ("DELETE", "table_entry", controller.station(1)),
        ("INSERT", "table_entry", counted(controller, 3, 1)),
        ("MODIFY", "table_entry", controller.station(2, "flood", {"group": 3})),
        ("DELETE", "table_entry", controller.entry("filters", {}, priority=5)),
        ("MODIFY", "table_entry", controller.entry("filters", {}, "drop", priority=6)),
        ("DELETE", "table_entry", anything),
        ("MODIFY", "table_entry", controller.entry("stations", None, "drop", is_default_action=True)),
        ("MODIFY", pre, controller.group(3, [(9, 9)])),
        ("INSERT", pre, controller.group(8, [])),
        ("DELETE", pre, clone_session(4, ())),
    ]


@pytest.mark.parametrize("atomicity", _ALL_OR_NONE)
def test_a_batch_that_fails_leaves_no_trace(switch: Controller, atomicity: str) -> None:
    updates = a_bit_of_everything(switch)
    before = everything(switch)
    bad = ("DELETE", "table_entry", switch.station(99))
    late = ("INSERT", "table_entry", switch.station(50))
    with pytest.raises(grpc.RpcError) as refused:
        switch.session.stub.Write(request(switch, atomicity, *updates, bad, late))
    assert refused.value.code() == grpc.StatusCode.UNKNOWN
    errors = write_errors(refused.value)
    assert [code for code, _ in errors] == ["ABORTED"] * len(updates) + ["NOT_FOUND", "ABORTED"]
    assert errors[0][1] == f"rolled back: update {len(updates)} failed"
    assert everything(switch) == before


@pytest.mark.parametrize("atomicity", [*_ALL_OR_NONE, "CONTINUE_ON_ERROR"])
def test_a_batch_that_succeeds_does_the_same_under_every_atomicity(
    switch: Controller, atomicity: str
) -> None:
    switch.session.stub.Write(request(switch, atomicity, *a_bit_of_everything(switch)))
    done = everything(switch)
    switch.push()
    for update in a_bit_of_everything(switch):
        switch.session.stub.Write(request(switch, "CONTINUE_ON_ERROR", update))
    assert everything(switch) == done


def test_counters_of_constant_entries_are_rolled_back(empty: Controller) -> None:
    empty.push(FOLDER / "types.json", FOLDER / "types.p4info.txtpb")
    entry = empty.entry("kinds_known", {"kind": ("exact", 1)})
    for packets, bad in ((5, []), (9, [("DELETE", "table_entry", entry)])):
        entry.counter_data.packet_count = packets
        batch_ = request(empty, "ROLLBACK_ON_ERROR", ("MODIFY", "table_entry", entry), *bad)
        if bad:
            with pytest.raises(grpc.RpcError) as refused:
                empty.session.stub.Write(batch_)
            assert [code for code, _ in write_errors(refused.value)] == ["ABORTED", "PERMISSION_DENIED"]
        else:
            empty.session.stub.Write(batch_)
    [found] = empty.read(table_entry=entry)
    assert found.counter_data.packet_count == 5


def test_an_unknown_atomicity_is_refused(switch: Controller) -> None:
    wanted = request(switch, "CONTINUE_ON_ERROR", ("INSERT", "table_entry", switch.station(1)))
    wanted.atomicity = 9
    with pytest.raises(grpc.RpcError, match="unknown atomicity 9") as refused:
        switch.session.stub.Write(wanted)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not switch.read(table_entry=switch.entry("stations"))


def test_a_full_table_can_be_exchanged_at_once(switch: Controller) -> None:
    """Nothing is needed beside what is there before and after."""
    switch.write_all("INSERT", [switch.station(mac) for mac in range(16)])
    updates = [("DELETE", "table_entry", switch.station(mac)) for mac in range(16)]
    updates += [("INSERT", "table_entry", switch.station(mac)) for mac in range(16, 32)]
    switch.session.stub.Write(request(switch, "DATAPLANE_ATOMIC", *updates))
    found = [entry.match[0].exact.value for entry in switch.read(table_entry=switch.entry("stations"))]
    assert sorted(found) == [bytes([mac]) for mac in range(16, 32)]


def test_no_frame_sees_half_an_atomic_batch(switch: Controller, device: Device) -> None:
    """Two entries always send to the same port; frames for both, processed together, must leave there."""
    one, other = (switch.station(mac, "forward", {"port": 1}) for mac in (1, 2))
    switch.write_all("INSERT", [one, other])
    pipeline = device._pipelines.running
    assert pipeline is not None
    torn: list[tuple[int, int]] = []
    stop = threading.Event()

    def watch() -> None:
        frames = [mac.to_bytes(6, "big") + bytes(54) for mac in (1, 2)]
        while not stop.is_set():
            with pipeline.switch.paused():  # as a driver does over a batch of frames
                left = [pipeline.switch.process(3, frame, now=0)[0][0] for frame in frames]
            if left[0] != left[1]:
                torn.append((left[0], left[1]))

    watching = threading.Thread(target=watch)
    watching.start()
    for number in range(200):
        port = {"port": number % 5 + 1}
        updates = [("MODIFY", "table_entry", switch.station(mac, "forward", port)) for mac in (1, 2)]
        switch.session.stub.Write(request(switch, "DATAPLANE_ATOMIC", *updates))
    stop.set()
    watching.join()
    assert not torn


# -- any batch, without gRPC ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pipeline() -> Any:
    """Yield a pipeline of the program `control`."""
    config = p4rt.ForwardingPipelineConfig()
    text_format.Parse(CONTROL_INFO.read_text(), config.p4info)
    with Switch(CONTROL) as made:
        yield Pipeline(config, P4InfoIndex(config.p4info), made)


_Step = tuple[str, int, int]
_steps = st.lists(
    st.tuples(st.sampled_from(["INSERT", "MODIFY", "DELETE"]), st.integers(0, 3), st.integers(0, 600)),
    max_size=12,
)


def _station(pipeline: Pipeline) -> Callable[[_Step], Any]:
    table = next(t for t in pipeline.info.tables.values() if t.name == "ControlIngress.stations")
    forward = pipeline.info.action_named("ControlIngress.forward")
    assert forward is not None

    def update(step: _Step) -> Any:
        verb, dst, port = step
        made = p4rt.Update(type=p4rt.Update.Type.Value(verb))
        entry = made.entity.table_entry
        entry.table_id = table.id
        entry.match.add(field_id=1).exact.value = bytes([dst])
        entry.action.action.action_id = forward.id
        entry.action.action.params.add(param_id=1, value=port.to_bytes(2, "big"))
        return made

    return update


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(first=_steps, second=_steps)
def test_any_batch_is_done_or_not_done(pipeline: Pipeline, first: list[_Step], second: list[_Step]) -> None:
    """Against a plain model: a batch in which nothing fails does what its updates do, another nothing."""
    switch = pipeline.switch
    for entry in switch.table("ControlIngress.stations").entries():
        switch.table("ControlIngress.stations").delete(entry.key)
    update = _station(pipeline)
    model: dict[int, int] = {}
    for steps in (first, second):
        after, failed = _apply(model, steps)
        wanted = p4rt.WriteRequest(atomicity=p4rt.WriteRequest.ROLLBACK_ON_ERROR)
        wanted.updates.extend(update(step) for step in steps)
        results = batch.apply(pipeline, wanted)
        assert any(results) == failed
        model = model if failed else after
        present = {(Entry((Exact(dst),), "ControlIngress.forward", (port,))) for dst, port in model.items()}
        assert set(switch.table("ControlIngress.stations").entries()) == present


def _apply(model: dict[int, int], steps: list[_Step]) -> tuple[dict[int, int], bool]:
    after = dict(model)
    for verb, dst, port in steps:
        if (verb != "DELETE" and port > 511) or (dst in after) == (verb == "INSERT"):
            return after, True
        if verb == "DELETE":
            del after[dst]
        else:
            after[dst] = port
    return after, False


def test_no_atomic_batch_falls_between_a_frames_ingress_and_egress() -> None:
    info = p4info_pb2.P4Info()
    text_format.Parse((FOLDER / "meters.p4info.txtpb").read_text(), info)
    index = P4InfoIndex(info)
    ids = {table.name: table.id for table in index.tables.values()}
    mark, meet = index.action_named("Out.mark"), index.action_named("In.meet")
    assert mark and meet
    wanted = {}
    for name, action in (("In.flows", meet), ("Out.leaving", mark)):
        entry = p4rt.TableEntry(table_id=ids[name])
        entry.match.add(field_id=1).exact.value = b"\1"
        entry.action.action.action_id = action.id
        wanted[name] = p4rt.Update(type=p4rt.Update.INSERT, entity=p4rt.Entity(table_entry=entry))
    atomic = p4rt.WriteRequest(atomicity=p4rt.WriteRequest.DATAPLANE_ATOMIC)
    with Switch(FOLDER / "meters.json") as switch:
        made = Pipeline(p4rt.ForwardingPipelineConfig(p4info=info), index, switch)
        switch.queues(1).set(Queueing(rate_bps=8000))
        for _ in range(2):  # the second waits for the first
            switch.process(2, bytes(100), now=0)
        atomic.updates.extend(wanted.values())
        with pytest.raises(ControlError, match="frames wait between ingress and egress"):
            batch.apply(made, atomic)
        assert not switch.table("In.flows").entries() and not switch.table("Out.leaving").entries()
        del atomic.updates[1]
        assert batch.apply(made, atomic) == [None]
        switch.step(now=10**10)
        atomic.updates.append(wanted["Out.leaving"])
        atomic.updates[0].type = p4rt.Update.MODIFY
        assert batch.apply(made, atomic) == [None, None]


def test_an_entity_nobody_expected_fails_alone(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect in one kind of entity is INTERNAL for its update, and the rest of the batch is done."""

    def broken(*_: object) -> None:
        raise KeyError("defect")

    monkeypatch.setitem(entities._WRITERS, "counter_entry", broken)  # type: ignore[arg-type]
    wanted = p4rt.WriteRequest()
    wanted.updates.add(type=p4rt.Update.MODIFY).entity.counter_entry.SetInParent()
    wanted.updates.append(_station(pipeline)(("INSERT", 77, 1)))
    broken_result, done = batch.apply(pipeline, wanted)
    assert isinstance(broken_result, ControlError) and broken_result.code.name == "INTERNAL"
    assert done is None
