# SPDX-License-Identifier: Apache-2.0
"""Flow packets: round trips, agreement with the scapy layer, and a verdict for everything else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.host_agent.flows.world import FLOW_ID
from weir.host_agent.flows import FlowConfig, FlowReceiver, FlowSender, FlowVerdict
from weir.host_agent.flows.codec import (
    MAX_ACCOUNTS,
    MAX_BITMAP,
    Bitmap,
    Chunk,
    FlowPacket,
    Head,
    Probe,
    Stop,
    Terms,
    decode,
)
from weir.host_agent.flows.config import MAX_DATA
from weir.host_agent.transport.service_class import ServiceClass
from weir.wire import definition as d
from weir.wire.scapy_layer import WeirFlow

words = st.integers(0, 2**32 - 1)
heads = st.builds(
    Head,
    flow=words,
    worker=st.integers(0, d.FLOW_WORKERS - 1),
    tensor=st.integers(1, 2**32 - 1),
    count=st.integers(1, 2**32 - 1),
    layer=st.integers(0, d.LAYER_CLASSES - 1),
    magnitude=st.integers(0, d.MAGNITUDE_CLASSES - 1),
)


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    head = draw(heads)
    data = draw(st.integers(0, MAX_DATA // 4).flatmap(lambda n: st.binary(min_size=4 * n, max_size=4 * n)))
    account = draw(st.integers(0, MAX_ACCOUNTS - 1))
    return Chunk(head, draw(st.integers(0, head.count - 1)), account, data, draw(st.booleans()), not data)


@st.composite
def probes(draw: st.DrawFn) -> Probe:
    head = draw(heads)
    pairs = draw(st.lists(st.tuples(words, words), min_size=1, max_size=MAX_ACCOUNTS))
    first = draw(st.integers(0, head.count))
    end = draw(st.integers(first, head.count))
    terms = Terms(tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs))
    return Probe(head, draw(st.integers(1, 2**32 - 1)), first, end, draw(st.booleans()), terms)


@st.composite
def answers(draw: st.DrawFn, kind: type[Bitmap] | type[Stop]) -> Bitmap | Stop:
    head = draw(heads)
    first = draw(st.integers(0, head.count - 1))
    bits = draw(st.lists(st.booleans(), min_size=1, max_size=min(64, head.count - first)))
    padded = bits + [False] * (min(-len(bits) % 8, head.count - first - len(bits)))
    return kind(head, draw(words), first, np.array(padded), draw(st.booleans()))


packets = st.one_of(chunks(), probes(), answers(Bitmap), answers(Stop))
SMALL = Chunk(Head(0x01020304, 5, 6, 9, layer=3, magnitude=2), 7, 8, b"\1\2\3\4")


def same(one: object, other: object) -> bool:
    """Equal, also where fields are arrays."""
    return repr(one) == repr(other)


@given(packets)
def test_what_is_encoded_decodes_to_itself(packet: FlowPacket) -> None:
    assert same(decode(packet.encode()), packet)


@given(packets)
def test_scapy_sees_the_same_packet(packet: FlowPacket) -> None:
    seen, head = WeirFlow(packet.encode()), packet.head
    assert (seen.version, seen.layer, seen.magnitude) == (d.VERSION, head.layer, head.magnitude)
    assert (seen.worker, seen.flow, seen.tensor, seen.count) == (
        head.worker, head.flow, head.tensor, head.count,
    )  # fmt: skip
    assert seen.type == d.FlowType[type(packet).__name__.upper()]
    assert bytes(seen) == packet.encode()


def test_the_bytes_of_a_small_packet() -> None:
    """Written out by hand from the wire format's description."""
    expected = "31 01 32 05  01020304  00000006  00000007  00000009  00000008  01020304"
    assert SMALL.encode() == bytes.fromhex(expected.replace(" ", ""))


def test_no_packet_of_a_flow_needs_a_larger_mtu() -> None:
    head = Head(1, 0, 1, 1 << 20)
    terms = Terms((1,) * MAX_ACCOUNTS, (1,) * MAX_ACCOUNTS)
    largest = [
        Chunk(head, 0, 0, bytes(MAX_DATA)),
        Probe(head, 1, 0, 9, True, terms),
        Stop(head, 1, 0, np.ones(8 * MAX_BITMAP, bool)),
    ]
    assert all(len(packet.encode()) + 28 <= 1500 for packet in largest)


V, HEAD = FlowVerdict, bytes.fromhex("31013205 01020304 00000006 00000007 00000009 00000008".replace(" ", ""))


@pytest.mark.parametrize(
    ("at", "value", "data", "verdict"),
    [
        (0, 0x21, b"1234", V.BAD_VERSION),
        (0, 0x30, b"1234", V.BAD_TYPE),
        (0, 0x35, b"1234", V.BAD_TYPE),
        (1, 0x08, b"1234", V.BAD_FLAGS),  # ANSWER
        (1, 0x04, b"1234", V.BAD_FLAGS),  # a chunk's congestion is in the IP header
        (1, 0x80, b"1234", V.BAD_FLAGS),
        (2, 0x62, b"1234", V.BAD_CLASS),
        (2, 0x34, b"1234", V.BAD_CLASS),
        (11, 0, b"1234", V.BAD_TENSOR),
        (15, 9, b"1234", V.BAD_INDEX),
        (19, 0, b"1234", V.BAD_COUNT),
        (23, 128, b"1234", V.BAD_FIRST),
        (1, 1, b"", V.BAD_LENGTH),
        (1, 2, b"1234", V.BAD_LENGTH),  # trimmed, and yet with data
        (1, 1, b"12345", V.BAD_LENGTH),
        (1, 1, bytes(MAX_DATA + 4), V.BAD_LENGTH),
        (0, 0x32, b"", V.BAD_LENGTH),  # a probe has terms
        (0, 0x32, b"1234", V.BAD_LENGTH),
        (0, 0x32, bytes(8 + 8 * 129), V.BAD_LENGTH),
        (0, 0x32, bytes(16), V.BAD_FIRST),  # ends before it begins
        (0, 0x32, b"\0\0\0\12" + bytes(12), V.BAD_FIRST),  # ends behind the last chunk
        (0, 0x32, b"\0\0\0\11\0\0\0\2" + bytes(8), V.BAD_TERMS),
        (0, 0x33, b"", V.BAD_LENGTH),
        (0, 0x33, b"\2", V.BAD_BITMAP),  # the tenth of nine chunks
        (0, 0x33, b"\0\0", V.BAD_LENGTH),
        (0, 0x33, bytes(1) * 2, V.BAD_LENGTH),
        (0, 0x34, b"", V.BAD_FIRST),  # everything arrived, from chunk 8
    ],
)
def test_what_is_no_packet_is_refused_by_name(at: int, value: int, data: bytes, verdict: V) -> None:
    payload = bytearray(HEAD + data)
    payload[at] = value
    assert decode(bytes(payload)) is verdict
    assert verdict.refused


@given(st.binary(max_size=d.FLOW.size - 1))
def test_short_payloads_are_refused(payload: bytes) -> None:
    assert decode(payload) is FlowVerdict.SHORT


@st.composite
def garbage(draw: st.DrawFn) -> bytes:
    """Anything, more often something that is nearly a packet of FLOW_ID."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=100))
    payload = bytearray(draw(packets).encode())
    payload[4:8] = FLOW_ID.to_bytes(4, "big")
    payload[3] = draw(st.sampled_from([0, 0, 0, payload[3]]))
    for at in (8, 12, 16, 20):
        if draw(st.booleans()):
            payload[at : at + 4] = draw(st.integers(0, 12)).to_bytes(4, "big")
    for _ in range(draw(st.integers(0, 3))):
        payload[draw(st.integers(0, len(payload) - 1))] = draw(st.integers(0, 255))
    return bytes(payload)


@given(st.lists(garbage(), min_size=1, max_size=20), st.integers(0, 255))
def test_no_bytes_raise_anything_in_either_end(payloads: list[bytes], traffic_class: int) -> None:
    config = FlowConfig(FLOW_ID, chunk_lanes=2, max_lanes=10_000)
    sender, receiver = FlowSender(config), FlowReceiver(config)
    sender.submit(np.ones(20, np.float32), ServiceClass(budgets=np.array([5], np.uint64)))
    sender.poll(0)
    for now, payload in enumerate(payloads):
        for end in (sender, receiver):
            verdict, known = end.on_packet(payload, now, traffic_class), decode(payload)
            assert end.verdicts[verdict]
            assert not isinstance(known, FlowVerdict) or verdict is known
            end.poll(now)
        receiver.deliveries()
        assert all((s.missing <= s.budgets).all() for s in sender.settlements())
