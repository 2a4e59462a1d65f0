# SPDX-License-Identifier: Apache-2.0
"""The soft switch beside BMv2 and hand-written C: packets, tables, starts, P4Runtime."""

from typing import Final

from weir.bench.case import Case

CASES: Final = (
    Case(
        "switch",
        "rate",
        "Packets per second of the soft switch, BMv2 and hand-written C; as root, over veth, too.",
        "minutes; more with root",
        {"workers": "2", "slots": "4", "lanes": "32", "seconds": "0.1"},
        repeats=5,
    ),
    Case(
        "switch",
        "threads",
        "Packets per second of one soft switch on several threads, against the same on one.",
        "minutes",
        {"slots": "16", "lanes": "32", "seconds": "0.1", "frames": "10000", "turns": "1"},
        repeats=5,
    ),
    Case(
        "switch",
        "instructions",
        "Instructions that a packet costs the soft switch and hand-written C, by what they are for.",
        "minutes, with valgrind",
        {"lanes": "32", "rounds": "2"},
    ),
    Case(
        "switch",
        "start",
        "Seconds from start to first packet: with an empty cache, again, and with larger programs.",
        "minutes",
        {"sizes": ""},
        repeats=3,
    ),
    Case(
        "switch",
        "tables",
        "Lookups in large tables: a router and an access list beside BMv2's, the time by size, the memory.",
        "minutes",
        {"routes": "40", "rules": "40", "sizes": "1,40", "passes": "1", "frames": "5000"},
        repeats=3,
    ),
    Case(
        "switch",
        "p4runtime",
        "Table entries written and read per second over P4Runtime: the soft switch and BMv2.",
        "a minute",
        {"entries": "50", "batch": "10"},
        repeats=5,
    ),
)
