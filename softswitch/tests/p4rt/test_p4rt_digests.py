# SPDX-License-Identifier: Apache-2.0
"""Digests as P4Runtime has them: when lists are sent and what is held back, in virtual time; then over gRPC,
where BMv2 agrees on BMv2, too."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf import text_format

from softp4.errors import Code, ControlError
from softp4.p4rt.digests import DigestLists
from softp4.p4rt.notifications import Notifications
from softp4.p4rt.p4data import encoder
from softp4.p4rt.p4info import P4InfoIndex
from softp4.p4rt.sessions import Stream
from softp4.p4runtime.schema import p4info_pb2, p4types_pb2
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from softp4.program.errors import ProgramError, UnsupportedConstruct
from softp4.program.loader import load_program
from softp4.state.digests import Digest
from tests.p4rt.meters_rig import P4INFO, PORT, PROGRAM, Rig, bmv2_rig, soft_rig
from tests.p4rt.p4rt_client import TIMEOUT, Controller
from tests.programs import raw
from tests.state.test_digests import LEARN, PAIR
from tests.state.test_meters import order

INSERT, MODIFY, DELETE = p4rt.Update.INSERT, p4rt.Update.MODIFY, p4rt.Update.DELETE
ID, OTHER = 11, 12
MS = 10**6


# -- in virtual time -----------------------------------------------------------------------------------


def _info() -> P4InfoIndex:
    info = p4info_pb2.P4Info()
    for number, name in ((ID, "d"), (OTHER, "e")):
        digest = info.digests.add()
        digest.preamble.id, digest.preamble.name = number, name
        digest.type_spec.bitstring.bit.bitwidth = 16
    return P4InfoIndex(info)


@pytest.fixture
def lists() -> DigestLists:
    return DigestLists(_info().digests, {"d", "e"})


def entry(number: int = ID, timeout: int = 0, size: int = 0, ack: int = 0) -> Any:
    config = p4rt.DigestEntry.Config(max_timeout_ns=timeout, max_list_size=size, ack_timeout_ns=ack)
    return p4rt.DigestEntry(digest_id=number, config=config)


def add(lists: DigestLists, *values: int, now: int = 0, name: str = "d") -> None:
    for value in values:
        lists.add(Digest(name, (value,)), now)


def due(lists: DigestLists, now: int) -> list[tuple[int, list[int]]]:
    """List ids with what the lists hold."""
    return [
        (found.list_id, [int.from_bytes(data.bitstring, "big") for data in found.data])
        for found in lists.due(now)
    ]


def ack(list_id: int, number: int = ID) -> Any:
    return p4rt.DigestListAck(digest_id=number, list_id=list_id)


def test_without_a_configuration_nothing_is_sent(lists: DigestLists) -> None:
    add(lists, 1)
    assert due(lists, 10**12) == []
    lists.write(INSERT, entry())
    assert due(lists, 10**12) == []
    add(lists, 2)
    lists.write(DELETE, entry())
    add(lists, 3)
    assert due(lists, 10**12) == [(1, [2])], "was ready"
    lists.write(INSERT, entry())
    add(lists, 4)
    assert due(lists, 10**12) == [(2, [4])], "numbers of lists go on"


def test_without_a_timeout_every_message_is_a_list(lists: DigestLists) -> None:
    lists.write(INSERT, entry(size=10))
    add(lists, 1, 2, 1)
    assert due(lists, 0) == [(1, [1]), (2, [2]), (3, [1])]
    assert due(lists, 0) == []


def test_a_list_waits_until_it_is_full_or_late(lists: DigestLists) -> None:
    lists.write(INSERT, entry(timeout=100 * MS, size=3))
    add(lists, 1, 2, 1, 2)
    assert due(lists, 0) == [], "duplicates do not fill it"
    add(lists, 3, 4, now=50 * MS)
    assert due(lists, 50 * MS) == [(1, [1, 2, 3])]
    assert due(lists, 149 * MS) == []
    assert due(lists, 150 * MS) == [(2, [4])]
    assert due(lists, 10**12) == []


def test_lists_without_a_limit_are_limited_all_the_same(lists: DigestLists) -> None:
    lists.write(INSERT, entry(timeout=100 * MS))
    add(lists, *range(2500))
    assert [len(values) for _, values in due(lists, 0)] == [1024, 1024]
    assert [len(values) for _, values in due(lists, 100 * MS)] == [2500 - 2048]


def test_no_list_is_longer_than_a_client_can_take(lists: DigestLists) -> None:
    lists.write(INSERT, entry(timeout=MS, size=10**9))
    add(lists, *range(10_000))
    assert [len(values) for _, values in due(lists, 0)] == [8192]
    assert [len(values) for _, values in due(lists, MS)] == [10_000 - 8192]


def test_what_is_not_acknowledged_is_not_sent_again(lists: DigestLists) -> None:
    lists.write(INSERT, entry(size=1, ack=1000 * MS))
    add(lists, 1, 2, 1)
    assert due(lists, 0) == [(1, [1]), (2, [2])]
    add(lists, 1, 2, now=500 * MS)
    assert due(lists, 500 * MS) == []
    lists.acknowledge(ack(1))
    add(lists, 1, 2, now=500 * MS)
    assert due(lists, 500 * MS) == [(3, [1])]
    add(lists, 1, 2, now=1000 * MS - 1)
    assert due(lists, 1000 * MS - 1) == []
    add(lists, 1, 2, now=1000 * MS)
    assert due(lists, 1000 * MS) == [(4, [2])], "the acknowledgement of list 2 is overdue"
    add(lists, 1, now=1500 * MS)
    assert due(lists, 1500 * MS) == [(5, [1])]


def test_a_list_that_did_not_get_through_can_be_told_again(lists: DigestLists) -> None:
    lists.write(INSERT, entry(size=1, ack=1000 * MS))
    add(lists, 1)
    assert due(lists, 0) == [(1, [1])]
    lists.forget(ID, 1)
    add(lists, 1)
    assert due(lists, 0) == [(2, [1])]


def test_another_configuration_holds_for_what_waits(lists: DigestLists) -> None:
    lists.write(INSERT, entry(timeout=1000 * MS, size=10))
    add(lists, 1, 2, 3, 4, 5)
    lists.write(MODIFY, entry(timeout=1000 * MS, size=2))
    assert due(lists, 0) == [(1, [1, 2]), (2, [3, 4])]
    lists.write(MODIFY, entry(timeout=10 * MS, size=2))
    assert due(lists, 10 * MS) == [(3, [5])]


def test_digests_are_told_apart(lists: DigestLists) -> None:
    lists.write(INSERT, entry(size=1, ack=MS))
    lists.write(INSERT, entry(OTHER, size=1, ack=MS))
    add(lists, 1)
    add(lists, 1, name="e")
    add(lists, 1, name="unheard of")
    assert [(found.digest_id, found.list_id) for found in lists.due(0)] == [(ID, 1), (OTHER, 1)]
    lists.acknowledge(ack(1, OTHER))
    add(lists, 1)
    add(lists, 1, name="e")
    assert [(found.digest_id, found.list_id) for found in lists.due(0)] == [(OTHER, 2)]


def test_what_is_held_back_is_bounded(lists: DigestLists) -> None:
    """Without any acknowledgement, the oldest lists are forgotten."""
    lists.write(INSERT, entry(timeout=MS, size=1000, ack=10**15))
    add(lists, *range(65_000))
    assert len(lists.due(0)) == 65
    add(lists, *range(65_000, 66_000), 500, 64_000)
    assert [found.list_id for found in lists.due(0)] == [66]
    assert due(lists, MS) == [(67, [500])]


def test_acknowledgements_of_nothing_are_errors(lists: DigestLists) -> None:
    lists.write(INSERT, entry(size=1, ack=MS))
    add(lists, 1)
    lists.due(0)
    for wrong, code in [
        (ack(1, 99), Code.INVALID_ARGUMENT),
        (ack(0), Code.NOT_FOUND),
        (ack(2), Code.NOT_FOUND),
    ]:
        with pytest.raises(ControlError) as caught:
            lists.acknowledge(wrong)
        assert caught.value.code is code
    lists.acknowledge(ack(1))
    lists.acknowledge(ack(1))


def test_configurations_are_checked(lists: DigestLists) -> None:
    lists.write(INSERT, entry(size=1))
    for update, wrong, code in [
        (INSERT, entry(), Code.ALREADY_EXISTS),
        (MODIFY, entry(OTHER), Code.NOT_FOUND),
        (DELETE, entry(OTHER), Code.NOT_FOUND),
        (INSERT, entry(99), Code.NOT_FOUND),
        (MODIFY, entry(timeout=-1), Code.INVALID_ARGUMENT),
        (INSERT, entry(OTHER, size=-1), Code.INVALID_ARGUMENT),
        (INSERT, entry(OTHER, ack=-1), Code.INVALID_ARGUMENT),
    ]:
        with pytest.raises(ControlError) as caught:
            lists.write(update, wrong)
        assert caught.value.code is code
    assert list(lists.read(p4rt.DigestEntry())) == [entry(size=1)]
    with pytest.raises(ControlError):
        list(lists.read(p4rt.DigestEntry(digest_id=OTHER)))


def test_a_digest_that_the_program_calls_otherwise_is_refused() -> None:
    lists = DigestLists(_info().digests, {"tuple_0"})
    with pytest.raises(ControlError, match="by another name"):
        lists.write(INSERT, entry())


def test_every_digest_of_a_name_must_be_as_p4info_has_it() -> None:
    root = raw("meters")
    learned, pair = root["learn_lists"]
    pair["name"] = learned["name"]
    info = text_format.Parse(P4INFO.read_text(), p4info_pb2.P4Info())
    for lists in ([learned, pair], [pair, learned]):
        root["learn_lists"] = lists
        with pytest.raises(ProgramError, match="digest learned_t is in P4Info, but its fields have"):
            P4InfoIndex(info).check_against(load_program(json.dumps(root).encode()))


# -- types ---------------------------------------------------------------------------------------------


def test_values_of_every_type_that_a_digest_can_have() -> None:
    types = p4types_pb2.P4TypeInfo()
    types.new_types["id_t"].original_type.bitstring.bit.bitwidth = 9
    members = types.structs["s"].members
    for name in ("signed", "flag", "id", "kind", "both"):
        members.add(name=name)
    members[0].type_spec.bitstring.int.bitwidth = 5
    members[1].type_spec.bool.SetInParent()
    members[2].type_spec.new_type.name = "id_t"
    members[3].type_spec.serializable_enum.name = "kind_t"
    types.serializable_enums["kind_t"].underlying_type.bitwidth = 16
    pair = members[4].type_spec.tuple.members
    pair.add().bitstring.bit.bitwidth = 128
    pair.add().bitstring.bit.bitwidth = 8
    spec = p4types_pb2.P4DataTypeSpec()
    spec.struct.name = "s"
    encode, widths = encoder(spec, types, "here")
    assert widths == [5, 1, 9, 16, 128, 8]
    found = encode(iter([0b11111, 1, 0x1FF, 7, 1 << 127, 0])).struct.members
    assert found[0].bitstring == b"\xff"
    assert found[1].bool is True
    assert found[2].bitstring == b"\x01\xff"
    assert found[3].enum_value == b"\x07"
    assert [each.bitstring for each in found[4].tuple.members] == [b"\x80" + bytes(15), b"\0"]


@pytest.mark.parametrize("kind", ["header", "error", "header_stack"])
def test_other_types_are_refused_by_name(kind: str) -> None:
    spec = p4types_pb2.P4DataTypeSpec()
    getattr(spec, kind).SetInParent()
    with pytest.raises(UnsupportedConstruct, match=kind):
        encoder(spec, p4types_pb2.P4TypeInfo(), "here")


# -- to a controller that does not read ----------------------------------------------------------------


def test_the_longer_the_lists_the_fewer_wait() -> None:
    single, full = Stream(1, lambda: None), Stream(2, lambda: None)
    taken = [(single.offer(p4rt.StreamMessageResponse()), full.offer(None, 1024)) for _ in range(5000)]
    assert [sum(each) for each in zip(*taken, strict=True)] == [4096, 16]


# -- over gRPC -----------------------------------------------------------------------------------------


@pytest.fixture(params=[soft_rig, pytest.param(bmv2_rig, marks=pytest.mark.bmv2)], ids=["soft", "bmv2"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with request.param() as made:
        yield made


@pytest.fixture
def own() -> Iterator[Rig]:
    with soft_rig() as made:
        yield made


def values(message: Any) -> list[list[int]]:
    return [
        [int.from_bytes(member.bitstring, "big") for member in data.struct.members]
        for data in message.digest.data
    ]


def acknowledge(controller: Controller, digest_id: int, list_id: int) -> None:
    request = p4rt.StreamMessageRequest()
    request.digest_ack.digest_id, request.digest_ack.list_id = digest_id, list_id
    controller.session.send(request)


def told_in_the_end(rig: Rig, frame: bytes) -> Any:
    """Repeat a frame until it is told: an acknowledgement takes its time."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        rig.send(frame)
        message = rig.controller.session.receive("digest", 0.05)
        if message is not None:
            return message
    raise AssertionError("not told")


def test_a_controller_learns_and_acknowledges(rig: Rig) -> None:
    controller = rig.controller
    config = rig.digest("learned_t", max_list_size=1, ack_timeout_ns=10**12)
    controller.write("INSERT", digest_entry=config)
    assert controller.read(digest_entry=p4rt.DigestEntry(digest_id=config.digest_id)) == [config]
    rig.send(order(LEARN, who=0x0A0B))
    first = controller.stream("digest")
    assert first.digest.digest_id == config.digest_id
    assert first.digest.timestamp > 0
    assert values(first) == [[0x0A0B, PORT, 31]]
    for who in (0x0A0B, 1):
        rig.send(order(LEARN, who=who))
    second = controller.stream("digest")
    assert values(second) == [[1, PORT, 31]], "what is not acknowledged is not repeated"
    assert second.digest.list_id != first.digest.list_id
    acknowledge(controller, config.digest_id, first.digest.list_id)
    assert values(told_in_the_end(rig, order(LEARN, who=0x0A0B))) == [[0x0A0B, PORT, 31]]


def test_lists_are_filled(rig: Rig) -> None:
    controller = rig.controller
    config = rig.digest("pair_t", max_timeout_ns=10**12, max_list_size=3, ack_timeout_ns=10**12)
    controller.write("INSERT", digest_entry=config)
    for index in (7, 8, 7, 9):
        rig.send(order(PAIR, index))
    assert values(controller.stream("digest")) == [[7, PAIR], [8, PAIR], [9, PAIR]]


def test_of_two_digests_of_a_packet_the_last_is_told(rig: Rig) -> None:
    for name in ("learned_t", "pair_t"):
        rig.controller.write("INSERT", digest_entry=rig.digest(name, max_list_size=1))
    rig.send(order(LEARN | PAIR, index=4, who=1))
    assert values(rig.controller.stream("digest")) == [[4, LEARN | PAIR]]
    rig.send(order(LEARN, who=2))
    assert values(rig.controller.stream("digest")) == [[2, PORT, 31]]


def test_digests_are_configured_one_by_one(rig: Rig) -> None:
    controller = rig.controller
    learned, pair = (rig.digest(name, max_list_size=1) for name in ("learned_t", "pair_t"))
    assert controller.refused("MODIFY", digest_entry=learned)[0] == "NOT_FOUND"
    controller.write("INSERT", digest_entry=learned)
    assert controller.refused("INSERT", digest_entry=learned)[0] == "ALREADY_EXISTS"
    controller.write("INSERT", digest_entry=pair)
    controller.write("DELETE", digest_entry=learned)
    rig.send(order(LEARN, who=1))
    rig.send(order(PAIR, 2))
    assert values(controller.stream("digest")) == [[2, PAIR]]
    controller.write("MODIFY", digest_entry=rig.digest("pair_t", max_list_size=2))
    assert controller.refused("DELETE", digest_entry=learned)[0] == "NOT_FOUND"


def test_another_program_keeps_what_was_configured(own: Rig) -> None:
    """Reconciled: meters, digests and timeouts are as before; what is unacknowledged is forgotten."""
    controller = own.controller
    digest = own.digest("learned_t", max_list_size=1, ack_timeout_ns=10**15)
    config = p4rt.MeterConfig(cir=1, cburst=2, pir=3, pburst=4)
    entry = own.flow(1, meter_config=config, idle_timeout_ns=10**15)
    controller.write("INSERT", digest_entry=digest)
    controller.write("INSERT", table_entry=entry)
    controller.write("MODIFY", meter_entry=own.meter("In.byte_meters", 2, config=config))
    own.send(order(LEARN, who=1))
    assert values(controller.stream("digest")) == [[1, PORT, 0]]
    action = p4rt.SetForwardingPipelineConfigRequest.RECONCILE_AND_COMMIT
    controller.set_config(action, PROGRAM.read_bytes() + b"\n", P4INFO)
    assert controller.read(digest_entry=p4rt.DigestEntry()) == [digest]
    wanted = controller.entry("In.flows", meter_config=p4rt.MeterConfig())
    assert controller.read(table_entry=wanted) == [entry]
    configured = [each for each in controller.read(meter_entry=p4rt.MeterEntry()) if each.HasField("config")]
    assert configured == [own.meter("In.byte_meters", 2, config=config)]
    own.send(order(LEARN, who=1))
    assert values(controller.stream("digest")) == [[1, PORT, 0]]


def test_only_primaries_are_told_and_may_acknowledge(own: Rig) -> None:
    controller = own.controller
    config = own.digest("learned_t", max_list_size=1, ack_timeout_ns=10**12)
    controller.write("INSERT", digest_entry=config)
    assert controller.read(digest_entry=p4rt.DigestEntry()) == [config]
    backup = Controller(own.address, election=0)
    own.send(order(LEARN, who=1))
    told = controller.stream("digest").digest
    acknowledge(backup, told.digest_id, told.list_id)
    answer = backup.stream("error").error
    assert answer.canonical_code == int(Code.PERMISSION_DENIED)
    assert answer.digest_list_ack.digest_list_ack.list_id == told.list_id
    assert backup.nothing_on_stream("digest")
    backup.close()


def test_a_wrong_acknowledgement_is_answered_on_the_stream(own: Rig) -> None:
    acknowledge(own.controller, 99, 1)
    error = own.controller.stream("error").error
    assert error.canonical_code == int(Code.INVALID_ARGUMENT)
    assert error.digest_list_ack.digest_list_ack.digest_id == 99
    number = own.digest("learned_t").digest_id
    acknowledge(own.controller, number, 1)
    assert own.controller.stream("error").error.canonical_code == int(Code.NOT_FOUND)


def test_what_goes_wrong_while_telling_is_not_the_end(
    own: Rig, fail_once: Callable[[type, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that asks for digests and idle timeouts goes on."""
    fail_once(Notifications, "tick")
    own.controller.write("INSERT", digest_entry=own.digest("learned_t", max_list_size=1))
    assert values(told_in_the_end(own, order(LEARN, who=7))) == [[7, PORT, 31]]
    assert "digests or idle timeouts were lost (1 so far)" in caplog.text
