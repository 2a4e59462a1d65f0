# SPDX-License-Identifier: Apache-2.0
"""The state of a Tofino, from that which says the same to ``weir_v1model``.

So jobs, trees and addresses are decided in one place (:mod:`weir.controller.desired`). What the chip's
program has no table for, routes and spraying, is left out: docs/internals/tofino.md.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from weir.controller.entries import Match, SwitchState, TableEntry, Ternary
from weir.controller.qos import NEVER, WEIR_CLASSES, Enqueue
from weir.controller.tables import (
    admission,
    aggregator,
    arp,
    forwarding,
    results,
    tofino,
    tree,
)
from weir.controller.wiring import AGAIN_PORT, LANE_BYTES, PIPE_PORTS, Switch, Wiring
from weir.wire.definition import (
    AUDIENCE_EXCEPT,
    GROUP_LANES,
    MAX_CHILDREN,
    PATH_BITS,
    WHOLE_PATH,
    PacketType,
    path,
)

_TO_WORKER, _TO_OTHERS, _TO_RACK, _TO_POD = 2, 3, 4, 5  # LANES_TO_... of p4src/tna/headers.p4
_RED, _YELLOW, _GREEN = 3, 1, 0
_COLOURS: Final = (_RED, _YELLOW, _GREEN)  # by magnitude class, the smallest first
_EIGHTHS: Final = 8
_ADDRESSES: Final = ("src_mac", "src_ip", "dst_mac", "dst_ip")
_CELL: Final = 80  # bytes of the chip's buffer
_HEADERS: Final = 78  # bytes of a packet but for its lanes
_MOST_CELLS: Final = (1 << 19) - 1


@dataclass(frozen=True)
class QueueLimits:
    """One queue of a port, served before all with smaller numbers.

    yellow, red: eighths of what it can hold from which on packets of that colour are dropped; 0: none are.
    """

    port: int
    queue: int
    yellow: int
    red: int


def tofino_queues(wiring: Wiring, switch: Switch) -> tuple[QueueLimits, ...]:
    """Return the limits of all queues that packets are sent to, at the ports that the topology names, and at
    those by which their pipes' packets pass once more, if they do.

    ``trim_at`` is in packets of a queue with 64 places; a chip's queue has that share of its own (our
    choice).
    """
    limits: dict[int, tuple[int, int]] = {}
    for dscp, behaviour in wiring.qos.per_hop_behaviours().items():
        red, yellow = limits.get(behaviour.queue, (0, 0))
        if dscp in WEIR_CLASSES and behaviour.trim_at != NEVER:
            share = max(1, min(_EIGHTHS, -(-behaviour.trim_at // _EIGHTHS)))
            colour = _COLOURS[WEIR_CLASSES[dscp][1]]
            red = share if colour == _RED else red
            yellow = share if colour == _YELLOW else yellow
        limits[behaviour.queue] = red, yellow
    return tuple(
        QueueLimits(port, queue, yellow or red, red or yellow)
        for port in (*_ports(wiring, switch), *_again(wiring, switch))
        for queue, (red, yellow) in sorted(limits.items())
    )


def _ports(wiring: Wiring, switch: Switch) -> list[int]:
    hosts = (host.port for host in wiring.hosts_of(switch.name))
    return sorted({*hosts, *(port for port, _ in wiring.neighbours(switch.name))})


def _again(wiring: Wiring, switch: Switch) -> list[int]:
    """Return the ports for recirculation of the pipes that a switch's ports are of."""
    if not switch.recirculates:
        return []
    return sorted({port - port % PIPE_PORTS + AGAIN_PORT for port in _ports(wiring, switch)})


def tofino_state(wiring: Wiring, switch: Switch, state: SwitchState, lanes: Mapping[int, int]) -> SwitchState:
    """Return what ``switch`` must hold, a Tofino, from what it would hold if it ran ``weir_v1model``.

    lanes: of a packet of ADD, by the id of the job, 32 where it is not.
    """
    entries = {one for entry in state.entries for one in counterparts(entry, _lanes_of(entry, lanes))}
    ports = _ports(wiring, switch)
    entries.update(tofino.mirror(port) for port in ports)
    if (said := switch.ports) is not None:
        entries.update(tofino.port_settings(port, said.speed, said.fec, said.autoneg) for port in ports)
    entries.update(_classes(wiring.qos.per_hop_behaviours(), switch.lanes))
    return SwitchState(frozenset(entries), state.groups)


def _lanes_of(entry: TableEntry, lanes: Mapping[int, int]) -> int:
    job = dict(entry.match).get("job")
    return lanes.get(job, GROUP_LANES) if isinstance(job, int) else GROUP_LANES


def counterparts(entry: TableEntry, lanes: int) -> Iterator[TableEntry]:
    """Yield the entries that say to a Tofino what this one says to ``weir_v1model``.

    lanes: of a packet of ADD, if the entry is a job's.
    """
    match, params = dict(entry.match), {name: int(value) for name, value in entry.params}
    if entry.table == aggregator.ADDRESSES:
        yield TableEntry(entry.table, entry.match, entry.action)
    elif entry.table == arp.ADDRESSES or (
        entry.table == forwarding.L2 and entry.action in (forwarding.FORWARD, forwarding.FLOOD)
    ):
        yield entry
    elif entry.table == admission.WORKERS:
        others = params["all_workers"] & ~params["worker_bit"]
        given = (params["worker_bit"], others, int(not others), params["group"], params["rack"])
        names = ("worker_bit", "others", "alone", "group", "rack")
        yield TableEntry(entry.table, entry.match, entry.action, tuple(zip(names, given, strict=True)))
        yield from _place(match["job"], params, lanes)
    elif entry.table == admission.PARENTS:
        shared = (("own_bit", params["own_bit"]), ("group", params["group"]))
        for kind in (PacketType.RESULT, PacketType.REPEAT):
            yield TableEntry(entry.table, (*entry.match, ("kind", int(kind))), entry.action, shared)
        yield from _place(match["job"], params, lanes)
    elif entry.table == tree.UPLINKS:
        up = (("port", params["port"]), ("number", params["number"]))
        yield TableEntry(entry.table, entry.match, entry.action, up)
        addresses = tuple((name, params[name]) for name in _ADDRESSES)
        yield TableEntry(tofino.UPLINK_ADDRESSES, entry.match, tofino.ADDRESS, addresses)
    elif entry.table == results.RECEIVERS:
        addresses = tuple((name, params[name]) for name in (*_ADDRESSES, "dst_port"))
        yield TableEntry(entry.table, entry.match, entry.action, addresses)
        yield from _audiences(match["job"], params["mask"], params["path"])


def _place(job: Match, params: dict[str, int], lanes: int) -> Iterator[TableEntry]:
    assert isinstance(job, int)
    return tofino.place(job, params["slot_base"], params["slot_count"], lanes)


def _audiences(job: Match, mask: int, way: int) -> Iterator[TableEntry]:
    """Yield who gets lanes, from the path of one of the children; all but its last number are alike."""
    assert isinstance(job, int)
    tier = (mask & -mask).bit_length() // PATH_BITS  # 0: workers
    above = WHOLE_PATH & ~path(*[MAX_CHILDREN - 1] * (tier + 1))
    here = Ternary(way & above, above | AUDIENCE_EXCEPT)
    rows: list[tuple[Ternary, str, int | None]] = [
        (Ternary(0xFFFF, 0xFFFF), tofino.EVERYBODY, None),
        (here, tofino.CHILD, (_TO_WORKER, _TO_RACK, _TO_POD)[tier]),
    ]
    if tier == 0:
        others = Ternary(AUDIENCE_EXCEPT | way & above, above | AUDIENCE_EXCEPT)
        rows.append((others, tofino.CHILD, _TO_OTHERS))
    if above:
        rows.append((Ternary(0, AUDIENCE_EXCEPT), tofino.NOBODY, None))
    for rank, (audience, action, lanes_to) in enumerate(rows):
        key = (("job", tofino.job_id_match(job)), ("audience", audience))
        params = () if lanes_to is None else (("lanes_to", lanes_to),)
        yield TableEntry(tofino.AUDIENCES, key, action, params, priority=len(rows) - rank)


def _classes(behaviours: dict[int, Enqueue], lanes: int) -> Iterator[TableEntry]:
    """Yield queue and colour of each DSCP, and the depth of each queue from which on packets are marked.

    The colour is that of the drop precedence, where packets may be trimmed elsewhere. A queue has one
    depth, the smallest of its classes' (chosen here), in cells of the chip's buffer, for packets of this many
    lanes.
    """
    cells = -(-(_HEADERS + lanes * LANE_BYTES) // _CELL)
    marks: dict[int, int] = {}
    for dscp, behaviour in behaviours.items():
        trimmed = dscp in WEIR_CLASSES and behaviour.trim_at != NEVER
        colour = _COLOURS[WEIR_CLASSES[dscp][1]] if trimmed else _GREEN
        params = (("cos", 0), ("queue", behaviour.queue), ("colour", colour))
        yield TableEntry(tofino.CLASSES, (("dscp", dscp),), tofino.CLASSIFY, params)
        if behaviour.mark_at != NEVER:
            marks[behaviour.queue] = min(marks.get(behaviour.queue, NEVER), behaviour.mark_at)
    for queue, packets in marks.items():
        depth = min(packets * cells, _MOST_CELLS)
        yield TableEntry(tofino.MARKS, (("queue", queue),), tofino.LIMIT, (("depth", depth),))
