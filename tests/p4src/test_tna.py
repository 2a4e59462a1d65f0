# SPDX-License-Identifier: Apache-2.0
"""The program for Tofino decides as the one for v1model does, packet by packet.

Both get the same entries and the same packets, of one column and one lane group; and once more with two in
packets of ADD, whose upper sums a Tofino takes in a second pass. Whatever comes out must be the same, byte by
byte, but where it says so.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether

from tests.harness.effort import effort
from tests.harness.lab import AGGREGATION_IP, AGGREGATION_MAC, PROTECTED_FRONT, Job, Lab, Uplink, group_of
from tests.harness.soft import SoftTarget
from tests.harness.target import Sent
from tests.harness.tna import SOURCE, NarrowTarget, TnaTarget
from tests.harness.tna_translation import register_programs
from weir.wire.definition import (
    AUDIENCE_ALL,
    AUDIENCE_EXCEPT,
    CE,
    GROUP_LANES,
    NO_BLOCK,
    RELIABLE_DSCP,
    UDP_PORT,
    Event,
    Flag,
    Op,
    PacketType,
    dscp,
    path,
)
from weir.wire.scapy_layer import Weir

pytestmark = pytest.mark.p4c

PLACES = ("root", "leaf", "spine", "middle")  # the last: a spine below a core
STEPS = effort(30, 80)
# Where a round's operations differ already, one more of another kind is counted as such on Tofino only.
# The parent's result once more is passed on once more; without its lanes, answered with what is here.
RESULT_AGAIN = {Event.RESULT_STORED, Event.RESULT_REPEATED, Event.PARTIAL_REPEATED}
# A packet with one of these has begun its round, or came after one that has.
BEGUN = {Event.CONTRIBUTION, Event.ROUND_COMPLETE, Event.PARTIAL_SENT, Event.DISAGREEMENT}
SAME_EVENTS = {Event.DISAGREEMENT: {Event.CONTRIBUTION, Event.ROUND_COMPLETE, Event.PARTIAL_SENT}}


@dataclass(frozen=True)
class Place:
    """One target with the same job installed as on the other."""

    lab: Lab
    job: Job
    uplink: Uplink | None


@pytest.fixture(scope="module")
def programs() -> Iterator[tuple[SoftTarget, NarrowTarget]]:
    """Yield both programs, on soft switches."""
    both = SoftTarget(), TnaTarget()
    yield both
    for target in both:
        target.close()


def install(target: SoftTarget | NarrowTarget, place: str, workers: int, id: int) -> Place:
    """Install a job with slots 8 to 11; the sums of a switch below another are always protected on Tofino."""
    lab = Lab(target)
    job = lab.job(workers, slot_base=8, id=id, racks=place in ("spine", "middle"))
    uplink = lab.uplink(job, port=4, member=3, whole=True) if place in ("leaf", "middle") else None
    return Place(lab, job, uplink)


@dataclass
class Packet:
    """A packet drawn at random: from a child by its number, or from the parent (None)."""

    child: int | None
    kind: PacketType
    lanes: dict[int, list[int]]
    fields: dict[str, Any]

    def send(self, place: Place) -> list[Sent]:
        """Let it arrive; everything that comes out."""
        fields = dict(self.fields)
        if self.child is None:
            assert place.uplink is not None
            return place.uplink.send(self.kind, lanes=self.lanes, **fields)
        packet = place.job.contribution(self.child, lanes=self.lanes, **fields)
        packet[Weir].type = self.kind
        return place.lab.send(place.job.stations[self.child].port, packet)


@dataclass
class Draw:
    """Where a job's slots are, so that packets drawn at random are most often of their rounds, and never more
    than one ahead of those that have begun: a Tofino does not refuse these.
    """

    rng: random.Random
    place: str
    workers: int
    op: Op
    groups: int
    rounds: dict[int, int] = field(default_factory=dict)
    disagreeing: set[tuple[int, int]] = field(default_factory=set)  # slots and rounds

    def send(self, place: Place) -> Event:
        """Let the next packet arrive; what was counted."""
        packet = self.packet()
        packet.send(place)
        (event,) = place.lab.events()
        self.note(packet, event)
        return event

    def note(self, packet: Packet, event: Event) -> None:
        """Take in what became of a packet."""
        slot, round = packet.fields["slot"], packet.fields["round"]
        if event in BEGUN:
            self.rounds[slot] = max(self.rounds.get(slot, 1), round)

    def packet(self) -> Packet:
        """Return the next packet."""
        packet = _draw(self.rng, self.place, self.workers, self.rounds, self.op, self.groups)
        fields = packet.fields
        where = (fields["slot"], fields["round"])
        if packet.child is not None:
            if fields["flags"] & Flag.DISAGREE or fields["check"] == 7:
                self.disagreeing.add(where)
        # The parent heard of it by the sums, or sums another one, and says so, without lanes: a Tofino relies
        # on that.
        elif packet.kind == PacketType.RESULT and (where in self.disagreeing or fields["check"] == 7):
            packet.lanes = {}
            fields["flags"] = fields["flags"] & ~(Flag.TRIMMED | Flag.ANSWER) | Flag.DISAGREE
            fields |= {"included": 0, "count": 0}
        return packet


def drawn(rng: random.Random, groups: int) -> dict[int, list[int]]:
    """Return lanes of this many groups."""
    return {group: [rng.getrandbits(32) for _ in range(GROUP_LANES)] for group in range(groups)}


def _draw(
    rng: random.Random, place: str, workers: int, rounds: dict[int, int], op: Op, groups: int
) -> Packet:
    slot = rng.randrange(2)
    round = max(1, rounds.get(slot, 1) + rng.choice([0, 0, 0, 0, 0, 1, 1, -1, -2]))
    lanes = drawn(rng, groups if op == Op.ADD else 1) if rng.random() < 0.7 else {}
    flags = rng.choice([Flag.PROTECTED] * 6 + [Flag(0), Flag.CONGESTED | Flag.PROTECTED, Flag.DISAGREE])
    if not lanes and rng.random() < 0.4:
        flags = Flag.TRIMMED | rng.choice([Flag(0), Flag.PROTECTED, Flag.PROTECTED | Flag.ANSWER])
    fields: dict[str, Any] = {
        "slot": slot if rng.random() < 0.98 else 4,
        "round": round,
        "op": op,
        "nexts": [rng.choice([NO_BLOCK, rng.randrange(100)])],
        "flags": flags,
        "layer": rng.randrange(4),
        "check": 0x1234 if rng.random() < 0.97 else 7,
        "audience": rng.choice([AUDIENCE_ALL] * 3 + [0, 1, 2, 33, AUDIENCE_EXCEPT, AUDIENCE_EXCEPT | 34]),
    }
    if rng.random() < 0.05:
        fields["traffic_class"] = PROTECTED_FRONT | CE
    if rng.random() < 0.02:
        fields |= rng.choice([{"job": 99}, {"op": 9}, {"layer": 7}, {"magnitude": 3}])
    if place in ("leaf", "middle") and rng.random() < 0.3:
        kind = rng.choice([PacketType.RESULT, PacketType.RESULT, PacketType.REPEAT])
        if kind == PacketType.RESULT:
            fields |= {"included": rng.getrandbits(5), "count": rng.randrange(1, 9) if lanes else 0}
            if not lanes and not flags & Flag.TRIMMED:
                fields["flags"] = Flag.PROTECTED | Flag.ELSEWHERE
        return Packet(None, kind, lanes, fields)
    kind = PacketType.CONTRIBUTION
    if place in ("spine", "middle"):
        fields["count"] = rng.randrange(1, 9) if lanes else 0
        if rng.random() < 0.1:
            kind, fields["included"] = PacketType.RESULT, 5
    elif rng.random() < 0.02:
        kind = PacketType.RESULT  # that a worker has none to send
    return Packet(rng.randrange(workers), kind, lanes, fields)


def in_their_class(sent: list[Sent]) -> list[Sent]:
    """Return what the program for v1model sends with the results that it sends again in their layer's class,
    where the program for Tofino leaves them.
    """
    made = []
    for each in sent:
        frame = Ether(each.frame)
        if Weir in frame and frame[Weir].type == PacketType.RESULT and frame[IP].tos >> 2 == RELIABLE_DSCP:
            frame[IP].tos = dscp(frame[Weir].layer) << 2 | frame[IP].tos & 3
            del frame[IP].chksum
        made.append(Sent(each.port, bytes(frame)))
    return sorted(made)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", range(effort(3, 4)))  # an operator each
def test_it_decides_as_the_program_for_v1model(
    targets: tuple[SoftTarget, NarrowTarget], groups: int, place: str, seed: int
) -> None:
    rng = random.Random(f"{place} {seed}")
    workers, op = rng.choice([1, 2, 3, 5]), list(Op)[seed % 3]
    # Cells of v1model's program are not cleared: each job has an id of its own.
    id = 0xA0000000 + 1024 * groups + 256 * PLACES.index(place) + seed
    theirs, ours = (install(target, place, workers, id) for target in targets)
    draw = Draw(rng, place, workers, op, groups)
    final: set[tuple[int, int]] = set()  # rounds whose result has come from the parent
    for _ in range(STEPS):
        packet = draw.packet()
        where = (packet.fields["slot"], packet.fields["round"])
        expected, sent = in_their_class(packet.send(theirs)), packet.send(ours)
        (event,), (counted,) = theirs.lab.events(), ours.lab.events()
        draw.note(packet, event)
        if event == Event.DROP_STALE_ROUND and counted in RESULT_AGAIN:
            assert where in final and packet.kind == PacketType.RESULT
            return
        if event == Event.RESULT_STORED:
            final.add(where)
        assert (sent, counted) == (expected, event) or (
            sent == expected and event in SAME_EVENTS.get(counted, set())
        ), packet


FULL = 32  # children of a switch
LAST_ONES = effort((0, 10, 21, FULL - 1), range(FULL))  # each bit of a number, set and not


def full_rounds(place: str, groups: int) -> Iterator[Packet]:
    """Yield rounds of a job with as many children as there may be. Each is twice the last, and asked for its
    lanes before; of these rounds, it is the only one to get the result's lanes, and the only one not to.
    """
    rng = random.Random(place)
    round = 0
    for last in LAST_ONES:
        who = path(last) if place == "root" else path(1, last)
        for audience in (who, AUDIENCE_EXCEPT | who):
            round += 1
            order = [child for child in range(FULL) if child != last]
            rng.shuffle(order)
            for number, child in enumerate([order[0], last, *order[1:], last]):
                fields: dict[str, Any] = {"round": round, "audience": audience, "nexts": [last], "slot": 0}
                lanes = drawn(rng, groups) if number != 1 else {}
                fields["flags"] = Flag.PROTECTED if lanes else Flag.TRIMMED | Flag.PROTECTED
                yield Packet(child, PacketType.CONTRIBUTION, lanes, fields)


@pytest.mark.parametrize("place", effort(["spine"], ["root", "spine"]))
@pytest.mark.parametrize("groups", effort([2], [1, 2]), indirect=True)
def test_every_child_of_a_full_switch_counts_is_asked_and_gets_its_copy(
    targets: tuple[SoftTarget, NarrowTarget], groups: int, place: str
) -> None:
    id = 0xD0000000 + 16 * groups + PLACES.index(place)
    theirs, ours = (install(target, place, FULL, id) for target in targets)
    copies = 0
    for packet in full_rounds(place, groups):
        expected, sent = in_their_class(packet.send(theirs)), packet.send(ours)
        assert sent == expected, packet
        copies += len(sent)
    assert ours.lab.events() == theirs.lab.events()
    assert copies >= len(LAST_ONES) * (2 * FULL + 2)  # results, and questions


MALFORMED: list[dict[str, Any]] = [
    *({"flags": Flag.PROTECTED | bit} for bit in (0x40, 0x80)),
    {"flags": Flag.TRIMMED},  # and lanes
    *({"layer": layer} for layer in (4, 8)),
    *({"magnitude": magnitude} for magnitude in (3, 4, 8)),
    *({"worker": worker} for worker in (0x20, 0x40, 0x80)),
    {"kind": 9},
    {"op": 9},
    {"version": 9},
]


@pytest.mark.parametrize("wrong", MALFORMED, ids=str)
def test_what_no_slot_packet_says_is_refused(
    targets: tuple[SoftTarget, NarrowTarget], groups: int, wrong: dict[str, Any]
) -> None:
    id = 0xE0000000 + 256 * groups + MALFORMED.index(wrong)
    places = [install(target, "root", 2, id) for target in targets]
    for place in places:
        packet = place.job.contribution(0, lanes=dict.fromkeys(range(groups), group_of(1)))
        for name, value in wrong.items():
            packet[Weir].setfieldval("type" if name == "kind" else name, value)
        assert place.lab.send(place.job.stations[0].port, packet) == []
    theirs, ours = (place.lab.events() for place in places)
    assert ours == theirs == {Event.DROP_MALFORMED: 1}


def marked_rounds(groups: int) -> Iterator[Packet]:
    """Yield rounds of a leaf with one worker: all that it, and then the parent, can say of congestion, of
    other operations, and of lanes that went elsewhere; and the parent asks again.
    """
    choices = product((0, Flag.DISAGREE), (0, Flag.CONGESTED), (0, Flag.ELSEWHERE), (False, True), (1, 2))
    for round, (disagree, congested, elsewhere, ce, check) in enumerate(choices, 1):
        fields: dict[str, Any] = {"round": round, "slot": 1, "nexts": [3], "check": check}
        fields |= {"traffic_class": PROTECTED_FRONT | CE} if ce else {}
        flags = Flag.PROTECTED | disagree | congested
        own = {group: [round + group] * GROUP_LANES for group in range(groups)}
        yield Packet(0, PacketType.CONTRIBUTION, own, {**fields, "flags": flags})
        has_lanes = not disagree and not elsewhere
        above = {"included": 8 * has_lanes, "count": 2 * has_lanes, "flags": flags | elsewhere}
        lanes = {group: [7 + group] * GROUP_LANES for group in range(groups)} if has_lanes else {}
        yield Packet(None, PacketType.RESULT, lanes, {**fields, **above})
        yield Packet(0, PacketType.CONTRIBUTION, own, {**fields, "flags": flags})
        yield Packet(None, PacketType.REPEAT, {}, {**fields, "flags": Flag(0)})


def test_all_marks_of_children_and_parents_go_where_they_go(
    targets: tuple[SoftTarget, NarrowTarget], groups: int
) -> None:
    theirs, ours = (install(target, "leaf", 1, 0xF0000000 + groups) for target in targets)
    for packet in marked_rounds(groups):
        expected, sent = in_their_class(packet.send(theirs)), packet.send(ours)
        assert sent == expected, packet


@pytest.mark.parametrize("place", ["root", "leaf"])
def test_a_round_that_ends_with_another_operation_says_so(
    targets: tuple[SoftTarget, NarrowTarget], groups: int, place: str
) -> None:
    id = 0xF2000000 + 16 * groups + PLACES.index(place)
    theirs, ours = (install(target, place, 2, id) for target in targets)
    for child, check in enumerate((1, 2)):
        lanes = dict.fromkeys(range(groups), [5] * GROUP_LANES)
        packet = Packet(child, PacketType.CONTRIBUTION, lanes, {"round": 1, "check": check})
        expected, sent = in_their_class(packet.send(theirs)), packet.send(ours)
        assert sent == expected
    assert all(Ether(out.frame)[Weir].flags & Flag.DISAGREE for out in sent) and sent


def test_questions_of_workers_and_wrong_checksums_are_refused(
    targets: tuple[SoftTarget, NarrowTarget], groups: int
) -> None:
    places = [install(target, "root", 2, 0xF1000000 + groups) for target in targets]
    for place in places:
        station = place.job.stations[0]
        question = place.job.contribution(0)
        question[Weir].type = PacketType.REPEAT
        corrupt = place.job.contribution(0, lanes={0: group_of(1)})
        corrupt[IP].chksum = 1
        for packet in (question, corrupt):
            assert place.lab.send(station.port, packet) == []
    theirs, ours = (place.lab.events() for place in places)
    assert ours == theirs == {Event.DROP_NOT_A_CONTRIBUTION: 1, Event.DROP_MALFORMED: 1}


@pytest.mark.parametrize("audience", [0, 1, 33, AUDIENCE_EXCEPT, AUDIENCE_EXCEPT | 1, AUDIENCE_ALL])
def test_whoever_asks_again_gets_the_lanes_only_if_they_are_for_it(
    targets: tuple[SoftTarget, NarrowTarget], groups: int, audience: int
) -> None:
    places = [install(target, "root", 2, 0xC0000000 + (groups << 16) + audience) for target in targets]
    for worker in (0, 1, 0, 1):
        lanes = {group: group_of(1 + worker + 64 * group) for group in range(groups)}
        theirs, ours = (place.job.send(worker, audience=audience, lanes=lanes) for place in places)
        assert ours == in_their_class(theirs)


@pytest.mark.parametrize("groups", effort([2], [1, 2]), indirect=True)
def test_every_event_of_the_slots_is_among_those_compared(
    targets: tuple[SoftTarget, NarrowTarget], groups: int
) -> None:
    """The packets that are compared reach every row of the tables, as far as events tell them apart."""
    seen: set[Event] = set()
    for place in PLACES:
        draw = Draw(random.Random(place), place, 3, Op.ADD, groups)
        at = install(targets[1], place, 3, 0xB0000000)
        seen |= {draw.send(at) for _ in range(effort(200, 500))}
    at = install(targets[1], "leaf", 1, 0xB0000001)
    for packet in marked_rounds(groups):
        packet.send(at)
    seen |= set(at.lab.events())
    assert seen == {
        *(Event.CONTRIBUTION, Event.ROUND_COMPLETE, Event.DUPLICATE_PENDING, Event.DUPLICATE_ANSWERED),
        *(Event.DROP_MALFORMED, Event.DROP_NOT_ADMITTED, Event.DROP_SLOT_RANGE, Event.DROP_STALE_ROUND),
        *(Event.PARTIAL_SENT, Event.PARTIAL_REPEATED, Event.RESULT_STORED, Event.RESULT_RELAYED),
        *(Event.RESULT_REPEATED, Event.REPEAT_ASKED, Event.DISAGREEMENT, Event.DROP_NOT_A_CONTRIBUTION),
    }


def test_several_columns_or_more_lane_groups_are_refused(tna: Lab, groups: int) -> None:
    """What does not fit is counted, never summed in part: nor is MAX or OR with both lane groups."""
    job = tna.job(1)
    both = {0: group_of(1), 1: group_of(1)}
    assert job.send(0, lanes={1: group_of(1)}) == []
    assert job.send(0, lanes={**both, 2: group_of(1)}) == []
    assert job.send(0, block_log2=7, lanes={0: group_of(1)}) == []
    for op in (Op.MAX, Op.OR):
        assert job.send(0, op=op, lanes=both) == []
    assert tna.events() == {Event.DROP_MALFORMED: 5}
    sent = job.send(0, lanes=both)
    if groups == 2:
        assert (sent, tna.events()) == (job.results(lanes=both), {Event.ROUND_COMPLETE: 1})
    else:
        assert (sent, tna.events()) == ([], {Event.DROP_SLOT_RANGE: 1})


def test_one_lane_group_of_a_sum_is_one_with_zeros_above(tna: Lab, groups: int) -> None:
    job = tna.job(2)
    for worker in range(2):
        sent = job.send(worker, lanes={0: group_of(worker)})
    sums = {0: [2 * lane + 1 for lane in range(GROUP_LANES)]}
    if groups == 2:
        sums[1] = [0] * GROUP_LANES
    assert sent == job.results(lanes=sums)


def test_arp_is_answered_and_other_frames_go_by_mac_address(tna: Lab) -> None:
    target = tna.target
    assert isinstance(target, NarrowTarget)
    target.insert("WeirIngress.forwarding.l2", (2,), "forward", (3,))
    target.insert("WeirIngress.forwarding.l2", (0xFFFFFFFFFFFF,), "flood", (9,))
    target.set_group(9, [(1, 0), (2, 0), (3, 0)])
    frame = bytes(
        Ether(src="02:00:00:00:00:01", dst="00:00:00:00:00:02") / IP(dst="10.9.9.9") / UDP(dport=53)
    )
    assert tna.send(1, frame) == [Sent(3, frame)]
    everybody = bytes(Ether(src="02:00:00:00:00:01", dst="ff:ff:ff:ff:ff:ff") / ARP(pdst="10.9.9.9"))
    assert tna.send(1, everybody) == [Sent(2, everybody), Sent(3, everybody)]
    unknown = bytes(Ether(dst="00:00:00:00:00:07") / IP(dst=AGGREGATION_IP) / UDP(dport=UDP_PORT + 1))
    assert tna.send(1, unknown) == []
    assert tna.events() == {Event.FORWARDED: 2, Event.DROP_NO_ROUTE: 1}
    target.answer_arp(AGGREGATION_IP, AGGREGATION_MAC)
    request = Ether(src="02:00:00:00:00:01", dst="ff:ff:ff:ff:ff:ff") / ARP(
        hwsrc="02:00:00:00:00:01", psrc="10.0.0.1", pdst=AGGREGATION_IP
    )
    (sent,) = tna.send(2, request)
    reply = Ether(sent.frame)
    assert (sent.port, reply.dst, reply[ARP].op) == (2, "02:00:00:00:00:01", 2)
    assert (reply[ARP].hwsrc, reply[ARP].psrc, reply[ARP].pdst) == (
        AGGREGATION_MAC,
        AGGREGATION_IP,
        "10.0.0.1",
    )


def test_registers_keep_to_what_a_stateful_alu_can_do() -> None:
    """As far as the text tells: four programs, two comparisons and two words from the packet in each."""
    programs = register_programs(SOURCE)
    assert set(programs) == {
        *("seen", "rounds", "checks", "names", "tallies", "includeds", "aboves", "nexts", "lanes")
    }
    assert len(programs) - 1 + 32 <= 12 * 4  # a register for each lane
    for register, bodies in programs.items():
        assert len(bodies) <= 4, register
        for body in bodies:
            words = re.sub(r"\((\w+\.\w+) \+\+ \w+\.\w+\)", r"\1", body)  # joined on the way in
            assert (
                len(set(re.findall(r"(?<![\w.])(?:hdr|meta)\.[\w.]+|(?<![\w.])(?:lane|upper)\b", words))) <= 2
            ), body
            assert len(set(re.findall(r"[\w.]+ (?:[<>]=?|[!=]=) [\w.]+", body))) <= 2, body
