# SPDX-License-Identifier: Apache-2.0
"""The rules of SONiC's YANG models for the tables of ``weir controller qos``, and a check of a configuration.

An extract, written down from ``src/sonic-yang-models`` of sonic-net/sonic-buildimage (commit 086b03bd, of
2026-08): keys, fields, types, ranges, references and orders of thresholds in eleven tables. With the models
themselves (``SONIC_YANG_MODELS``), a test compares its verdicts with those of a validator.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Config = Mapping[str, Mapping[str, Mapping[str, Any]]]

NAME: Final = r"[a-zA-Z0-9]{1}([-a-zA-Z0-9_]{0,31})"
DSCP: Final = r"6[0-3]|[1-5][0-9]?|[0-9]?"
QUEUES: Final = r"([0-7](,[0-7])*)?"
COLOURS: Final = ("green", "yellow", "red")


@dataclass(frozen=True)
class Text:
    """A string of a pattern."""

    pattern: str = r".*"

    def problem(self, value: str, _config: Config) -> str:
        return "" if re.fullmatch(self.pattern, value) else f"is not of the form {self.pattern}"


@dataclass(frozen=True)
class Number:
    """An integer of a range."""

    least: int = 0
    most: int = (1 << 64) - 1

    def problem(self, value: str, _config: Config) -> str:
        if not re.fullmatch(r"-?\d+", value):
            return "is no integer"
        return "" if self.least <= int(value) <= self.most else f"is not in {self.least}..{self.most}"


@dataclass(frozen=True)
class Reference:
    """The name of a row of another table, or one of some other words."""

    table: str
    others: tuple[str, ...] = ()

    def problem(self, value: str, config: Config) -> str:
        known = value in self.others or value in config.get(self.table, {})
        return "" if known else f"names no row of {self.table}"


Type = Text | Number | Reference


@dataclass(frozen=True)
class Table:
    """The keys and fields of a table's rows; ``entries``: its fields are a map's, of keys and values.

    ordered: pairs of fields of which the second is not below the first.
    """

    keys: tuple[Type, ...]
    fields: Mapping[str, Type] = field(default_factory=dict)
    mandatory: tuple[str, ...] = ()
    entries: tuple[Type, Type] | None = None
    ordered: tuple[tuple[str, str], ...] = ()


_PORT: Final = Reference("PORT")
_FLAG: Final = Text("true|false")
_CLASS: Final = Number(0, 15)  # tc_type of sonic-types
_MARKS: Final = "none|green|yellow|red|green_yellow|green_red|yellow_red|all"
_THRESHOLDS: Final = tuple((f"{colour}_min_threshold", f"{colour}_max_threshold") for colour in COLOURS)

TABLES: Final[Mapping[str, Table]] = {
    "DSCP_TO_TC_MAP": Table((Text(NAME),), entries=(Text(DSCP), _CLASS)),
    "TC_TO_QUEUE_MAP": Table((Text(NAME),), entries=(_CLASS, Text("[0-9]?"))),
    "TC_TO_PRIORITY_GROUP_MAP": Table((Text(NAME),), entries=(_CLASS, Text("[0-7]?"))),
    "SCHEDULER": Table(
        (Text(),),
        {
            "type": Text("DWRR|WRR|STRICT"),
            "weight": Number(1, 100),
            "priority": Number(0, 9),
            "meter_type": Text("packets|bytes"),
            **{name: Number() for name in ("cir", "pir", "cbs", "pbs")},
        },
        ordered=(("cir", "pir"), ("cbs", "pbs")),
    ),
    "WRED_PROFILE": Table(
        (Text(NAME),),
        {
            "ecn": Text(f"ecn_({_MARKS})"),
            **{f"wred_{colour}_enable": _FLAG for colour in COLOURS},
            **{name: Number() for pair in _THRESHOLDS for name in pair},
            **{f"{colour}_drop_probability": Number(0, 100) for colour in COLOURS},
        },
        ordered=_THRESHOLDS,
    ),
    "BUFFER_POOL": Table(
        (Text(),),
        {
            "type": Text("ingress|egress|both"),
            "mode": Text("static|dynamic"),
            "size": Number(),
            "xoff": Number(),
            "percentage": Number(0, 255),
        },
        mandatory=("type", "mode"),
    ),
    "BUFFER_PROFILE": Table(
        (Text(),),
        {
            "pool": Reference("BUFFER_POOL"),
            "size": Number(),
            "static_th": Number(),
            "dynamic_th": Number(-8, 7),
            **{name: Number() for name in ("xon", "xoff", "xon_offset")},
            "headroom_type": Text("static|dynamic"),
            "packet_discard_action": Text("drop|trim"),
        },
        mandatory=("pool", "size"),
    ),
    "BUFFER_QUEUE": Table(
        (_PORT, Text(r"(1[0-5]|[0-9])(-(1[0-5]|[0-9]))?")), {"profile": Reference("BUFFER_PROFILE")}
    ),
    "BUFFER_PG": Table(
        (_PORT, Text("[0-7](-[0-7])?")), {"profile": Reference("BUFFER_PROFILE", others=("NULL",))}
    ),
    "QUEUE": Table(
        (Reference("PORT", others=("CPU",)), Text()),
        {"scheduler": Reference("SCHEDULER"), "wred_profile": Reference("WRED_PROFILE")},
    ),
    "PORT_QOS_MAP": Table(
        (Reference("PORT", others=("global",)),),
        {
            "dscp_to_tc_map": Reference("DSCP_TO_TC_MAP"),
            "tc_to_queue_map": Reference("TC_TO_QUEUE_MAP"),
            "tc_to_pg_map": Reference("TC_TO_PRIORITY_GROUP_MAP"),
            "pfc_to_queue_map": Reference("MAP_PFC_PRIORITY_TO_QUEUE"),
            "pfc_to_pg_map": Reference("PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"),
            "scheduler": Reference("SCHEDULER"),
            "pfc_enable": Text(QUEUES),
            "pfcwd_sw_enable": Text(QUEUES),
        },
    ),
}


def problems(config: Config, others: frozenset[str]) -> list[str]:
    """Return what is wrong with a configuration; ``others``: tables that are not looked into."""
    return [
        problem
        for name, rows in config.items()
        if name not in others
        for problem in ([f"{name}: no such table"] if name not in TABLES else _in_table(name, rows, config))
    ]


def _in_table(name: str, rows: Mapping[str, Mapping[str, Any]], config: Config) -> Iterator[str]:
    table = TABLES[name]
    for key, row in rows.items():
        at = f"{name}|{key}"
        parts = key.split("|")
        if len(parts) != len(table.keys):
            yield f"{at}: {len(parts)} keys"
            continue
        checks = [("key", kind, part) for kind, part in zip(table.keys, parts, strict=True)]
        for column, value in row.items():
            if table.entries is not None:
                checks += [("key", table.entries[0], column), (column, table.entries[1], value)]
            elif column in table.fields:
                checks.append((column, table.fields[column], value))
            else:
                yield f"{at}: no field {column}"
        for what, kind, value in checks:
            if problem := kind.problem(value, config):
                yield f"{at}: {what} {value!r} {problem}"
        yield from (f"{at}: lacks {column}" for column in table.mandatory if column not in row)
        for low, high in table.ordered:
            if low in row and high in row and int(row[low]) > int(row[high]):
                yield f"{at}: {high} is below {low}"
