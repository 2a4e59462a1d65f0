# SPDX-License-Identifier: Apache-2.0
"""Definition of Weir's packets: constants, header layouts, packet types and switch events.

Everything else that needs one of these facts is generated from this module (``python -m
weir.wire.generate``): the P4 headers (``p4src/shared/wire.p4``), the C header
(``host_agent/transport/csrc/wire.h``) and the Wireshark dissector (``wire/weir.lua``). Python code imports
it; the scapy layer is built from it at import.

A slot packet is IPv4/UDP to or from ``UDP_PORT``. Its payload is::

    weir (28 bytes) | column x C (8 bytes each) | lane group x G (128 bytes each)

where C = ``SLOT_LANES`` >> ``block_log2`` columns travel fused in one packet and G is the number of bits
set in ``groups``. A wide packet (``WIDE_BLOCK_LOG2``) has one column and either no group or all of them, each
of ``WIDE_LANES`` / 8 lanes. A flow packet (parameter-server path) is IPv4/UDP to ``FLOW_PORT``::

    flow (24 bytes) | data

A packet of weights (docs/guides/weights.md) is IPv4/UDP from or to ``WEIGHTS_PORT``::

    weights (28 bytes) | data

Every number is big-endian.
"""

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

VERSION: Final = 3
UDP_PORT: Final = 9347  # "WEIR" on a telephone keypad
FLOW_PORT: Final = 9348
WEIGHTS_PORT: Final = 9349
WEIGHTS_DATA: Final = 1088  # bytes of weights in a packet; the last two of a message may have fewer
KEY_BYTES: Final = 16  # of a job's key, with which the check of its packets is made

GROUP_LANES: Final = 32  # lanes in one group: the unit of presence in a packet
GROUPS: Final = 8  # groups in a slot
SLOT_LANES: Final = GROUP_LANES * GROUPS
MIN_BLOCK_LOG2: Final = 5
MAX_BLOCK_LOG2: Final = 8
BLOCK_SIZES: Final = tuple(1 << log2 for log2 in range(MIN_BLOCK_LOG2, MAX_BLOCK_LOG2 + 1))
MAX_COLUMNS: Final = SLOT_LANES >> MIN_BLOCK_LOG2
WIDE_BLOCK_LOG2: Final = 10  # of the one block of a wide packet, for switches and ways that take such
WIDE_LANES: Final = 1 << WIDE_BLOCK_LOG2
MAX_CHILDREN: Final = 32  # of one aggregation point: workers of a leaf, leaves of a pod, pods of a core
TIERS: Final = 3  # that sum, at most
MAX_WORKERS: Final = MAX_CHILDREN**TIERS
FLOW_WORKERS: Final = 256  # that flows tell apart
NO_BLOCK: Final = 0xFFFFFFFF  # "no further block" in a column's next pointer; "no block" in its index
PATH_BITS: Final = 5  # of a worker's path for each tier: its number at its leaf, the leaf's at its spine, ...
WHOLE_PATH: Final = 0x7FFF  # a path has at most three such numbers, the worker's lowest
AUDIENCE_EXCEPT: Final = 0x8000  # with a path: every worker but this one gets the lanes of a result
AUDIENCE_ALL: Final = 0xFFFF  # every worker

LAYER_CLASSES: Final = 4  # 0: the front layers, which the next forward pass needs first
MAGNITUDE_CLASSES: Final = 3  # 0: blocks of the smallest mean |g| of their tensor
RELIABLE_DSCP: Final = 56  # CS7: packets without lanes or data, and what is sent again
BEST_EFFORT_DSCP: Final = 0  # everything that is not Weir's
NOT_ECT: Final = 0  # ECN of packets that may be trimmed
ECT: Final = 2  # ECN of protected packets: marked, not trimmed (RFC 3168's ECT(0))
CE: Final = 3  # congestion experienced
SPINE_CLASSES: Final = 16  # a rack sends slot s to the spine of class s mod SPINE_CLASSES


class PacketType(IntEnum):
    """Type of a packet: of a worker's, or of the switch's answers."""

    CONTRIBUTION = 1
    RESULT = 2
    REPEAT = 3


class FlowType(IntEnum):
    """Type of a flow packet: chunk and probe come from a tensor's sender, bitmap and stop from its receiver.

    The sender confirms a stop with a stop.
    """

    CHUNK = 1
    PROBE = 2
    BITMAP = 3
    STOP = 4


class WeightsType(IntEnum):
    """Type of a packet of weights: data and state come from the publisher, questions from subscribers."""

    DATA = 1
    STATE = 2
    ASK = 3


class Flag(IntFlag):
    """Flags: what happened, or may happen, to a packet on its way. The other two bits must be zero.

    PROTECTED: the sender gives up nothing; without its lanes (or data) the packet does not count.
    TRIMMED: a switch cut off the lanes (or data).
    CONGESTED: in what a switch or receiver sends: some packet that it is made of had met congestion (CE).
    ANSWER: sent because a switch asked (REPEAT), or early, on suspicion: no switch asks others because of it.
    DISAGREE: in what a switch sends: the round's packets are of different operations; its lanes mean nothing.
    ELSEWHERE: of a result: its lanes went to its audience, which is elsewhere.
    """

    PROTECTED = 1
    TRIMMED = 2
    CONGESTED = 4
    ANSWER = 8
    DISAGREE = 16
    ELSEWHERE = 32


class Op(IntEnum):
    """Operator that combines lanes. All are over unsigned 32-bit lanes with identity 0.

    ADD wraps modulo 2^32 (so it also sums two's complement numbers). That 0 is the identity of all three
    is what makes "skip a zero block" right for each of them.
    """

    ADD = 1
    MAX = 2
    OR = 3


class Event(IntEnum):
    """Decision of the switch about a packet: the index of its counter. One is counted at every branch."""

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
    PARTIAL_SENT = 16
    PARTIAL_REPEATED = 17
    RESULT_STORED = 18
    RESULT_RELAYED = 19
    RESULT_REPEATED = 20
    REPEAT_ASKED = 21
    DROP_SIMULATED = 22
    DROP_CONGESTION = 23
    DROP_NO_PATH = 24
    DISAGREEMENT = 25
    DROP_FORGED_SOURCE = 26
    DROP_WRONG_SENDER = 27
    DROP_FAR_ROUND = 28
    ROUND_SHED = 29
    DROP_NOT_PUBLISHER = 30


V1MODEL_EVENTS: Final = (
    Event.DROP_FORGED_SOURCE,
    Event.DROP_WRONG_SENDER,
    Event.DROP_FAR_ROUND,
    Event.ROUND_SHED,
    Event.DROP_NOT_PUBLISHER,
)
"""The last ones: decisions that ``weir_v1model`` alone makes (docs/internals/tofino.md)."""

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
    Event.PARTIAL_SENT: "contribution that completed its rack's round; partial sums sent to the spine",
    Event.PARTIAL_REPEATED: "repetition while the spine's result is missing: sums, or a question, sent up",
    Event.RESULT_STORED: "result from the spine: stored, and multicast to the rack",
    Event.RESULT_RELAYED: "result that one rack still had: multicast to the other racks",
    Event.RESULT_REPEATED: "result that the rack still had: sent to the spine that asked",
    Event.REPEAT_ASKED: "lanes missing that nobody gave up: their sender, or other racks, asked to repeat",
    Event.DROP_SIMULATED: "dropped on purpose by the drop simulator",
    Event.DROP_CONGESTION: "queue deeper than the class's limit, and nothing to trim",
    Event.DROP_NO_PATH: "spray group without paths",
    Event.DISAGREEMENT: "contribution to another operation than the round's first: the result tells all",
    Event.DROP_FORGED_SOURCE: "source MAC, IPv4 or ARP address that is not of a host on that port",
    Event.DROP_WRONG_SENDER: "contribution or result from another IPv4 address or UDP port than its sender's",
    Event.DROP_FAR_ROUND: "round more than one ahead of its slot's that no second sender is in",
    Event.ROUND_SHED: "round complete, and its sums cut for all: all gave them up, and a queue was deep",
    Event.DROP_NOT_PUBLISHER: "packet to a publication's subscribers by another port than its publisher's",
}


class Treatment(IntEnum):
    """Treatment of a packet by a queue: counted at TREATMENT << 3 | queue in ``per_hop_behaviours``."""

    QUEUED = 0
    TRIMMED = 1
    MARKED = 2
    DROPPED = 3


class SprayMode(IntEnum):
    """Choice of Weir's packets among equal-cost paths. All other traffic keeps to its flow's path (HASH)."""

    HASH = 0
    ROUND_ROBIN = 1
    RANDOM = 2
    LEAST_LOADED = 3


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
        Field("flags", 8, "Flag"),
        Field("op", 4, "Op"),
        Field("block_log2", 4, "log2 of the block size in lanes, 5 to 8"),
        Field("groups", 8, "bit g set: lanes 32g to 32g+31 of the slot are in this packet"),
        Field("job", 32, "job, chosen by the controller; a new membership is a new job"),
        Field("worker", 8, "contribution: number of the child that sends it; result: of that which gets it"),
        Field("layer", 4, "layer class, below LAYER_CLASSES"),
        Field("magnitude", 4, "magnitude class, below MAGNITUDE_CLASSES: its blocks' greatest"),
        Field("slot", 16, "slot within the job's range"),
        Field(
            "round",
            32,
            "round of this slot, from 1, serial arithmetic (RFC 1982); its parity picks the version",
        ),
        Field(
            "included",
            32,
            "in a switch's: bit c set when lanes of its child c are in the sums; else zero",
        ),
        Field(
            "audience",
            16,
            "who gets the lanes of the result: a worker's path, AUDIENCE_EXCEPT and a path, or AUDIENCE_ALL",
        ),
        Field("count", 16, "workers whose lanes are in this packet's: 0 or 1 in a worker's"),
        Field("check", 32, "fingerprint of the operation: all packets of a round must have the same"),
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

FLOW: Final = Header(
    "flow",
    "what every flow packet starts with: bounded-loss transfer of tensors (docs/internals/flows.md)",
    (
        Field("version", 4, "VERSION"),
        Field("type", 4, "FlowType"),
        Field("flags", 8, "Flag"),
        Field("layer", 4, "layer class, below LAYER_CLASSES"),
        Field("magnitude", 4, "magnitude class, below MAGNITUDE_CLASSES"),
        Field("worker", 8, "the worker this flow is of, whoever sends"),
        Field("flow", 32, "flow id, chosen by who opens it"),
        Field("tensor", 32, "number of the tensor within the flow, from 1"),
        Field(
            "index",
            32,
            "chunk: its index; probe: its number, from 1; bitmap, stop: the probe answered, or zero",
        ),
        Field("count", 32, "chunks of the tensor"),
        Field(
            "first",
            32,
            "chunk: its account; probe: first chunk asked about; bitmap, stop: chunk of the first bit",
        ),
    ),
)

WEIGHTS: Final = Header(
    "weights",
    "what every packet of published weights starts with (docs/guides/weights.md)",
    (
        Field("version", 4, "VERSION"),
        Field("type", 4, "WeightsType"),
        Field("snapshot", 8, "1: of the whole weights of a version; 0: of the update that makes the version"),
        Field("size", 16, "bytes of data that follow"),
        Field("job", 32, "job of the publisher"),
        Field("number", 32, "version of the weights; state: the newest; question: 0 asks for the state"),
        Field(
            "index", 32, "data: the packet's; state: oldest update kept; question: packet of the first bit"
        ),
        Field("count", 32, "data, state: packets of the message; question: the version that the asker has"),
        Field("check", 64, "SipHash-2-4, by the job's key, of the fields before, four zeros and the data"),
    ),
)

HEADERS: Final = (WEIR, COLUMN, FLOW)
"""Those that switches read."""


def dscp(layer: int, magnitude: int = MAGNITUDE_CLASSES - 1) -> int:
    """Return the DSCP of a layer and a magnitude class: Assured Forwarding, AFxy (RFC 2597).

    x is 4 for the front layers down to 1 for the back ones; y, the drop precedence, 3 for the smallest
    magnitudes, which a congested network drops first, down to 1 for the largest. What may not be lost travels
    with y = 1 whatever its magnitude. Raises ValueError for a class that there is not.
    """
    if not 0 <= layer < LAYER_CLASSES:
        raise ValueError(f"layer class {layer} is not in 0..{LAYER_CLASSES - 1}")
    if not 0 <= magnitude < MAGNITUDE_CLASSES:
        raise ValueError(f"magnitude class {magnitude} is not in 0..{MAGNITUDE_CLASSES - 1}")
    return 8 * (LAYER_CLASSES - layer) + 2 * (MAGNITUDE_CLASSES - magnitude)


def path(*numbers: int) -> int:
    """Return a worker's path: its number at its leaf, its leaf's at its spine, its pod's at its core."""
    return sum(number << PATH_BITS * tier for tier, number in enumerate(numbers))


def columns(block_log2: int) -> int:
    """Return the number of columns fused in one packet at this block size."""
    return 1 if block_log2 == WIDE_BLOCK_LOG2 else SLOT_LANES >> block_log2


def group_lanes(block_log2: int) -> int:
    """Return the number of lanes in each group of a packet at this block size."""
    return WIDE_LANES // GROUPS if block_log2 == WIDE_BLOCK_LOG2 else GROUP_LANES


def is_block_size(block_log2: int) -> bool:
    """Return whether packets of this block size are defined."""
    return MIN_BLOCK_LOG2 <= block_log2 <= MAX_BLOCK_LOG2 or block_log2 == WIDE_BLOCK_LOG2
