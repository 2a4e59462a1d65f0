# SPDX-License-Identifier: Apache-2.0
"""``weir pcap show`` shows what packets say, and says when a result is not what its contributions make."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.utils import PcapNgWriter, wrpcap
from typer.testing import CliRunner

from weir.cli import app
from weir.host_agent.transport.codec import Column, Packet
from weir.pcap.frames import read_frames
from weir.pcap.rounds import Trace
from weir.wire.definition import (
    ECT,
    GROUP_LANES,
    NO_BLOCK,
    NOT_ECT,
    RELIABLE_DSCP,
    UDP_PORT,
    Flag,
    Op,
    PacketType,
    dscp,
)


def contribution(
    worker: int, lanes: int | None, following: int = NO_BLOCK, *, slot: int = 3, round_: int = 1
) -> Packet:
    groups = {} if lanes is None else dict.fromkeys(range(8), (lanes,) * GROUP_LANES)
    columns = (Column(block=slot, next=following),)
    count = int(lanes is not None)
    return Packet(PacketType.CONTRIBUTION, Op.ADD, 8, 7, worker, slot, round_, columns, groups, count=count)


def result(worker: int, lanes: int, included: int, following: int = NO_BLOCK, **where: int) -> Packet:
    made = contribution(worker, lanes, following, **where)
    return replace(made, type=PacketType.RESULT, included=included, count=included.bit_count())


def frame(packet: Packet) -> Ether:
    up = packet.type is PacketType.CONTRIBUTION
    udp = UDP(sport=9000, dport=UDP_PORT) if up else UDP(sport=UDP_PORT, dport=9000)
    ends = ["10.0.0.1", "10.0.0.254"] if up else ["10.0.0.254", "10.0.0.1"]
    ecn = ECT if packet.flags & Flag.PROTECTED or not packet.groups else NOT_ECT
    code = dscp(packet.layer, packet.magnitude) if packet.groups else RELIABLE_DSCP
    return Ether() / IP(src=ends[0], dst=ends[1], tos=code << 2 | ecn) / udp / packet.encode()


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return tmp_path / "some.pcap"


def write(capture: Path, *packets: Packet | Ether) -> None:
    frames = [frame(packet) if isinstance(packet, Packet) else packet for packet in packets]
    for number, made in enumerate(frames):
        made.time = 100 + number / 1e6
    wrpcap(str(capture), frames)


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["pcap", "show", *map(str, arguments)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_the_same_rounds_come_as_json(capture: Path) -> None:
    write(capture, contribution(0, 5, following=9), contribution(1, None, following=6))
    status, output = run(capture, "--json")
    told = json.loads(output)
    assert status == 0 and told["malformed_frames"] == 0
    (found,), (job,) = told["rounds"], told["jobs"].values()
    assert [packet["worker"] for packet in found["contributions"]] == [0, 1] and found["broken"] == []
    assert (job["rounds"], job["contributions"], job["contributions with lanes"], job["results"]) == (
        1,
        2,
        1,
        0,
    )


def test_a_round_is_told_from_first_packet_to_result(capture: Path) -> None:
    write(
        capture,
        contribution(0, 5, following=9),
        contribution(1, None, following=6),
        contribution(0, 5, following=9),
        result(0, 5, included=0b01, following=6),
        result(1, 5, included=0b01, following=6),
    )
    status, output = run(capture)
    assert status == 0
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert lines[:6] == [
        "0.000000 job 0x7 slot 3 round 1 ADD, blocks of 256",
        "+0.0 µs worker 0 3■→9",
        "+1.0 µs worker 1 3·→6",
        "+2.0 µs worker 0 3■→9 copy 2",
        "+3.0 µs result 3■→6 of 0 to 0, 1",
        lines[5],
    ]


@pytest.mark.parametrize(
    ("packets", "wrong"),
    [
        ([result(0, 4, included=0b11)], "256 lanes are not ADD of the contributions'"),
        ([result(0, 2, included=0b01)], "256 lanes are not ADD of the contributions'"),
        ([result(0, 3, included=0b11, following=8)], "column 0 asks for 8 next, 6 was announced"),
        ([result(0, 3, included=0b11)], "column 0 asks for nothing next, 6 was announced"),
        (
            [result(0, 3, included=0b11, following=6), result(1, 2, included=0b11, following=6)],
            "the result for child 1 differs from that for 0",
        ),
    ],
)
def test_a_wrong_result_is_called_wrong(capture: Path, packets: list[Packet], wrong: str) -> None:
    write(capture, contribution(0, 1, following=6), contribution(1, 2, following=9), *packets)
    status, output = run(capture)
    assert status == 1 and f"WRONG: {wrong}" in output


def test_a_right_result_with_lanes_that_were_released_is_right(capture: Path) -> None:
    write(capture, contribution(0, 1), contribution(1, 2), result(0, 1, included=0b01))
    assert run(capture)[0] == 0


@pytest.mark.parametrize("wanted", [0, 1])
def test_a_result_for_one_worker_is_right_without_lanes_at_the_other(capture: Path, wanted: int) -> None:
    bare = {"groups": {}, "flags": Flag.PROTECTED | Flag.ELSEWHERE}
    results = [replace(result(worker, 3, included=0b11), audience=wanted) for worker in (0, 1)]
    results[1 - wanted] = replace(results[1 - wanted], **bare)

    def sent(worker: int, lanes: int) -> Packet:
        return replace(contribution(worker, lanes), audience=wanted)

    write(capture, sent(0, 1), sent(1, 2), *results)
    assert run(capture)[0] == 0
    write(capture, sent(0, 1), sent(1, 4), *results)
    status, output = run(capture)
    assert status == 1 and "256 lanes are not ADD of the contributions'" in output


def test_workers_in_different_operations_are_told(capture: Path) -> None:
    disagreed = replace(result(0, 3, included=0b11), groups={}, flags=Flag.PROTECTED | Flag.DISAGREE)
    write(capture, contribution(0, 1), contribution(1, 2), disagreed)
    status, output = run(capture)
    assert status == 1 and "the workers are in different operations" in output
    assert "lanes are not" not in output


def test_a_capture_that_began_late_is_not_called_wrong(capture: Path) -> None:
    write(capture, contribution(1, 2), result(0, 3, included=0b11))
    assert run(capture)[0] == 0


def test_filters_choose_rounds_and_packets(capture: Path) -> None:
    write(
        capture,
        contribution(0, 1, slot=3),
        contribution(1, 1, slot=4),
        contribution(0, 1, slot=4, round_=2),
    )
    assert "slot 3" not in run(capture, "--slot", 4)[1]
    by_worker = run(capture, "--worker", 1)[1]
    assert "slot 4 round 1" in by_worker and "round 2" not in by_worker and "worker 0" not in by_worker
    assert "no rounds" in run(capture, "--job", "0x8")[1]
    assert "2 more rounds" in run(capture, "--limit", 1)[1]


def test_other_and_malformed_frames_are_counted(capture: Path) -> None:
    short = Ether() / IP() / UDP(sport=1, dport=UDP_PORT) / b"\x11"
    write(capture, Ether() / ARP(), Ether() / IP() / UDP(sport=1, dport=2) / b"x", short)
    trace = Trace.of(read_frames(capture))
    assert trace.other == 2
    assert [problem for _, problem in trace.malformed] == ["1 bytes: a Weir header has 28"]
    assert "2 frames are not of the slot protocol" in run(capture)[1]


def test_pcapng_with_port_names_and_vlan_tags(capture: Path) -> None:
    tagged = Ether() / Dot1Q(vlan=5) / IP() / UDP(sport=9000, dport=UDP_PORT) / contribution(2, 1).encode()
    tagged.sniffed_on = "port-3"
    with PcapNgWriter(str(capture)) as writer:
        writer.write(tagged)
    (seen,) = read_frames(capture)
    assert (seen.port, seen.packet.worker) == ("port-3", 2)


@pytest.mark.parametrize("content", [None, b"", b"not a capture, but long enough to be one"])
def test_a_file_that_is_no_capture_is_refused(capture: Path, content: bytes | None) -> None:
    if content is not None:
        capture.write_bytes(content)
    status, output = run(capture)
    assert status == 2 and str(capture) in output
