# SPDX-License-Identifier: Apache-2.0
"""What Weir puts on the wire: constants, header layouts, packet types and switch events.

Everything else that needs one of these facts is generated from this module (``python -m wire.generate``):
the P4 headers (``p4src/include/wire.p4``), the C header (``host_agent/csrc/wire.h``) and the Wireshark
dissector (``wire/weir.lua``). Python code imports it; the scapy layer is built from it at import.

A Weir packet is IPv4/UDP to or from ``UDP_PORT``. Its payload is::

    weir (20 bytes) | column x C (8 bytes each) | lane group x G (128 bytes each)

where C = ``SLOT_LANES`` >> ``block_log2`` columns travel fused in one packet and G is the number of bits
set in ``groups``. Every number is big-endian.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

VERSION: Final = 1
UDP_PORT: Final = 9347  # "WEIR" on a telephone keypad

GROUP_LANES: Final = 32  # lanes in one group: the unit of presence in a packet
GROUPS: Final = 8  # groups in a slot
SLOT_LANES: Final = GROUP_LANES * GROUPS
MIN_BLOCK_LOG2: Final = 5
MAX_BLOCK_LOG2: Final = 8
MAX_COLUMNS: Final = SLOT_LANES >> MIN_BLOCK_LOG2
MAX_WORKERS: Final = 32
NO_BLOCK: Final = 0xFFFFFFFF  # "no further block" in a column's next pointer; "no block" in its index


class PacketType(IntEnum):
    """What a packet is: what a worker sends, what the switch answers."""

    CONTRIBUTION = 1
    RESULT = 2


class Op(IntEnum):
    """How lanes are combined. All are over unsigned 32-bit lanes with identity 0.

    ADD wraps modulo 2^32 (so it also sums two's complement numbers). That 0 is the identity of all three
    is what makes "skip a zero block" right for each of them.
    """

    ADD = 1
    MAX = 2
    OR = 3


class Event(IntEnum):
    """What the switch decided about a packet: the index of its counter. One is counted at every branch."""

    CONTRIBUTION = 0
    ROUND_COMPLETE = 1
    DUPLICATE_PENDING = 2
    DUPLICATE_ANSWERED = 3
    FORWARDED = 4
    ARP_ANSWERED = 5
    DROP_PARSER_ERROR = 6
    DROP_MALFORMED = 7
    DROP_NOT_A_CONTRIBUTION = 8
    DROP_NOT_ADMITTED = 9
    DROP_SLOT_RANGE = 10
    DROP_STALE_ROUND = 11
    DROP_NO_ROUTE = 12
    DROP_TTL_EXPIRED = 13
    DROP_NO_RECEIVER = 14
    DROP_NO_ROOM = 15


EVENT_HELP: Final[dict[Event, str]] = {
    Event.CONTRIBUTION: "contribution added; the round still waits for others",
    Event.ROUND_COMPLETE: "contribution added that completed its round; result multicast",
    Event.DUPLICATE_PENDING: "retransmission while the round still waits for others: not added, not answered",
    Event.DUPLICATE_ANSWERED: "retransmission after the round completed: stored result sent again",
    Event.FORWARDED: "packet that is not Weir's, forwarded",
    Event.ARP_ANSWERED: "ARP request for the aggregation address, answered",
    Event.DROP_PARSER_ERROR: "truncated or unparsable packet",
    Event.DROP_MALFORMED: "Weir header with a wrong version, flag, operator, block size or lane groups",
    Event.DROP_NOT_A_CONTRIBUTION: "Weir packet to the switch that is no contribution",
    Event.DROP_NOT_ADMITTED: "(port, job, worker) that the controller did not install",
    Event.DROP_SLOT_RANGE: "slot outside the job's range",
    Event.DROP_STALE_ROUND: "older round than the slot holds",
    Event.DROP_NO_ROUTE: "no forwarding entry for the destination",
    Event.DROP_TTL_EXPIRED: "TTL ran out",
    Event.DROP_NO_RECEIVER: "result for a worker without a receiver entry",
    Event.DROP_NO_ROOM: "result that would make its packet grow by more than the target can",
}


@dataclass(frozen=True)
class Field:
    """One header field: name, width in bits, and what it says."""

    name: str
    bits: int
    doc: str


@dataclass(frozen=True)
class Header:
    """A header: an ordered run of fields, a whole number of bytes long."""

    name: str
    doc: str
    fields: tuple[Field, ...]

    @property
    def size(self) -> int:
        """Length in bytes."""
        return sum(field.bits for field in self.fields) // 8


WEIR: Final = Header(
    "weir",
    "what every Weir packet starts with",
    (
        Field("version", 4, "VERSION"),
        Field("type", 4, "PacketType"),
        Field("flags", 8, "zero in this version; anything else is refused"),
        Field("op", 4, "Op"),
        Field("block_log2", 4, "log2 of the block size in lanes, 5 to 8"),
        Field("groups", 8, "bit g set: lanes 32g to 32g+31 of the slot are in this packet"),
        Field("job", 32, "job, chosen by the controller; a new membership is a new job"),
        Field("worker", 8, "contribution: who sends; result: who it is for"),
        Field("reserved", 8, "zero; ignored"),
        Field("slot", 16, "slot within the job's range"),
        Field(
            "round",
            32,
            "round of this slot, from 1, serial arithmetic (RFC 1982); its parity picks the version",
        ),
        Field("included", 32, "result: bit w set when worker w's lanes are in the sums; contribution: zero"),
    ),
)

COLUMN: Final = Header(
    "column",
    "one fused column: the block this round is about, and the look-ahead (OmniReduce)",
    (
        Field("block", 32, "index of the block requested in this round, NO_BLOCK when the column is done"),
        Field("next", 32, "contribution: sender's next non-zero block; result: the minimum, requested next"),
    ),
)

HEADERS: Final = (WEIR, COLUMN)


def columns(block_log2: int) -> int:
    """Number of columns fused in one packet at this block size."""
    return SLOT_LANES >> block_log2
