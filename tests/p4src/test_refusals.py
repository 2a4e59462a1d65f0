# SPDX-License-Identifier: Apache-2.0
"""Every way of being refused: the packet vanishes, its reason is counted, and no state has changed."""

from collections.abc import Callable
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP, IPOption_NOP
from scapy.packet import Raw

from tests.harness.lab import AGGREGATION_IP, Job, Lab, group_of, ip_number
from weir.wire.definition import UDP_PORT, Event, Flag, Op, PacketType
from weir.wire.scapy_layer import Weir

LANES = group_of(0xDEAD0000)
SUM = [2 * lane % 2**32 for lane in LANES]


@pytest.fixture
def job(lab: Lab) -> Job:
    """Return a round under way: worker 0, at port 1, has sent; worker 1, at port 2, is awaited."""
    job = lab.job(2, slots=4, ports=[1, 2])
    assert job.send(0, round=5, lanes={0: LANES}, nexts=[9]) == []
    lab.events()
    return job


def refused(job: Job, frame: Any, reason: Event, *, port: int = 2) -> None:
    """The frame is dropped for this reason alone, and the round finishes as if it had never been sent."""
    assert job.lab.send(port, frame) == []
    assert job.lab.events() == {reason: 1}
    results = job.results(round=5, lanes={0: SUM}, nexts=[8])
    assert job.send(1, round=5, lanes={0: LANES}, nexts=[8]) == results


def spoiled(job: Job, spoil: Callable[[Any], object], **fields: Any) -> Any:
    """Return worker 1's packet for the round under way, after `spoil` had a go at it."""
    frame = job.contribution(1, **{"round": 5, "lanes": {0: LANES}, "nexts": [1], **fields})
    spoil(frame)
    return frame


def weir(**fields: int) -> Callable[[Any], None]:
    """Write fields of the Weir header over, and leaves the rest as it was."""

    def spoil(frame: Any) -> None:
        for name, value in fields.items():
            frame[Weir].setfieldval(name, value)

    return spoil


def lengths(ip: int, udp: int) -> Callable[[Any], None]:
    """Return length fields that are off by this many bytes; the IPv4 checksum fits."""

    def spoil(frame: Any) -> None:
        frame[IP].len = len(frame[IP]) + ip
        frame[UDP].len = len(frame[UDP]) + udp

    return spoil


MALFORMED: dict[str, Callable[[Any], object]] = {
    "version 0": weir(version=0),
    "version 1": weir(version=1),
    "version 2": weir(version=2),
    "version 15": weir(version=15),
    "unknown flag": weir(flags=0x40),
    "all flags": weir(flags=0xFF),
    "trimmed, but with lanes": weir(flags=Flag.TRIMMED),
    "layer class 4": weir(layer=4),
    "magnitude class 3": weir(magnitude=3),
    "type 0": weir(type=0),
    "type 4": weir(type=4),
    "type 15": weir(type=15),
    "operator 0": weir(op=0),
    "operator 4": weir(op=4),
    "operator 15": weir(op=15),
    "blocks of 16": weir(block_log2=4),
    "blocks of 512": weir(block_log2=9),
    "blocks of 1": weir(block_log2=0),
    "blocks of 32768": weir(block_log2=15),
    "worker 32": weir(worker=32),
    "worker 255": weir(worker=255),
    "lanes without a group": weir(groups=0),
    "ip length too small": lengths(-4, 0),
    "ip length too great": lengths(4, 0),
    "udp length too small": lengths(0, -1),
    "udp length too great": lengths(0, 1),
    "both lengths too small": lengths(-128, -128),
    "both lengths too great": lengths(128, 128),
    "ip checksum": lambda frame: frame[IP].setfieldval("chksum", 0xBEEF),
    "ip options": lambda frame: frame[IP].setfieldval("options", [IPOption_NOP()] * 4),
    "first fragment": lambda frame: frame[IP].setfieldval("flags", "MF"),
    "later fragment": lambda frame: frame[IP].setfieldval("frag", 1),
}


@pytest.mark.parametrize("spoil", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed(job: Job, spoil: Callable[[Any], object]) -> None:
    refused(job, spoiled(job, spoil), Event.DROP_MALFORMED)


@pytest.mark.parametrize("kind", [PacketType.RESULT, PacketType.REPEAT])
def test_not_a_contribution(job: Job, kind: int) -> None:
    refused(job, spoiled(job, weir(type=kind)), Event.DROP_NOT_A_CONTRIBUTION)


def test_a_result_sent_back_to_the_switch(job: Job) -> None:
    """A worker, or a loop in the network, returns what the switch sent."""
    result = job.result(1, round=5, lanes={0: LANES}, included=0b11)
    frame = bytearray(result.frame)
    frame[30:34] = bytes((10, 0, 0, 254))
    frame[36:38] = (9347).to_bytes(2, "big")
    sent = IP(bytes(frame[14:]))
    del sent.chksum
    refused(job, bytes(frame[:14]) + bytes(sent), Event.DROP_WRONG_SENDER)


def test_wrong_job(job: Job) -> None:
    refused(job, spoiled(job, weir(job=job.id + 0x1000)), Event.DROP_NOT_ADMITTED)


def test_wrong_worker(job: Job) -> None:
    refused(job, spoiled(job, weir(worker=2)), Event.DROP_NOT_ADMITTED)


def test_another_worker_of_the_same_job(job: Job) -> None:
    """Worker 1's port may not speak for worker 0."""
    refused(job, spoiled(job, weir(worker=0)), Event.DROP_NOT_ADMITTED)


def test_wrong_port(job: Job) -> None:
    refused(job, spoiled(job, weir()), Event.DROP_NOT_ADMITTED, port=3)


def addressed(layer: type[IP] | type[UDP], **fields: Any) -> Callable[[Any], None]:
    """Write fields of the IPv4 or the UDP header over."""

    def spoil(frame: Any) -> None:
        for name, value in fields.items():
            frame[layer].setfieldval(name, value)

    return spoil


SENDERS: dict[str, Callable[[Any], None]] = {
    "another process of the worker's host": addressed(UDP, sport=45678),
    "the UDP port of the other worker": addressed(UDP, sport=9000),
    "the port of results": addressed(UDP, sport=UDP_PORT),
    "a second address of the host": addressed(IP, src="10.0.77.2"),
    "the other worker's address": addressed(IP, src="10.0.0.1"),
    "the switch's own address": addressed(IP, src=AGGREGATION_IP),
    "no address": addressed(IP, src="0.0.0.0"),
}


@pytest.mark.parametrize("spoil", SENDERS.values(), ids=SENDERS.keys())
def test_wrong_sender(job: Job, spoil: Callable[[Any], None]) -> None:
    """Port, job and worker can be guessed; it takes rights on the worker's host to send from its UDP port."""
    refused(job, spoiled(job, spoil), Event.DROP_WRONG_SENDER)


@pytest.mark.parametrize("lanes", [{0: LANES}, {}])
@pytest.mark.parametrize("ahead", [4, 6, 2**16, 2**31 - 2])
def test_a_round_too_far_ahead(job: Job, ahead: int, lanes: dict[int, list[int]]) -> None:
    """One packet of it would make all others of the slot stale for good."""
    refused(job, spoiled(job, weir(), round=5 + ahead, lanes=lanes), Event.DROP_FAR_ROUND)


def test_a_round_too_far_ahead_again_and_again(job: Job) -> None:
    """Nor does it come true by being repeated, nor with others in between."""
    for round in (9, 9, 11, 9, 2**31 + 3, 9):
        assert job.lab.send(2, spoiled(job, weir(), round=round)) == []
    assert job.lab.events() == {Event.DROP_FAR_ROUND: 6}
    refused(job, spoiled(job, weir(), round=9), Event.DROP_FAR_ROUND)


@pytest.mark.parametrize("slot", [4, 5, 1023, 1024, 65535])
def test_slot_outside_the_jobs_range(job: Job, slot: int) -> None:
    refused(job, spoiled(job, weir(), slot=slot), Event.DROP_SLOT_RANGE)


def test_slot_that_an_entry_promises_but_the_switch_lacks(lab: Lab) -> None:
    job = lab.job(1, slots=2, slot_base=1023)
    assert job.send(0, slot=0, lanes={0: LANES}) == job.results(slot=0, lanes={0: LANES})
    lab.events()
    assert job.send(0, slot=1, lanes={0: LANES}) == []
    assert lab.events() == {Event.DROP_SLOT_RANGE: 1}


def test_stale_round(job: Job) -> None:
    refused(job, spoiled(job, weir(), round=3), Event.DROP_STALE_ROUND)


def test_duplicate_while_pending(job: Job) -> None:
    """Not even with other lanes, another operator or another block size."""
    again = job.contribution(0, round=5, lanes={0: LANES, 1: LANES}, nexts=[1], op=Op.MAX)
    refused(job, again, Event.DUPLICATE_PENDING, port=1)


def test_a_result_without_a_receiver(lab: Lab) -> None:
    """A replica for a worker that has no receiver entry is dropped; the others get theirs."""
    job = lab.job(2, ports=[1, 2])
    lonely = lab.job(1, ports=[3])
    lab.target.set_group(3500, [(1, 1), (4, 7), (2, 2)])
    lab.target.insert(
        "WeirIngress.admission.workers",
        (4, job.id, 5),
        "WeirIngress.admission.admit",
        (*(ip_number(job.stations[0].ip), job.stations[0].udp_port), *(0, 4, 1 << 5, 1 << 5, 3500, 0, 0)),
    )
    frame = job.contribution(0, lanes={0: LANES}, round=77)
    frame[Weir].worker = 5
    assert lab.send(4, frame) == job.results(lanes={0: LANES}, round=77, included=1 << 5)
    assert lab.events() == {Event.ROUND_COMPLETE: 1, Event.DROP_NO_RECEIVER: 1}
    assert lab.send(4, frame) == []
    assert lab.events() == {Event.DUPLICATE_ANSWERED: 1, Event.DROP_NO_RECEIVER: 1}
    assert lonely.send(0, slot=1) == lonely.results(slot=1, included=0)


@pytest.mark.parametrize("block_log2", [5, 8])
def test_a_packet_cut_off_anywhere(lab: Lab, block_log2: int) -> None:
    """Every prefix of a frame is refused and counted once, and none has left a trace."""
    job = lab.job(1, ports=[2])
    count = 256 >> block_log2
    fields = {"block_log2": block_log2, "blocks": range(count), "nexts": range(count)}
    frame = bytes(job.contribution(0, lanes={0: LANES, 4: LANES}, **fields))
    prefixes = range(lab.target.shortest_frame, len(frame))
    for length in prefixes:
        assert lab.send(2, frame[:length]) == [], f"{length} bytes"
    assert lab.events() == {Event.DROP_PARSER_ERROR: len(prefixes)}
    assert lab.send(2, frame) == job.results(lanes={0: LANES, 4: LANES}, **fields)


def test_a_group_announced_but_not_there(job: Job) -> None:
    """The header promises more lanes than the frame has."""
    refused(job, spoiled(job, weir(groups=0b11)), Event.DROP_PARSER_ERROR)


def test_a_cut_packet_whose_lengths_fit_the_cut(job: Job) -> None:
    """A sender that shortens lengths as well is still caught: the Weir header wants more."""
    frame = job.contribution(1, round=5, lanes={0: LANES}, nexts=[1])
    short = frame.copy()
    short[UDP].remove_payload()
    short = short / Raw(bytes(frame[Weir])[:-1])
    refused(job, short, Event.DROP_PARSER_ERROR)


def test_every_packet_is_counted_once(lab: Lab, job: Job) -> None:
    """The events of ingress add up to the packets that came in."""
    frames = [spoiled(job, spoil) for spoil in MALFORMED.values()]
    frames += [spoiled(job, weir(job=1)), spoiled(job, weir()), spoiled(job, weir())]
    for frame in frames:
        lab.send(2, frame)
    assert sum(lab.events().values()) == len(frames)
