# SPDX-License-Identifier: Apache-2.0
"""Rounds beyond the ten named cases: stamps, what is included, who gets what, jobs side by side."""

import pytest
from scapy.layers.inet import IP

from tests.harness.lab import PROTECTED_FRONT, Lab, group_of
from weir.wire.definition import CE, ECT, LAYER_CLASSES, MAX_CHILDREN, RELIABLE_DSCP, Event, Flag, dscp

A, B, C = group_of(1), group_of(1000), group_of(2**31)


def added(*groups: list[int]) -> list[int]:
    """Lane-wise sum modulo 2^32."""
    return [sum(lanes) % 2**32 for lanes in zip(*groups, strict=True)]


def test_a_worker_alone_gets_its_own_lanes_back_at_once(lab: Lab) -> None:
    job = lab.job(1)
    assert job.send(0, round=1, lanes={0: A, 7: B}) == job.results(round=1, lanes={0: A, 7: B})
    assert job.send(0, round=2, lanes={3: C}) == job.results(round=2, lanes={3: C})
    assert job.send(0, round=2, lanes={3: C}) == job.results(round=2, lanes={3: C}, again=True)
    assert lab.events() == {Event.ROUND_COMPLETE: 2, Event.DUPLICATE_ANSWERED: 1}


def test_as_many_workers_as_the_masks_have_bits(lab: Lab) -> None:
    job = lab.job(MAX_CHILDREN)
    lanes = {5: [1 << 31] * 32}
    for worker in range(MAX_CHILDREN - 1):
        assert job.send(worker, lanes=lanes if worker % 2 else {}) == []
    expected = job.results(lanes={5: [0] * 32}, included=0xAAAAAAAA)  # 16 times 2^31 wraps to 0
    assert job.send(MAX_CHILDREN - 1, lanes=lanes) == expected


def test_a_packet_without_lanes_is_seen_but_not_included(lab: Lab) -> None:
    job = lab.job(3)
    assert job.send(0) == []
    assert job.send(1, lanes={2: A}) == []
    assert job.send(2) == job.results(lanes={2: A}, included=0b010)


def test_a_round_without_any_lanes_is_a_barrier(lab: Lab) -> None:
    job = lab.job(2)
    for round in (1, 2, 3):
        assert job.send(1, round=round) == []
        assert job.send(0, round=round) == job.results(round=round, included=0)


def test_the_result_holds_lanes_that_the_last_packet_lacks(lab: Lab) -> None:
    """Groups come from any worker that has them; the packet that completes the round grows or stays."""
    job = lab.job(3)
    assert job.send(0, lanes={0: A, 1: B}) == []
    assert job.send(1, lanes={1: A, 6: C}) == []
    expected = {0: A, 1: added(A, B), 5: B, 6: added(B, C)}
    assert job.send(2, lanes={5: B, 6: B}) == job.results(lanes=expected)
    for worker in range(3):
        answer = job.result(worker, lanes=expected, included=0b111, again=True)
        assert job.send(worker) == [answer]  # repeated without lanes
        assert job.send(worker, lanes=dict.fromkeys(range(8), C)) == [answer]  # and with all of them


def test_a_packet_without_lanes_can_complete_a_full_slot(lab: Lab) -> None:
    """The greatest growth there is: no lanes in the packet, all of them in the result."""
    if lab.target.headroom < 1024:
        pytest.skip(f"{lab.target.name} can make a packet only {lab.target.headroom} bytes longer")
    job = lab.job(2)
    full = {g: group_of(g << 16) for g in range(8)}
    assert job.send(0, lanes=full) == []
    assert job.send(1) == job.results(lanes=full, included=0b01)
    assert job.send(1) == [job.result(1, lanes=full, included=0b01, again=True)]


def test_a_packet_that_cannot_grow_into_the_result_is_not_the_last(lab: Lab) -> None:
    """Nobody would get the result. Who sent no lanes is asked for them, as long as there are any."""
    lab.limit_growth(512)
    job = lab.job(2)
    lanes = {g: group_of(g << 16) for g in range(5)}
    assert job.send(0, lanes=lanes, nexts=[7]) == []
    assert job.send(1, nexts=[9], flags=0) == [job.repeat(1, nexts=[9])]
    both = {g: added(values, values) for g, values in lanes.items()}
    assert job.send(1, lanes=lanes, nexts=[9]) == job.results(lanes=both, nexts=[7])
    assert job.send(1, nexts=[9], flags=0) == [job.repeat(1, nexts=[7])]
    again = job.result(1, lanes=both, nexts=[7], included=0b11, again=True)
    assert job.send(1, lanes=lanes, nexts=[9]) == [again]
    expected = {Event.CONTRIBUTION: 1, Event.REPEAT_ASKED: 2, Event.ROUND_COMPLETE: 1}
    assert lab.events() == expected | {Event.DUPLICATE_ANSWERED: 1}


def test_a_packet_without_lanes_is_the_last_where_it_can_grow_far_enough(lab: Lab) -> None:
    lab.limit_growth(512)
    job = lab.job(2)
    lanes = {g: group_of(g << 16) for g in range(4)}
    assert job.send(0, lanes=lanes) == []
    assert job.send(1) == job.results(lanes=lanes, included=0b01)


def test_a_result_longer_than_the_target_can_make_it_is_not_sent(lab: Lab) -> None:
    """The round is complete nevertheless: a repetition that has the room gets the result."""
    lab.limit_growth(512)
    job = lab.job(2)
    lanes = {g: group_of(g << 16) for g in range(7)}
    answers = job.results(lanes={**lanes, 7: A}, included=0b11, again=True)
    assert job.send(0, lanes=lanes) == []
    assert job.send(1, lanes={7: A}) == []
    assert job.send(1, lanes={7: A}) == []
    assert lab.events()[Event.DROP_NO_ROOM] == 2
    assert job.send(1, lanes={**lanes, 7: A}) == answers[1:]
    assert job.send(0, lanes=lanes) == answers[:1]


def test_lanes_cut_off_count_as_seen_only_when_the_sender_gave_them_up(lab: Lab) -> None:
    """A protected packet that lost its lanes is as good as lost, and its sender is told so at once."""
    job = lab.job(2)
    assert job.send(0, lanes={0: A}) == []
    lost = {"flags": Flag.TRIMMED | Flag.PROTECTED}
    assert job.send(1, nexts=[5], **lost) == [job.repeat(1, nexts=[5])]
    assert job.send(1, nexts=[5], **lost) == [job.repeat(1, nexts=[5])]
    assert job.send(1, lanes={0: B}, nexts=[5]) == job.results(lanes={0: added(A, B)}, nexts=[5])
    answer = job.result(1, lanes={0: added(A, B)}, nexts=[5], included=0b11, again=True)
    assert job.send(1, nexts=[5], **lost) == [answer]
    assert job.send(0, round=2, lanes={0: A}) == []
    given_up = job.results(round=2, lanes={0: A}, included=0b01)
    assert job.send(1, round=2, flags=Flag.TRIMMED) == given_up


@pytest.mark.parametrize("marked", [{"traffic_class": PROTECTED_FRONT | CE}, {"flags": Flag.CONGESTED | 1}])
@pytest.mark.parametrize("who", [0, 1])
def test_congestion_that_one_packet_met_is_told_to_everybody(
    lab: Lab, who: int, marked: dict[str, int]
) -> None:
    job = lab.job(2)
    told = {"flags": Flag.PROTECTED | Flag.CONGESTED}
    assert job.send(0, lanes={0: A}, **(marked if who == 0 else {})) == []
    assert job.send(1, lanes={0: B}, **(marked if who == 1 else {})) == job.results(
        lanes={0: added(A, B)}, **told
    )
    answer = job.result(0, lanes={0: added(A, B)}, included=0b11, again=True, **told)
    assert job.send(0, lanes={0: A}) == [answer]
    assert job.send(0, round=3, lanes={0: A}) == []
    assert job.send(1, round=3) == job.results(round=3, lanes={0: A}, included=0b01)


def test_lanes_that_come_too_late_are_not_in_any_result(lab: Lab) -> None:
    """A worker took part without lanes; repeating the round with lanes adds nothing, before or after."""
    job = lab.job(2)
    assert job.send(0) == []
    assert job.send(0, lanes={0: A, 4: A}) == []
    assert job.send(1, lanes={0: B}) == job.results(lanes={0: B}, included=0b10)
    assert job.send(0, lanes={0: A, 4: A}) == [job.result(0, lanes={0: B}, included=0b10, again=True)]


def test_an_unfinished_round_is_forgotten_when_a_newer_one_begins(lab: Lab) -> None:
    job = lab.job(2)
    assert job.send(0, round=1, lanes={0: A, 1: A}, nexts=[3]) == []
    assert job.send(0, round=3, lanes={0: B}, nexts=[7]) == []
    assert job.send(1, round=3, nexts=[9]) == job.results(round=3, lanes={0: B}, nexts=[7], included=0b01)


def test_a_stale_round_changes_nothing(lab: Lab) -> None:
    job = lab.job(2)
    assert job.send(0, round=5, lanes={0: A}, nexts=[50]) == []
    lab.events()
    for old in (1, 3):
        assert job.send(0, round=old, lanes={0: C, 1: C}, nexts=[1]) == []
        assert job.send(1, round=old, lanes={0: C, 1: C}, nexts=[1]) == []
    assert lab.events() == {Event.DROP_STALE_ROUND: 4}
    assert job.send(1, round=5, lanes={0: B}, nexts=[60]) == job.results(
        round=5, lanes={0: added(A, B)}, nexts=[50]
    )


def test_rounds_wrap_around(lab: Lab) -> None:
    job = lab.job(2)
    for round in (2**32 - 2, 2**32 - 1, 0, 1, 2):
        assert job.send(0, round=round, lanes={0: A}) == []
        assert job.send(1, round=round, lanes={0: B}) == job.results(round=round, lanes={0: added(A, B)})
    lab.events()
    assert job.send(0, round=2**32 - 1, lanes={0: A}) == []
    assert lab.events() == {Event.DROP_STALE_ROUND: 1}


@pytest.mark.parametrize(
    ("ahead", "newer"), [(2**31 - 2, True), (2**31, False), (2**31 + 2, False), (2**32 - 2, False)]
)
def test_newer_means_less_than_half_the_numbers_ahead(lab: Lab, ahead: int, newer: bool) -> None:
    job = lab.job(1)
    job.send(0, round=9, lanes={0: A})
    lab.events()
    job.send(0, round=(9 + ahead) % 2**32, lanes={0: B})
    assert lab.events() == {Event.ROUND_COMPLETE if newer else Event.DROP_STALE_ROUND: 1}


def test_a_round_far_ahead_begins_when_a_second_worker_is_in_it(lab: Lab) -> None:
    """A switch that restarts may take an old packet in: then its cell is behind where all workers are."""
    job = lab.job(3)
    assert job.send(0, round=1, lanes={0: A}) == []
    lab.events()
    for lanes in ({0: A}, {}, {0: A}):
        assert job.send(0, round=9, lanes=lanes) == []
    assert lab.events() == {Event.DROP_FAR_ROUND: 3}
    assert job.send(1, round=9, lanes={0: B}) == []
    assert job.send(0, round=9, lanes={0: A}) == []
    assert job.send(2, round=9, lanes={0: C}) == job.results(round=9, lanes={0: added(A, B, C)})
    assert job.send(0, round=1, lanes={0: C}) == []
    assert lab.events() == {Event.CONTRIBUTION: 2, Event.ROUND_COMPLETE: 1, Event.DROP_STALE_ROUND: 1}


def test_what_another_job_was_ahead_by_does_not_count(lab: Lab) -> None:
    old = lab.job(3)
    assert old.send(0, round=1) == []
    assert old.send(0, round=9) == []
    new = lab.job(3)
    assert new.send(1, round=1, lanes={0: A}) == []
    lab.events()
    assert new.send(1, round=9, lanes={0: B}) == []
    assert lab.events() == {Event.DROP_FAR_ROUND: 1}


def test_rounds_far_ahead_that_differ_do_not_add_up(lab: Lab) -> None:
    job = lab.job(3)
    assert job.send(0, round=1, lanes={0: A}) == []
    lab.events()
    for worker, round in ((0, 9), (1, 11), (0, 13), (1, 2**31 - 1)):
        assert job.send(worker, round=round, lanes={0: C}) == []
    assert lab.events() == {Event.DROP_FAR_ROUND: 4}
    assert job.send(1, round=1, lanes={0: B}) == []
    assert job.send(2, round=1) == job.results(round=1, lanes={0: added(A, B)}, included=0b011)


def test_a_question_of_a_far_round_asks_for_nothing(lab: Lab) -> None:
    job = lab.job(2)
    assert job.send(0, round=1, lanes={0: A}) == []
    lab.events()
    assert job.send(1, round=9, flags=Flag.TRIMMED | Flag.PROTECTED | Flag.ANSWER) == []
    assert lab.events() == {Event.DROP_FAR_ROUND: 1}


def test_a_new_job_starts_afresh_on_used_slots(lab: Lab) -> None:
    """Stamps and sums that a finished job left behind do not matter, however high its rounds were."""
    old = lab.job(2)
    for round in (1_000_000, 1_000_001):
        assert old.send(0, round=round, lanes={0: A, 1: A}, nexts=[0]) == []
        old.send(1, round=round, lanes={0: A, 1: A}, nexts=[0])
    assert old.send(0, round=1_000_003, lanes={0: A, 1: A}) == []
    new = lab.job(2)
    for round in (1, 2, 3):
        assert new.send(0, round=round, lanes={0: B}, nexts=[8]) == []
        assert new.send(1, round=round, lanes={2: C}, nexts=[9]) == new.results(
            round=round, lanes={0: B, 2: C}, nexts=[8]
        )


def test_jobs_side_by_side_do_not_see_each_other(lab: Lab) -> None:
    """Same ports, same slot numbers, same rounds; different jobs, so different memory and receivers."""
    first = lab.job(2, slots=2, slot_base=0, ports=[1, 2])
    second = lab.job(3, slots=2, slot_base=2, ports=[1, 2, 3])
    for slot in (0, 1):
        assert first.send(0, slot=slot, lanes={0: A}) == []
        assert second.send(0, slot=slot, lanes={0: C, 1: C}) == []
        assert second.send(1, slot=slot, lanes={0: C}) == []
    for slot in (0, 1):
        assert first.send(1, slot=slot, lanes={0: B}) == first.results(slot=slot, lanes={0: added(A, B)})
        assert second.send(2, slot=slot, lanes={0: B}) == second.results(
            slot=slot, lanes={0: added(B, C, C), 1: C}
        )


def test_the_last_slot_of_the_switch_works(lab: Lab) -> None:
    job = lab.job(2, slots=2, slot_base=1022)
    for round in (1, 2):
        assert job.send(0, slot=1, round=round, lanes={7: A}) == []
        assert job.send(1, slot=1, round=round, lanes={7: B}) == job.results(
            slot=1, round=round, lanes={7: added(A, B)}
        )


@pytest.mark.parametrize("layer", range(LAYER_CLASSES))
def test_results_have_the_dscp_of_their_layer_class_and_are_protected(lab: Lab, layer: int) -> None:
    """Whatever the last packet's own traffic class: a release travels in the reliable class."""
    job = lab.job(2)
    assert job.send(0, lanes={0: A}, layer=layer, traffic_class=0x00) == []
    results = job.results(lanes={0: A}, included=0b01, layer=layer, traffic_class=dscp(layer) << 2 | ECT)
    assert job.send(1, layer=layer, flags=0, traffic_class=RELIABLE_DSCP << 2) == results


def test_what_follows_the_ip_packet_is_not_sent_on(lab: Lab) -> None:
    """Ethernet padding or a trailer is part of the frame, not of the packet."""
    job = lab.job(2)
    padded = bytes(job.contribution(0, lanes={0: A})) + b"padding" * 3
    assert lab.send(job.stations[0].port, padded) == []
    padded = bytes(job.contribution(1, lanes={0: B})) + b"padding" * 3
    assert lab.send(job.stations[1].port, padded) == job.results(lanes={0: added(A, B)})
    answer = job.result(1, lanes={0: added(A, B)}, included=0b11, again=True)
    assert lab.send(job.stations[1].port, padded) == [answer]


def test_the_senders_included_mask_is_ignored(lab: Lab) -> None:
    job = lab.job(2)
    assert job.send(0, lanes={0: A}, included=0xFFFFFFFF) == []
    assert job.send(1, included=0xFFFFFFFF) == job.results(lanes={0: A}, included=0b01)


def test_ip_fields_of_the_sender_do_not_leak_into_results(lab: Lab) -> None:
    job = lab.job(1)
    frame = job.contribution(0, lanes={0: A})
    frame[IP].id, frame[IP].ttl, frame[IP].flags = 4711, 1, "DF"
    assert lab.send(job.stations[0].port, frame) == job.results(lanes={0: A})


def test_worker_counters_show_both_directions(lab: Lab) -> None:
    """Admission counts what each worker sends, the receiver table what it gets."""
    job = lab.job(2)
    frames = [job.contribution(worker, lanes={0: A}) for worker in range(2)]
    for worker in (0, 0, 1):
        lab.send(job.stations[worker].port, frames[worker])
    for worker, packets in ((0, 2), (1, 1)):
        port = job.stations[worker].port
        up = lab.target.entry_counter("WeirIngress.admission.workers", (port, job.id, worker))
        down = lab.target.entry_counter("WeirEgress.results.receivers", (job.id, worker, port))
        assert (up.packets, up.bytes) == (packets, packets * len(frames[worker]))
        assert down.packets == 1
