# SPDX-License-Identifier: Apache-2.0
"""``weir pcap audit`` finds every breach planted in captures of real switches and hosts, and names it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet as Layers

from tests.weir.captures import (
    CALM,
    TOPOLOGIES,
    WILD,
    Change,
    Wanted,
    edited,
    fields,
    found,
    frames_of,
    is_,
    layers,
    operators,
    planted,
    raw_bytes,
    reclassed,
    shared,
    sums,
    weir,
)
from weir.pcap.audit import PacketAudit, Rule
from weir.pcap.capture import RawFrame
from weir.pcap.frames import CapturedFrame
from weir.wire.definition import CE, ECT, FLOW, NOT_ECT, RELIABLE_DSCP, Flag, FlowType, Op, PacketType, dscp
from weir.wire.scapy_layer import Weir, WeirFlow

RESULT, CONTRIBUTION = PacketType.RESULT, PacketType.CONTRIBUTION


@pytest.fixture(scope="module")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sums(
        tmp_path_factory.mktemp("captures") / "racks.pcapng", TOPOLOGIES["two racks"], CALM, blocks=24
    )


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return operators(tmp_path_factory.mktemp("captures") / "operators.pcapng")


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared(tmp_path_factory.mktemp("captures") / "shared.pcapng", lanes=30_000)


def one_lane_more(frame: Layers) -> None:
    frame[Weir].lanes[0] = (frame[Weir].lanes[0] + 1) % 2**32


def lanes(edit: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Return a change of all lanes."""

    def change(frame: Layers) -> None:
        frame[Weir].lanes = edit(np.array(frame[Weir].lanes, np.uint32)).tolist()

    return layers(change)


def without_lanes(**values: object) -> Change:
    """Return a change that leaves the header alone, with these fields."""

    def change(frame: Layers) -> None:
        frame[Weir].lanes = []
        for name, value in {"groups": 0, "count": 0, **values}.items():
            frame[Weir].setfieldval(name, value)

    return layers(change)


def columns(**values: int) -> Change:
    def change(frame: Layers) -> None:
        for column in frame[Weir].columns:
            for name, value in values.items():
                column.setfieldval(name, value)

    return layers(change)


def in_order(*changes: Change) -> Change:
    def change(raw: RawFrame) -> RawFrame:
        for one in changes:
            raw = one(raw)
        return raw

    return change


def round_(number: int, wanted: Wanted) -> Wanted:
    return lambda seen: wanted(seen) and seen.packet is not None and seen.packet.round == number


def byte(at: int, change: int) -> Change:
    def edit(data: bytearray) -> None:
        data[at] ^= change

    return raw_bytes(edit)


def cut_from(at: int) -> Change:
    def edit(data: bytearray) -> None:
        del data[at:]

    return raw_bytes(edit)


def filled(frame: Layers) -> None:
    frame[Weir].setfieldval("flags", Flag.PROTECTED)
    frame[Weir].groups, frame[Weir].lanes = 1, [1] * 32


def longer(data: bytearray) -> None:
    data += bytes(20)


def damaged_behind_its_checksum(raw: RawFrame) -> RawFrame:
    frame = Ether(raw.data)
    del frame[UDP].chksum
    data = bytearray(bytes(frame))
    data[-3] ^= 0x10
    return replace(raw, data=bytes(data))


UP, DOWN = is_(CONTRIBUTION, "h1 > leaf1"), is_(RESULT, "leaf1 > h1")
IPV4_CHECKSUM, UDP_CHECKSUM, UDP_LENGTH = 24, 40, 38  # offsets in a frame

BREACHES: dict[str, tuple[Rule, Wanted, Change]] = {
    # -- the envelope
    "a wrong IPv4 checksum": (Rule.CHECKSUM, DOWN, byte(IPV4_CHECKSUM, 1)),
    "an address that its checksum does not know": (Rule.CHECKSUM, UP, byte(29, 4)),
    "a wrong UDP checksum": (Rule.CHECKSUM, DOWN, fields(UDP, chksum=0x1234)),
    "a payload that its UDP checksum does not know": (Rule.CHECKSUM, UP, damaged_behind_its_checksum),
    "a total length of more": (Rule.LENGTH, DOWN, fields(IP, len=2000)),
    "a total length of less": (Rule.LENGTH, UP, fields(IP, len=900)),
    "a wrong UDP length": (Rule.LENGTH, UP, byte(UDP_LENGTH, 1)),
    "a frame that was cut": (Rule.LENGTH, UP, cut_from(500)),
    "something behind the packet": (Rule.LENGTH, DOWN, raw_bytes(longer)),
    "a fragment": (Rule.LENGTH, UP, fields(IP, flags="MF")),
    "a TTL that ran out": (Rule.ON_THE_WAY, UP, fields(IP, ttl=0)),
    "a result to another MAC": (Rule.ADDRESS, DOWN, fields(Ether, dst="02:00:00:00:00:99")),
    "a result from another MAC": (Rule.ADDRESS, DOWN, fields(Ether, src="02:00:00:00:00:99")),
    "a contribution from another MAC": (Rule.ADDRESS, UP, fields(Ether, src="02:00:00:00:00:99")),
    "a result from another address": (Rule.ADDRESS, DOWN, fields(IP, src="10.9.9.9")),
    "a result to another worker's address": (Rule.ADDRESS, DOWN, fields(IP, dst="10.0.1.2")),
    "a result to another port": (Rule.ADDRESS, DOWN, fields(UDP, dport=4000)),
    "a result with another worker's number": (Rule.ADDRESS, DOWN, weir(worker=2)),
    "a contribution in another's name": (Rule.ADDRESS, UP, fields(IP, src="10.0.1.9")),
    "a malformed packet": (Rule.WELL_FORMED, UP, weir(version=7)),
    "a packet with more than it says": (Rule.WELL_FORMED, UP, weir(groups=0x7F)),
    # -- sums
    "a sum of a leaf": (Rule.SUMS, is_(CONTRIBUTION, "leaf1 > spine"), layers(one_lane_more)),
    "a sum of a spine": (Rule.SUMS, is_(RESULT, "spine1 > leaf1"), layers(one_lane_more)),
    "a result of a leaf": (Rule.SUMS, DOWN, layers(one_lane_more)),
    "a contribution": (Rule.SUMS, is_(CONTRIBUTION, "h2 > leaf1"), layers(one_lane_more)),
    "one replica": (Rule.REPLICAS, is_(RESULT, "leaf1 > h2"), layers(one_lane_more)),
    "a mask of nobody": (Rule.MASK, DOWN, weir(included=0)),
    "a mask of a stranger": (
        Rule.MASK,
        is_(CONTRIBUTION, "leaf1 > spine"),
        weir(included=lambda mask: mask | 1 << 9),
    ),
    "a count": (Rule.MASK, is_(RESULT, "spine1 > leaf1"), weir(count=5)),
    "a worker that is included without lanes": (Rule.MASK, is_(CONTRIBUTION, "leaf1 > spine"), weir(count=0)),
    # -- rounds
    "a round too early": (Rule.ROUND_ORDER, round_(3, UP), weir(round=lambda number: number + 1)),
    "a next block too far": (Rule.NEXT, is_(RESULT, "spine1 > leaf1"), columns(next=1000)),
    "blocks that nobody asked for": (Rule.NEXT, round_(3, UP), columns(block=7)),
    "a result of other blocks": (Rule.OPERATION, DOWN, columns(block=7)),
    "another operation": (Rule.OPERATION, UP, weir(check=77)),
    "a result of another operation": (Rule.OPERATION, DOWN, weir(check=77)),
    "a result of another operator": (Rule.OPERATION, DOWN, weir(op=Op.OR)),
    "a result for another audience": (Rule.OPERATION, DOWN, weir(audience=2)),
    "lanes for a stranger": (
        Rule.AUDIENCE,
        is_(RESULT, "leaf1 > h1", lanes=False, elsewhere=True),
        layers(filled),
    ),
    "lanes kept from the audience": (
        Rule.AUDIENCE,
        lambda seen: is_(RESULT, "leaf1 > h2")(seen) and seen.packet.audience == 1,
        without_lanes(flags=Flag.PROTECTED | Flag.ELSEWHERE, count=5),
    ),
    # -- classes
    "a class": (Rule.CLASS, is_(CONTRIBUTION, "h1 > leaf1", protected=True), reclassed(10, ECT)),
    "a droppable packet that can be marked": (
        Rule.CLASS,
        is_(CONTRIBUTION, "h1 > leaf1", protected=False),
        fields(IP, tos=lambda tos: tos | ECT),
    ),
    "a protected packet that can be dropped": (
        Rule.CLASS,
        is_(CONTRIBUTION, "h1 > leaf1", protected=True),
        fields(IP, tos=lambda tos: tos & ~3),
    ),
    "ECT(1), which Weir does not send": (
        Rule.CLASS,
        is_(CONTRIBUTION, "h1 > leaf1", protected=True),
        fields(IP, tos=lambda tos: tos & ~3 | 1),
    ),
    "congestion that a switch keeps to itself": (
        Rule.CLASS,
        is_(CONTRIBUTION, "h1 > leaf1", protected=True),
        fields(IP, tos=lambda tos: tos | CE),
    ),
    "lanes on a trimmed packet": (Rule.TRIMMED, UP, weir(flags=lambda flags: flags | Flag.TRIMMED)),
    "a trimmed packet in its old class": (
        Rule.TRIMMED,
        UP,
        in_order(without_lanes(flags=Flag.TRIMMED), reclassed(dscp(1), NOT_ECT)),
    ),
    # -- loss budgets
    "protected lanes that a switch goes without": (
        Rule.BUDGET,
        is_(CONTRIBUTION, "leaf1 > spine", protected=True),
        weir(included=lambda mask: mask & ~1),
    ),
    "sums that may be shed although their parts may not": (
        Rule.BUDGET,
        lambda seen: is_(CONTRIBUTION, "leaf1 > spine", protected=True)(seen) and seen.packet.layer == 0,
        in_order(weir(flags=0), fields(IP, tos=lambda tos: tos & ~3)),
    ),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_planted_breach_is_found_and_its_frame_named(racks: Path, name: str) -> None:
    rule, wanted, change = BREACHES[name]
    audit, seen = planted(racks, wanted, change, number=3)
    assert found(audit, rule, seen.place), (rule, seen.place, audit.findings[:4])


# -- what a switch does with several packets -------------------------------------------------------------


def copies_of(path: Path, wanted: Wanted) -> list[CapturedFrame]:
    return [seen for _, seen in frames_of(path) if wanted(seen)]


def test_a_contribution_that_is_added_twice_is_called_so(racks: Path) -> None:
    parts = copies_of(racks, round_(2, is_(CONTRIBUTION, "h2 > leaf1")))
    (part, *_) = [seen.packet for seen in parts if seen.packet is not None and seen.packet.slot == 5]
    wanted = round_(2, is_(CONTRIBUTION, "leaf1 > spine"))
    audit, seen = planted(
        racks,
        lambda seen: wanted(seen) and seen.packet is not None and seen.packet.slot == 5,
        lanes(lambda sum_: sum_ + part.lanes),
    )
    (finding,) = found(audit, Rule.SUMS, seen.place)[:1]
    assert f"those of child {part.worker} are added twice" in finding.text


def test_included_lanes_that_are_missing_in_the_sums_are_called_so(racks: Path) -> None:
    parts = copies_of(racks, round_(2, is_(CONTRIBUTION, "h3 > leaf1")))
    (part, *_) = [seen.packet for seen in parts if seen.packet is not None and seen.packet.slot == 5]
    wanted = round_(2, is_(CONTRIBUTION, "leaf1 > spine"))
    audit, seen = planted(
        racks,
        lambda seen: wanted(seen) and seen.packet is not None and seen.packet.slot == 5,
        lanes(lambda sum_: sum_ - part.lanes),
    )
    (finding,) = found(audit, Rule.SUMS, seen.place)[:1]
    assert f"those of child {part.worker} are missing" in finding.text


@pytest.mark.parametrize("op", [Op.MAX, Op.OR])
def test_a_wrong_maximum_or_or_is_found(operations: Path, op: Op) -> None:
    wanted = is_(RESULT, "leaf1 > h1")
    audit, seen = planted(
        operations,
        lambda seen: wanted(seen) and seen.packet is not None and seen.packet.op is op,
        layers(one_lane_more),
        number=2,
    )
    assert f"are not {op.name} of" in found(audit, Rule.SUMS, seen.place)[0].text


def test_a_sum_where_a_maximum_is_due_is_called_so(operations: Path) -> None:
    """A program that adds whatever the operator is."""
    parts: dict[tuple[int, int], dict[int, np.ndarray]] = {}

    def edit(raw: RawFrame, seen: CapturedFrame) -> list[RawFrame]:
        packet = seen.packet
        if packet is None or packet.op is not Op.MAX or not packet.groups:
            return [raw]
        known = parts.setdefault((packet.slot, packet.round), {})
        if packet.type is CONTRIBUTION:
            known[packet.worker] = packet.lanes
            return [raw]
        total = np.sum(list(known.values()), axis=0, dtype=np.uint32)
        return [lanes(lambda _: total)(raw)]

    audit = edited(operations, edit)
    wrong = found(audit, Rule.SUMS)
    assert wrong and any("they are their ADD" in finding.text for finding in wrong), audit.findings[:3]


def test_lanes_of_a_maximum_that_may_be_shed_are_found(operations: Path) -> None:
    wanted = is_(CONTRIBUTION, "h1 > leaf1")
    audit, seen = planted(
        operations,
        lambda seen: wanted(seen) and seen.packet is not None and seen.packet.op is Op.MAX,
        in_order(weir(flags=0), fields(IP, tos=lambda tos: tos & ~3)),
    )
    assert found(audit, Rule.BUDGET, seen.place), audit.findings[:3]


@pytest.mark.parametrize("later", [1, 400], ids=["at once", "long after"])
def test_a_result_that_changes_after_its_round_is_complete_is_found(racks: Path, later: int) -> None:
    """A worker asks once more, and gets other lanes."""
    kept: list[tuple[int, RawFrame]] = []

    def edit(raw: RawFrame, seen: CapturedFrame) -> list[RawFrame]:
        if not kept and round_(1, is_(RESULT, "leaf1 > h2"))(seen):
            kept.append((raw.number + later, layers(one_lane_more)(raw)))
        frames = [raw]
        if kept and raw.number == kept[0][0]:
            frames.append(replace(kept[0][1], number=99_999, time=raw.time))
        return frames

    audit = edited(racks, edit)
    assert any("#99999" in place for one in found(audit, Rule.REPLICAS) for place in one.frames)


def test_a_contribution_that_changes_after_its_round_is_complete_is_found(racks: Path) -> None:
    kept: list[RawFrame] = []

    def edit(raw: RawFrame, seen: CapturedFrame) -> list[RawFrame]:
        if not kept and round_(1, UP)(seen):
            kept.append(layers(one_lane_more)(raw))
        return [raw, replace(kept[0], number=99_999, time=raw.time)] if raw.number == 700 else [raw]

    audit = edited(racks, edit)
    assert any("#99999" in place for one in found(audit, Rule.SAME_LANES) for place in one.frames)


def test_other_lanes_than_before_are_found(tmp_path: Path) -> None:
    capture = sums(tmp_path / "capture", TOPOLOGIES["one rack"], WILD)
    sent: set[tuple[int, ...]] = set()

    def again(seen: CapturedFrame) -> bool:
        packet = seen.packet
        if not is_(CONTRIBUTION)(seen) or packet is None:
            return False
        key = (packet.worker, packet.slot, packet.round)
        return key in sent or bool(sent.add(key))

    audit, seen = planted(capture, again, layers(one_lane_more))
    assert len(found(audit, Rule.SAME_LANES, seen.place)) == 1


def test_a_result_that_leaves_too_early_is_found(racks: Path) -> None:
    """One worker's packets of a round are missing in the capture, of which it was a child before."""
    lost: list[tuple[int, int]] = []

    def edit(raw: RawFrame, seen: CapturedFrame) -> list[RawFrame]:
        packet = seen.packet
        if packet is not None and is_(CONTRIBUTION, "h2 > leaf1")(seen) and packet.round > 2:
            lost.append((packet.slot, packet.round))
            return [] if lost[-1] == lost[0] else [raw]
        return [raw]

    audit = edited(racks, edit)
    assert found(audit, Rule.COMPLETE), audit.findings[:3]


def test_a_result_before_lanes_that_count_is_found(racks: Path) -> None:
    """A protected packet whose lanes were cut off does not count, and yet the round is complete."""
    cut = in_order(without_lanes(flags=Flag.PROTECTED | Flag.TRIMMED), reclassed(RELIABLE_DSCP, ECT))
    wanted = is_(CONTRIBUTION, "h3 > leaf1", protected=True)
    audit, _ = planted(racks, round_(4, wanted), cut)
    assert found(audit, Rule.COMPLETE), audit.findings[:3]


def test_a_member_that_a_multicast_leaves_out_is_found(racks: Path) -> None:
    """It goes on although no result was sent to it."""
    gone = round_(3, is_(RESULT, "leaf1 > h2", lanes=None))
    audit = edited(racks, lambda raw, seen: [] if gone(seen) else [raw])
    wrong = found(audit, Rule.ROUND_ORDER)
    assert wrong and all("10.0.1.2" in finding.text for finding in wrong), audit.findings[:3]


def test_a_member_that_must_ask_for_every_result_is_found(racks: Path) -> None:
    """The multicast group lacks its port, so it repeats each packet, and is answered."""
    last: dict[int, RawFrame] = {}

    def edit(raw: RawFrame, seen: CapturedFrame) -> list[RawFrame]:
        packet = seen.packet
        if packet is not None and is_(CONTRIBUTION, "h2 > leaf1", lanes=None)(seen):
            last[packet.slot] = raw
        if packet is not None and is_(RESULT, "leaf1 > h2", lanes=None)(seen):
            return [replace(last[packet.slot], number=raw.number, time=raw.time), raw]
        return [raw]

    audit = edited(racks, edit)
    (finding,) = found(audit, Rule.DELIVERY)
    assert "to child 1 only after that has asked again, in 72 of 72 rounds" in finding.text


def test_a_member_that_asks_in_vain_is_found(racks: Path) -> None:
    """The capture ends with it."""
    frames = copies_of(racks, lambda seen: True)
    (last, *_) = [n for n, seen in enumerate(frames) if round_(4, is_(RESULT, "leaf1 > h2"))(seen)]
    slot = frames[last].packet.slot  # type: ignore[union-attr]
    mine = [
        seen
        for seen in frames[:last]
        if round_(4, is_(CONTRIBUTION, "h2 > leaf1", lanes=None))(seen) and seen.packet.slot == slot  # type: ignore[union-attr]
    ]
    audit = PacketAudit()
    for seen in [*frames[:last], *mine * 5]:
        audit.add(seen)
    audit.finish()
    (finding,) = found(audit, Rule.DELIVERY)
    assert "child 1 has asked 5 times" in finding.text


@pytest.mark.parametrize("wanted", [UP, is_(RESULT, "leaf1 > ")], ids=["worker", "switch"])
def test_a_sender_whose_packets_all_go_first_is_found(racks: Path, wanted: Wanted) -> None:
    """As if each had been sent before."""

    def edit(raw: RawFrame, seen: CapturedFrame) -> list[RawFrame]:
        return [reclassed(RELIABLE_DSCP, seen.udp.ecn)(raw) if wanted(seen) and seen.udp else raw]

    audit = edited(racks, edit)
    assert [finding.rule for finding in audit.report.findings] == [Rule.CLASS]


def test_who_loses_more_than_its_budget_is_found(tmp_path: Path) -> None:
    """The hosts may lose a tenth of one sum in three, and lose more than a thousandth of all."""
    capture = sums(tmp_path / "capture", TOPOLOGIES["one rack"], WILD)
    assert not PacketAudit.of_files([capture], loss_budget=0.1).findings
    audit = PacketAudit.of_files([capture], loss_budget=0.001)
    wrong = found(audit, Rule.BUDGET)
    assert wrong and all(finding.frames and "its budget is 0.1%" in finding.text for finding in wrong)


def test_a_switch_that_overspends_a_budget_is_found(racks: Path) -> None:
    """It goes without a worker's droppable lanes again and again: each time it may, in all it may not."""

    def edit(raw: RawFrame, seen: CapturedFrame) -> list[RawFrame]:
        if is_(RESULT, "leaf1 > h1")(seen) and seen.packet is not None and seen.packet.layer == 1:
            return [weir(included=lambda mask: mask & ~1)(raw)]
        return [raw]

    audit = edited(racks, edit, loss_budget=0.1)
    (finding,) = found(audit, Rule.BUDGET)
    assert "lanes of 10.0.1.1 are missing" in finding.text and finding.frames


# -- flows ------------------------------------------------------------------------------------------------


def flow(kind: FlowType, link: str, *, protected: bool | None = None) -> Wanted:
    def wanted(seen: CapturedFrame) -> bool:
        packet = seen.flow
        if packet is None or packet.type is not kind or link not in seen.port or not packet.data:
            return False
        return protected is None or packet.protected == protected

    return wanted


CHUNK = flow(FlowType.CHUNK, "leaf1 > spine", protected=False)
SAFE = flow(FlowType.CHUNK, "spine2 > leaf", protected=True)
DATA = 14 + 20 + 8 + FLOW.size  # offset in a frame

ON_THE_WAY: dict[str, tuple[tuple[Rule, ...], Wanted, Change]] = {
    "a chunk's data": ((Rule.ON_THE_WAY, Rule.SAME_LANES), CHUNK, byte(DATA + 8, 1)),
    "a chunk's account": ((Rule.ON_THE_WAY, Rule.SAME_LANES), CHUNK, fields(WeirFlow, first=lambda n: n + 1)),
    "what a probe says of budgets": ((Rule.ON_THE_WAY,), flow(FlowType.PROBE, "leaf1 > spine"), byte(-1, 1)),
    "a bitmap": ((Rule.ON_THE_WAY,), flow(FlowType.BITMAP, "leaf2 > spine"), byte(DATA, 1)),
    "the TTL, by two": ((Rule.ON_THE_WAY,), CHUNK, fields(IP, ttl=lambda ttl: ttl - 1)),
    "the TTL, upwards": ((Rule.ON_THE_WAY,), CHUNK, fields(IP, ttl=64)),
    "DSCP, to the top class": ((Rule.ON_THE_WAY,), SAFE, reclassed(RELIABLE_DSCP, ECT)),
    "DSCP, to none": ((Rule.ON_THE_WAY, Rule.CLASS), SAFE, fields(IP, tos=lambda tos: tos & 3)),
    "ECN, to one that cannot be marked": (
        (Rule.ON_THE_WAY, Rule.CLASS),
        SAFE,
        fields(IP, tos=lambda tos: tos & ~3),
    ),
    "ECN, to marked without being able": (
        (Rule.ON_THE_WAY, Rule.CLASS),
        CHUNK,
        fields(IP, tos=lambda tos: tos | CE),
    ),
    "PROTECTED": ((Rule.ON_THE_WAY,), CHUNK, fields(WeirFlow, flags=Flag.PROTECTED)),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_THE_WAY)
def test_a_change_between_two_links_is_found(flows: Path, name: str) -> None:
    rules, wanted, change = ON_THE_WAY[name]
    audit, seen = planted(flows, wanted, change, number=2)
    for rule in rules:
        assert found(audit, rule, seen.place), (rule, seen.place, audit.findings[:3])


def test_a_mark_that_is_taken_off_again_is_found(flows: Path) -> None:
    """CE on a host's link is ECT behind the leaf."""
    wanted = flow(FlowType.CHUNK, "> leaf1", protected=True)
    audit, seen = planted(flows, wanted, fields(IP, tos=lambda tos: tos | CE), number=5)
    (finding,) = found(audit, Rule.ON_THE_WAY, seen.place)
    assert "ECN 3 became 2" in finding.text


def test_a_changed_chunk_is_found_in_a_switchs_own_capture(flows: Path) -> None:
    """Its interfaces carry frames both ways, and each frame says which."""

    def of_leaf(raw: RawFrame, seen: CapturedFrame) -> list[RawFrame]:
        here, there = seen.ends or ("", "")
        if "leaf1" not in (here, there):
            return []
        port = there if here == "leaf1" else here
        return [replace(raw, file="leaf1", port=port, incoming=there == "leaf1")]

    assert not edited(flows, of_leaf).findings
    places: list[CapturedFrame] = []

    def edit(raw: RawFrame, seen: CapturedFrame) -> list[RawFrame]:
        frames = of_leaf(raw, seen)
        if frames and CHUNK(seen):
            places.append(seen)
            if len(places) == 20:
                return [byte(DATA, 1)(frames[0])]
        return frames

    audit = edited(flows, edit)
    (finding,) = found(audit, Rule.ON_THE_WAY)
    assert finding.frames[-1].startswith(f"leaf1 #{places[19].number} ")


def test_a_lower_class_that_goes_first_is_found(flows: Path) -> None:
    """Of two packets that leave on one link, the times are exchanged."""
    frames = copies_of(flows, lambda seen: True)
    wanted = flow(FlowType.CHUNK, "leaf2 > h6", protected=False)
    link = [number for number, seen in enumerate(frames) if wanted(seen)]
    early, late = link[len(link) // 2], link[-1]
    first, second = frames[early], frames[late]
    frames[early] = replace(second, time=first.time)
    frames[late] = replace(first, time=second.time)
    audit = PacketAudit()
    for seen in frames:
        audit.add(seen)
    audit.finish()
    assert found(audit, Rule.PRIORITY)


def test_a_path_that_is_not_used_is_found(flows: Path) -> None:
    """All but a few of a leaf's packets that went by one spine are said to have gone by the other."""

    def edit(raw: RawFrame, seen: CapturedFrame) -> list[RawFrame]:
        moved = seen.port == "leaf1 > spine2" and raw.number % 20
        return [replace(raw, port="leaf1 > spine1") if moved else raw]

    wrong = found(edited(flows, edit), Rule.SPRAY)
    assert len(wrong) == 1 and "leaf1 > spine1" in wrong[0].text


def test_a_receiver_that_claims_what_never_came_is_found(flows: Path) -> None:
    """The last link loses a chunk's data, and nobody is told."""
    wanted = flow(FlowType.CHUNK, "leaf2 > h6")
    lost = copies_of(flows, wanted)[50].flow
    assert lost is not None

    def edit(raw: RawFrame, seen: CapturedFrame) -> list[RawFrame]:
        same = seen.flow is not None and (seen.flow.name, seen.flow.index) == (lost.name, lost.index)
        return [] if same and wanted(seen) else [raw]

    wrong = found(edited(flows, edit), Rule.SETTLEMENT)
    assert wrong and f"[{lost.index}], which never came" in wrong[0].text


def test_a_stop_beyond_the_budget_is_found(flows: Path) -> None:
    def half(data: bytearray) -> None:
        middle = DATA + (len(data) - DATA) // 2
        data[middle:] = bytes(len(data) - middle)

    audit, seen = planted(flows, flow(FlowType.STOP, "h6 > leaf2"), raw_bytes(half))
    assert any("its budget is" in finding.text for finding in found(audit, Rule.SETTLEMENT, seen.place))


def test_terms_that_change_are_found(flows: Path) -> None:
    """A later probe allows more."""
    wanted = flow(FlowType.PROBE, "> leaf1")
    audit, seen = planted(flows, wanted, byte(-3, 0x10), number=len(copies_of(flows, wanted)) - 1)
    assert found(audit, Rule.SETTLEMENT, seen.place), audit.findings[:3]


def test_a_bitmap_in_a_data_class_is_found(flows: Path) -> None:
    audit, seen = planted(flows, flow(FlowType.BITMAP, "h6 > leaf2"), reclassed(10, ECT))
    assert found(audit, Rule.CLASS, seen.place), audit.findings[:3]
