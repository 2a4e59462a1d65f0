# SPDX-License-Identifier: Apache-2.0
"""Packets of different operations in one round: everybody is told, and nobody gets meaningless lanes."""

import pytest

from tests.harness.lab import PROTECTED_FRONT, RELIABLE, Job, Lab, Uplink, group_of
from weir.wire.definition import NOT_ECT, Event, Flag, Op, PacketType, dscp

A, B, D = group_of(1), group_of(1000), group_of(77)
ONE, OTHER = 0x12345678, 0x12345679
TOLD = Flag.PROTECTED | Flag.DISAGREE
FULL = dict.fromkeys(range(8), A)


def summed(one: list[int], other: list[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


class TestOneSwitch:
    """A job whose workers are all at this switch."""

    def test_one_operation_is_no_disagreement(self, lab: Lab) -> None:
        job = lab.job(2)
        assert job.send(0, lanes={0: A}, check=ONE) == []
        assert job.send(1, lanes={0: B}, check=ONE) == job.results(lanes={0: summed(A, B)}, check=ONE)
        assert lab.events() == {Event.CONTRIBUTION: 1, Event.ROUND_COMPLETE: 1}

    def test_everybody_is_told_and_gets_no_lanes(self, lab: Lab) -> None:
        job = lab.job(2)
        assert job.send(0, lanes={0: A}, check=ONE) == []
        told = {"flags": TOLD, "check": ONE, "included": 0}
        assert job.send(1, lanes={0: B, 3: B}, check=OTHER) == job.results(**told)
        assert lab.events() == {Event.CONTRIBUTION: 1, Event.DISAGREEMENT: 1}
        assert job.send(0, lanes={0: A}, check=ONE) == [job.result(0, **told, again=True)]
        assert job.send(1, lanes={0: B, 3: B}, check=OTHER) == [job.result(1, **told, again=True)]

    @pytest.mark.parametrize("checks", [(ONE, OTHER, ONE), (ONE, ONE, OTHER), (ONE, OTHER, OTHER), (0, 1, 2)])
    def test_it_lasts_for_the_round_and_no_longer(self, lab: Lab, checks: tuple[int, ...]) -> None:
        job = lab.job(3)
        sent = [job.send(worker, lanes={0: A}, check=checks[worker]) for worker in range(3)]
        assert sent == [[], [], job.results(flags=TOLD, check=checks[0], included=0)]
        assert lab.events()[Event.DISAGREEMENT] == 1  # the mark was set once
        for round in (2, 3):  # the cell is used again
            for worker in (0, 1):
                assert job.send(worker, round=round, lanes={0: D}, check=7) == []
            total = {0: [3 * lane for lane in D]}
            assert job.send(2, round=round, lanes={0: D}, check=7) == job.results(
                round=round, lanes=total, check=7
            )

    def test_another_operator_block_size_and_count_of_lanes(self, lab: Lab) -> None:
        """The result has the shape of the last packet, which is not what the first one's sender expects."""
        job = lab.job(2)
        assert job.send(0, op=Op.MAX, block_log2=5, lanes={1: A}, check=ONE) == []
        told = {"flags": TOLD, "check": ONE, "included": 0}
        assert job.send(1, op=Op.ADD, lanes=FULL, check=OTHER) == job.results(**told)
        columns = {"op": Op.OR, "block_log2": 6, "nexts": [0] * 4, "round": 2}
        assert job.send(0, round=2, lanes=FULL, nexts=[0], check=ONE) == []
        assert job.send(1, lanes={0: A}, check=OTHER, **columns) == job.results(**told, **columns)

    def test_no_lanes_against_lanes_on_a_target_that_cannot_lengthen_packets(self, lab: Lab) -> None:
        """Nobody has to send again what is discarded anyway."""
        lab.limit_growth(0)
        job = lab.job(2)
        assert job.send(0, lanes=FULL, check=ONE) == []
        told = {"flags": TOLD, "check": ONE, "included": 0}
        assert job.send(1, check=OTHER) == job.results(**told)
        assert job.send(1, check=OTHER) == [job.result(1, **told, again=True)]
        assert job.send(0, round=2, check=ONE) == []
        assert job.send(1, round=2, lanes=FULL, check=OTHER) == job.results(round=2, **told)

    def test_only_packets_that_count_can_disagree(self, lab: Lab) -> None:
        """Neither a stranger's, nor one of another round, nor one whose lanes must come again."""
        job = lab.job(2, ports=[1, 2])
        assert job.send(0, round=4, lanes={0: A}, check=ONE) == []
        assert lab.send(3, job.contribution(1, round=4, check=OTHER)) == []
        assert job.send(1, round=2, lanes={0: B}, check=OTHER) == []
        lost = {"flags": Flag.PROTECTED | Flag.TRIMMED, "check": OTHER}
        assert job.send(1, round=4, **lost) == [job.repeat(1, round=4, check=OTHER)]
        assert job.send(0, round=4, lanes={0: A}, check=OTHER) == []  # was seen
        expected = {Event.CONTRIBUTION: 1, Event.DROP_NOT_ADMITTED: 1, Event.DROP_STALE_ROUND: 1}
        assert lab.events() == expected | {Event.REPEAT_ASKED: 1, Event.DUPLICATE_PENDING: 1}
        total = {"round": 4, "lanes": {0: summed(A, B)}, "check": ONE}
        assert job.send(1, round=4, lanes={0: B}, check=ONE) == job.results(**total)
        answer = job.result(0, **total, included=0b11, again=True)  # a result never changes
        assert job.send(0, round=4, lanes={0: A}, check=OTHER) == [answer]


class TestRack:
    """The switch of a rack, whose workers 0 and 1 are at ports 1 and 2; the spine is at port 3."""

    @pytest.fixture
    def rack(self, lab: Lab) -> Uplink:
        return lab.uplink(lab.job(2, ports=[1, 2]), port=3)

    def test_its_workers_disagree(self, lab: Lab, rack: Uplink) -> None:
        """Its partial sums say so, without lanes; so does what repeats them."""
        job = rack.job
        assert job.send(0, lanes={0: A}, check=ONE) == []
        told = {"flags": TOLD, "check": ONE, "included": 0}
        assert job.send(1, lanes={0: B}, check=OTHER) == [rack.partial(**told)]
        assert lab.events() == {Event.CONTRIBUTION: 1, Event.DISAGREEMENT: 1}
        assert job.send(1, lanes={0: B}, check=OTHER) == [rack.partial(**told)]
        answer = rack.partial(**(told | {"flags": TOLD | Flag.ANSWER}))
        assert rack.send(PacketType.REPEAT, lanes={3: D}, check=OTHER) == [answer]
        assert rack.send(PacketType.RESULT, **told) == job.results(**told)
        assert job.send(0, lanes={0: A}, check=ONE) == [job.result(0, **told, again=True)]

    def test_other_racks_disagree(self, lab: Lab, rack: Uplink) -> None:
        """The spine's word is kept, for the workers and for a spine that asks later."""
        job = rack.job
        assert job.send(0, lanes={0: A}, check=ONE) == []
        up = rack.partial(lanes={0: summed(A, B)}, included=0b11, check=ONE)
        assert job.send(1, lanes={0: B}, check=ONE) == [up]
        told = {"flags": TOLD, "check": ONE, "included": 0}
        assert rack.send(PacketType.RESULT, **(told | {"check": OTHER})) == job.results(**told)
        assert job.send(1, lanes={0: B}, check=ONE) == [job.result(1, **told, again=True)]
        assert rack.send(PacketType.REPEAT, lanes={0: D}, check=OTHER) == [rack.result(**told)]
        assert lab.events()[Event.RESULT_STORED] == 1

    def test_sums_of_an_operation_that_the_rack_knows_nothing_of(self, rack: Uplink) -> None:
        job = rack.job
        job.send(0, lanes={0: A}, check=ONE)
        job.send(1, lanes={0: B}, check=ONE)
        told = job.results(flags=TOLD, check=ONE, included=0)
        assert rack.send(PacketType.RESULT, lanes={0: D}, included=0b1111, check=OTHER) == told

    def test_an_answer_to_a_question_is_of_the_racks_own_operation(self, rack: Uplink) -> None:
        """Otherwise, the spine would compare an operation with itself."""
        job = rack.job
        job.send(0, lanes={0: A}, check=ONE)
        job.send(1, lanes={0: B}, check=ONE)
        up = rack.partial(
            lanes={0: summed(A, B)}, included=0b11, check=ONE, flags=Flag.PROTECTED | Flag.ANSWER
        )
        assert rack.send(PacketType.REPEAT, lanes={0: D}, check=OTHER) == [up]

    def test_what_may_be_lost_may_be_lost(self, rack: Uplink) -> None:
        """Without lanes there is nothing to trim, and the mark stays."""
        job = rack.job
        job.send(0, lanes={0: A}, flags=0, check=ONE)
        free = {"flags": Flag.DISAGREE, "traffic_class": dscp(0, 0) << 2 | NOT_ECT}
        assert job.send(1, lanes={0: B}, flags=0, check=OTHER) == [
            rack.partial(check=ONE, included=0, **free)
        ]


class TestSpine:
    """The switch that racks send to."""

    @pytest.fixture
    def spine(self, lab: Lab) -> Job:
        return lab.job(3, ports=[1, 2, 3], racks=True)

    def test_racks_disagree(self, lab: Lab, spine: Job) -> None:
        assert spine.send(0, lanes={0: A}, included=0b11, check=ONE) == []
        assert spine.send(1, lanes={0: A}, included=0b11, check=ONE) == []
        told = spine.results(flags=TOLD, check=ONE, included=0)
        assert spine.send(2, lanes={0: B}, included=0b1100, check=OTHER) == told
        assert lab.events() == {Event.CONTRIBUTION: 2, Event.DISAGREEMENT: 1}

    @pytest.mark.parametrize("first", [0, 1, 2])
    def test_a_racks_workers_disagree(self, spine: Job, first: int) -> None:
        """What the rack found out holds for all, whenever its sums come."""
        for turn in range(2):
            fields = {"flags": TOLD} if turn == first else {"lanes": {0: A}, "included": 0b11}
            assert spine.send(turn, check=ONE, **fields) == []
        fields = {"flags": TOLD} if first == 2 else {"lanes": {0: A}, "included": 0b11}
        told = {"flags": TOLD, "check": ONE, "included": 0}
        assert spine.send(2, check=ONE, **fields) == spine.results(**told)
        assert spine.send(0, check=ONE) == [spine.result(0, **told, again=True)]

    def test_a_result_that_says_so_is_relayed(self, spine: Job) -> None:
        told = {"flags": TOLD, "check": ONE, "included": 0}
        sent = spine.send(1, type=PacketType.RESULT, **told)
        assert sent == [spine.result(worker, **told) for worker in (0, 2)]

    def test_questions_say_nothing_about_it(self, lab: Lab, spine: Job) -> None:
        assert spine.send(0, flags=TOLD, check=ONE) == []
        question = [spine.repeat(worker, check=ONE, traffic_class=RELIABLE) for worker in (1, 2)]
        assert spine.send(0, flags=TOLD, check=ONE, traffic_class=PROTECTED_FRONT) == question
