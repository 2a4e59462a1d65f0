# SPDX-License-Identifier: Apache-2.0
"""Idle timeouts over P4Runtime; where BMv2 agrees, on BMv2, too."""

from collections.abc import Iterator

import grpc
import pytest

from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from tests.p4rt.meters_rig import Rig, bmv2_rig, soft_rig
from tests.p4rt.p4rt_client import Controller
from tests.state.test_meters import order

MS = 10**6
LONG = 10**15


@pytest.fixture(params=[soft_rig, pytest.param(bmv2_rig, marks=pytest.mark.bmv2)], ids=["soft", "bmv2"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with request.param() as made:
        yield made


@pytest.fixture
def own() -> Iterator[Rig]:
    with soft_rig() as made:
        yield made


def test_an_idle_entry_is_reported_again_and_again(rig: Rig) -> None:
    controller = rig.controller
    noted = rig.flow(1, idle_timeout_ns=50 * MS, controller_metadata=77)
    controller.write_all("INSERT", [noted, rig.flow(2, idle_timeout_ns=LONG), rig.flow(3)])
    for _ in range(2):
        message = controller.stream("idle_timeout_notification").idle_timeout_notification
        assert message.timestamp > 0
        [entry] = message.table_entry
        wanted = rig.flow_key(1)
        wanted.controller_metadata, wanted.idle_timeout_ns = 77, 50 * MS
        assert entry == wanted
    controller.write("DELETE", table_entry=rig.flow_key(1))


def test_timeouts_are_read_back(rig: Rig) -> None:
    controller = rig.controller
    entries = [rig.flow(1, idle_timeout_ns=LONG), rig.flow(2)]
    controller.write_all("INSERT", entries)
    assert sorted(controller.read(table_entry=controller.entry("In.flows")), key=str) == sorted(
        entries, key=str
    )
    controller.write("MODIFY", table_entry=rig.flow(2, idle_timeout_ns=LONG + 1000 * MS))
    controller.write("MODIFY", table_entry=rig.flow(1))
    found = {e.match[0].exact.value: e for e in controller.read(table_entry=controller.entry("In.flows"))}
    assert found[b"\x01"].idle_timeout_ns == 0
    assert found[b"\x02"].idle_timeout_ns == LONG + 1000 * MS


def test_the_time_since_the_last_packet_is_given_when_asked_for(rig: Rig) -> None:
    controller = rig.controller
    controller.write("INSERT", table_entry=rig.flow(1, idle_timeout_ns=LONG))
    rig.send(order(0, who=1))
    plain = controller.read(table_entry=controller.entry("In.flows"))
    assert not plain[0].HasField("time_since_last_hit")
    asked = controller.entry("In.flows", time_since_last_hit=p4rt.TableEntry.IdleTimeout())
    [entry] = controller.read(table_entry=asked)
    assert entry.HasField("time_since_last_hit")
    assert 0 <= entry.time_since_last_hit.elapsed_ns < LONG


def test_the_metadata_goes_along_and_other_kinds_of_table_age(own: Rig) -> None:
    entry = own.controller.entry(
        "In.ranges",
        {"hdr.order.who": ("ternary", 0x10, 0xF0), "hdr.order.index": ("range", 1, 9)},
        "In.touch",
        priority=3,
        idle_timeout_ns=MS,
        metadata=b"mine",
    )
    own.controller.write("INSERT", table_entry=entry)
    message = own.controller.stream("idle_timeout_notification").idle_timeout_notification
    entry.ClearField("action")
    assert list(message.table_entry) == [entry]


def test_backups_are_not_told(own: Rig) -> None:
    backup = Controller(own.address, election=0)
    own.controller.write("INSERT", table_entry=own.flow(1, idle_timeout_ns=MS))
    for _ in range(2):
        own.controller.stream("idle_timeout_notification")
    assert backup.nothing_on_stream("idle_timeout_notification")
    backup.close()


def test_an_entry_is_idle_since_it_was_made_however_late(own: Rig) -> None:
    """The switch has run for a while; that is no reason to report what has just come."""
    for who in range(1, 200):
        own.controller.write("INSERT", table_entry=own.flow(who, idle_timeout_ns=3600 * 1000 * MS))
    own.controller.write("INSERT", table_entry=own.flow(1000, idle_timeout_ns=MS))
    message = own.controller.stream("idle_timeout_notification").idle_timeout_notification
    assert [entry.match[0].exact.value for entry in message.table_entry] == [b"\x03\xe8"]


def test_timeouts_are_refused_where_they_mean_nothing(own: Rig) -> None:
    controller, refused = own.controller, own.controller.refused
    controller.write("INSERT", table_entry=own.flow(1))
    hit = p4rt.TableEntry.IdleTimeout()
    leaving = controller.entry("Out.leaving", {"sm.egress_port": ("exact", 3)}, "Out.mark", idle_timeout_ns=1)
    assert refused("INSERT", table_entry=leaving)[0] == "INVALID_ARGUMENT"
    assert refused("INSERT", table_entry=own.flow(2, idle_timeout_ns=-1))[0] == "INVALID_ARGUMENT"
    assert refused("MODIFY", table_entry=own.flow(1, time_since_last_hit=hit))[0] == "INVALID_ARGUMENT"
    default = controller.entry("In.flows", None, "NoAction", is_default_action=True, idle_timeout_ns=1)
    assert refused("MODIFY", table_entry=default)[0] == "INVALID_ARGUMENT"
    with pytest.raises(grpc.RpcError) as unread:
        controller.read(table_entry=controller.entry("Out.leaving", time_since_last_hit=hit))
    assert "nothing here has an idle timeout" in str(unread.value.trailing_metadata())
    every = controller.read(table_entry=p4rt.TableEntry(time_since_last_hit=hit))
    assert [entry.HasField("time_since_last_hit") for entry in every] == [True]
