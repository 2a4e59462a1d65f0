# SPDX-License-Identifier: Apache-2.0
"""The ten slot cases that microsoft/SwitchML names, each with exact packets, for 2 and 3 workers."""

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import ARP, Ether

from tests.harness.lab import AGGREGATION_MAC, Job, Lab, group_of
from weir.wire.definition import Event

pytestmark = pytest.mark.parametrize("workers", [2, 3])

EVERY_TARGET = True


def lanes_of(job: Job, worker: int, round: int) -> dict[int, list[int]]:
    """Return lanes that are different for every worker, round, group and lane, in all groups of a packet."""
    groups = range(job.lab.target.lane_groups)
    return {group: group_of(1000 * round + 100_000 * worker + 32 * group) for group in groups}


def sums(job: Job, round: int) -> dict[int, list[int]]:
    """Return what `lanes_of` adds up to."""
    parts = [lanes_of(job, worker, round) for worker in range(len(job.stations))]
    return {g: [sum(lanes) for lanes in zip(*(p[g] for p in parts), strict=True)] for g in parts[0]}


def begin(job: Job, round: int, *, slot: int = 0) -> None:
    """Everybody but the last worker takes part in a round; nothing may come out."""
    for worker in range(len(job.stations) - 1):
        assert job.send(worker, slot=slot, round=round, lanes=lanes_of(job, worker, round)) == []


def finish(job: Job, round: int, *, slot: int = 0) -> None:
    """The last worker completes the round, and all get the result."""
    last = len(job.stations) - 1
    sent = job.send(last, slot=slot, round=round, lanes=lanes_of(job, last, round))
    assert sent == job.results(slot=slot, round=round, lanes=sums(job, round))


def test_basic_reduction(lab: Lab, workers: int) -> None:
    job = lab.job(workers)
    begin(job, 1)
    finish(job, 1)
    assert lab.events() == {Event.CONTRIBUTION: workers - 1, Event.ROUND_COMPLETE: 1}


def test_retransmit_after_reduction(lab: Lab, workers: int) -> None:
    """Whoever missed the result asks again, with the same packet, and alone gets the same result."""
    job = lab.job(workers)
    begin(job, 1)
    finish(job, 1)
    for worker in range(workers):
        expected = job.result(worker, round=1, lanes=sums(job, 1), included=job.everyone, again=True)
        assert job.send(worker, round=1, lanes=lanes_of(job, worker, 1)) == [expected]
        assert job.send(worker, round=1, lanes=lanes_of(job, worker, 1)) == [expected]
    assert lab.events()[Event.DUPLICATE_ANSWERED] == 2 * workers


def test_other_set(lab: Lab, workers: int) -> None:
    """Odd and even rounds have memory of their own: the second round does not see the first."""
    job = lab.job(workers)
    begin(job, 1)
    finish(job, 1)
    begin(job, 2)
    finish(job, 2)


def test_both_sets(lab: Lab, workers: int) -> None:
    """Two rounds under way at once, finished in either order."""
    job = lab.job(workers)
    begin(job, 1)
    begin(job, 2)
    finish(job, 1)
    finish(job, 2)
    begin(job, 3)
    begin(job, 4)
    finish(job, 4)
    finish(job, 3)


def test_slot_reuse(lab: Lab, workers: int) -> None:
    """A slot is used round after round without anybody clearing it, next to its neighbours."""
    job = lab.job(workers, slots=2)
    for round in range(1, 6):
        begin(job, round, slot=0)
        begin(job, round, slot=1)
        finish(job, round, slot=1)
        finish(job, round, slot=0)


def test_ignored_retransmissions(lab: Lab, workers: int) -> None:
    """While others are awaited, a repeated packet is neither added nor answered."""
    job = lab.job(workers)
    for worker in range(workers - 1):
        for _ in range(3):
            assert job.send(worker, round=1, lanes=lanes_of(job, worker, 1)) == []
    finish(job, 1)
    assert lab.events() == {
        Event.CONTRIBUTION: workers - 1,
        Event.DUPLICATE_PENDING: 2 * (workers - 1),
        Event.ROUND_COMPLETE: 1,
    }


def test_retransmit_from_previous_set(lab: Lab, workers: int) -> None:
    """One worker missed the result while the others have gone on to the next round."""
    job = lab.job(workers)
    begin(job, 1)
    finish(job, 1)
    begin(job, 2)
    last = workers - 1
    answer = job.result(last, round=1, lanes=sums(job, 1), included=job.everyone, again=True)
    assert job.send(last, round=1, lanes=lanes_of(job, last, 1)) == [answer]
    finish(job, 2)


def test_slot_reuse_and_retransmit(lab: Lab, workers: int) -> None:
    """When a version is used again, its old round is gone, and the round before the new one still there."""
    job = lab.job(workers)
    for round in (1, 2):
        begin(job, round)
        finish(job, round)
    begin(job, 3)
    last = workers - 1
    answer = job.result(last, round=2, lanes=sums(job, 2), included=job.everyone, again=True)
    assert job.send(last, round=2, lanes=lanes_of(job, last, 2)) == [answer]
    lab.events()
    assert job.send(last, round=1, lanes=lanes_of(job, last, 1)) == []
    assert lab.events() == {Event.DROP_STALE_ROUND: 1}
    finish(job, 3)


def test_foreign_traffic(lab: Lab, workers: int) -> None:
    """Other traffic, Weir's to another switch included, passes between and changes nothing."""
    job = lab.job(workers)
    lab.target.insert("WeirIngress.forwarding.l2", (0x020000000042,), "WeirIngress.forwarding.forward", (4,))
    ether = Ether(dst="02:00:00:00:00:42", src=job.stations[0].mac)
    foreign = [
        ether / IP(src="10.0.0.1", dst="10.9.9.9") / ICMP() / b"ping",
        ether / IP(src="10.0.0.1", dst="10.9.9.9") / UDP(sport=9347, dport=9347) / b"not Weir at all",
        ether / job.contribution(0, round=1, lanes=lanes_of(job, 0, 1))[IP].copy(),
        ether / ARP(pdst="10.9.9.9"),
    ]
    foreign[2][IP].dst = "10.9.9.9"
    del foreign[2][IP].chksum
    if not lab.target.forwards_what_it_cannot_parse:
        del foreign[1]
    begin(job, 1)
    for frame in foreign:
        [sent] = lab.send(1, frame)
        assert (sent.port, sent.frame) == (4, bytes(frame))
    stray = Ether(dst=AGGREGATION_MAC) / IP(dst="10.0.0.254") / UDP(dport=53) / b"no name server here"
    assert lab.send(1, stray) == []
    finish(job, 1)
    assert lab.events() == {
        Event.CONTRIBUTION: workers - 1,
        Event.FORWARDED: len(foreign),
        Event.DROP_NO_ROUTE: 1,
        Event.ROUND_COMPLETE: 1,
    }


def test_different_ports(lab: Lab, workers: int) -> None:
    """Results go to the switch port, addresses and UDP port of the table, wherever packets come from."""
    job = lab.job(workers, ports=[4, 2, 1][:workers], udp_port=20_000)
    assert [station.udp_port for station in job.stations] == [20_000, 20_010, 20_020][:workers]
    begin(job, 1)
    last = workers - 1
    frame = job.contribution(last, round=1, lanes=lanes_of(job, last, 1))
    if not lab.target.guards_sources:
        frame[UDP].sport = 55_555
    assert lab.send(job.stations[last].port, frame) == job.results(round=1, lanes=sums(job, 1))
    answer = job.result(last, round=1, lanes=sums(job, 1), included=job.everyone, again=True)
    assert lab.send(job.stations[last].port, frame) == [answer]
