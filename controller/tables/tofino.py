# SPDX-License-Identifier: Apache-2.0
"""The tables that a Tofino has beside those that are like ``weir_v1model``'s: its program's own, and the
chip's, whose names begin with a dollar.
"""

from collections.abc import Iterator
from typing import Final

from weir.controller.entries import Param, TableEntry, Ternary
from weir.controller.tables import admission, aggregator, arp, forwarding, results, tree
from weir.wire.definition import GROUP_LANES, Op

CELLS: Final = "WeirIngress.slots.rounds"
"""The register of rounds, which says how many cells there are."""
STAMPS: Final = ("WeirIngress.slots.seen", CELLS, "WeirIngress.slots.checks", "WeirIngress.slots.names")
"""The registers that compare rounds. All others start again when these do."""

RANGES: Final = "WeirIngress.admission.ranges"
PLACE: Final = "WeirIngress.admission.place"
AUDIENCES: Final = "WeirIngress.audience.audiences"
EVERYBODY: Final = "WeirIngress.audience.everybody"
NOBODY: Final = "WeirIngress.audience.nobody"
CHILD: Final = "WeirIngress.audience.child"
UPLINK_ADDRESSES: Final = "WeirEgress.results.uplink_addresses"
ADDRESS: Final = "WeirEgress.results.address"
CLASSES: Final = "WeirIngress.queueing.traffic_classes"
CLASSIFY: Final = "WeirIngress.queueing.classify"
MARKS: Final = "WeirEgress.marking.marks"
LIMIT: Final = "WeirEgress.marking.limit"

MIRRORS: Final = "$mirror.cfg"
PORTS: Final = "$PORT"
LEFT: Final = (PORTS,)
"""The tables whose entries stay when nobody wants them: other ports of the chip are somebody else's."""

TABLES: Final = (
    aggregator.ADDRESSES,
    RANGES,
    AUDIENCES,
    tree.UPLINKS,
    UPLINK_ADDRESSES,
    results.RECEIVERS,
    arp.ADDRESSES,
    forwarding.L2,
    CLASSES,
    MARKS,
    MIRRORS,
    PORTS,
    *admission.GATES,
)

_FIRST_SESSION: Final = 512  # that of port 0; smaller numbers are left to others
_TOP_QUEUE: Final = 7
_HEADERS: Final = 14 + 64  # bytes of a result without lanes, Ethernet included
_BRIDGE: Final = 8  # bytes before it in a mirrored copy
_LANES: Final = {"10G": 1, "25G": 1, "40G": 4, "50G": 2, "100G": 4}  # of a port, by its speed
_FEC: Final = {"none": "NONE", "firecode": "FIRECODE", "reed-solomon": "REED_SOLOMON"}
_AUTONEG: Final = {"default": "DEFAULT", "enabled": "FORCE_ENABLE", "disabled": "FORCE_DISABLE"}

OWN_FIELDS: Final = {
    MIRRORS: (
        "$session_enable",
        "$direction",
        "$ucast_egress_port",
        "$ucast_egress_port_valid",
        "$egress_port_queue",
        "$max_pkt_len",
    ),
    PORTS: ("$SPEED", "$FEC", "$N_LANES", "$AUTO_NEGOTIATION", "$PORT_ENABLE"),
}
"""What Weir sets of the chip's own tables; the rest stays as it is."""


def place(job_id: int, base: int, count: int, lanes: int) -> Iterator[TableEntry]:
    """Give a job ``count`` slots, a power of two, from ``base`` on, a multiple of it; results of ADD have
    ``lanes``, 32 or 64, all others 32.
    """
    if count & (count - 1) or base % count:
        raise ValueError(f"{count} slots from {base} are no power of two at a multiple of it")
    slots = (("job", job_id_match(job_id)), ("slot", Ternary(0, 0xFFFF & ~(count - 1))))
    lower = (*slots, ("op", Ternary(0, 0)), ("upper", Ternary(0, 1)))
    yield TableEntry(RANGES, lower, PLACE, (("base", base), ("groups", 0b1)), 1)
    if lanes > GROUP_LANES:
        both = (*slots, ("op", Ternary(int(Op.ADD), 0xF)), ("upper", Ternary(0, 0)))
        yield TableEntry(RANGES, both, PLACE, (("base", base), ("groups", 0b11)), 2)


def cells(entry: TableEntry, total: int) -> tuple[int, ...]:
    """Return the cells, of ``total``, that an entry of RANGES gives away: two of each slot, half apart."""
    slots = dict(entry.match)["slot"]
    base = int(dict(entry.params)["base"])
    assert isinstance(slots, Ternary)
    count = (~slots.mask & 0xFFFF) + 1
    return tuple(half + slot for half in (0, total // 2) for slot in range(base, base + count))


def job_id_match(job_id: int) -> Ternary:
    """Return what matches this job only."""
    return Ternary(job_id, 0xFFFFFFFF)


def mirror(port: int) -> TableEntry:
    """Let egress send what it mirrors for ``port`` there, without the lanes."""
    settings: tuple[Param, ...] = (1, "EGRESS", port, 1, _TOP_QUEUE, _BRIDGE + _HEADERS)
    fields: tuple[tuple[str, Param], ...] = tuple(zip(OWN_FIELDS[MIRRORS], settings, strict=True))
    return TableEntry(MIRRORS, (("$sid", _FIRST_SESSION + port),), "$normal", fields)


def port_settings(port: int, speed: str, fec: str, autoneg: str) -> TableEntry:
    """Set up a port, and switch it on."""
    settings: tuple[Param, ...] = (
        f"BF_SPEED_{speed}",
        f"BF_FEC_TYP_{_FEC[fec]}",
        _LANES[speed],
        f"PM_AN_{_AUTONEG[autoneg]}",
        1,
    )
    fields: tuple[tuple[str, Param], ...] = tuple(zip(OWN_FIELDS[PORTS], settings, strict=True))
    return TableEntry(PORTS, (("$DEV_PORT", port),), "", fields)


def is_ours(entry: TableEntry) -> bool:
    """Return whether an entry read from a switch is Weir's business: not somebody else's mirror."""
    session = dict(entry.match).get("$sid", _FIRST_SESSION)
    return isinstance(session, int) and session >= _FIRST_SESSION
