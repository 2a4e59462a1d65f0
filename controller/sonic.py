# SPDX-License-Identifier: Apache-2.0
"""A SONiC switch's configuration in which ports have queues for a topology's classes.

SONiC merges what it loads into what it has, so a part of a configuration cannot take lossless queues away.
Input and output are therefore whole: the ``config_db.json`` of the switch, and the one to load in its place.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weir.controller.commodity import PACKET, ROOM, Band, bands
from weir.controller.qos import NEVER, Qos
from weir.wire.definition import BEST_EFFORT_DSCP, RELIABLE_DSCP

Config = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Tables of rows of fields."""

_QUEUES: Final = 8  # of a port, for packets with one receiver
_NETWORK_CONTROL: Final = 48  # CS6: BGP between switches, for which SONiC's templates have a queue, too
_CODE_POINTS: Final = 64
_COLOURS: Final = ("green", "yellow", "red")
_STRANGERS: Final = 4  # one part of the rate for all other traffic, this many for the classes in between
_NAME: Final = "WEIR"


@dataclass(frozen=True)
class _Lossy:
    """Buffers of a port's other traffic as they are: the profile of its queue, the profile's pool and
    reserve.
    """

    profile: str
    pool: str
    size: str


def sonic(qos: Qos, ports: Sequence[str], config: Config) -> dict[str, dict[str, Any]]:
    """Return the switch's configuration with the classes' queues on these ports.

    Nothing on them is lossless any more. Other ports, and all other tables, stay as they are.

    Raises:
        ValueError: a port that the switch does not have, or whose buffers are not set; ports that share no
            buffer pool; classes that need more queues than a port has.
    """
    found = {_QUEUES - 1 - place: band for place, band in enumerate(bands(qos, _QUEUES))}
    made: dict[str, dict[str, Any]] = copy.deepcopy({name: dict(rows) for name, rows in config.items()})
    lossy = {port: _lossy(made, port) for port in ports}
    if len({one.pool for one in lossy.values()}) > 1:
        pools = ", ".join(f"{port} {one.pool}" for port, one in lossy.items())
        raise ValueError(
            f"the ports' queues are of different buffer pools ({pools}): configure one at a time"
        )
    for table, rows in _shared(found, lossy[ports[0]]).items():
        made[table] = {**made.get(table, {}), **rows}
    for port in ports:
        _set_port(made, port, found, lossy[port])
    return {table: rows for table, rows in made.items() if rows}


def _shared(found: Mapping[int, Band], lossy: _Lossy) -> dict[str, dict[str, Any]]:
    """Return the rows that all ports name."""
    numbers = [str(number) for number in range(_QUEUES)]
    in_queue = {code: number for number, band in found.items() for code in band.codes}
    rest = in_queue[BEST_EFFORT_DSCP]
    in_queue.setdefault(_NETWORK_CONTROL, in_queue[RELIABLE_DSCP])
    traffic = {str(code): str(in_queue.get(code, rest)) for code in range(_CODE_POINTS)}
    return {
        "DSCP_TO_TC_MAP": {_NAME: traffic},
        "TC_TO_QUEUE_MAP": {_NAME: dict(zip(numbers, numbers, strict=True))},
        "TC_TO_PRIORITY_GROUP_MAP": {_NAME: dict.fromkeys(numbers, "0")},
        "SCHEDULER": {_row(number): schedule for number, schedule in _schedules(found)},
        "WRED_PROFILE": {_row(number): _wred(band) for number, band in found.items() if _marks(band)},
        "BUFFER_PROFILE": {
            _row(number): {"pool": lossy.pool, "size": lossy.size, "static_th": str(_most(band) * PACKET)}
            for number, band in found.items()
            if _bounded(band)
        },
    }


def _row(number: int) -> str:
    return f"{_NAME}_{number}"


def _schedules(found: Mapping[int, Band]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each queue's scheduler: the reliable class first, the others by weights.

    A class has twice the weight of the one behind it, and other traffic has its part of the rate.
    """
    between = [
        number
        for number, band in sorted(found.items())
        if not {RELIABLE_DSCP, BEST_EFFORT_DSCP} & set(band.codes)
    ]
    weights = {number: 1 << place for place, number in enumerate(between)}
    rest = max(1, sum(weights.values()) // _STRANGERS)
    for number, band in found.items():
        if RELIABLE_DSCP in band.codes:
            yield number, {"type": "STRICT"}
        else:
            yield number, {"type": "DWRR", "weight": str(weights.get(number, rest))}


def _marks(band: Band) -> bool:
    return band.protected and band.mark_at <= band.limit < NEVER


def _wred(band: Band) -> dict[str, str]:
    """Return the profile of a queue in which protected packets wait among others.

    SONiC has one pair of thresholds for marks and early drops. Both begin at ``mark_at`` and are certain at
    ``limit``. A chip may colour packets by drop precedence, so that all colours have the same.
    """
    made = {"ecn": "ecn_all"}
    for colour in _COLOURS:
        made |= {
            f"wred_{colour}_enable": "true",
            f"{colour}_min_threshold": str(band.mark_at * PACKET),
            f"{colour}_max_threshold": str(band.limit * PACKET),
            f"{colour}_drop_probability": "100",
        }
    return made


def _bounded(band: Band) -> bool:
    """Return whether a queue has a buffer profile of its own: all but that of other traffic."""
    return band.limit < NEVER or BEST_EFFORT_DSCP not in band.codes


def _most(band: Band) -> int:
    """Return how many packets wait in a queue at most: where nothing is protected, the class's threshold."""
    return band.limit if band.limit < NEVER and not band.protected else ROOM


def _lossy(config: Config, port: str) -> _Lossy:
    """Return what the port's queue 0 has, which is lossy in every template of SONiC's."""
    if port not in config.get("PORT", {}):
        raise ValueError(f"{port}: the configuration has no such PORT")
    row = dict(_rows_of(config.get("BUFFER_QUEUE", {}), port)).get(0)
    name = row["profile"] if row else ""
    profile = config.get("BUFFER_PROFILE", {}).get(name)
    if profile is None or profile["pool"] not in config.get("BUFFER_POOL", {}):
        raise ValueError(
            f"{port}: BUFFER_QUEUE, BUFFER_PROFILE and BUFFER_POOL do not say which buffer queue 0 has; "
            "`config qos reload` writes the switch's own, `config save` saves them"
        )
    return _Lossy(name, profile["pool"], profile["size"])


def _rows_of(table: Mapping[str, Any], port: str) -> Iterator[tuple[int, Any]]:
    """Yield a port's rows one by one: the key ``Ethernet0|3-4`` stands for two."""
    for key, row in table.items():
        name, _, numbers = key.partition("|")
        if name == port:
            first, _, last = numbers.partition("-")
            yield from ((number, row) for number in range(int(first), int(last or first) + 1))


def _set_port(made: dict[str, dict[str, Any]], port: str, found: Mapping[int, Band], lossy: _Lossy) -> None:
    """Give one port its queues, and take what was lossless from it."""
    own = made.setdefault("PORT_QOS_MAP", {})
    shaped = {key: value for key, value in own.get(port, {}).items() if key == "scheduler"}
    own[port] = {
        **shaped,
        "dscp_to_tc_map": _NAME,
        "tc_to_queue_map": _NAME,
        "tc_to_pg_map": _NAME,
        "pfc_enable": "",
        "pfcwd_sw_enable": "",
    }
    made.get("PFC_WD", {}).pop(port, None)
    queues, buffers = {}, {}
    for number in range(_QUEUES):
        band = found.get(number)
        buffers[number] = {"profile": _row(number) if band and _bounded(band) else lossy.profile}
        if band is not None:
            queues[number] = {"scheduler": _row(number)}
            if _marks(band):
                queues[number]["wred_profile"] = _row(number)
    _replace(made, "QUEUE", port, queues, beyond=_QUEUES)
    _replace(made, "BUFFER_QUEUE", port, buffers, beyond=_QUEUES)
    groups = dict(_rows_of(made.get("BUFFER_PG", {}), port))
    _replace(made, "BUFFER_PG", port, {0: groups[0]} if 0 in groups else {}, beyond=_QUEUES)


def _replace(
    made: dict[str, dict[str, Any]], table: str, port: str, rows: Mapping[int, Any], *, beyond: int
) -> None:
    """Put a port's rows in the place of those it has; what it has from number ``beyond`` on stays."""
    before = made.get(table, {})
    kept = {number: row for number, row in _rows_of(before, port) if number >= beyond}
    others = {key: row for key, row in before.items() if key.partition("|")[0] != port}
    made[table] = others | {f"{port}|{number}": row for number, row in sorted({**rows, **kept}.items())}
