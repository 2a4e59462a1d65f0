# SPDX-License-Identifier: Apache-2.0
"""Two tiers: a rack's switch as the spine's worker, and a spine over racks, one switch at a time."""

from dataclasses import replace

import pytest

from tests.harness.lab import PROTECTED_FRONT, RELIABLE, Job, Lab, Uplink, group_of
from weir.wire.definition import CE, NOT_ECT, Event, Flag, PacketType, dscp

A, B, C, D = group_of(1), group_of(1000), group_of(2**31), group_of(77)
SPINE = 3
TOTAL = {"included": 0b0110, "count": 7}  # a spine's result: racks 1 and 2 are in it, with 7 workers
DOWN = {"included": 0b11, "count": 7}  # the same as rack 1 passes it on


def added(*groups: list[int]) -> list[int]:
    """Lane-wise sum modulo 2^32."""
    return [sum(lanes) % 2**32 for lanes in zip(*groups, strict=True)]


@pytest.fixture
def rack(lab: Lab) -> Uplink:
    """Workers 0 and 1 of a larger job at ports 1 and 2, the spine at port 3, where this rack is member 1."""
    return lab.uplink(lab.job(2, slots=20, ports=[1, 2]), port=SPINE)


@pytest.fixture
def spine(lab: Lab) -> Job:
    """Return a job of three racks, at ports 1 to 3."""
    return lab.job(3, slots=20, ports=[1, 2, 3], racks=True)


class TestRack:
    """The switch of a rack."""

    @pytest.mark.parametrize("slot", [0, 1, 15, 16, 19])
    def test_partial_sums_go_up_and_the_result_down(self, lab: Lab, rack: Uplink, slot: int) -> None:
        job = rack.job
        assert job.send(0, slot=slot, lanes={0: A}, nexts=[7]) == []
        up = rack.partial(slot=slot, lanes={0: added(A, B), 2: C}, nexts=[5], included=0b11)
        assert job.send(1, slot=slot, lanes={0: B, 2: C}, nexts=[5]) == [up]
        total = {"lanes": {0: D, 2: C, 5: A}, "nexts": [3], "slot": slot}
        assert rack.send(PacketType.RESULT, **total, **TOTAL) == job.results(**total, **DOWN)
        expected = {Event.CONTRIBUTION: 1, Event.PARTIAL_SENT: 1, Event.RESULT_STORED: 1}
        assert lab.events() == expected

    def test_a_repetition_goes_up_again_until_the_result_is_there(self, lab: Lab, rack: Uplink) -> None:
        job = rack.job
        assert job.send(0, lanes={0: A}) == []
        assert job.send(0, lanes={0: A}) == []
        up = rack.partial(lanes={0: A}, included=0b01)
        assert job.send(1) == [up]
        assert job.send(0, lanes={0: A}) == [up]
        assert job.send(1) == [up]
        down = {"lanes": {0: D}, "included": 0b01, "count": 7}
        assert rack.send(PacketType.RESULT, lanes={0: D}, **TOTAL) == job.results(**down)
        assert job.send(0, lanes={0: A}) == [job.result(0, **down, again=True)]
        assert job.send(1) == [job.result(1, **down, again=True)]
        assert lab.events()[Event.PARTIAL_REPEATED] == 2

    @pytest.mark.parametrize("flags", [Flag.ANSWER, Flag.ANSWER | Flag.TRIMMED | Flag.PROTECTED])
    def test_an_early_question_goes_up_without_lanes(self, lab: Lab, rack: Uplink, flags: Flag) -> None:
        job = rack.job
        if lab.target.headroom < 1024:
            pytest.skip("workers behind a target that cannot lengthen packets never ask without lanes")
        job.send(0, lanes=dict.fromkeys(range(8), A))
        assert job.send(0, flags=flags) == []
        up = rack.partial(lanes=dict.fromkeys(range(8), A), included=0b01, nexts=[4])
        assert job.send(1, nexts=[4], flags=Flag.ANSWER) == [up]
        asked = Flag.ANSWER | Flag.TRIMMED | Flag.PROTECTED
        for worker in (0, 1):
            probe = rack.partial(nexts=[4], flags=asked, traffic_class=RELIABLE)
            assert job.send(worker, flags=flags) == [probe]
        assert rack.send(PacketType.REPEAT, nexts=[4]) == [
            rack.partial(
                lanes=dict.fromkeys(range(8), A), included=0b01, nexts=[4], flags=Flag.PROTECTED | Flag.ANSWER
            )
        ]
        assert job.send(1, flags=0) == [up]  # the ordinary timer means it

    @pytest.mark.parametrize("kind", [PacketType.RESULT, PacketType.REPEAT])
    def test_nobody_else_behind_the_spines_port_passes_for_it(
        self, lab: Lab, rack: Uplink, kind: PacketType
    ) -> None:
        """What a host of another rack sends to this rack's switch comes in where results do."""
        job = rack.job
        assert job.send(0, lanes={0: A}) == []
        up = rack.partial(lanes={0: added(A, B)}, included=0b11)
        assert job.send(1, lanes={0: B}) == [up]
        lab.events()
        for other in (replace(rack.spine, ip="10.0.9.1"), replace(rack.spine, udp_port=40000)):
            assert Uplink(job, other, rack.member).send(kind, lanes={0: D}, **TOTAL) == []
        assert lab.events() == {Event.DROP_WRONG_SENDER: 2}
        assert rack.send(PacketType.RESULT, lanes={0: C}, **TOTAL) == job.results(lanes={0: C}, **DOWN)

    def test_a_second_result_is_dropped(self, lab: Lab, rack: Uplink) -> None:
        job = rack.job
        job.send(0, lanes={0: A})
        job.send(1, lanes={0: B})
        assert rack.send(PacketType.RESULT, lanes={0: D}, **TOTAL) == job.results(lanes={0: D}, **DOWN)
        assert rack.send(PacketType.RESULT, lanes={0: C}, included=0b1111) == []
        assert job.send(0, lanes={0: A}) == [job.result(0, lanes={0: D}, **DOWN, again=True)]
        assert lab.events()[Event.DROP_STALE_ROUND] == 1

    def test_a_result_that_no_round_waits_for_is_dropped(self, lab: Lab, rack: Uplink) -> None:
        """Of another round, or while the rack's own workers are not complete."""
        total = {"lanes": {0: D}, **TOTAL}
        assert rack.send(PacketType.RESULT, **total) == []
        rack.job.send(0, round=4, lanes={0: A})
        for round in (2, 4, 6):
            assert rack.send(PacketType.RESULT, round=round, **total) == []
        up = rack.partial(round=4, lanes={0: added(A, B)}, included=0b11)
        assert rack.job.send(1, round=4, lanes={0: B}) == [up]
        assert rack.send(PacketType.RESULT, round=6, **total) == []
        down = rack.job.results(round=4, lanes={0: D}, **DOWN)
        assert rack.send(PacketType.RESULT, round=4, **total) == down
        assert lab.events()[Event.DROP_STALE_ROUND] == 5

    def test_a_result_without_its_lanes_is_asked_for_again(self, rack: Uplink) -> None:
        rack.job.send(0, lanes={0: A})
        rack.job.send(1, lanes={0: B})
        up = rack.partial(lanes={0: added(A, B)}, included=0b11, flags=Flag.PROTECTED | Flag.ANSWER)
        assert rack.send(PacketType.RESULT, flags=Flag.TRIMMED | Flag.PROTECTED, included=0b1111) == [up]

    def test_the_spines_question_is_answered(self, lab: Lab, rack: Uplink) -> None:
        """With the partial sums; with the result, once it is there; not at all before they are complete."""
        job = rack.job
        job.send(0, lanes={0: A})
        assert rack.send(PacketType.REPEAT) == []
        job.send(1, lanes={0: B})
        up = rack.partial(lanes={0: added(A, B)}, included=0b11, flags=Flag.PROTECTED | Flag.ANSWER)
        assert rack.send(PacketType.REPEAT, lanes={0: C, 3: C}) == [up]
        total = {"lanes": {0: D}, **TOTAL}
        rack.send(PacketType.RESULT, **total)
        lab.events()
        assert rack.send(PacketType.REPEAT, lanes={0: C, 3: C}) == [rack.result(**total)]
        assert lab.events() == {Event.RESULT_REPEATED: 1}

    def test_what_every_worker_gave_up_the_rack_gives_up(self, rack: Uplink) -> None:
        """Partial sums may be trimmed only if all that is in them may."""
        job = rack.job
        job.send(0, lanes={0: A}, flags=0)
        free = {"flags": 0, "traffic_class": dscp(0, 0) << 2 | NOT_ECT}
        up = rack.partial(lanes={0: added(A, B)}, included=0b11, **free)
        assert job.send(1, lanes={0: B}, flags=0) == [up]
        job.send(0, round=2, lanes={0: A}, flags=0)
        up = rack.partial(round=2, lanes={0: added(A, B)}, included=0b11)
        assert job.send(1, round=2, lanes={0: B}) == [up]
        job.send(0, round=3, lanes={0: A}, flags=0)
        up = rack.partial(round=3, lanes={0: A}, included=0b01, **free)
        assert job.send(1, round=3) == [up]  # protected, but with nothing to protect

    @pytest.mark.parametrize("magnitudes", [(0, 1), (1, 0), (2, 0), (1, 2)], ids=str)
    def test_partial_sums_are_of_the_greatest_magnitude_in_them(
        self, rack: Uplink, magnitudes: tuple[int, int]
    ) -> None:
        """Whichever worker sends last; and down to what the workers get."""
        job = rack.job
        job.send(0, lanes={0: A}, flags=0, magnitude=magnitudes[0])
        greatest = max(magnitudes)
        up = rack.partial(
            lanes={0: added(A, B)}, included=0b11, flags=0, magnitude=greatest,
            traffic_class=dscp(0, greatest) << 2 | NOT_ECT,
        )  # fmt: skip
        assert job.send(1, lanes={0: B}, flags=0, magnitude=magnitudes[1]) == [up]
        total = {"lanes": {0: D}, "magnitude": greatest}
        assert rack.send(PacketType.RESULT, **total, **TOTAL) == job.results(**total, **DOWN)

    def test_a_packet_without_lanes_says_nothing_of_their_magnitude(self, rack: Uplink) -> None:
        rack.job.send(0, lanes={0: A}, flags=0, magnitude=1)
        up = rack.partial(
            lanes={0: A}, included=0b01, flags=0, magnitude=1, traffic_class=dscp(0, 1) << 2 | NOT_ECT
        )
        assert rack.job.send(1, flags=0, magnitude=2) == [up]

    def test_congestion_is_told_upwards_and_downwards(self, rack: Uplink) -> None:
        job = rack.job
        job.send(0, lanes={0: A}, traffic_class=PROTECTED_FRONT | CE)
        told = Flag.PROTECTED | Flag.CONGESTED
        up = rack.partial(lanes={0: added(A, B)}, included=0b11, flags=told)
        assert job.send(1, lanes={0: B}) == [up]
        down = rack.send(PacketType.RESULT, lanes={0: D}, **TOTAL, traffic_class=PROTECTED_FRONT | CE)
        assert down == job.results(lanes={0: D}, **DOWN, flags=told)

    def test_only_the_spines_port_may_send_results(self, lab: Lab, rack: Uplink) -> None:
        rack.job.send(0, lanes={0: A})
        rack.job.send(1, lanes={0: B})
        for kind in (PacketType.RESULT, PacketType.REPEAT):
            fields = {"type": kind, "lanes": {0: D}, "included": 0b1111}
            assert rack.job.send(0, **fields) == []
            assert lab.send(4, rack.job.contribution(0, **fields)) == []
        expected = {Event.CONTRIBUTION: 1, Event.PARTIAL_SENT: 1}
        expected |= {Event.DROP_NOT_A_CONTRIBUTION: 2, Event.DROP_NOT_ADMITTED: 2}
        assert lab.events() == expected

    def test_the_next_round_starts_afresh(self, rack: Uplink) -> None:
        """The result that a cell held for an earlier round does not answer for a later one."""
        job = rack.job
        for round in (1, 3, 5):
            assert job.send(0, round=round, lanes={0: A}) == []
            up = rack.partial(round=round, lanes={0: added(A, B)}, included=0b11)
            assert job.send(1, round=round, lanes={0: B}) == [up]
            total = {"lanes": {0: D}, "round": round}
            assert rack.send(PacketType.RESULT, **total, **TOTAL) == job.results(**total, **DOWN)

    def test_a_result_without_the_racks_sums_includes_none_of_its_workers(self, rack: Uplink) -> None:
        """They were trimmed on the way up; workers are told so, and a spine that asks who is in it."""
        job = rack.job
        job.send(0, lanes={0: A}, flags=0)
        job.send(1, lanes={0: B}, flags=0)
        total = {"lanes": {0: D}, "included": 0b1101, "count": 9}
        down = {**total, "included": 0}
        assert rack.send(PacketType.RESULT, **total) == job.results(**down)
        assert job.send(0, lanes={0: A}) == [job.result(0, **down, again=True)]
        assert rack.send(PacketType.REPEAT) == [rack.result(**total)]

    def test_sums_for_a_switch_that_is_not_the_root_are_protected(self, lab: Lab) -> None:
        job = lab.job(2, ports=[1, 2])
        rack = lab.uplink(job, port=SPINE, whole=True)
        job.send(0, lanes={0: A}, flags=0)
        up = rack.partial(lanes={0: added(A, B)}, included=0b11, flags=Flag.PROTECTED)
        assert job.send(1, lanes={0: B}, flags=0) == [up]


class TestMiddle:
    """A switch with switches below and one above."""

    @pytest.fixture
    def middle(self, lab: Lab) -> Uplink:
        """Return a pod of racks at ports 1 and 2; the core at port 3, where it is pod 1."""
        return lab.uplink(lab.job(2, slots=20, ports=[1, 2], racks=True), port=SPINE)

    def test_sums_of_sums_go_up_and_the_result_down(self, middle: Uplink) -> None:
        job = middle.job
        assert job.send(0, lanes={0: A}, included=0b101, count=2) == []
        up = middle.partial(lanes={0: added(A, B)}, included=0b11, count=33)
        assert job.send(1, lanes={0: B}, included=0b111, count=31) == [up]
        assert job.send(1, lanes={0: B}, included=0b111, count=31) == [up]
        down = {"lanes": {0: D}, "included": 0b11, "count": 40}
        assert middle.send(PacketType.RESULT, lanes={0: D}, included=0b11, count=40) == job.results(**down)
        assert job.send(0, lanes={0: A}, included=0b101, count=2) == [job.result(0, **down, again=True)]

    def test_questions_pass_through(self, lab: Lab, middle: Uplink) -> None:
        """A rack that was not seen is asked; once all were, the core is; its question is answered with the
        sums.
        """
        early = {"flags": Flag.ANSWER | Flag.TRIMMED | Flag.PROTECTED}
        job = middle.job
        assert job.send(0, **early) == [job.repeat(0)]
        job.send(0, lanes={0: A}, included=1)
        assert middle.send(PacketType.REPEAT) == []
        lanes = {} if lab.target.headroom >= 1024 else {0: A}
        assert job.send(0, lanes={0: A}, included=1) == [job.repeat(1, lanes=lanes)]
        job.send(1, lanes={0: B}, included=1)
        if lab.target.headroom >= 1024:
            assert job.send(0, **early) == [middle.partial(**early, traffic_class=RELIABLE)]
        sums = {"lanes": {0: added(A, B)}, "included": 0b11}
        answer = middle.partial(**sums, flags=Flag.PROTECTED | Flag.ANSWER)
        assert middle.send(PacketType.REPEAT, lanes={0: C}) == [answer]

    def test_a_result_of_a_spine_that_is_gone_is_relayed_with_its_mask(self, middle: Uplink) -> None:
        """The rack that has it says whose sums the other racks are to take for included."""
        job, total = middle.job, {"lanes": {0: D}, "included": 0b01, "count": 5}
        assert job.send(0, type=PacketType.RESULT, **total) == [job.result(1, **total)]


class TestCore:
    """The root above pods, which are reached by several spines."""

    def test_a_pod_is_reached_by_the_spine_of_the_slots_class(self, lab: Lab) -> None:
        """Pod 1 is behind ports 2 and 3: the even slots' spine and the odd ones'."""
        core = lab.core([[1], [2, 3]])
        for slot in range(4):
            near, far = core.spines[0][0], core.spines[1][slot % 2]
            lanes, fields = {0: A}, {"slot": slot, "included": 1, "count": 32}
            assert core.send(0, near, lanes=lanes, **fields) == []
            total = {"lanes": {0: added(A, A)}, "slot": slot, "included": 0b11, "count": 64}
            sent = core.send(1, far, lanes=lanes, **fields)
            assert sent == sorted([core.result(0, near, **total), core.result(1, far, **total)])
            for spine in core.spines[1]:  # whichever asks is answered
                answer = core.result(1, spine, **total, again=True)
                assert core.send(1, spine, lanes=lanes, **fields) == [answer]


class TestSpine:
    """The switch that racks send to."""

    def test_racks_are_included_and_say_themselves_how_many_workers_are(self, spine: Job) -> None:
        assert spine.send(0, lanes={0: A}, nexts=[9], included=0b0000_0011) == []
        assert spine.send(1, nexts=[8]) == []
        total = {"lanes": {0: added(A, B)}, "nexts": [8], "included": 0b101, "count": 34}
        assert spine.send(2, lanes={0: B}, nexts=[10], included=0b0011, count=32) == spine.results(**total)
        assert spine.send(1, nexts=[8]) == [spine.result(1, **total, again=True)]

    def test_trimmed_sums_include_nobody(self, spine: Job) -> None:
        spine.send(0, lanes={0: A}, included=0b0011, flags=0)
        spine.send(1, included=0b1100, flags=Flag.TRIMMED)
        total = {"lanes": {0: added(A, B)}, "included": 0b101, "count": 3}
        assert spine.send(2, lanes={0: B}, included=0b1) == spine.results(**total)

    def test_a_repetition_makes_the_spine_ask_the_others(self, lab: Lab, spine: Job) -> None:
        """They may hold the result of a spine that is gone, or sums that were lost."""
        assert spine.send(0, lanes={0: A}, included=1) == []
        lanes = {} if lab.target.headroom >= 1024 else {0: A}  # who answers may need the room
        question = [spine.repeat(worker, lanes=lanes) for worker in (1, 2)]
        assert spine.send(0, lanes={0: A}, included=1) == question
        assert spine.send(0, lanes={0: A}, included=1, flags=Flag.PROTECTED | Flag.ANSWER) == []
        assert spine.send(1) == []
        assert spine.send(0, lanes={0: A}, included=1) == question[1:]  # who was seen has nothing to add
        expected = {Event.CONTRIBUTION: 2, Event.REPEAT_ASKED: 2, Event.DUPLICATE_PENDING: 1}
        assert lab.events() == expected

    def test_a_racks_result_is_relayed_to_the_others(self, lab: Lab, spine: Job) -> None:
        total = {"lanes": {0: D, 7: A}, "included": 0b1111, "round": 9}
        sent = spine.send(1, type=PacketType.RESULT, **total)
        assert sent == [spine.result(worker, **total) for worker in (0, 2)]
        assert lab.events() == {Event.RESULT_RELAYED: 1}

    def test_a_rack_that_was_not_seen_is_asked_for_its_sums(self, lab: Lab, spine: Job) -> None:
        early = {"flags": Flag.ANSWER | Flag.TRIMMED | Flag.PROTECTED}
        assert spine.send(0, nexts=[3], **early) == [spine.repeat(0, nexts=[3])]
        spine.send(0, lanes={0: A}, included=1)
        assert spine.send(0, **early) == []
        spine.send(1)
        total = {"lanes": {0: A}, "included": 1}
        assert spine.send(2) == spine.results(**total)
        assert spine.send(0, **early) == [spine.result(0, **total, again=True)]
        expected = {Event.CONTRIBUTION: 2, Event.ROUND_COMPLETE: 1, Event.REPEAT_ASKED: 1}
        expected |= {Event.DUPLICATE_PENDING: 1, Event.DUPLICATE_ANSWERED: 1}
        assert lab.events() == expected

    def test_a_rack_that_is_far_ahead_makes_the_spine_ask_the_others(self, lab: Lab, spine: Job) -> None:
        """Which has the round's result sends nothing by itself; which waits for it confirms the round."""
        spine.send(0, round=1, lanes={0: A}, included=1)
        lab.events()
        lanes = {} if lab.target.headroom >= 1024 else {0: B}
        questions = [spine.repeat(worker, round=9, lanes=lanes) for worker in (0, 2)]
        assert spine.send(1, round=9, lanes={0: B}, included=1) == questions
        total = {"lanes": {0: D}, "included": 0b1111, "round": 9}
        relayed = [spine.result(worker, **total) for worker in (1, 2)]
        assert spine.send(0, type=PacketType.RESULT, **total) == relayed
        answer = {"round": 9, "included": 1, "flags": Flag.PROTECTED | Flag.ANSWER}
        assert spine.send(2, lanes={0: C}, **answer) == []
        assert spine.send(1, lanes={0: B}, **answer) == []
        total = {"round": 9, "lanes": {0: added(A, B, C)}, "included": 0b111}
        assert spine.send(0, lanes={0: A}, round=9, included=1) == spine.results(**total)
        expected = {Event.REPEAT_ASKED: 1, Event.RESULT_RELAYED: 1, Event.CONTRIBUTION: 2}
        assert lab.events() == expected | {Event.ROUND_COMPLETE: 1}

    def test_racks_may_not_ask(self, lab: Lab, spine: Job) -> None:
        assert spine.send(1, type=PacketType.REPEAT) == []
        assert lab.events() == {Event.DROP_NOT_A_CONTRIBUTION: 1}
