# SPDX-License-Identifier: Apache-2.0
"""Wide packets: one block of 1,024 lanes of ADD, all of them or none, beside packets of any other kind."""

from typing import Any, Final

import pytest

from tests.harness.lab import Job, Lab, group_of
from weir.wire.definition import (
    GROUPS,
    NO_BLOCK,
    WIDE_BLOCK_LOG2,
    WIDE_LANES,
    Event,
    Flag,
    Op,
    PacketType,
    group_lanes,
    path,
)

WIDE_ONLY: Final = True
WIDTH: Final = group_lanes(WIDE_BLOCK_LOG2)
WIDE: Final[dict[str, Any]] = {"block_log2": WIDE_BLOCK_LOG2, "blocks": [5]}
TOLD: Final = Flag.PROTECTED | Flag.DISAGREE


def lanes(value: int) -> dict[int, list[int]]:
    """Return all lanes of a wide packet, which differ from one another."""
    return {g: [(value + WIDTH * g + lane) % 2**32 for lane in range(WIDTH)] for g in range(GROUPS)}


def total(*values: int) -> dict[int, list[int]]:
    """Return the sums of the lanes of these."""
    every = [lanes(value) for value in values]
    return {
        g: [sum(column) % 2**32 for column in zip(*(one[g] for one in every), strict=True)]
        for g in range(GROUPS)
    }


def test_a_round_adds_up_every_lane(lab: Lab) -> None:
    job = lab.job(3)
    assert job.send(0, lanes=lanes(1), nexts=[9], **WIDE) == []
    assert job.send(1, lanes=lanes(2**32 - 700), nexts=[7], **WIDE) == []
    whole = {"lanes": total(1, 2**32 - 700, 5000), "nexts": [7], **WIDE}
    assert job.send(2, lanes=lanes(5000), nexts=[NO_BLOCK], **WIDE) == job.results(**whole)
    assert lab.events() == {Event.CONTRIBUTION: 2, Event.ROUND_COMPLETE: 1}
    for worker in range(3):  # without its lanes, too: the result grows
        answer = job.result(worker, included=7, again=True, **whole)
        assert job.send(worker, nexts=[9], **WIDE) == [answer]
        assert job.send(worker, lanes=lanes(3), nexts=[9], **WIDE) == [answer]


def test_sums_for_one_worker_go_to_it_alone(lab: Lab) -> None:
    job = lab.job(3)
    about = {"audience": path(2), "nexts": [7], **WIDE}
    assert job.send(0, lanes=lanes(1), **about) == []
    assert job.send(1, lanes=lanes(50), **about) == []
    sums = {"lanes": total(1, 50), "included": 0b011, **about}
    bare = {**sums, "lanes": {}, "flags": Flag.PROTECTED | Flag.ELSEWHERE}
    assert job.send(2, **about) == sorted(job.result(w, **(sums if w == 2 else bare)) for w in range(3))
    assert job.send(2, **about) == [job.result(2, again=True, **sums)]
    assert job.send(0, **about) == [job.result(0, again=True, **bare)]


def test_a_worker_with_zeros_sends_a_header(lab: Lab) -> None:
    job = lab.job(3)
    assert job.send(0, nexts=[8], **WIDE) == []
    assert job.send(1, lanes=lanes(40), nexts=[8], **WIDE) == []
    assert job.send(2, nexts=[8], **WIDE) == job.results(lanes=total(40), nexts=[8], included=0b010, **WIDE)
    for worker in range(2):
        assert job.send(worker, round=2, nexts=[NO_BLOCK], **WIDE) == []
    assert job.send(2, round=2, nexts=[NO_BLOCK], **WIDE) == job.results(round=2, included=0, **WIDE)
    answer = job.result(0, round=2, included=0, again=True, **WIDE)
    assert job.send(0, round=2, lanes=lanes(6), **WIDE) == [answer]


def test_cells_are_used_again_by_packets_of_either_kind(lab: Lab) -> None:
    """The first packet of a round overwrites, and neighbouring cells keep their lanes apart."""
    job = lab.job(2, slots=2)
    for round in range(1, 6):
        for slot in range(2):
            place = {"slot": slot, "round": round}
            value = 10_000 * round + 5_000 * slot
            if (round + slot) % 2:
                assert job.send(0, lanes=lanes(value), **place, **WIDE) == []
                assert job.send(1, lanes=lanes(1), **place, **WIDE) == job.results(
                    lanes=total(value, 1), **place, **WIDE
                )
            else:
                assert job.send(0, lanes={3: group_of(value)}, **place) == []
                both = [a + b for a, b in zip(group_of(value), group_of(7), strict=True)]
                assert job.send(1, lanes={3: group_of(7)}, **place) == job.results(lanes={3: both}, **place)


@pytest.mark.parametrize("first", [True, False], ids=["wide first", "wide last"])
def test_packets_of_both_kinds_in_a_round_are_a_disagreement(lab: Lab, first: bool) -> None:
    """Also where they say that they are of one operation: no lane of an earlier round, or job, comes out."""
    earlier = lab.job(2)
    for round in (1, 2):
        assert earlier.send(0, round=round, lanes=dict.fromkeys(range(8), group_of(round))) == []
        assert earlier.send(1, round=round, lanes=dict.fromkeys(range(8), group_of(round))) != []
    job = Job(lab, earlier.id, earlier.stations, earlier.slot_base, earlier.slot_count, earlier.group)
    wide: dict[str, Any] = {"lanes": lanes(1), "round": 3, "check": 77, **WIDE}
    other: dict[str, Any] = {"lanes": {2: group_of(4)}, "round": 3, "check": 77}
    sent = [wide, other] if first else [other, wide]
    assert job.send(0, **sent[0]) == []
    told = {key: value for key, value in sent[1].items() if key != "lanes"}
    assert job.send(1, **sent[1]) == job.results(flags=TOLD, included=0, **told)
    assert lab.events()[Event.DISAGREEMENT] == 1


@pytest.mark.parametrize(
    ("groups", "op"),
    [((0,), Op.ADD), (range(7), Op.ADD), (range(8), Op.MAX), (range(8), Op.OR), ((), Op.MAX)],
    ids=str,
)
def test_other_operators_and_single_groups_are_refused(lab: Lab, groups: tuple[int, ...], op: Op) -> None:
    job = lab.job(2)
    every = lanes(3)
    assert job.send(0, op=op, lanes={group: every[group] for group in groups}, **WIDE) == []
    assert lab.events() == {Event.DROP_MALFORMED: 1}
    assert job.send(0, lanes=every, **WIDE) == []  # nothing was touched
    assert job.send(1, lanes=every, **WIDE) == job.results(lanes=total(3, 3), **WIDE)


def test_a_packet_that_is_shorter_or_longer_than_it_says_is_refused(lab: Lab) -> None:
    job = lab.job(2)
    for change in (-4, 4):
        frame = job.contribution(0, lanes=lanes(3), **WIDE)
        frame["IP"].len = 28 + 28 + 8 + 4 * WIDE_LANES + change
        frame["UDP"].len = frame["IP"].len - 20
        assert lab.send(job.stations[0].port, frame) == []
    short = bytes(job.contribution(0, lanes=lanes(3), **WIDE))[:-4]
    assert lab.target.send(job.stations[0].port, short) == []
    assert lab.events() == {Event.DROP_MALFORMED: 2, Event.DROP_PARSER_ERROR: 1}


def test_a_racks_sums_go_up_and_the_result_down(lab: Lab) -> None:
    rack = lab.uplink(lab.job(2), port=3)
    job = rack.job
    assert job.send(0, lanes=lanes(1), nexts=[7], **WIDE) == []
    up = rack.partial(lanes=total(1, 2**32 - 700), nexts=[7], included=0b11, **WIDE)
    assert job.send(1, lanes=lanes(2**32 - 700), nexts=[8], **WIDE) == [up]
    whole = {"lanes": total(1, 2**32 - 700, 5000), "nexts": [6], "count": 3, **WIDE}
    assert rack.send(PacketType.RESULT, included=0b110, **whole) == job.results(included=0b11, **whole)
    assert job.send(0, **WIDE) == [job.result(0, included=0b11, again=True, **whole)]
