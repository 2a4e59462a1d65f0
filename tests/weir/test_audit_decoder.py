# SPDX-License-Identifier: Apache-2.0
"""The audit's decoder is scapy's reading, and agrees with the hosts' codec although it shares nothing."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether

from tests.harness.effort import examples
from tests.host_agent.transport.test_codec import packets
from weir.host_agent.flows import codec as flow_codec
from weir.host_agent.flows.verdict import FlowVerdict
from weir.host_agent.transport.codec import CodecError, Packet
from weir.netns import Namespace
from weir.pcap.audit import Note, PacketAudit
from weir.pcap.capture import RawFrame
from weir.pcap.decode import ReadError, datagram, flow_packets, slot_packets
from weir.pcap.frames import decoded
from weir.pcap.layout import Layout
from weir.pcap.packets import Checksum
from weir.wire.definition import FLOW, FLOW_PORT, UDP_PORT, VERSION, FlowType
from weir.wire.scapy_layer import Weir, WeirColumn, WeirFlow


@settings(max_examples=examples(30))
@given(payload=packets())
def test_every_field_is_where_scapy_has_it(payload: Packet) -> None:
    layer = Weir(payload.encode())
    try:
        (read,) = slot_packets(payload.encode())
    except ReadError as error:
        assert "a wide packet with" in str(error)  # the codec leaves that to the switch
        return
    for name in Layout(Weir).read(payload.encode()):
        if name != "version":
            assert getattr(read, name) == layer.getfieldval(name), name
    assert [(column.block, column.next) for column in layer.columns] == list(map(tuple, read.columns))
    assert [lane for group in sorted(payload.groups) for lane in payload.groups[group]] == layer.lanes
    assert read.lanes[read.lanes != 0].tolist() == [lane for lane in layer.lanes if lane]


@settings(max_examples=examples(50))
@given(payload=packets(), damage=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 255)), max_size=2))
def test_what_the_codec_takes_the_audit_takes_and_nothing_else(
    payload: Packet, damage: list[tuple[int, int]]
) -> None:
    data = bytearray(payload.encode())
    for at, bits in damage:
        data[at % len(data)] ^= bits
    try:
        wanted: Packet | None = Packet.decode(bytes(data))
    except CodecError:
        wanted = None
    try:
        (read,) = slot_packets(bytes(data))
    except ReadError as error:
        assert wanted is None or "a wide packet with" in str(error), error
        return
    assert wanted is not None
    assert (read.job, read.round, read.flags, read.worker) == (
        wanted.job,
        wanted.round,
        wanted.flags,
        wanted.worker,
    )


@st.composite
def flow_payloads(draw: st.DrawFn) -> bytes:
    """Return bytes that look like a packet of a flow."""
    words = [draw(st.integers(0, 12)) for _ in range(5)]
    head = [VERSION << 4 | draw(st.integers(0, 5)), draw(st.sampled_from([0, 1, 2, 3, 4, 5])), 0x12, 3]
    body = b"".join(word.to_bytes(4) for word in words)
    return bytes(head) + body + draw(st.binary(max_size=24))


@settings(max_examples=examples(200))
@given(payload=flow_payloads())
def test_flows_are_read_as_their_codec_reads_them(payload: bytes) -> None:
    wanted = flow_codec.decode(payload)
    try:
        (read,) = flow_packets(payload)
    except ReadError as error:
        assert isinstance(wanted, FlowVerdict), (error, wanted)
        return
    assert not isinstance(wanted, FlowVerdict), (read, wanted)
    assert type(wanted).__name__.upper() == FlowType(read.type).name
    assert wanted.head == flow_codec.Head(
        read.flow, read.worker, read.tensor, read.count, read.layer, read.magnitude
    )
    if isinstance(wanted, flow_codec.Probe) and wanted.terms is not None:
        assert read.terms == list(zip(wanted.terms.lanes, wanted.terms.budgets, strict=True))
    if isinstance(wanted, flow_codec.Bitmap | flow_codec.Stop):
        assert (read.bits is None) == (wanted.bits is None)
        assert wanted.bits is None or (read.bits == wanted.bits).all()


@settings(max_examples=examples(100))
@given(data=st.binary(max_size=90), port=st.sampled_from([UDP_PORT, FLOW_PORT]))
def test_no_frame_is_too_odd_to_be_read(data: bytes, port: int) -> None:
    """Whatever it holds, and wherever it ends."""
    whole = bytes(Ether() / Dot1Q() / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=1, dport=port) / data)
    audit = PacketAudit()
    for number, frame in enumerate((data, whole, whole[: 18 + len(data)], data + whole)):
        for seen in decoded(RawFrame("file", number, 0.0, "", frame, len(frame))):
            audit.add(seen)
    audit.finish()
    assert audit.report.frames == 4


@pytest.mark.parametrize("length", [0, 1, 2, 333])
def test_checksums_are_those_that_scapy_computes(length: int) -> None:
    frame = Ether() / IP(src="10.1.2.3", dst="10.0.255.254") / UDP(sport=4000, dport=UDP_PORT)
    data = bytes(frame / os.urandom(length))
    right = datagram(data, len(data))
    assert right is not None and not right.checksum and right.udp_checksum is Checksum.RIGHT
    for at in (27, 35, 40):
        wrong = bytearray(data)
        wrong[at] ^= 2
        found = datagram(bytes(wrong), len(data))
        assert found is not None and found.udp_checksum is Checksum.WRONG


@pytest.mark.root
def test_what_linux_leaves_to_a_device_is_known_in_a_real_capture(tmp_path: Path) -> None:
    """The kernel's own UDP over a real interface: its checksums are never filled in, and trains never cut."""
    segment = 24 + 16
    header = bytes([VERSION << 4 | FlowType.CHUNK, 1, 0, 3]) + bytes.fromhex("c0ffee0000000001")
    chunks = [header + n.to_bytes(4) + (4).to_bytes(4) + bytes(4) + bytes([n]) * 16 for n in range(4)]
    frames: list[bytes] = []

    def talk() -> None:
        with (
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)) as tap,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here,
        ):
            tap.bind(("lo", 0))
            tap.settimeout(60)
            there.bind(("127.0.0.1", FLOW_PORT))
            here.sendto(chunks[0], there.getsockname())
            here.setsockopt(socket.SOL_UDP, 103, segment)  # UDP_SEGMENT
            here.sendto(b"".join(chunks), there.getsockname())
            while len(frames) < 4:  # each leaves, and comes
                frames.append(tap.recv(65535))

    with Namespace() as namespace:
        namespace.call(talk)
    audit = PacketAudit()
    for number, data in enumerate(frames):
        for seen in decoded(RawFrame("lo", number, float(number), "lo", data, len(data))):
            audit.add(seen)
    audit.finish()
    rules = {finding.rule.title for finding in audit.report.findings}
    assert rules <= {"class"}, audit.findings  # the test sends without a class
    assert audit.report.notes[Note.OFFLOADED] == 4
    assert audit.report.notes[Note.TRAIN] == 2 * 3


def test_layers_are_read_up_to_what_varies() -> None:
    assert (Layout(Weir).size, Layout(WeirColumn).size, Layout(WeirFlow).size) == (28, 8, FLOW.size)
    assert Layout(IP).size == 20 and Layout(UDP).size == 8
