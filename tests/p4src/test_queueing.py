# SPDX-License-Identifier: Apache-2.0
"""Queues by DSCP, and what happens to a packet whose queue is deep: trimmed, marked, dropped, or nothing.

A limit of 0 packets makes every queue too deep, so that these cases need no congestion. How depths come about
is tested in virtual time (tests/simulator), where queues fill and drain at a known rate.
"""

from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from tests.harness.lab import Job, Lab, group_of, mac_number
from tests.harness.target import Sent
from weir.wire.definition import (
    CE,
    ECT,
    FLOW_PORT,
    MAGNITUDE_CLASSES,
    NOT_ECT,
    RELIABLE_DSCP,
    UDP_PORT,
    Event,
    Flag,
    FlowType,
    Op,
    PacketType,
    Treatment,
    dscp,
)
from weir.wire.scapy_layer import Weir, WeirFlow

CLASSES, ENQUEUE = "WeirIngress.queueing.classes", "WeirIngress.queueing.enqueue"
TREATED, MARKED = "WeirIngress.queueing.per_hop_behaviours", "WeirEgress.marking.per_hop_behaviours"
HERE, THERE = "02:00:00:00:01:01", "02:00:00:00:01:02"
NEVER = 0xFFFF
LAYER = 2
CODE = dscp(LAYER, 1)
QUEUE = CODE >> 3
LANES = {0: group_of(5), 3: group_of(2**31)}


def limits(lab: Lab, code: int, *, trim: int = NEVER, mark: int = NEVER, drop: int = NEVER) -> None:
    """Install a traffic class in its default queue."""
    lab.target.insert(CLASSES, (code,), ENQUEUE, (code >> 3, trim, mark, drop))


@pytest.fixture
def elsewhere(lab: Lab) -> Lab:
    """Return a switch on the way: what is for THERE leaves by port 3."""
    lab.target.insert(
        "WeirIngress.forwarding.l2", (mac_number(THERE),), "WeirIngress.forwarding.forward", (3,)
    )
    return lab


def passing(job: Job, **fields: Any) -> Any:
    """Return a contribution of layer class LAYER for an aggregation switch behind port 3, droppable by
    default.
    """
    fields = {"lanes": LANES, "flags": 0, "layer": LAYER, "magnitude": 1, **fields}
    frame = job.contribution(0, **{"traffic_class": CODE << 2 | NOT_ECT, **fields})
    frame[Ether].dst, frame[IP].dst = THERE, "10.0.9.254"
    return Ether(bytes(frame))


def flow_packet(
    kind: FlowType, *, flags: int = 0, ecn: int = NOT_ECT, data: bytes = bytes(range(200))
) -> Any:
    """Return a packet of a flow to a server behind port 3."""
    return Ether(
        bytes(
            Ether(src=HERE, dst=THERE)
            / IP(src="10.0.0.1", dst="10.0.9.7", tos=CODE << 2 | ecn)
            / UDP(sport=40000, dport=FLOW_PORT)
            / WeirFlow(type=kind, flags=flags, layer=LAYER, flow=7, tensor=1, index=5, count=9)
            / Raw(data)
        )
    )


def trimmed(frame: Any, headers: int) -> bytes:
    """Return what must be left of a frame, of whose UDP payload the first this many bytes stay."""
    made = frame.copy()
    made[UDP].remove_payload()
    made = made / Raw(bytes(frame[UDP].payload)[:headers])
    made[IP].tos = RELIABLE_DSCP << 2 | NOT_ECT
    made[UDP].chksum = 0
    del made[IP].len, made[IP].chksum, made[UDP].len
    return bytes(made)


def trimmed_contribution(frame: Any) -> bytes:
    """Return a contribution without its lanes."""
    bare = frame.copy()
    weir = bare[Weir]
    weir.flags, weir.groups, weir.count, weir.lanes = weir.flags | Flag.TRIMMED, 0, 0, []
    return trimmed(bare, len(weir))


def per_hop_behaviours(lab: Lab) -> dict[tuple[Treatment, int], int]:
    """(treatment, queue) -> packets, without zeros."""
    found = {}
    for treatment in Treatment:
        counter = MARKED if treatment is Treatment.MARKED else TREATED
        for queue in range(8):
            packets = lab.target.counter(counter, treatment << 3 | queue).packets
            if packets:
                found[treatment, queue] = packets
    return found


def treated(lab: Lab, frame: Any) -> tuple[list[Sent], dict[tuple[Treatment, int], int]]:
    """Return what comes out for a frame, and what is counted for it (queue 0 is for the test's own
    markers).
    """
    before = per_hop_behaviours(lab)
    sent = lab.send(1, frame)
    after = per_hop_behaviours(lab)
    return sent, {
        key: n - before.get(key, 0) for key, n in after.items() if n != before.get(key, 0) and key[1] != 0
    }


class TestTrimming:
    """Lanes, or a chunk's data, cut off."""

    @pytest.mark.parametrize("block_log2", [5, 8])
    def test_droppable_lanes_are_cut_off(self, elsewhere: Lab, block_log2: int) -> None:
        limits(elsewhere, CODE, trim=0)
        columns = 256 >> block_log2
        frame = passing(
            elsewhere.job(2),
            block_log2=block_log2,
            blocks=range(columns),
            nexts=range(50, 50 + columns),
            op=Op.ADD,
            slot=3,
            round=9,
        )
        sent, counted = treated(elsewhere, frame)
        assert sent == [Sent(3, trimmed_contribution(frame))]
        assert counted == {(Treatment.TRIMMED, QUEUE): 1}
        assert elsewhere.events() == {Event.FORWARDED: 1}

    @pytest.mark.parametrize(
        "kept",
        [
            {"flags": Flag.PROTECTED},
            {"traffic_class": CODE << 2 | ECT},
            {"traffic_class": CODE << 2 | CE},
            {"flags": Flag.PROTECTED, "traffic_class": CODE << 2 | ECT},
            {"lanes": {}},
            {"type": PacketType.RESULT},
            {"traffic_class": dscp(LAYER - 1, 1) << 2},
        ],
        ids=str,
    )
    def test_nothing_else_loses_its_lanes(self, elsewhere: Lab, kept: dict[str, Any]) -> None:
        limits(elsewhere, CODE, trim=0)
        frame = passing(elsewhere.job(2), **kept)
        assert elsewhere.send(1, frame) == [Sent(3, bytes(frame))]

    def test_a_cut_off_packet_is_not_cut_again(self, elsewhere: Lab) -> None:
        """Half a contribution ends inside its lanes: there is nothing to be sure of."""
        limits(elsewhere, CODE, trim=0)
        frame = bytes(passing(elsewhere.job(2)))[:-64]
        assert elsewhere.send(1, frame) == [Sent(3, frame)]

    @pytest.mark.parametrize("server", [False, True])
    def test_droppable_chunks_lose_their_data(self, elsewhere: Lab, server: bool) -> None:
        limits(elsewhere, CODE, trim=0)
        frame = flow_packet(FlowType.CHUNK)
        if server:  # to a worker, whose port may be any
            frame[UDP].sport, frame[UDP].dport = FLOW_PORT, 40000
            frame[UDP].chksum = 0
        expected = frame.copy()
        raw = bytearray(bytes(expected[UDP].payload))
        raw[1] |= Flag.TRIMMED
        expected[UDP].remove_payload()
        expected = expected / Raw(bytes(raw))
        sent, counted = treated(elsewhere, frame)
        assert sent == [Sent(3, trimmed(expected, 24))]
        assert counted == {(Treatment.TRIMMED, QUEUE): 1}

    @pytest.mark.parametrize(
        "frame",
        [
            flow_packet(FlowType.CHUNK, flags=Flag.PROTECTED),
            flow_packet(FlowType.CHUNK, ecn=ECT),
            flow_packet(FlowType.CHUNK, data=b""),
            flow_packet(FlowType.PROBE),
            flow_packet(FlowType.BITMAP),
            flow_packet(FlowType.STOP),
        ],
        ids=["protected", "ecn-capable", "no data", "probe", "bitmap", "stop"],
    )
    def test_no_other_flow_packet_loses_data(self, elsewhere: Lab, frame: Any) -> None:
        limits(elsewhere, CODE, trim=0)
        assert elsewhere.send(1, frame) == [Sent(3, bytes(frame))]

    def test_given_up_partial_sums_are_cut_off_on_the_way_to_the_spine(self, lab: Lab) -> None:
        limits(lab, CODE, trim=0)
        up = lab.uplink(lab.job(2, ports=[1, 2]), port=3)
        fields = {"layer": LAYER, "magnitude": 1}
        for worker in (0, 1):
            sent = up.job.send(worker, lanes=LANES, flags=0, **fields)
        assert sent == [up.partial(flags=Flag.TRIMMED, **fields, traffic_class=RELIABLE_DSCP << 2)]

    @pytest.mark.parametrize("spared", range(MAGNITUDE_CLASSES))
    def test_drop_precedences_share_a_queue_and_not_its_limit(self, elsewhere: Lab, spared: int) -> None:
        """What is below the spared magnitude is trimmed, and counted in the same queue."""
        for magnitude in range(MAGNITUDE_CLASSES):
            limits(elsewhere, dscp(LAYER, magnitude), trim=NEVER if magnitude >= spared else 0)
        for magnitude in range(MAGNITUDE_CLASSES):
            frame = passing(
                elsewhere.job(2), magnitude=magnitude, traffic_class=dscp(LAYER, magnitude) << 2 | NOT_ECT
            )
            sent, counted = treated(elsewhere, frame)
            cut = magnitude < spared
            assert sent == [Sent(3, trimmed_contribution(frame) if cut else bytes(frame))]
            assert counted == {(Treatment.TRIMMED if cut else Treatment.QUEUED, QUEUE): 1}

    def test_a_changed_limit_holds_from_the_next_packet_on(self, elsewhere: Lab) -> None:
        frame = passing(elsewhere.job(2))
        limits(elsewhere, CODE)
        for trim, expected in ((NEVER, bytes(frame)), (0, trimmed_contribution(frame))) * 2:
            elsewhere.target.modify(CLASSES, (CODE,), ENQUEUE, (QUEUE, trim, NEVER, NEVER))
            assert elsewhere.send(1, frame) == [Sent(3, expected)]


def plain(ecn: int) -> Any:
    """Somebody else's UDP."""
    return Ether(bytes(Ether(src=HERE, dst=THERE) / IP(dst="10.9.9.9", tos=0x28 | ecn) / UDP() / b"payload"))


class TestDropping:
    """What can be neither trimmed nor marked."""

    def test_what_cannot_be_trimmed_is_dropped(self, elsewhere: Lab) -> None:
        limits(elsewhere, 0x28 >> 2, trim=0, drop=0)
        sent, counted = treated(elsewhere, plain(NOT_ECT))
        assert sent == []
        assert counted == {(Treatment.DROPPED, 0x28 >> 5): 1}
        assert elsewhere.events() == {Event.DROP_CONGESTION: 1}

    def test_what_can_be_trimmed_is_not_dropped(self, elsewhere: Lab) -> None:
        limits(elsewhere, CODE, trim=0, drop=0)
        frame = passing(elsewhere.job(2))
        assert elsewhere.send(1, frame) == [Sent(3, trimmed_contribution(frame))]

    def test_what_can_be_marked_is_not_dropped(self, elsewhere: Lab) -> None:
        limits(elsewhere, 0x28 >> 2, trim=0, drop=0)
        assert elsewhere.send(1, plain(ECT)) == [Sent(3, bytes(plain(ECT)))]


class TestMarking:
    """Congestion marks."""

    @pytest.mark.parametrize("ecn", [1, ECT, CE, NOT_ECT])
    @pytest.mark.parametrize("address", ["10.9.9.9", "255.255.255.255", "0.0.0.0"])
    def test_ecn_capable_packets_are_marked(self, elsewhere: Lab, ecn: int, address: str) -> None:
        """With a checksum that is right for the mark."""
        limits(elsewhere, 0x28 >> 2, mark=0)
        frame, marked = plain(ecn), plain(CE if ecn else NOT_ECT)
        for packet in (frame, marked):
            packet[IP].dst = address
            packet[UDP].chksum = 0
            del packet[IP].chksum
        sent, counted = treated(elsewhere, frame)
        assert sent == [Sent(3, bytes(marked))]
        assert counted.get((Treatment.MARKED, 0x28 >> 5), 0) == (ecn in (1, ECT))

    def test_results_are_marked(self, lab: Lab) -> None:
        limits(lab, dscp(LAYER), mark=0)
        job = lab.job(2)
        job.send(0, lanes=LANES, layer=LAYER)
        marked = job.results(lanes=LANES, included=0b01, layer=LAYER, traffic_class=dscp(LAYER) << 2 | CE)
        assert job.send(1, layer=LAYER) == marked


def test_packets_are_counted_by_class_and_queue(elsewhere: Lab) -> None:
    limits(elsewhere, CODE)
    limits(elsewhere, RELIABLE_DSCP)
    job = elsewhere.job(2)
    before = per_hop_behaviours(elsewhere)
    for _ in range(3):
        elsewhere.send(1, passing(job))
    elsewhere.send(1, passing(job, lanes={}, traffic_class=RELIABLE_DSCP << 2))
    after = per_hop_behaviours(elsewhere)
    assert after[Treatment.QUEUED, QUEUE] - before.get((Treatment.QUEUED, QUEUE), 0) == 3
    assert after[Treatment.QUEUED, 7] - before.get((Treatment.QUEUED, 7), 0) == 1
    assert elsewhere.target.entry_counter(CLASSES, (CODE,)).packets == 3


def test_tcp_of_any_class_passes_as_it_is(elsewhere: Lab) -> None:
    limits(elsewhere, CODE, trim=0)
    tos = CODE << 2
    frame = Ether(src=HERE, dst=THERE) / IP(dst="10.9.9.9", tos=tos) / TCP(dport=UDP_PORT) / b"payload"
    assert elsewhere.send(1, frame) == [Sent(3, bytes(frame))]
