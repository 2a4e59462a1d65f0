# SPDX-License-Identifier: Apache-2.0
"""Frames that a device trimmed or marked are still frames."""

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from tests.host_agent.transport.answers import groups_of
from weir.host_agent.transport.codec import Column, Packet
from weir.host_agent.transport.frames import Addresses, Framer
from weir.simulator import treatment
from weir.simulator.entries import AGGREGATION, host_addresses
from weir.wire.definition import CE, ECT, NOT_ECT, RELIABLE_DSCP, Flag, Op, PacketType

FRAMER = Framer(host_addresses(1))
BACK = Framer(Addresses(AGGREGATION, host_addresses(1).host))
PACKET = Packet(
    type=PacketType.CONTRIBUTION,
    op=Op.ADD,
    block_log2=7,
    job=3,
    worker=1,
    slot=2,
    round=9,
    columns=(Column(1, 2), Column(3, 4)),
    groups=groups_of(np.arange(128, dtype=np.uint32)),
    flags=Flag.PROTECTED,
    layer=3,
)


def test_a_trimmed_frame_keeps_all_but_its_lanes() -> None:
    frame = treatment.trim(FRAMER.wrap(PACKET.encode(), 8 << 2 | ECT))
    datagram = BACK.unwrap(frame)  # checks lengths and the checksum
    assert datagram is not None
    assert datagram.traffic_class == RELIABLE_DSCP << 2 | ECT
    expected = Packet(**{**PACKET.__dict__, "groups": {}, "flags": Flag.PROTECTED | Flag.TRIMMED})
    assert Packet.decode(datagram.payload) == expected
    assert len(frame) == 42 + 28 + 16


@pytest.mark.parametrize(
    "frame",
    [
        FRAMER.wrap(Packet(**{**PACKET.__dict__, "groups": {}}).encode(), 0),
        bytes(Ether() / IP() / UDP(dport=53) / (b"x" * 200)),
        bytes(Ether(type=0x0806) / (b"x" * 200)),
        b"",
    ],
    ids=["without lanes", "not ours", "not IPv4", "empty"],
)
def test_other_frames_are_not_trimmed(frame: bytes) -> None:
    assert treatment.trim(frame) == frame


def test_only_what_can_be_marked_is() -> None:
    marked = BACK.unwrap(treatment.mark(FRAMER.wrap(PACKET.encode(), 8 << 2 | ECT)))
    assert marked is not None
    assert marked.traffic_class == 8 << 2 | CE
    frame = FRAMER.wrap(PACKET.encode(), 8 << 2 | NOT_ECT)
    assert treatment.mark(frame) == frame
