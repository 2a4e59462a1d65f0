# SPDX-License-Identifier: Apache-2.0
"""Sums of 64 lanes leave a Tofino in a second pass: whatever comes between, both halves are of one sum."""

import random
from collections.abc import Callable, Iterator

import pytest
from scapy.layers.l2 import Ether

from tests.harness.effort import effort
from tests.harness.lab import Job, Lab, Lanes, Uplink, group_of
from tests.harness.target import Sent
from tests.harness.tna import CELLS, NarrowTarget, TnaTarget
from weir.controller.tables import tofino
from weir.wire.definition import NO_BLOCK, Event, Flag, Op, PacketType
from weir.wire.scapy_layer import Weir

pytestmark = pytest.mark.p4c

BASE, MEMBER = 8, 3


@pytest.fixture(scope="module")
def program() -> Iterator[TnaTarget]:
    found = TnaTarget(lanes=64)
    yield found
    found.close()


@pytest.fixture
def lab(program: TnaTarget) -> Lab:
    return Lab(program)


def both(value: int) -> Lanes:
    """Return both lane groups of a packet, all lanes of which differ."""
    return {0: group_of(1000 * value), 1: group_of(1000 * value + 500)}


def sums(*values: int) -> Lanes:
    """Return what ``both`` adds up to."""
    parts = [both(value) for value in values]
    return {group: [sum(lanes) for lanes in zip(*(p[group] for p in parts), strict=True)] for group in (0, 1)}


def held(job: Job, *, round: int = 1, **fields: int) -> NarrowTarget:
    """Complete a round of two workers, whose result waits for its second pass."""
    target = job.lab.target
    assert isinstance(target, NarrowTarget)
    target.delays = True
    for worker in range(2):
        assert job.send(worker, round=round, lanes=both(round + worker), **fields) == []
    assert len(target.waiting) == 1
    return target


BETWEEN: dict[str, Callable[[Job], list[Sent]]] = {
    "nothing": lambda job: [],
    "a repeated packet": lambda job: job.send(0, round=1, lanes=both(1)),
    "a probe": lambda job: job.send(0, round=1, flags=Flag.TRIMMED | Flag.PROTECTED),
    "other lanes of a worker that was seen": lambda job: job.send(1, round=1, lanes=both(99)),
    "another operation": lambda job: job.send(0, round=1, op=Op.MAX, check=7, lanes={0: group_of(7)}),
    "the next round": lambda job: job.send(0, round=2, lanes=both(5)),
    "another slot": lambda job: job.send(0, slot=1, round=1, lanes=both(6)),
    "an old round": lambda job: job.send(0, round=0, lanes=both(8)),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_a_result_is_of_its_round_whatever_comes_between(lab: Lab, between: str) -> None:
    job = lab.job(2, slot_base=BASE)
    target = held(job)
    BETWEEN[between](job)
    assert target.pass_again() == job.results(round=1, lanes=sums(1, 2))


def test_a_result_that_waited_for_two_rounds_is_stale(lab: Lab) -> None:
    """All have it by then, in answers to what they asked: its upper lanes are of another round."""
    job = lab.job(2, slot_base=BASE)
    target = held(job)
    for worker in range(2):
        assert job.send(worker, round=1, flags=Flag.TRIMMED | Flag.PROTECTED) == []
        answer = job.result(worker, round=1, lanes=sums(1, 2), included=job.everyone)
        assert target.pass_again(1) == [answer]
    for worker in range(2):
        job.send(worker, round=2, lanes=both(2 + worker))
    assert target.pass_again(1) == job.results(round=2, lanes=sums(2, 3))
    job.send(0, round=3, lanes=both(7))
    lab.events()
    assert target.pass_again() == []
    assert lab.events() == {Event.DROP_STALE_ROUND: 1}
    job.send(1, round=3, lanes=both(9))
    assert target.pass_again() == job.results(round=3, lanes=sums(7, 9))


def test_slots_that_were_given_to_another_job_meanwhile_say_nothing(lab: Lab) -> None:
    job = lab.job(2, slot_base=BASE)
    target = held(job)
    for register in tofino.STAMPS:
        for cell in (BASE, CELLS // 2 + BASE):
            target.zero(register, cell)
    assert target.pass_again() == []


def test_every_packet_is_counted_once(lab: Lab) -> None:
    job = lab.job(2, slot_base=BASE)
    held(job).pass_again()
    assert lab.events() == {Event.CONTRIBUTION: 1, Event.ROUND_COMPLETE: 1}


def test_it_passes_by_the_port_of_its_own_pipe(lab: Lab) -> None:
    job = lab.job(2, slot_base=BASE, ports=[128 + 4, 128 + 8])
    target = held(job)
    assert [port for port, _ in target.waiting] == [128 + 68]
    assert target.pass_again() == job.results(round=1, lanes=sums(1, 2))


def leaf(lab: Lab) -> tuple[Job, Uplink]:
    job = lab.job(2, slot_base=BASE)
    return job, lab.uplink(job, port=4, member=MEMBER, whole=True)


def above(uplink: Uplink, **fields: int) -> list[Sent]:
    """Let the parent's result arrive, in which this rack is included."""
    fields = {"round": 1, "included": 1 << MEMBER, "count": 5, **fields}
    return uplink.send(PacketType.RESULT, lanes=sums(1, 2, 3), **fields)


def test_partial_sums_do_not_take_half_of_the_parents_result(lab: Lab) -> None:
    """It can be there before them: its parent had them from a worker's repetition, which overtook them."""
    job, uplink = leaf(lab)
    target = held(job)
    job.send(0, round=1, lanes=both(1))
    sent = uplink.partial(round=1, lanes=sums(1, 2), count=2, included=3)
    assert target.pass_again(1) == [sent]
    result = job.results(round=1, lanes=sums(1, 2, 3), count=5)
    assert above(uplink) == result
    lab.events()
    assert target.pass_again() == []
    assert lab.events() == {Event.DROP_STALE_ROUND: 1}


def test_partial_sums_pass_where_the_parents_result_is_elsewhere(lab: Lab) -> None:
    job, uplink = leaf(lab)
    target = held(job, audience=0)
    flags = Flag.PROTECTED | Flag.ELSEWHERE
    assert len(uplink.send(PacketType.RESULT, round=1, audience=0, flags=flags)) == 2
    sent = uplink.partial(round=1, audience=0, lanes=sums(1, 2), count=2, included=3)
    assert target.pass_again() == [sent]


def test_answers_from_the_parents_result_stay_its_when_it_comes_again(lab: Lab) -> None:
    job, uplink = leaf(lab)
    target = held(job)
    target.pass_again()
    above(uplink)
    job.send(1, round=1, lanes=both(2))
    uplink.send(PacketType.REPEAT, round=1, flags=Flag(0))
    above(uplink)
    answer = job.result(1, round=1, lanes=sums(1, 2, 3), count=5, included=3)
    assert target.pass_again() == [answer]
    repeated = uplink.result(round=1, lanes=sums(1, 2, 3), count=5, included=1 << MEMBER)
    assert target.pass_again() == [repeated]


@pytest.mark.parametrize("op", [Op.MAX, Op.OR])
def test_what_has_one_lane_group_passes_once(lab: Lab, op: Op) -> None:
    job = lab.job(2, slot_base=BASE)
    target = lab.target
    assert isinstance(target, NarrowTarget)
    target.delays = True
    job.send(0, op=op, lanes={0: group_of(3)})
    assert job.send(1, op=op, lanes={0: group_of(4)}) != []
    assert job.send(0, op=op, lanes={0: group_of(3)}) != []
    assert target.waiting == []


@pytest.mark.parametrize("seed", range(effort(2, 6)))
def test_packets_in_any_order_and_passes_at_any_time_leave_sums_whole(lab: Lab, seed: int) -> None:
    """Workers that are never more than a round apart repeat at will; whatever comes out is of one round."""
    rng, workers, last = random.Random(seed), 3, effort(6, 12)
    job = lab.job(workers, slot_base=BASE)
    target = lab.target
    assert isinstance(target, NarrowTarget)
    target.delays = True
    at = [1] * workers  # the round that each is in
    stale = 0
    while min(at) <= last:
        if target.waiting and rng.random() < 0.3:
            sent = target.pass_again(rng.randrange(len(target.waiting)))
            stale += not sent
        else:
            worker = rng.randrange(workers)
            sent = job.send(worker, round=at[worker], lanes=both(10 * at[worker] + worker))
        for out in sent:
            weir = Ether(out.frame)[Weir]
            if weir.type == PacketType.RESULT:
                expected = sums(*(10 * weir.round + worker for worker in range(workers)))
                assert list(weir.lanes) == [*expected[0], *expected[1]]
                assert [column.next for column in weir.columns] == [NO_BLOCK]
                if weir.round == at[weir.worker]:
                    at[weir.worker] += 1
    while target.waiting:
        stale += not target.pass_again()
    assert stale
