# SPDX-License-Identifier: Apache-2.0
"""Frames that leave: unicast, multicast, drops, clones, resubmission, recirculation, truncation."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from softp4.errors import Code, ControlError
from softp4.switch import MAX_FRAME, Switch
from tests.aged import aged_program
from tests.programs import pack, program, unpack

UNICAST, MULTICAST, DROPPED, CLONE_IN, RESUBMIT, CLONE_OUT, RECIRCULATE, TRUNCATE, ONLY_CLONE, FOREVER = (
    range(1, 11)
)
SEEN = (8, 16, 16, 16, 16, 8, 8, 32)
PAYLOAD = b"payload"
KEPT, LOST = 0x77, 0x99  # metadata the program sets in ingress; the first is on the field list


@pytest.fixture(params=["today's JSON", "p4c-bm's JSON"])
def switch(request: pytest.FixtureRequest) -> Iterator[Switch]:
    read = program if request.param == "today's JSON" else aged_program
    with Switch(read("traffic")) as made:
        yield made


@dataclass(frozen=True)
class Copy:
    """A frame that left, with what its egress saw."""

    port: int
    type: int
    rid: int = 0
    kept: int = KEPT
    lost: int = LOST
    ingress_port: int = 5
    length: int = 4 + len(PAYLOAD)
    stamp: int = 1234
    rest: bytes = b""


def order(what: int, argument: int = 0, rounds: int = 0) -> bytes:
    return pack([(what, 8), (argument, 16), (rounds, 8)])


def send(switch: Switch, frame: bytes) -> list[Copy]:
    copies = []
    for port, sent in switch.process(5, frame, now=1_234_567):
        kind, port_seen, rid, ingress, length, kept, lost, stamp = unpack(sent[:15], SEEN)
        assert port_seen == port
        copies.append(Copy(port, kind, rid, kept, lost, ingress, length, stamp, sent[15:]))
    return copies


def test_unicast(switch: Switch) -> None:
    frame = order(UNICAST, 300) + PAYLOAD
    assert send(switch, frame) == [Copy(300, 0, rest=frame)]


def test_port_511_is_nowhere(switch: Switch) -> None:
    assert switch.process(5, order(UNICAST, 511) + PAYLOAD, 0) == []
    assert switch.statistics().packets_dropped == 1


def test_replicas_leave_in_order_and_start_equal(switch: Switch) -> None:
    """Also: a drop before multicast does not count, and each replica begins with ingress's metadata."""
    switch.multicast_groups.set(4, [(1, 10), (2, 11), (2, 12), (3, 0)])
    frame = order(MULTICAST, 4) + PAYLOAD
    assert send(switch, frame) == [
        Copy(port, 5, rid, rest=frame) for port, rid in [(1, 10), (2, 11), (2, 12), (3, 0)]
    ]


def test_a_replica_dropped_in_egress_leaves_the_others(switch: Switch) -> None:
    switch.multicast_groups.set(4, [(1, 13), (2, 11), (3, 13), (4, 12)])
    frame = order(MULTICAST, 4) + PAYLOAD
    assert send(switch, frame) == [Copy(2, 5, 11, rest=frame), Copy(4, 5, 12, rest=frame)]


def test_groups_change_and_go(switch: Switch) -> None:
    frame = order(MULTICAST, 4) + PAYLOAD
    assert send(switch, frame) == []
    switch.multicast_groups.set(4, [(1, 1)])
    switch.multicast_groups.set(4, [(2, 2)])
    assert [copy.port for copy in send(switch, frame)] == [2]
    switch.multicast_groups.delete(4)
    assert send(switch, frame) == []
    with pytest.raises(ControlError) as caught:
        switch.multicast_groups.delete(4)
    assert caught.value.code is Code.NOT_FOUND
    with pytest.raises(ControlError):
        switch.multicast_groups.set(0, [(1, 1)])


def test_a_drop_after_multicast_wins(switch: Switch) -> None:
    switch.multicast_groups.set(4, [(1, 1)])
    assert send(switch, order(DROPPED, 4) + PAYLOAD) == []


def test_clone_at_ingress_is_the_packet_as_it_came(switch: Switch) -> None:
    """Of the metadata only the field list survives; the clone leaves before the packet."""
    switch.clone_sessions.set(6, [(9, 21)])
    frame = order(CLONE_IN, 6, 3) + PAYLOAD
    changed = order(CLONE_IN, 6, 0xEE) + PAYLOAD
    assert send(switch, frame) == [
        Copy(9, 1, 21, lost=0, ingress_port=0, rest=frame),
        Copy(1, 0, rest=changed),
    ]


def test_clone_of_a_dropped_packet(switch: Switch) -> None:
    switch.clone_sessions.set(6, [(9, 1), (10, 2)], packet_length=20)
    frame = order(ONLY_CLONE, 6) + PAYLOAD
    copies = send(switch, frame)
    assert [(copy.port, copy.type, copy.kept) for copy in copies] == [(9, 1, 0), (10, 1, 0)]
    assert [copy.rest for copy in copies] == [frame[:5]] * 2  # 15 bytes of report make 20


def test_clone_to_no_session_is_no_clone(switch: Switch) -> None:
    assert [copy.port for copy in send(switch, order(CLONE_IN, 6) + PAYLOAD)] == [1]


def test_clone_at_egress(switch: Switch) -> None:
    switch.clone_sessions.set(6, [(9, 21)])
    frame = order(CLONE_OUT, 6) + PAYLOAD
    packet, clone = send(switch, frame)
    assert packet == Copy(1, 0, rest=frame)
    # cloned after egress put its report in front: that is in the clone's length, as in BMv2
    assert (clone.port, clone.type, clone.rid, clone.length) == (9, 2, 21, packet.length + 15)
    assert clone.lost == 0
    assert clone.rest == frame


def test_resubmit_parses_the_packet_again(switch: Switch) -> None:
    """Twice, until the field list's counter says stop."""
    frame = order(RESUBMIT, 0, 1) + PAYLOAD
    assert send(switch, frame) == [
        Copy(1, 0, kept=KEPT + 2, lost=0, ingress_port=0, rest=frame),
    ]


def test_recirculate_takes_the_deparsed_packet(switch: Switch) -> None:
    assert send(switch, order(RECIRCULATE, 0, 3) + PAYLOAD) == [
        Copy(1, 0, lost=0, ingress_port=0, rest=order(RECIRCULATE) + PAYLOAD)
    ]


def test_recirculation_may_take_many_rounds(switch: Switch) -> None:
    (copy,) = send(switch, order(RECIRCULATE, 0, 255) + PAYLOAD)
    assert copy.rest == order(RECIRCULATE) + PAYLOAD


def test_endless_recirculation_ends(switch: Switch) -> None:
    """Also when every round makes two of one."""
    switch.clone_sessions.set(3, [(1, 1)])
    for argument in (2, 3):
        assert switch.process(5, order(FOREVER, argument) + PAYLOAD, 0) == []
    assert switch.statistics().packets_dropped >= 2
    assert send(switch, order(UNICAST, 1))[0].rest == order(UNICAST, 1)


def test_truncation_cuts_the_outgoing_frame(switch: Switch) -> None:
    frame = order(TRUNCATE, 21) + PAYLOAD
    (copy,) = send(switch, frame)
    assert copy.rest == frame[:6]


def test_frame_sizes(switch: Switch) -> None:
    """MAX_FRAME in is the most; what would come out longer is dropped, and both are counted."""
    head = order(UNICAST, 1)
    assert switch.process(5, head + bytes(MAX_FRAME - 3), 0) == []
    assert switch.process(5, head + bytes(MAX_FRAME - 4), 0) == []  # grows by 15 bytes
    ((_, frame),) = switch.process(5, head + bytes(MAX_FRAME - 19), 0)
    assert len(frame) == MAX_FRAME
    counts = switch.statistics()
    assert (counts.packets_in, counts.packets_out, counts.packets_dropped) == (3, 1, 2)
    assert (counts.bytes_in, counts.bytes_out) == (MAX_FRAME + 1 + MAX_FRAME + MAX_FRAME - 15, MAX_FRAME)


def test_packet_out_needs_a_cpu_port(switch: Switch) -> None:
    with pytest.raises(ControlError):
        switch.packet_out(order(UNICAST, 1), 0)
    with Switch(program("traffic"), cpu_port=510) as other:
        ((port, frame),) = other.packet_out(order(UNICAST, 7), 0)
        assert (port, unpack(frame[:15], SEEN)[3]) == (7, 510)


def test_a_closed_switch_says_so(switch: Switch) -> None:
    switch.close()
    switch.close()
    with pytest.raises(ValueError, match="closed"):
        switch.process(1, b"", 0)
    with pytest.raises(ValueError, match="closed"):
        switch.multicast_groups.set(1, [])
