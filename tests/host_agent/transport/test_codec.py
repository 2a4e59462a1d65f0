# SPDX-License-Identifier: Apache-2.0
"""The Python packet codec: round trips, agreement with the scapy layer, and refusal of everything else."""

import dataclasses
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.host_agent.transport.codec import CodecError, Column, Packet
from weir.wire import definition as d
from weir.wire.scapy_layer import Weir

words = st.integers(0, 2**32 - 1)
shorts = st.integers(0, 2**16 - 1)


def groups(block_log2: int) -> st.SearchStrategy[dict[int, tuple[int, ...]]]:
    count = d.group_lanes(block_log2)
    lanes = st.binary(min_size=4 * count, max_size=4 * count).map(lambda b: struct.unpack(f">{count}I", b))
    return st.dictionaries(st.integers(0, d.GROUPS - 1), lanes)


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    block_log2 = draw(st.sampled_from([*range(d.MIN_BLOCK_LOG2, d.MAX_BLOCK_LOG2 + 1), d.WIDE_BLOCK_LOG2]))
    columns = [Column(draw(words), draw(words)) for _ in range(d.columns(block_log2))]
    return Packet(
        type=draw(st.sampled_from(d.PacketType)),
        op=draw(st.sampled_from(d.Op)),
        block_log2=block_log2,
        job=draw(words),
        worker=draw(st.integers(0, d.MAX_CHILDREN - 1)),
        slot=draw(st.integers(0, 2**16 - 1)),
        round=draw(words),
        columns=tuple(columns),
        groups=draw(groups(block_log2)),
        included=draw(words),
        flags=d.Flag(draw(st.integers(0, sum(d.Flag)))),
        layer=draw(st.integers(0, d.LAYER_CLASSES - 1)),
        magnitude=draw(st.integers(0, d.MAGNITUDE_CLASSES - 1)),
        audience=draw(shorts),
        count=draw(shorts),
        check=draw(words),
    )


SMALL = Packet(
    type=d.PacketType.CONTRIBUTION,
    op=d.Op.ADD,
    block_log2=8,
    job=0x01020304,
    worker=5,
    slot=6,
    round=7,
    columns=(Column(8, 9),),
    flags=d.Flag.PROTECTED,
    layer=3,
    magnitude=2,
    audience=0xA0,
    count=1,
    check=0x0A0B0C0D,
)


@given(packets())
def test_what_is_encoded_decodes_to_itself(packet: Packet) -> None:
    assert Packet.decode(packet.encode()) == packet


@given(packets())
def test_scapy_sees_the_same_packet(packet: Packet) -> None:
    seen = Weir(packet.encode())
    assert (seen.type, seen.op, seen.block_log2) == (packet.type, packet.op, packet.block_log2)
    assert (seen.job, seen.worker, seen.slot) == (packet.job, packet.worker, packet.slot)
    assert (seen.round, seen.included) == (packet.round, packet.included)
    assert (seen.audience, seen.count, seen.check) == (packet.audience, packet.count, packet.check)
    assert (seen.getfieldval("flags"), seen.layer, seen.magnitude) == (
        packet.flags,
        packet.layer,
        packet.magnitude,
    )
    assert [(c.block, c.next) for c in seen.columns] == [(c.block, c.next) for c in packet.columns]
    assert tuple(seen.lanes) == tuple(lane for g in sorted(packet.groups) for lane in packet.groups[g])
    assert bytes(seen) == packet.encode()


def test_the_bytes_of_a_small_packet() -> None:
    """Written out by hand from the wire format's description."""
    expected = "31 01 18 00  01020304  05 32 0006  00000007  00000000  00A0 0001 0A0B0C0D   00000008 00000009"
    assert SMALL.encode() == bytes.fromhex(expected.replace(" ", ""))


@given(packets(), st.data())
def test_no_other_length_is_accepted(packet: Packet, data: st.DataObject) -> None:
    payload = packet.encode()
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(CodecError, match="bytes"):
        Packet.decode(payload[:cut])
    with pytest.raises(CodecError, match="bytes"):
        Packet.decode(payload + b"\0")


@pytest.mark.parametrize(
    ("byte", "value", "message"),
    [
        (0, 0x11, "version 1"),
        (0, 0x21, "version 2: this is version 3"),
        (0, 0x34, "type 4"),
        (1, 0x40, "flags 0x40"),
        (2, 0x08, "op 0"),
        (2, 0x48, "op 4"),
        (2, 0x14, "block_log2 4"),
        (2, 0x19, "block_log2 9"),
        (8, 32, "worker 32"),
        (9, 0x40, "layer class 4"),
        (9, 0x03, "magnitude class 3"),
    ],
)
def test_a_wrong_header_is_refused_by_name(byte: int, value: int, message: str) -> None:
    payload = bytearray(SMALL.encode())
    payload[byte] = value
    with pytest.raises(CodecError, match=message):
        Packet.decode(bytes(payload))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slot": 1 << 16}, "slot"),
        ({"round": -1}, "round"),
        ({"worker": 32}, "worker 32"),
        ({"block_log2": 4}, "block_log2 4"),
        ({"layer": 4}, "layer class 4"),
        ({"magnitude": 3}, "magnitude class 3"),
        ({"flags": 256}, "flags"),
        ({"columns": ()}, "0 columns"),
        ({"columns": (Column(1 << 32, 0),)}, "column.block"),
        ({"groups": {8: (0,) * 32}}, "lane groups"),
        ({"groups": {0: (0,) * 31}}, "lane group 0"),
        ({"groups": {3: (1 << 32,) * 32}}, "lane group 3"),
    ],
)
def test_what_cannot_be_a_packet_is_not_encoded(change: dict[str, object], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        dataclasses.replace(SMALL, **change).encode()  # type: ignore[arg-type]
