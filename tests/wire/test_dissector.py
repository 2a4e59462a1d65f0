# SPDX-License-Identifier: Apache-2.0
"""Wireshark's reading of a packet, through the generated dissector, is the codec's."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from weir.host_agent.flows.codec import Chunk, Head
from weir.host_agent.transport.codec import Column, Packet
from weir.wire.definition import COLUMN, FLOW, FLOW_PORT, UDP_PORT, WEIR, Flag, FlowType, Op, PacketType

DISSECTOR = Path(__file__).resolve().parents[2] / "wire" / "weir.lua"

PACKET = Packet(
    type=PacketType.RESULT,
    op=Op.MAX,
    block_log2=7,
    job=0xC0FFEE,
    worker=3,
    slot=517,
    round=70_000,
    columns=(Column(8, 10), Column(9)),
    groups={5: (7,) * 32},
    included=0b1101,
    flags=Flag.CONGESTED,
    layer=3,
    magnitude=2,
    audience=0x1F07,
    count=3,
    check=0xDEADBEEF,
)
CHUNK = Chunk(Head(0xC0FFEE42, 3, 70_000, 12, layer=3, magnitude=2), 11, 7, b"\1\2\3\4", protected=False)

pytestmark = pytest.mark.tshark


def tshark_reads(payload: bytes, port: int, fields: Sequence[str], folder: Path) -> dict[str, str]:
    """Return what tshark shows of these fields."""
    frame = Ether() / IP(src="10.0.0.254", dst="10.0.0.4") / UDP(sport=port, dport=4000) / payload
    wrpcap(str(folder / "one.pcap"), frame)
    command = ["tshark", "-r", str(folder / "one.pcap"), "-X", f"lua_script:{DISSECTOR}", "-T", "fields"]
    command += [word for field in fields for word in ("-e", field)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(zip(fields, done.stdout.rstrip("\n").split("\t"), strict=True))


def test_tshark_reads_every_field(tmp_path: Path) -> None:
    fields = [f"weir.{field.name}" for field in WEIR.fields]
    fields += [f"weir.column.{field.name}" for field in COLUMN.fields] + ["weir.lanes", "_ws.col.Info"]
    read = tshark_reads(PACKET.encode(), UDP_PORT, fields, tmp_path)
    wanted = {
        "version": 3, "type": 2, "flags": 4, "op": 2, "block_log2": 7, "groups": 1 << 5, "job": 0xC0FFEE,
        "worker": 3, "layer": 3, "magnitude": 2, "slot": 517, "round": 70_000, "included": 0b1101,
        "audience": 0x1F07, "count": 3, "check": 0xDEADBEEF,
    }  # fmt: skip
    assert {field: int(read[f"weir.{field}"], 0) for field in wanted} == wanted
    assert read["weir.column.block"] == "8,9"
    assert read["weir.column.next"] == f"10,{0xFFFFFFFF}"
    assert read["weir.lanes"] == "00000007" * 32
    assert read["_ws.col.Info"] == "result job 00c0ffee worker 3 slot 517 round 70000 congested"


def tshark_shows(payload: bytes, port: int, folder: Path) -> str:
    """Return the tree of fields that tshark shows."""
    wrpcap(str(folder / "one.pcap"), Ether() / IP() / UDP(sport=port, dport=port) / payload)
    command = ["tshark", "-r", str(folder / "one.pcap"), "-X", f"lua_script:{DISSECTOR}", "-V"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_fields_are_shown_as_people_read_them(tmp_path: Path) -> None:
    shown = tshark_shows(PACKET.encode(), UDP_PORT, tmp_path)
    lines = [line.strip() for line in shown.splitlines()]
    assert "flags: 0x04 congested" in lines
    assert ".... .1.. = congested: True" in lines and ".... ...0 = protected: False" in lines
    assert ".... 0111 = block_log2: 7 (blocks of 128 lanes)" in lines
    assert "next: 10" in lines and "next: 4294967295 (none)" in lines
    flow = tshark_shows(CHUNK.encode(), FLOW_PORT, tmp_path)
    assert ".... ..0. = trimmed: False" in flow


def test_contributions_and_their_results_are_linked(tmp_path: Path) -> None:
    frames = []
    for kind, worker, round_ in (
        (PacketType.CONTRIBUTION, 0, 1),
        (PacketType.CONTRIBUTION, 3, 1),
        (PacketType.CONTRIBUTION, 3, 1),  # sent again
        (PacketType.RESULT, 3, 1),
        (PacketType.RESULT, 0, 1),
        (PacketType.CONTRIBUTION, 3, 2),  # never answered
    ):
        packet = replace(
            PACKET, type=kind, worker=worker, round=round_, included=9 if kind is PacketType.RESULT else 0
        )
        frames.append(Ether() / IP() / UDP(sport=UDP_PORT, dport=UDP_PORT) / packet.encode())
    wrpcap(str(tmp_path / "all.pcap"), frames)
    command = ["tshark", "-2", "-r", str(tmp_path / "all.pcap"), "-X", f"lua_script:{DISSECTOR}"]
    command += ["-T", "fields", "-e", "weir.request", "-e", "weir.response"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    links = [tuple(line.split("\t")) for line in done.stdout.splitlines()]
    assert links == [("", "5"), ("", "4"), ("", "4"), ("2", ""), ("1", ""), ("", "")]


def test_tshark_reads_every_field_of_a_flow(tmp_path: Path) -> None:
    fields = [f"weir.flow.{field.name}" for field in FLOW.fields] + ["weir.flow.data", "_ws.col.Info"]
    read = tshark_reads(CHUNK.encode(), FLOW_PORT, fields, tmp_path)
    wanted = {
        "version": 3, "type": FlowType.CHUNK, "flags": 0, "layer": 3, "magnitude": 2, "worker": 3,
        "flow": 0xC0FFEE42, "tensor": 70_000, "index": 11, "count": 12, "first": 7,
    }  # fmt: skip
    assert {field: int(read[f"weir.flow.{field}"], 0) for field in wanted} == wanted
    assert read["weir.flow.data"] == "01020304"
    assert read["_ws.col.Info"] == "chunk flow c0ffee42 worker 3 tensor 70000 index 11 of 12"
