# SPDX-License-Identifier: Apache-2.0
"""The STF language of p4c's tests, as far as its tests of v1model programs use it.

A file has one statement a line: control-plane commands, ``packet PORT HEX``, and ``expect PORT [HEX]`` where
`*` stands for any digit and a `$` at the end for the end of the packet.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


class StfError(ValueError):
    """The file is not STF, or a statement that is not understood; the message has the line."""


@dataclass(frozen=True)
class Packet:
    """A frame goes in."""

    port: int
    frame: bytes


@dataclass(frozen=True)
class Expect:
    """A frame comes out; ``pattern`` None: whatever is in it."""

    port: int
    pattern: str | None


@dataclass(frozen=True)
class Call:
    """An action with its arguments by name, values as written."""

    action: str
    args: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Add:
    """A table entry; key fields by name, values as written. The greatest priority wins."""

    table: str
    priority: int | None
    key: tuple[tuple[str, str], ...]
    call: Call


@dataclass(frozen=True)
class SetDefault:
    """A table's default action."""

    table: str
    call: Call


@dataclass(frozen=True)
class Command:
    """A command of BMv2's own command line (``mc_mgrp_create`` …), with its arguments as numbers."""

    name: str
    args: tuple[int, ...]


Statement = Packet | Expect | Add | SetDefault | Command

# Name of a table, action or key field: `a.b[1].c`, or with quotes around it.
_NAME: Final = r'(?:"[^"]+"|[A-Za-z_$][\w$]*(?:\[\d+\])?(?:\.[A-Za-z_$][\w$]*(?:\[\d+\])?)*)'
_NUMBER: Final = r"[0-9A-Za-z*]+(?:/[0-9A-Za-z]+)?"
_CALL: Final = rf"(?P<action>{_NAME})\s*\((?P<args>[^)]*)\)(?:\s*=\s*\w+)?"
_ADD: Final = re.compile(
    rf"(?P<table>{_NAME})\s+(?:(?P<priority>\d+)\s+)?(?P<key>(?:{_NAME}\s*:\s*{_NUMBER}\s+)+){_CALL}"
)
_SET_DEFAULT: Final = re.compile(rf"(?P<table>{_NAME})\s+{_CALL}")
_FIELD: Final = re.compile(rf"({_NAME})\s*:\s*({_NUMBER})")
_PACKET: Final = re.compile(r"(?P<port>\d+)(?P<data>(?:\s+[0-9A-Fa-f]+)+)")
_EXPECT: Final = re.compile(r"(?P<port>\d+)(?P<data>[\s0-9A-Fa-f*]*\$?)")
_COMMANDS: Final = (
    "mc_mgrp_create",
    "mc_node_create",
    "mc_node_associate",
    "mirroring_add",
    "mirroring_add_mc",
)
# These print what p4c's runner does not look at, or wait for what this harness has waited for already.
_NOTHING: Final = ("wait", "mirroring_get", "register_read", "counter_read", "meter_get_rates")


def parse(text: str) -> Iterator[Statement]:
    """Yield the statements of an STF file in order. Raises StfError."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        keyword, _, rest = words.partition(" ")
        if keyword.lower() not in _NOTHING:
            try:
                yield _statement(keyword.lower(), rest.strip())
            except (StfError, ValueError) as error:
                raise StfError(f"line {number}: {error}") from error


def _statement(keyword: str, rest: str) -> Statement:
    match keyword:
        case "packet":
            found = _matched(_PACKET, rest)
            return Packet(int(found["port"]), bytes.fromhex("".join(found["data"].split())))
        case "expect":
            found = _matched(_EXPECT, rest)
            return Expect(int(found["port"]), "".join(found["data"].split()).lower() or None)
        case "add":
            found = _matched(_ADD, rest)
            priority = int(found["priority"]) if found["priority"] else None
            return Add(_name(found["table"]), priority, _fields(found["key"]), _call(found))
        case "setdefault":
            found = _matched(_SET_DEFAULT, rest)
            return SetDefault(_name(found["table"]), _call(found))
    if keyword in _COMMANDS:
        return Command(keyword, tuple(int(word, 0) for word in rest.split()))
    raise StfError(f"'{keyword}' is not known")


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise StfError(f"cannot read '{text}'")
    return found


def _call(found: re.Match[str]) -> Call:
    return Call(_name(found["action"]), _fields(found["args"]))


def _fields(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((_name(name), value) for name, value in _FIELD.findall(text))


def _name(text: str) -> str:
    return text.strip('"')
