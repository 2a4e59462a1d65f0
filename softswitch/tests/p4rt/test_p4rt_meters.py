# SPDX-License-Identifier: Apache-2.0
"""Meters over P4Runtime, with frames; where BMv2 agrees, the same tests on BMv2.

BMv2 has a clock of its own. With rates of zero, buckets never fill, and time makes no difference.
"""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import text_format

from softp4.p4rt.p4info import P4InfoIndex
from softp4.p4runtime.schema import p4info_pb2
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from softp4.program.errors import ProgramError
from tests.p4rt.meters_rig import P4INFO, Rig, bmv2_rig, soft_rig
from tests.programs import program
from tests.state.test_meters import (
    BYTES,
    GREEN,
    PACKETS,
    RED,
    SIZE,
    UNTOUCHED,
    YELLOW,
    colours,
    order,
)

BURSTS = p4rt.MeterConfig(cir=0, cburst=2, pir=0, pburst=5)
HUGE = p4rt.MeterConfig(cir=10**12, cburst=2**32 - 1, pir=10**12, pburst=2**32 - 1)
AFTER_BURSTS = [GREEN, GREEN, YELLOW, YELLOW, YELLOW, RED, RED]


@pytest.fixture(scope="module")
def soft() -> Iterator[Rig]:
    with soft_rig() as made:
        yield made


@pytest.fixture(scope="module")
def bmv2_meters() -> Iterator[Rig]:
    with bmv2_rig() as made:
        yield made


@pytest.fixture(params=["soft", pytest.param("bmv2_meters", marks=pytest.mark.bmv2)])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = request.getfixturevalue(request.param)
    assert isinstance(made, Rig)
    yield made
    for entry in made.controller.read(table_entry=made.controller.entry("In.flows")):
        made.controller.write("DELETE", table_entry=entry)
    for name, size in (("In.packet_meters", 8), ("In.byte_meters", 4)):
        for index in range(size):
            made.controller.write("MODIFY", meter_entry=made.meter(name, index))


def by_packets(rig: Rig, index: int) -> int:
    return colours(rig.send(order(PACKETS, index))).by_packets


def by_flow(rig: Rig, who: int) -> int:
    return colours(rig.send(order(0, who=who))).by_flow


# -- on both -------------------------------------------------------------------------------------------


def test_an_indirect_meter_marks_as_it_is_configured(rig: Rig) -> None:
    controller = rig.controller
    written = rig.meter("In.packet_meters", 3, config=BURSTS)
    controller.write("MODIFY", meter_entry=written)
    assert controller.read(meter_entry=rig.meter("In.packet_meters", 3)) == [written]
    assert [by_packets(rig, 3) for _ in range(7)] == AFTER_BURSTS
    assert by_packets(rig, 4) == GREEN
    controller.write("MODIFY", meter_entry=written)
    assert by_packets(rig, 3) == GREEN, "full again"
    controller.write("MODIFY", meter_entry=rig.meter("In.packet_meters", 3))
    assert controller.read(meter_entry=rig.meter("In.packet_meters", 3)) == [rig.meter("In.packet_meters", 3)]
    assert [by_packets(rig, 3) for _ in range(7)] == [GREEN] * 7


def test_a_meter_of_bytes_goes_by_the_length_of_frames(rig: Rig) -> None:
    config = p4rt.MeterConfig(cir=0, cburst=100, pir=0, pburst=200)
    rig.controller.write("MODIFY", meter_entry=rig.meter("In.byte_meters", 1, config=config))
    sizes = (60, 40, 40, 200, 60, SIZE)
    found = [colours(rig.send(order(BYTES, 1, size=size))).by_bytes for size in sizes]
    assert found == [GREEN, GREEN, YELLOW, RED, YELLOW, RED]


def test_rates_beyond_what_comes_mark_nothing(rig: Rig) -> None:
    rig.controller.write("MODIFY", meter_entry=rig.meter("In.packet_meters", 0, config=HUGE))
    assert [by_packets(rig, 0) for _ in range(20)] == [GREEN] * 20


def test_a_direct_meter_comes_with_its_entry(rig: Rig) -> None:
    controller = rig.controller
    written = rig.flow(1, meter_config=BURSTS)
    controller.write("INSERT", table_entry=written)
    controller.write("INSERT", table_entry=rig.flow(2))
    wanted = controller.entry("In.flows", meter_config=p4rt.MeterConfig())
    assert sorted(controller.read(table_entry=wanted), key=str) == sorted([written, rig.flow(2)], key=str)
    assert rig.flow(1) in controller.read(table_entry=controller.entry("In.flows"))
    assert [by_flow(rig, 1) for _ in range(7)] == AFTER_BURSTS
    assert [by_flow(rig, 2) for _ in range(7)] == [GREEN] * 7
    assert by_flow(rig, 3) == 31


def test_a_direct_meter_has_an_entity_of_its_own(rig: Rig) -> None:
    controller = rig.controller
    controller.write("INSERT", table_entry=rig.flow(1))
    key = p4rt.DirectMeterEntry(table_entry=rig.flow_key(1))
    configured = p4rt.DirectMeterEntry(table_entry=rig.flow_key(1), config=BURSTS)
    controller.write("MODIFY", direct_meter_entry=key)
    assert controller.read(direct_meter_entry=key) == [key]
    controller.write("MODIFY", direct_meter_entry=configured)
    assert controller.read(direct_meter_entry=key) == [configured]
    assert [by_flow(rig, 1) for _ in range(7)] == AFTER_BURSTS
    controller.write("MODIFY", direct_meter_entry=key)
    assert controller.read(direct_meter_entry=key) == [key]
    assert by_flow(rig, 1) == GREEN


def test_meters_are_always_there(rig: Rig) -> None:
    for kind in ("INSERT", "DELETE"):
        code, _ = rig.controller.refused(kind, meter_entry=rig.meter("In.packet_meters", 3, config=BURSTS))
        assert code == "INVALID_ARGUMENT"
    negative = rig.meter("In.packet_meters", -1)
    assert rig.controller.refused("MODIFY", meter_entry=negative)[0] == "INVALID_ARGUMENT"


# -- what BMv2 lacks -----------------------------------------------------------------------------------


def test_out_of_range_a_meter_leaves_its_result_alone(soft: Rig) -> None:
    """So does a BMv2 that was built with assertions; one without takes what lies behind its last meter."""
    assert by_packets(soft, 8) == UNTOUCHED


@pytest.fixture
def own(soft: Rig) -> Iterator[Rig]:
    """Yield a soft switch whose meters are as in the beginning."""
    yield soft
    controller = soft.controller
    for entry in controller.read(table_entry=controller.entry("In.flows")):
        controller.write("DELETE", table_entry=entry)
    for name in ("In.packet_meters", "In.byte_meters"):
        none = p4rt.MeterCounterData()
        controller.write("MODIFY", meter_entry=soft.meter(name, counter_data=none))


def test_wildcards_mean_whole_arrays(own: Rig) -> None:
    controller = own.controller
    controller.write("MODIFY", meter_entry=own.meter("In.packet_meters", config=BURSTS))
    every = [own.meter("In.packet_meters", i, config=BURSTS) for i in range(8)]
    assert controller.read(meter_entry=own.meter("In.packet_meters")) == every
    bare = [own.meter("In.byte_meters", i) for i in range(4)]
    assert controller.read(meter_entry=p4rt.MeterEntry()) == [*every, *bare]
    controller.write("MODIFY", meter_entry=own.meter("In.packet_meters"))
    assert controller.read(meter_entry=own.meter("In.packet_meters", 7)) == [own.meter("In.packet_meters", 7)]


def test_packets_are_counted_by_colour(own: Rig) -> None:
    controller, zero = own.controller, p4rt.MeterCounterData()
    controller.write("MODIFY", meter_entry=own.meter("In.packet_meters", 2, config=BURSTS))
    for _ in range(6):
        own.send(order(PACKETS, 2))
    [found] = controller.read(meter_entry=own.meter("In.packet_meters", 2, counter_data=zero))
    counted = [(c.packet_count, c.byte_count) for c in _by_colour(found.counter_data)]
    assert counted == [(2, 2 * SIZE), (3, 3 * SIZE), (1, SIZE)]
    nonzero = p4rt.MeterCounterData(red=p4rt.CounterData(packet_count=1))
    wrong = own.meter("In.packet_meters", 2, config=BURSTS, counter_data=nonzero)
    assert controller.refused("MODIFY", meter_entry=wrong)[0] == "INVALID_ARGUMENT"
    controller.write("MODIFY", meter_entry=own.meter("In.packet_meters", 2, counter_data=zero))
    [found] = controller.read(meter_entry=own.meter("In.packet_meters", 2, counter_data=zero))
    assert all(c.packet_count == 0 for c in _by_colour(found.counter_data))

    controller.write("INSERT", table_entry=own.flow(1, meter_config=BURSTS))
    by_flow(own, 1)
    wanted = controller.entry("In.flows", meter_counter_data=zero)
    [entry] = controller.read(table_entry=wanted)
    assert entry.meter_counter_data.green.packet_count == 1
    direct = p4rt.DirectMeterEntry(table_entry=own.flow_key(1), counter_data=zero)
    [found] = controller.read(direct_meter_entry=direct)
    assert found.counter_data == entry.meter_counter_data
    controller.write("MODIFY", table_entry=own.flow(1, meter_config=BURSTS))
    assert controller.read(table_entry=wanted) == [entry]
    controller.write("MODIFY", table_entry=own.flow(1, meter_counter_data=zero))
    [entry] = controller.read(table_entry=wanted)
    assert entry.meter_counter_data.green.packet_count == 0


def _by_colour(data: p4rt.MeterCounterData) -> list[p4rt.CounterData]:
    return [data.green, data.yellow, data.red]


def test_modifying_an_entry_resets_its_meter_unless_it_is_given_again(own: Rig) -> None:
    controller = own.controller
    wanted = controller.entry("In.flows", meter_config=p4rt.MeterConfig())
    controller.write("INSERT", table_entry=own.flow(1, meter_config=BURSTS))
    controller.write("MODIFY", table_entry=own.flow(1, meter_config=HUGE))
    assert controller.read(table_entry=wanted) == [own.flow(1, meter_config=HUGE)]
    controller.write("MODIFY", table_entry=own.flow(1))
    assert controller.read(table_entry=wanted) == [own.flow(1)]


def test_a_direct_meter_goes_with_its_entry(own: Rig) -> None:
    """In BMv2, the next entry in the same place inherits it."""
    own.controller.write("INSERT", table_entry=own.flow(1, meter_config=BURSTS))
    assert [by_flow(own, 1) for _ in range(7)] == AFTER_BURSTS
    own.controller.write("DELETE", table_entry=own.flow_key(1))
    own.controller.write("INSERT", table_entry=own.flow(1))
    assert [by_flow(own, 1) for _ in range(7)] == [GREEN] * 7


def test_all_direct_meters_can_be_read_at_once(own: Rig) -> None:
    controller = own.controller
    controller.write_all("INSERT", [own.flow(1, meter_config=BURSTS), own.flow(2)])
    leaving = controller.entry("Out.leaving", {"sm.egress_port": ("exact", 3)}, "Out.mark", meter_config=HUGE)
    controller.write("INSERT", table_entry=leaving)
    found = controller.read(direct_meter_entry=p4rt.DirectMeterEntry(table_entry=p4rt.TableEntry()))
    assert [entry.config for entry in found] == [BURSTS, p4rt.MeterConfig(), HUGE]
    controller.write("DELETE", table_entry=leaving)


def test_a_batch_that_is_rolled_back_leaves_meters_as_they_were(own: Rig) -> None:
    controller = own.controller
    controller.write("INSERT", table_entry=own.flow(1, meter_config=BURSTS, idle_timeout_ns=10**12))
    controller.write("MODIFY", meter_entry=own.meter("In.packet_meters", 3, config=BURSTS))
    own.send(order(PACKETS, 3))
    zero = p4rt.MeterCounterData()
    request = p4rt.WriteRequest(atomicity=p4rt.WriteRequest.ROLLBACK_ON_ERROR)
    for entity in (
        {"meter_entry": own.meter("In.packet_meters", 3, config=HUGE, counter_data=zero)},
        {"meter_entry": own.meter("In.packet_meters", 4, config=HUGE)},
        {"direct_meter_entry": p4rt.DirectMeterEntry(table_entry=own.flow_key(1), config=HUGE)},
        {"table_entry": own.flow(1)},
        {"meter_entry": own.meter("In.packet_meters", 8, config=HUGE)},
    ):
        request.updates.add(type=p4rt.Update.MODIFY).entity.CopyFrom(p4rt.Entity(**entity))
    with pytest.raises(Exception, match="failed"):
        controller.session.call("Write", controller.session.claimed(request))
    assert controller.read(meter_entry=own.meter("In.packet_meters", 3)) == [
        own.meter("In.packet_meters", 3, config=BURSTS)
    ]
    assert controller.read(meter_entry=own.meter("In.packet_meters", 4)) == [own.meter("In.packet_meters", 4)]
    wanted = controller.entry("In.flows", meter_config=p4rt.MeterConfig())
    assert controller.read(table_entry=wanted) == [own.flow(1, meter_config=BURSTS, idle_timeout_ns=10**12)]


def _flows(info: p4info_pb2.P4Info) -> int:
    return next(int(t.preamble.id) for t in info.tables if t.preamble.name == "In.flows")


MISMATCHES = [
    ("its size is 0", lambda i: i.meters[0].preamble.MergeFrom(i.direct_meters[0].preamble)),
    ("counts packets", lambda i: setattr(i.meters[0].spec, "unit", p4info_pb2.MeterSpec.BYTES)),
    ("its size is 8", lambda i: setattr(i.meters[0], "size", 9)),
    ("unknown table", lambda i: setattr(i.direct_meters[0], "direct_table_id", 1)),
    ("no such meter of In.flows", lambda i: setattr(i.direct_meters[1], "direct_table_id", _flows(i))),
    ("have no idle timeout", lambda i: setattr(i.tables[-1], "idle_timeout_behavior", 1)),
    ("its fields have", lambda i: i.digests[0].type_spec.CopyFrom(i.digests[1].type_spec)),
]


@pytest.mark.parametrize(("message", "spoil"), MISMATCHES, ids=[name for name, _ in MISMATCHES])
def test_p4info_of_another_program_is_refused(
    message: str, spoil: Callable[[p4info_pb2.P4Info], object]
) -> None:
    info = text_format.Parse(P4INFO.read_text(), p4info_pb2.P4Info())
    P4InfoIndex(info).check_against(program("meters"))
    spoil(info)
    with pytest.raises(ProgramError, match=message):
        P4InfoIndex(info).check_against(program("meters"))


def test_meters_that_make_no_sense_are_refused(own: Rig) -> None:
    controller = own.controller
    controller.write("INSERT", table_entry=own.flow(1))
    backwards = p4rt.MeterConfig(cir=2, cburst=1, pir=1, pburst=1)
    negative = p4rt.MeterConfig(cir=1, cburst=-1, pir=1, pburst=1)
    excess = p4rt.MeterConfig(cir=1, cburst=1, pir=1, pburst=1, eburst=1)
    refused = controller.refused
    for config in (backwards, negative, excess):
        entity = own.meter("In.packet_meters", 0, config=config)
        assert refused("MODIFY", meter_entry=entity)[0] == "INVALID_ARGUMENT"
        assert refused("INSERT", table_entry=own.flow(2, meter_config=config))[0] == "INVALID_ARGUMENT"
        direct = p4rt.DirectMeterEntry(table_entry=own.flow_key(1), config=config)
        assert refused("MODIFY", direct_meter_entry=direct)[0] == "INVALID_ARGUMENT"
    assert refused("MODIFY", meter_entry=own.meter("In.packet_meters", 8))[0] == "OUT_OF_RANGE"
    assert refused("MODIFY", meter_entry=p4rt.MeterEntry(meter_id=1))[0] == "NOT_FOUND"
    missing = p4rt.DirectMeterEntry(table_entry=own.flow_key(7), config=BURSTS)
    assert refused("MODIFY", direct_meter_entry=missing)[0] == "NOT_FOUND"
    for kind in ("INSERT", "DELETE"):
        direct = p4rt.DirectMeterEntry(table_entry=own.flow_key(1), config=BURSTS)
        assert refused(kind, direct_meter_entry=direct)[0] == "INVALID_ARGUMENT"
    ranges = controller.entry("In.ranges", {}, "In.touch", priority=1, meter_config=BURSTS)
    assert refused("INSERT", table_entry=ranges)[0] == "INVALID_ARGUMENT"
    default = controller.entry("In.flows", None, "NoAction", is_default_action=True, meter_config=BURSTS)
    assert refused("MODIFY", table_entry=default)[0] == "UNIMPLEMENTED"
    assert controller.read(table_entry=controller.entry("In.flows")) == [own.flow(1)]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("direct_meter_entry", p4rt.DirectMeterEntry),
        ("direct_counter_entry", p4rt.DirectCounterEntry),
    ],
)
def test_direct_resources_are_those_of_entries_that_are_there(own: Rig, kind: str, message: Any) -> None:
    controller = own.controller
    controller.write("INSERT", table_entry=own.flow(1))
    for entry, words in (
        (own.flow_key(7), "table In.flows has no such entry"),
        (controller.entry("In.flows", is_default_action=True), "of default actions are not supported"),
        (controller.entry("In.ranges"), "table In.ranges has no direct"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            controller.read(**{kind: message(table_entry=entry)})
        assert words in str(caught.value.trailing_metadata())
    default = message(table_entry=controller.entry("In.flows", is_default_action=True))
    assert controller.refused("MODIFY", **{kind: default})[0] == "UNIMPLEMENTED"
    [found] = controller.read(**{kind: message(table_entry=controller.entry("In.flows"))})
    assert found.table_entry == own.flow_key(1)
