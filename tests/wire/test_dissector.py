# SPDX-License-Identifier: Apache-2.0
"""Wireshark's reading of a packet, through the generated dissector, is the codec's."""

import shutil
import subprocess
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from host_agent.codec import Column, Packet
from wire.definition import COLUMN, UDP_PORT, WEIR, Op, PacketType

DISSECTOR = Path(__file__).resolve().parents[2] / "wire" / "weir.lua"

PACKET = Packet(
    PacketType.RESULT, Op.MAX, 7, 0xC0FFEE, 3, 517, 70_000, (Column(8, 10), Column(9)), {5: (7,) * 32}, 0b1101
)


@pytest.mark.skipif(not shutil.which("tshark"), reason="needs tshark on PATH")
def test_tshark_reads_every_field(tmp_path: Path) -> None:
    frame = Ether() / IP(src="10.0.0.254", dst="10.0.0.4") / UDP(sport=UDP_PORT, dport=4000) / PACKET.encode()
    wrpcap(str(tmp_path / "one.pcap"), frame)
    fields = [f"weir.{field.name}" for field in WEIR.fields]
    fields += [f"weir.column.{field.name}" for field in COLUMN.fields] + ["weir.lanes"]
    command = ["tshark", "-r", str(tmp_path / "one.pcap"), "-X", f"lua_script:{DISSECTOR}", "-T", "fields"]
    command += [word for field in fields for word in ("-e", field)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read = dict(zip(fields, done.stdout.rstrip("\n").split("\t"), strict=True))
    wanted = {
        "version": 1, "type": 2, "flags": 0, "op": 2, "block_log2": 7, "groups": 1 << 5, "job": 0xC0FFEE,
        "worker": 3, "reserved": 0, "slot": 517, "round": 70_000, "included": 0b1101,
    }  # fmt: skip
    assert {field: int(read[f"weir.{field}"], 0) for field in wanted} == wanted
    assert read["weir.column.block"] == "8,9"
    assert read["weir.column.next"] == f"10,{0xFFFFFFFF}"
    assert read["weir.lanes"] == "00000007" * 32
